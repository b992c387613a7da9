//! `POST /files/permissions` and `POST /directories`.

use std::collections::BTreeMap;
use std::fs;

use protocol::execd::files::Permission;

use super::off_loop;
use super::path::{Asked, Parents, Place, Resolve};
use super::permission::Applied;
use crate::environment::Paths;
use crate::error::{ApiError, Result};
use crate::http::{Answer, empty};
use crate::identity::Accounts;

/// Paths and what to set on them; `null` sets nothing.
type Permissions = BTreeMap<String, Option<Permission>>;

fn asked(paths: &Paths, items: Permissions, resolve: Resolve) -> Result<Vec<(Asked, Permission)>> {
    let expand = |(path, permission): (String, Option<Permission>)| {
        Ok((Asked::new(paths, &path, resolve)?, permission.unwrap_or_default()))
    };
    items.into_iter().map(expand).collect()
}

/// Sets owner, group and mode, following links. Nothing is changed unless all items pass the checks.
///
/// # Errors
/// 404 for a missing file, 400 for an unknown name or a malformed mode, each naming the path.
pub async fn permissions(paths: &Paths, items: Permissions, resolve: Resolve) -> Result<Answer> {
    let items = asked(paths, items, resolve)?;
    off_loop(move || {
        let accounts = Accounts::load();
        let mut checked: Vec<(Place, Applied)> = Vec::new();
        for (asked, permission) in &items {
            let place = asked.locate(Parents::Existing)?.pin()?;
            if place.stat_if_exists()?.is_none() {
                return Err(ApiError::not_found(&place.shown));
            }
            checked.push((place, Applied::check(&asked.shown, permission, &accounts)?));
        }
        let total = checked.len();
        for (done, (place, applied)) in checked.iter().enumerate() {
            let failed = |error| {
                place.failed("change the permissions of", &error).context(format!("{done} of {total} were changed"))
            };
            applied.apply(&place.path).map_err(failed)?;
        }
        Ok(empty())
    })
    .await
}

/// Makes directories and their parents; the permission goes to the leaf, and only when it is new.
///
/// # Errors
/// 400 for a path on which something else than a directory lies, or a permission that cannot be read.
pub async fn make_directories(paths: &Paths, items: Permissions, resolve: Resolve) -> Result<Answer> {
    let items = asked(paths, items, resolve)?;
    off_loop(move || {
        let accounts = Accounts::load();
        let mut checked = Vec::new();
        for (asked, permission) in &items {
            checked.push((asked, Applied::check(&asked.shown, permission, &accounts)?));
        }
        let total = checked.len();
        for (done, (asked, applied)) in checked.into_iter().enumerate() {
            make_one(asked, applied).map_err(|error| error.context(format!("{done} of {total} were made")))?;
        }
        Ok(empty())
    })
    .await
}

fn make_one(asked: &Asked, applied: Applied) -> Result<()> {
    let place = asked.locate(Parents::Made)?;
    match place.stat_if_exists()? {
        Some(found) if found.is_dir() => return Ok(()),
        Some(_) => {
            return Err(ApiError::file(format!("{}: exists and is not a directory", place.shown)));
        }
        None => {}
    }
    fs::create_dir(&place.path).map_err(|error| place.failed("make the directory", &error))?;
    applied.apply(&place.path).map_err(|error| place.failed("change the permissions of", &error))
}
