//! `DELETE /files` and `DELETE /directories`.

use std::fs;
use std::io;

use super::off_loop;
use super::path::{Asked, Parents, Place, Resolve};
use crate::environment::Paths;
use crate::error::{ApiError, Result};
use crate::http::{Answer, Query, empty};

/// Removes files; a missing one is success, a dangling link goes. Nothing is removed if one is a directory.
///
/// # Errors
/// 400 for a directory or a link to one, naming it.
pub async fn remove(paths: &Paths, query: Query, resolve: Resolve) -> Result<Answer> {
    query.require("path")?;
    let asked = Asked::all(paths, query.all("path"), resolve)?;
    off_loop(move || {
        let mut places = Vec::new();
        for asked in &asked {
            let Some(place) = locate_if_exists(asked)? else {
                continue;
            };
            if place.stat_if_exists()?.is_some_and(|found| found.is_dir()) {
                let message = format!("{}: is a directory; remove it by DELETE /directories", place.shown);
                return Err(ApiError::file(message));
            }
            places.push(place);
        }
        remove_each(&places, |place| fs::remove_file(&place.path))
    })
    .await
}

/// Removes directories with all they hold; files go too, a missing path is success, links are not followed.
///
/// # Errors
/// 400 for `/`, 4xx or 500 with the system's words.
pub async fn remove_directories(paths: &Paths, query: Query, resolve: Resolve) -> Result<Answer> {
    query.require("path")?;
    let asked = Asked::all(paths, query.all("path"), resolve)?;
    off_loop(move || {
        let mut places = Vec::new();
        for asked in &asked {
            if asked.shown == "/" {
                return Err(ApiError::file("/: the root of the sandbox cannot be removed; delete the sandbox"));
            }
            places.extend(locate_if_exists(asked)?);
        }
        remove_each(&places, |place| match fs::symlink_metadata(&place.path)?.is_dir() {
            true => fs::remove_dir_all(&place.path),
            false => fs::remove_file(&place.path),
        })
    })
    .await
}

/// A path whose directory is missing is as good as removed.
fn locate_if_exists(asked: &Asked) -> Result<Option<Place>> {
    match asked.locate(Parents::Existing) {
        Ok(place) => Ok(Some(place)),
        Err(error) if error.status == http::StatusCode::NOT_FOUND => Ok(None),
        Err(error) => Err(error),
    }
}

fn remove_each(places: &[Place], remove: impl Fn(&Place) -> io::Result<()>) -> Result<Answer> {
    let total = places.len();
    for (done, place) in places.iter().enumerate() {
        match remove(place) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(place.failed("remove", &error).context(format!("{done} of {total} were removed")));
            }
        }
    }
    Ok(empty())
}
