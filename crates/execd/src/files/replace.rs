//! `POST /files/replace`.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use http::StatusCode;
use memchr::memmem;
use protocol::execd::files::{ReplaceItem, ReplaceResult};

use super::off_loop;
use super::path::{Asked, Parents, Place, Resolve};
use super::permission::Applied;
use super::stage::Stage;
use crate::environment::Paths;
use crate::error::{ApiError, Result};
use crate::http::{Answer, empty, json};

/// Bytes of a file whose text is replaced: old and new are held in memory.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Replaces every occurrence of a text in each file. All files are read and staged before the first is put
/// in place; mode, owner and line ends stay.
///
/// # Errors
/// 400 for an empty `old` or a path that is no file, 404 for a missing file; nothing is changed then.
pub async fn replace(
    paths: &Paths,
    items: BTreeMap<String, ReplaceItem>,
    verbose: bool,
    resolve: Resolve,
) -> Result<Answer> {
    let expand = |(path, item): (String, ReplaceItem)| {
        if item.old.is_empty() {
            return Err(ApiError::body(format!("{path}: \"old\" is empty; give the text to replace")));
        }
        Ok((Asked::new(paths, &path, resolve)?, item))
    };
    let items = items.into_iter().map(expand).collect::<Result<Vec<_>>>()?;
    let counts = off_loop(move || replace_all(items)).await?;
    Ok(if verbose { json(StatusCode::OK, &counts) } else { empty() })
}

fn replace_all(items: Vec<(Asked, ReplaceItem)>) -> Result<BTreeMap<String, ReplaceResult>> {
    let mut counts = BTreeMap::new();
    let mut staged: Vec<(Place, Stage)> = Vec::new();
    for (asked, item) in items {
        let text = read(&asked)?;
        let place = asked.locate(Parents::Existing)?;
        let (text, replaced_count) = replaced(&text, item.old.as_bytes(), item.new.as_bytes());
        counts.insert(asked.given, ReplaceResult { replaced_count });
        if replaced_count > 0 {
            let failed = |error| place.failed("write", &error);
            let mut stage = Stage::beside(&place).map_err(failed)?;
            stage.file.write_all(&text).map_err(failed)?;
            staged.push((place, stage));
        }
    }
    let total = staged.len();
    for (done, (place, stage)) in staged.into_iter().enumerate() {
        let failed = |error| place.failed("write", &error).context(format!("{done} of {total} files were changed"));
        stage.commit(&place, &Applied::default()).map_err(failed)?;
    }
    Ok(counts)
}

fn read(asked: &Asked) -> Result<Vec<u8>> {
    let place = asked.locate(Parents::Existing)?.pin()?;
    let found = place.stat_if_exists()?.ok_or_else(|| ApiError::not_found(&place.shown))?;
    if !found.is_file() {
        return Err(ApiError::file(format!("{}: is not a regular file", place.shown)));
    }
    let too_large =
        || ApiError::file(format!("{}: larger than {MAX_FILE_BYTES} bytes; use a command such as sed", place.shown));
    if found.len() > MAX_FILE_BYTES {
        return Err(too_large());
    }
    let failed = |error| place.failed("read", &error);
    let mut text = Vec::new();
    std::fs::File::open(&place.path)
        .map_err(failed)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(failed)?;
    if text.len() as u64 > MAX_FILE_BYTES { Err(too_large()) } else { Ok(text) }
}

fn replaced(text: &[u8], old: &[u8], new: &[u8]) -> (Vec<u8>, u64) {
    let mut out = Vec::with_capacity(text.len());
    let (mut start, mut count) = (0, 0);
    for at in memmem::find_iter(text, old) {
        out.extend_from_slice(&text[start..at]);
        out.extend_from_slice(new);
        start = at + old.len();
        count += 1;
    }
    out.extend_from_slice(&text[start..]);
    (out, count)
}
