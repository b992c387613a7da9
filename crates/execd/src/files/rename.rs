//! `POST /files/mv`.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::path::Path;

use protocol::execd::files::RenameItem;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::off_loop;
use super::path::{Asked, Parents, Resolve};
use crate::environment::Paths;
use crate::error::{ApiError, Result};
use crate::http::{Answer, empty};

/// Moves each item in turn, across file systems too. The destination's directory is made.
///
/// # Errors
/// 404 for a missing source, 400 for an existing destination; the message tells which item failed and how
/// many were moved before it.
pub async fn rename(paths: &Paths, items: Vec<RenameItem>, resolve: Resolve) -> Result<Answer> {
    let pair =
        |item: &RenameItem| Ok((Asked::new(paths, &item.src, resolve)?, Asked::new(paths, &item.dest, resolve)?));
    let items = items.iter().map(pair).collect::<Result<Vec<_>>>()?;
    if items.is_empty() {
        return Err(ApiError::body("the list of files to move is empty"));
    }
    off_loop(move || {
        let total = items.len();
        for (done, (src, dest)) in items.iter().enumerate() {
            let context =
                || format!("item {} of {total} ({} to {}), {done} moved before it", done + 1, src.shown, dest.shown);
            move_one(src, dest).map_err(|error| error.context(context()))?;
        }
        Ok(empty())
    })
    .await
}

fn move_one(src: &Asked, dest: &Asked) -> Result<()> {
    let from = src.locate(Parents::Existing)?;
    let found = from.lstat()?;
    if found.is_dir() && (dest.shown == src.shown || dest.shown.starts_with(&format!("{}/", src.shown))) {
        return Err(ApiError::file(format!("{}: a directory cannot be moved into itself", src.shown)));
    }
    let to = dest.locate(Parents::Made)?;
    let exists = || ApiError::file(format!("{}: already exists; remove it first", to.shown));
    if fs::symlink_metadata(&to.path).is_ok() {
        return Err(exists());
    }
    match renameat_with(CWD, &from.path, CWD, &to.path, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(exists()),
        // A file system without the flag: the look above has to do.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::rename(&from.path, &to.path).map_err(|error| to.failed("move to", &error))
        }
        Err(Errno::XDEV) => {
            copy_then_remove(&from.path, &to.path).map_err(|error| to.failed("move across file systems to", &error))
        }
        Err(error) => Err(to.failed("move to", &error.into())),
    }
}

/// The source goes only when the copy is complete; a failed copy goes instead.
fn copy_then_remove(from: &Path, to: &Path) -> io::Result<()> {
    let copied = copy(from, to);
    let gone = if copied.is_ok() { from } else { to };
    let removed = match fs::symlink_metadata(gone)?.is_dir() {
        true => fs::remove_dir_all(gone),
        false => fs::remove_file(gone),
    };
    copied.and(removed)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(from)?;
    let kind = found.file_type();
    if kind.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
        return lchown(to, Some(found.uid()), Some(found.gid()));
    }
    if kind.is_dir() {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            copy(&from.join(&name), &to.join(&name))?;
        }
    } else if kind.is_file() {
        fs::copy(from, to)?;
    } else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} is neither file, directory nor link", from.display()),
        ));
    }
    lchown(to, Some(found.uid()), Some(found.gid()))?;
    fs::set_permissions(to, found.permissions())?;
    if kind.is_file() {
        fs::File::options()
            .write(true)
            .open(to)?
            .set_times(fs::FileTimes::new().set_modified(found.modified()?).set_accessed(found.accessed()?))?;
    }
    Ok(())
}
