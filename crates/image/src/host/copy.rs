//! Copies from the machine: public files only, within bounds.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Item, Plan};
use crate::Error;

/// Largest file that is copied, in bytes. The largest that is wanted, a bundle of certificates, has a quarter of a megabyte.
pub(super) const MAX_FILE_BYTES: u64 = 16 << 20;
/// Most things that one entry of the allow-list brings.
const MAX_ITEMS: usize = 4096;
/// Directories below an entry of the allow-list.
const MAX_DEPTH: usize = 8;

/// Adds a file, link or directory tree of the machine, as far as everybody may read it.
///
/// What is missing, private, somebody else's, odd or too big is left out: the allow-list is a list of wishes.
pub(super) fn tree(machine: &Path, path: &Path, wanted: &dyn Fn(&Path) -> bool, plan: &mut Plan) -> Result<(), Error> {
    let limit = plan.items.len() + MAX_ITEMS;
    add(machine, path, wanted, plan, MAX_DEPTH, limit)
}

fn add(
    machine: &Path,
    path: &Path,
    wanted: &dyn Fn(&Path) -> bool,
    plan: &mut Plan,
    depth: usize,
    limit: usize,
) -> Result<(), Error> {
    let full = machine.join(path);
    let failed = |operation| {
        let full = full.clone();
        move |e| Error::io(operation, &full, e)
    };
    let metadata = match std::fs::symlink_metadata(&full) {
        Ok(metadata) => metadata,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(());
        }
        Err(e) => return Err(failed("look at")(e)),
    };
    if plan.items.len() >= limit || plan.has(path) || metadata.uid() != plan.owner {
        return Ok(());
    }
    if metadata.is_symlink() {
        let target = std::fs::read_link(&full).map_err(failed("read link"))?;
        parents(path, plan);
        plan.add(Item::Link { path: path.to_owned(), target });
    } else if metadata.is_dir() && is_public(&metadata, 0o5) && depth > 0 {
        let mut names = Vec::new();
        for item in std::fs::read_dir(&full).map_err(failed("list"))? {
            names.push(item.map_err(failed("list"))?.file_name());
        }
        // Sorted, so that the fingerprint does not depend on the order of the directory.
        names.sort();
        parents(&path.join("child"), plan);
        for name in names {
            add(machine, &path.join(name), wanted, plan, depth - 1, limit)?;
        }
    } else if metadata.is_file() && is_public(&metadata, 0o4) && metadata.len() <= MAX_FILE_BYTES && wanted(path) {
        parents(path, plan);
        plan.add(Item::Copied {
            path: path.to_owned(),
            mode: if metadata.permissions().mode() & 0o111 == 0 { 0o644 } else { 0o755 },
            from: full,
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        });
    }
    Ok(())
}

/// Everybody has the permissions: what is meant to be secret does not give them.
fn is_public(metadata: &Metadata, permissions: u32) -> bool {
    metadata.permissions().mode() & permissions == permissions
}

/// Adds the directories above a path that are not there yet.
fn parents(path: &Path, plan: &mut Plan) {
    let mut missing: Vec<PathBuf> = path
        .ancestors()
        .skip(1)
        .filter(|above| !above.as_os_str().is_empty())
        .take_while(|above| !plan.has(above))
        .map(Path::to_owned)
        .collect();
    missing.reverse();
    for path in missing {
        plan.add(Item::Directory { path, mode: 0o755, owner: 0 });
    }
}

/// Opens a file to copy, without following a link and without waiting for a fifo.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let file = File::options().read(true).custom_flags(flags.cast_signed()).open(path)?;
    match file.metadata()? {
        metadata if metadata.is_file() && is_public(&metadata, 0o4) => Ok(file),
        _ => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is no longer a public file")),
    }
}
