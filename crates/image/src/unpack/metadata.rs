//! Owners, modes, attributes and times of what is written.

use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::apply::Layer;
use super::overlay::{self, Attribute, error};
use super::{Entry, Ownership, UnpackError};

/// Highest owner that a sandbox's id range holds.
const MAX_OWNER: u64 = 65_535;
/// `nobody`, whom entries with a higher owner belong to; an id-mapped mount would show the same.
const NOBODY: u32 = 65_534;

impl Layer<'_> {
    /// Gives an open file or directory its attributes, owner, mode and times, in the order that keeps all of them.
    pub(super) fn finish_open(&mut self, fd: BorrowedFd<'_>, entry: &Entry) -> Result<(), UnpackError> {
        // The owner first: a change of owner clears set-user-id bits and file capabilities.
        if let Some((uid, gid)) = self.owner(entry) {
            rustix::fs::fchown(fd, Some(uid), Some(gid)).map_err(|e| error("set the owner of", &entry.name, e))?;
        }
        for (name, value) in &entry.attributes {
            self.set_attribute(fd, name, value, entry)?;
        }
        rustix::fs::fchmod(fd, Mode::from_raw_mode(entry.mode))
            .map_err(|e| error("set the mode of", &entry.name, e))?;
        rustix::fs::futimens(fd, &times(entry)).map_err(|e| error("set the times of", &entry.name, e))
    }

    pub(super) fn set_attribute(
        &mut self,
        fd: BorrowedFd<'_>,
        name: &[u8],
        value: &[u8],
        entry: &Entry,
    ) -> Result<(), UnpackError> {
        let kind = overlay::attribute(name);
        let set = match kind {
            Attribute::Dropped => Err(Errno::OPNOTSUPP),
            Attribute::Capability if self.ownership == Ownership::Current => Err(Errno::OPNOTSUPP),
            Attribute::Data | Attribute::Capability => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()),
        };
        match set {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::INVAL) => {
                self.stats.dropped_attributes += 1;
                Ok(())
            }
            // File systems say "no space" also when one file's attributes are too many.
            Err(Errno::NOSPC | Errno::TOOBIG | Errno::RANGE) => {
                Err(UnpackError::refused(&entry.name, "its extended attributes do not fit the file system"))
            }
            Err(e) => Err(error("set an extended attribute of", &entry.name, e)),
        }
    }

    pub(super) fn owner(&mut self, entry: &Entry) -> Option<(Uid, Gid)> {
        if self.ownership == Ownership::Current {
            return None;
        }
        if entry.uid > MAX_OWNER || entry.gid > MAX_OWNER {
            self.stats.remapped_owners += 1;
        }
        let id = |id: u64| u32::try_from(id).ok().filter(|_| id <= MAX_OWNER).unwrap_or(NOBODY);
        Some((Uid::from_raw(id(entry.uid)), Gid::from_raw(id(entry.gid))))
    }

    pub(super) fn own_by_name(&mut self, name: &[u8], entry: &Entry) -> Result<(), UnpackError> {
        let Some((uid, gid)) = self.owner(entry) else {
            return Ok(());
        };
        rustix::fs::chownat(self.parent_fd(), name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| error("set the owner of", &entry.name, e))
    }

    pub(super) fn time_by_name(&self, name: &[u8], entry: &Entry) -> Result<(), UnpackError> {
        rustix::fs::utimensat(self.parent_fd(), name, &times(entry), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| error("set the times of", &entry.name, e))
    }
}

fn times(entry: &Entry) -> Timestamps {
    let (seconds, nanoseconds) = entry.mtime;
    same_times(seconds, nanoseconds)
}

pub(super) fn same_times(seconds: i64, nanoseconds: u32) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}

pub(super) fn times_of(stat: &Stat) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime, tv_nsec: stat.st_atime_nsec.cast_signed() },
        last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec.cast_signed() },
    }
}
