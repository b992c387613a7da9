//! Directories opened and removed without following a link.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;

/// Bytes of directory entries read at a time; small, since each level of a removal holds one.
const LISTING_BYTES: usize = 4096;
/// Levels below the start of a removal. Layers are at most [`super::Limits::depth`] deep.
const MAX_DEPTH: usize = 512;

/// Opens a directory beneath `root` that no symbolic link leads to.
pub(crate) fn open_directory(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

/// Removes a file, or a directory with everything in it. What is not there is a success.
pub(crate) fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    remove_at(parent, name, 0)
}

fn remove_at(parent: BorrowedFd<'_>, name: &[u8], depth: usize) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // Linux says "is a directory"; POSIX allows "not permitted".
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(e) => return Err(e),
    }
    if depth > MAX_DEPTH {
        return Err(Errno::NAMETOOLONG);
    }
    let directory = match open_directory(parent, name) {
        // An ordinary user may have been left without permission by the archive's own mode.
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            open_directory(parent, name)?
        }
        other => other?,
    };
    empty(directory.as_fd(), depth)?;
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

fn empty(directory: BorrowedFd<'_>, depth: usize) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(directory)?.st_mode & 0o7777);
    if !mode.contains(Mode::WUSR | Mode::XUSR) {
        // Root needs no permission, and where the change is refused the removal says why.
        let _ = rustix::fs::fchmod(directory, mode | Mode::RWXU);
    }
    let mut buffer = Vec::with_capacity(LISTING_BYTES);
    let mut listing = RawDir::new(directory, buffer.spare_capacity_mut());
    while let Some(item) = listing.next() {
        let item = item?;
        let name = item.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        match item.file_type() {
            FileType::Directory | FileType::Unknown => remove_at(directory, name, depth + 1)?,
            _ => match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            },
        }
    }
    Ok(())
}
