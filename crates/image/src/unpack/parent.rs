//! The directories that entries are put into.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use archive::path::{self, Components};
use rustix::fs::{AtFlags, Gid, Mode, Timestamps, Uid};
use rustix::io::Errno;

use super::apply::Layer;
use super::metadata::{same_times, times_of};
use super::overlay::{self, error};
use super::{Ownership, UnpackError, tree};

/// Mode of directories that an archive uses without describing them.
const IMPLIED_MODE: u32 = 0o755;

/// The directory that entries are being put into.
///
/// Putting a file into a directory changes its times, and an ordinary user cannot write into one
/// without write permission; so both are remembered on entering and put back on leaving. That way
/// nothing has to be kept for the end of the archive.
pub(super) struct Parent {
    path: Vec<u8>,
    fd: OwnedFd,
    times: Timestamps,
    restricted_mode: Option<Mode>,
}

impl Layer<'_> {
    pub(super) fn parent_fd(&self) -> BorrowedFd<'_> {
        self.parent.as_ref().map_or(self.root, |parent| parent.fd.as_fd())
    }

    pub(super) fn enter(&mut self, parents: &[&[u8]], entry: &[u8]) -> Result<(), UnpackError> {
        let path = path::join(parents);
        if self.parent.as_ref().is_some_and(|parent| parent.path == path) {
            return Ok(());
        }
        self.leave()?;
        let fd = match open_beneath(self.root, parents) {
            Err(Errno::NOENT | Errno::NOTDIR) => self.make_parents(parents, entry)?,
            Err(Errno::LOOP) => return Err(behind_link(entry)),
            other => other.map_err(|e| error("open the directory of", entry, e))?,
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| error("look at the directory of", entry, e))?;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        let writable = Mode::WUSR | Mode::XUSR;
        let restricted = self.ownership == Ownership::Current && !mode.contains(writable);
        if restricted {
            rustix::fs::fchmod(&fd, mode | writable)
                .map_err(|e| error("open for writing the directory of", entry, e))?;
        }
        self.parent = Some(Parent { path, fd, times: times_of(&stat), restricted_mode: restricted.then_some(mode) });
        Ok(())
    }

    pub(super) fn leave(&mut self) -> Result<(), UnpackError> {
        let Some(parent) = self.parent.take() else {
            return Ok(());
        };
        if let Some(mode) = parent.restricted_mode {
            rustix::fs::fchmod(&parent.fd, mode).map_err(|e| error("set the mode of", &parent.path, e))?;
        }
        rustix::fs::futimens(&parent.fd, &parent.times).map_err(|e| error("set the times of", &parent.path, e))
    }

    /// Makes directories that the archive uses before, or without, describing them.
    pub(super) fn make_parents(&mut self, parents: &[&[u8]], entry: &[u8]) -> Result<OwnedFd, UnpackError> {
        let mut fd = open_beneath(self.root, &[]).map_err(|e| error("open the root for", entry, e))?;
        for name in parents {
            let next = match open_child(&fd, name) {
                Ok(next) => next,
                Err(Errno::LOOP) => return Err(behind_link(entry)),
                Err(failure @ (Errno::NOENT | Errno::NOTDIR)) => self.make_parent(&fd, name, failure, entry)?,
                Err(e) => return Err(error("open a directory above", entry, e)),
            };
            fd = next;
        }
        Ok(fd)
    }

    pub(super) fn make_parent(
        &mut self,
        above: &OwnedFd,
        name: &[u8],
        failure: Errno,
        entry: &[u8],
    ) -> Result<OwnedFd, UnpackError> {
        let failed = |e| error("make a directory above", entry, e);
        let before = rustix::fs::fstat(above).map_err(failed)?;
        if failure == Errno::NOTDIR {
            let stat = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            if !overlay::is_whiteout(&stat) {
                return Err(UnpackError::refused(entry, "it lies beneath something that is not a directory"));
            }
            rustix::fs::unlinkat(above, name, AtFlags::empty()).map_err(failed)?;
        }
        self.count_entry()?;
        rustix::fs::mkdirat(above, name, Mode::RWXU).map_err(failed)?;
        let fd = open_child(above, name).map_err(failed)?;
        if failure == Errno::NOTDIR {
            overlay::set_opaque(&fd).map_err(failed)?;
        }
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(IMPLIED_MODE)).map_err(failed)?;
        if self.ownership == Ownership::Keep {
            rustix::fs::fchown(&fd, Some(Uid::ROOT), Some(Gid::ROOT)).map_err(failed)?;
        }
        // A fixed time, so that unpacking twice gives the same tree.
        rustix::fs::futimens(&fd, &same_times(0, 0)).map_err(failed)?;
        rustix::fs::futimens(above, &times_of(&before)).map_err(failed)?;
        Ok(fd)
    }
}

fn behind_link(entry: &[u8]) -> UnpackError {
    UnpackError::refused(entry, "it lies behind a symbolic link of the same layer")
}

/// Opens a directory of the layer without following any link.
pub(super) fn open_beneath(root: BorrowedFd<'_>, components: &Components<'_>) -> Result<OwnedFd, Errno> {
    tree::open_directory(root, &path::join(components))
}

pub(super) fn open_child(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    tree::open_directory(parent.as_fd(), name)
}
