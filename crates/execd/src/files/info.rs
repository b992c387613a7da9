//! `GET /files/info`, and the description of one file that other calls use.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use http::StatusCode;
use protocol::execd::files::FileInfo;

use super::off_loop;
use super::path::{Asked, Parents, Resolve};
use super::permission::decimal_mode;
use crate::clock;
use crate::environment::Paths;
use crate::error::Result;
use crate::http::{Answer, Query, json};
use crate::identity::Accounts;

/// Describes each path, not following links, under the name the client gave it.
///
/// # Errors
/// 404 for the whole call when one is missing.
pub async fn info(paths: &Paths, query: Query, resolve: Resolve) -> Result<Answer> {
    let asked = Asked::all(paths, query.all("path"), resolve)?;
    let found = off_loop(move || {
        let accounts = Accounts::load();
        let describe_one = |asked: Asked| {
            let found = asked.locate(Parents::Existing)?.lstat()?;
            Ok((asked.given, describe(asked.shown, &found, &accounts)))
        };
        asked.into_iter().map(describe_one).collect::<Result<BTreeMap<String, FileInfo>>>()
    });
    Ok(json(StatusCode::OK, &found.await?))
}

/// The wire form of what lies at `path`.
pub fn describe(path: String, found: &Metadata, accounts: &Accounts) -> FileInfo {
    let kind = match found.file_type() {
        kind if kind.is_file() => "file",
        kind if kind.is_dir() => "directory",
        kind if kind.is_symlink() => "symlink",
        _ => "other",
    };
    FileInfo {
        path,
        kind: Some(kind.to_owned()),
        size: found.size() as i64,
        modified_at: clock::rfc3339(found.mtime(), found.mtime_nsec() as u32),
        created_at: clock::rfc3339(found.ctime(), found.ctime_nsec() as u32),
        owner: accounts.user_name(found.uid()),
        group: accounts.group_name(found.gid()),
        mode: decimal_mode(found.mode()),
    }
}
