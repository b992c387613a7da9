//! Applies entries beneath a directory descriptor.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::limits::check;
use super::overlay::{self, Attribute, Marker, error};
use super::path::{self, Components};
use super::sparse::Piece;
use super::tree;
use super::{Archive, Entry, Kind, LayerStats, Limits, Ownership, UnpackError};

/// Bytes of file content moved at a time.
const COPY_BYTES: usize = 128 * 1024;
/// Highest owner that a sandbox's id range holds.
const MAX_OWNER: u64 = 65_535;
/// `nobody`, whom entries with a higher owner belong to; an id-mapped mount would show the same.
const NOBODY: u32 = 65_534;
/// Mode of directories that an archive uses without describing them.
const IMPLIED_MODE: u32 = 0o755;
/// Directory in which a sandbox has its own devices, so that the archive's may be left out.
const DEVICES: &[u8] = b"dev";

/// A layer being written.
pub(super) struct Layer<'a> {
    root: BorrowedFd<'a>,
    ownership: Ownership,
    limits: &'a Limits,
    stats: LayerStats,
    parent: Option<Parent>,
    buffer: Vec<u8>,
}

/// The directory that entries are being put into.
///
/// Putting a file into a directory changes its times, and an ordinary user cannot write into one
/// without write permission; so both are remembered on entering and put back on leaving. That way
/// nothing has to be kept for the end of the archive.
struct Parent {
    path: Vec<u8>,
    fd: OwnedFd,
    times: Timestamps,
    restricted_mode: Option<Mode>,
}

impl<'a> Layer<'a> {
    pub(super) fn new(root: BorrowedFd<'a>, ownership: Ownership, limits: &'a Limits) -> Self {
        Self {
            root,
            ownership,
            limits,
            stats: LayerStats::default(),
            parent: None,
            buffer: vec![0; COPY_BYTES],
        }
    }

    pub(super) fn finish(mut self) -> Result<LayerStats, UnpackError> {
        self.leave()?;
        Ok(self.stats)
    }

    pub(super) fn apply<R: Read>(
        &mut self,
        entry: Entry,
        archive: &mut Archive<'_, R>,
    ) -> Result<(), UnpackError> {
        self.count_entry()?;
        self.stats.bytes = self.stats.bytes.saturating_add(entry.size);
        check(
            "bytes of file content",
            self.stats.bytes,
            self.limits.total_bytes,
        )?;
        let name = entry.name.clone();
        let components = path::parse(&name, self.limits)?;
        let Some((last, parents)) = components.split_last() else {
            return self.apply_root(&entry);
        };
        for parent in parents {
            match overlay::marker(parent) {
                None => {}
                Some(Marker::Bookkeeping) => return Ok(()),
                Some(_) => {
                    return Err(UnpackError::refused(
                        &name,
                        "it lies beneath the mark of a deleted file",
                    ));
                }
            }
        }
        match overlay::marker(last) {
            None => self.apply_named(entry, parents, last, archive),
            Some(Marker::Bookkeeping) => Ok(()),
            Some(Marker::Opaque) => {
                self.enter(parents, &name)?;
                overlay::set_opaque(self.parent_fd())
                    .map_err(|e| error("mark as opaque the directory of", &name, e))
            }
            Some(Marker::Whiteout(hidden)) if matches!(hidden, b"" | b"." | b"..") => {
                Err(UnpackError::refused(&name, "it marks no file as deleted"))
            }
            Some(Marker::Whiteout(hidden)) => {
                self.enter(parents, &name)?;
                self.hide(hidden, &name)
            }
        }
    }

    fn apply_root(&mut self, entry: &Entry) -> Result<(), UnpackError> {
        if entry.kind != Kind::Directory {
            return Err(UnpackError::refused(
                &entry.name,
                "it would replace the layer's root",
            ));
        }
        self.leave()?;
        self.finish_open(self.root, entry)
    }

    fn apply_named<R: Read>(
        &mut self,
        entry: Entry,
        parents: &[&[u8]],
        last: &[u8],
        archive: &mut Archive<'_, R>,
    ) -> Result<(), UnpackError> {
        match entry.kind {
            Kind::BlockDevice | Kind::CharacterDevice { .. }
                if parents.first() == Some(&DEVICES) =>
            {
                self.stats.dropped_devices += 1;
                return Ok(());
            }
            Kind::CharacterDevice { major: 0, minor: 0 } => {
                self.enter(parents, &entry.name)?;
                return self.hide(last, &entry.name);
            }
            Kind::BlockDevice | Kind::CharacterDevice { .. } => {
                return Err(UnpackError::refused(&entry.name, "it is a device"));
            }
            _ => {}
        }
        self.enter(parents, &entry.name)?;
        match entry.kind {
            Kind::Directory => self.directory(last, &entry),
            Kind::File => self.file(last, &entry, archive),
            Kind::Symlink => self.symlink(last, &entry),
            Kind::HardLink => self.hard_link(parents, last, &entry),
            Kind::Fifo => self.fifo(last, &entry),
            Kind::BlockDevice | Kind::CharacterDevice { .. } => {
                unreachable!("devices were handled above")
            }
        }
    }

    /// Marks `hidden` as deleted in lower layers; what this layer itself has under that name stays.
    fn hide(&mut self, hidden: &[u8], entry: &[u8]) -> Result<(), UnpackError> {
        match self.existing(hidden, entry)? {
            None => overlay::make_whiteout(self.parent_fd(), hidden)
                .map_err(|e| error("make the mark", entry, e)),
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                let directory = open_child(self.parent_fd(), hidden)
                    .map_err(|e| error("open the directory hidden by", entry, e))?;
                overlay::set_opaque(directory)
                    .map_err(|e| error("mark as opaque the directory hidden by", entry, e))
            }
            Some(_) => Ok(()),
        }
    }

    fn directory(&mut self, name: &[u8], entry: &Entry) -> Result<(), UnpackError> {
        let existing = self.existing(name, &entry.name)?;
        let is_directory =
            |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !existing.as_ref().is_some_and(is_directory) {
            self.clear(name, existing.as_ref(), &entry.name)?;
            rustix::fs::mkdirat(self.parent_fd(), name, Mode::RWXU)
                .map_err(|e| error("make directory", &entry.name, e))?;
        }
        let fd = open_child(self.parent_fd(), name)
            .map_err(|e| error("open directory", &entry.name, e))?;
        if existing.as_ref().is_some_and(overlay::is_whiteout) {
            overlay::set_opaque(&fd).map_err(|e| error("mark as opaque", &entry.name, e))?;
        }
        self.finish_open(fd.as_fd(), entry)
    }

    fn file<R: Read>(
        &mut self,
        name: &[u8],
        entry: &Entry,
        archive: &mut Archive<'_, R>,
    ) -> Result<(), UnpackError> {
        self.replace(name, &entry.name)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.parent_fd(), name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| error("make file", &entry.name, e))?;
        match &entry.pieces {
            None => self.write(
                &file,
                Piece {
                    offset: 0,
                    len: entry.size,
                },
                entry,
                archive,
            )?,
            Some(pieces) => {
                for piece in pieces {
                    self.write(&file, *piece, entry, archive)?;
                }
                rustix::fs::ftruncate(&file, entry.size)
                    .map_err(|e| error("set the size of", &entry.name, e))?;
            }
        }
        self.finish_open(file.as_fd(), entry)
    }

    fn write<R: Read>(
        &mut self,
        file: &OwnedFd,
        piece: Piece,
        entry: &Entry,
        archive: &mut Archive<'_, R>,
    ) -> Result<(), UnpackError> {
        let mut offset = piece.offset;
        let end = piece.offset + piece.len;
        while offset < end {
            let want = COPY_BYTES.min(usize::try_from(end - offset).unwrap_or(COPY_BYTES));
            let read = archive.read_data(&mut self.buffer[..want])?;
            if read == 0 {
                return Err(UnpackError::malformed("a file has less data than its size"));
            }
            let mut written = 0;
            while written < read {
                match rustix::io::pwrite(file, &self.buffer[written..read], offset + written as u64)
                {
                    Ok(count) => written += count,
                    Err(Errno::INTR) => {}
                    Err(e) => return Err(error("write", &entry.name, e)),
                }
            }
            offset += read as u64;
        }
        Ok(())
    }

    fn symlink(&mut self, name: &[u8], entry: &Entry) -> Result<(), UnpackError> {
        if entry.link.is_empty()
            || entry.link.contains(&0)
            || entry.link.len() > self.limits.path_bytes
        {
            return Err(UnpackError::refused(
                &entry.name,
                "its target is empty, too long or has a zero byte",
            ));
        }
        self.replace(name, &entry.name)?;
        rustix::fs::symlinkat(entry.link.as_slice(), self.parent_fd(), name)
            .map_err(|e| error("make symbolic link", &entry.name, e))?;
        self.stats.dropped_attributes += entry.attributes.len() as u64;
        self.own_by_name(name, entry)?;
        self.time_by_name(name, entry)
    }

    fn fifo(&mut self, name: &[u8], entry: &Entry) -> Result<(), UnpackError> {
        self.replace(name, &entry.name)?;
        rustix::fs::mknodat(
            self.parent_fd(),
            name,
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .map_err(|e| error("make fifo", &entry.name, e))?;
        self.stats.dropped_attributes += entry.attributes.len() as u64;
        self.own_by_name(name, entry)?;
        // By name, since opening a fifo would wait; nothing else can put a link in its place.
        rustix::fs::chmodat(
            self.parent_fd(),
            name,
            Mode::from_raw_mode(entry.mode),
            AtFlags::empty(),
        )
        .map_err(|e| error("set the mode of", &entry.name, e))?;
        self.time_by_name(name, entry)
    }

    fn hard_link(
        &mut self,
        parents: &[&[u8]],
        name: &[u8],
        entry: &Entry,
    ) -> Result<(), UnpackError> {
        let target = path::parse(&entry.link, self.limits).map_err(|_| {
            UnpackError::refused(
                &entry.name,
                format!(
                    "it is a hard link out of the layer, to {}",
                    super::error::shown(&entry.link)
                ),
            )
        })?;
        let missing = || {
            UnpackError::refused(
                &entry.name,
                format!(
                    "it is a hard link to {}, which the layer does not have",
                    super::error::shown(&entry.link)
                ),
            )
        };
        let Some((target_name, target_parents)) = target.split_last() else {
            return Err(missing());
        };
        if target_parents == parents && *target_name == name {
            return Ok(());
        }
        let target_parent = open_beneath(self.root, target_parents).map_err(|e| match e {
            Errno::LOOP => {
                UnpackError::refused(&entry.name, "its target lies behind a symbolic link")
            }
            Errno::NOENT | Errno::NOTDIR => missing(),
            e => error("open the directory of the target of", &entry.name, e),
        })?;
        let stat = match rustix::fs::statat(&target_parent, *target_name, AtFlags::SYMLINK_NOFOLLOW)
        {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Err(missing()),
            Err(e) => return Err(error("look at the target of", &entry.name, e)),
        };
        if !matches!(
            FileType::from_raw_mode(stat.st_mode),
            FileType::RegularFile | FileType::Symlink | FileType::Fifo
        ) {
            return Err(UnpackError::refused(
                &entry.name,
                "it is a hard link to something else than a file",
            ));
        }
        self.replace(name, &entry.name)?;
        rustix::fs::linkat(
            &target_parent,
            *target_name,
            self.parent_fd(),
            name,
            AtFlags::empty(),
        )
        .map_err(|e| error("make hard link", &entry.name, e))
    }

    /// Gives an open file or directory its attributes, owner, mode and times, in the order that keeps all of them.
    fn finish_open(&mut self, fd: BorrowedFd<'_>, entry: &Entry) -> Result<(), UnpackError> {
        // The owner first: a change of owner clears set-user-id bits and file capabilities.
        if let Some((uid, gid)) = self.owner(entry) {
            rustix::fs::fchown(fd, Some(uid), Some(gid))
                .map_err(|e| error("set the owner of", &entry.name, e))?;
        }
        for (name, value) in &entry.attributes {
            self.set_attribute(fd, name, value, entry)?;
        }
        rustix::fs::fchmod(fd, Mode::from_raw_mode(entry.mode))
            .map_err(|e| error("set the mode of", &entry.name, e))?;
        rustix::fs::futimens(fd, &times(entry))
            .map_err(|e| error("set the times of", &entry.name, e))
    }

    fn set_attribute(
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
            Attribute::Data | Attribute::Capability => {
                rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty())
            }
        };
        match set {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::INVAL) => {
                self.stats.dropped_attributes += 1;
                Ok(())
            }
            // File systems say "no space" also when one file's attributes are too many.
            Err(Errno::NOSPC | Errno::TOOBIG | Errno::RANGE) => Err(UnpackError::refused(
                &entry.name,
                "its extended attributes do not fit the file system",
            )),
            Err(e) => Err(error("set an extended attribute of", &entry.name, e)),
        }
    }

    fn owner(&mut self, entry: &Entry) -> Option<(Uid, Gid)> {
        if self.ownership == Ownership::Current {
            return None;
        }
        if entry.uid > MAX_OWNER || entry.gid > MAX_OWNER {
            self.stats.remapped_owners += 1;
        }
        let id = |id: u64| {
            u32::try_from(id)
                .ok()
                .filter(|_| id <= MAX_OWNER)
                .unwrap_or(NOBODY)
        };
        Some((Uid::from_raw(id(entry.uid)), Gid::from_raw(id(entry.gid))))
    }

    fn own_by_name(&mut self, name: &[u8], entry: &Entry) -> Result<(), UnpackError> {
        let Some((uid, gid)) = self.owner(entry) else {
            return Ok(());
        };
        rustix::fs::chownat(
            self.parent_fd(),
            name,
            Some(uid),
            Some(gid),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .map_err(|e| error("set the owner of", &entry.name, e))
    }

    fn time_by_name(&self, name: &[u8], entry: &Entry) -> Result<(), UnpackError> {
        rustix::fs::utimensat(
            self.parent_fd(),
            name,
            &times(entry),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .map_err(|e| error("set the times of", &entry.name, e))
    }

    fn existing(&self, name: &[u8], entry: &[u8]) -> Result<Option<Stat>, UnpackError> {
        match rustix::fs::statat(self.parent_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(error("look at", entry, e)),
        }
    }

    /// Removes what has the name, so that the later entry wins as in every tar.
    fn replace(&mut self, name: &[u8], entry: &[u8]) -> Result<(), UnpackError> {
        let existing = self.existing(name, entry)?;
        self.clear(name, existing.as_ref(), entry)
    }

    fn clear(
        &mut self,
        name: &[u8],
        existing: Option<&Stat>,
        entry: &[u8],
    ) -> Result<(), UnpackError> {
        match existing {
            None => Ok(()),
            Some(_) => tree::remove(self.parent_fd(), name).map_err(|e| error("replace", entry, e)),
        }
    }

    fn count_entry(&mut self) -> Result<(), UnpackError> {
        self.stats.entries += 1;
        check("entries", self.stats.entries, self.limits.entries)
    }

    fn parent_fd(&self) -> BorrowedFd<'_> {
        self.parent
            .as_ref()
            .map_or(self.root, |parent| parent.fd.as_fd())
    }

    fn enter(&mut self, parents: &[&[u8]], entry: &[u8]) -> Result<(), UnpackError> {
        let path = path::join(parents);
        if self
            .parent
            .as_ref()
            .is_some_and(|parent| parent.path == path)
        {
            return Ok(());
        }
        self.leave()?;
        let fd = match open_beneath(self.root, parents) {
            Err(Errno::NOENT | Errno::NOTDIR) => self.make_parents(parents, entry)?,
            Err(Errno::LOOP) => return Err(behind_link(entry)),
            other => other.map_err(|e| error("open the directory of", entry, e))?,
        };
        let stat =
            rustix::fs::fstat(&fd).map_err(|e| error("look at the directory of", entry, e))?;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        let writable = Mode::WUSR | Mode::XUSR;
        let restricted = self.ownership == Ownership::Current && !mode.contains(writable);
        if restricted {
            rustix::fs::fchmod(&fd, mode | writable)
                .map_err(|e| error("open for writing the directory of", entry, e))?;
        }
        self.parent = Some(Parent {
            path,
            fd,
            times: times_of(&stat),
            restricted_mode: restricted.then_some(mode),
        });
        Ok(())
    }

    fn leave(&mut self) -> Result<(), UnpackError> {
        let Some(parent) = self.parent.take() else {
            return Ok(());
        };
        if let Some(mode) = parent.restricted_mode {
            rustix::fs::fchmod(&parent.fd, mode)
                .map_err(|e| error("set the mode of", &parent.path, e))?;
        }
        rustix::fs::futimens(&parent.fd, &parent.times)
            .map_err(|e| error("set the times of", &parent.path, e))
    }

    /// Makes directories that the archive uses before, or without, describing them.
    fn make_parents(&mut self, parents: &[&[u8]], entry: &[u8]) -> Result<OwnedFd, UnpackError> {
        let mut fd =
            open_beneath(self.root, &[]).map_err(|e| error("open the root for", entry, e))?;
        for name in parents {
            let next = match open_child(&fd, name) {
                Ok(next) => next,
                Err(Errno::LOOP) => return Err(behind_link(entry)),
                Err(failure @ (Errno::NOENT | Errno::NOTDIR)) => {
                    self.make_parent(&fd, name, failure, entry)?
                }
                Err(e) => return Err(error("open a directory above", entry, e)),
            };
            fd = next;
        }
        Ok(fd)
    }

    fn make_parent(
        &mut self,
        above: &OwnedFd,
        name: &[u8],
        failure: Errno,
        entry: &[u8],
    ) -> Result<OwnedFd, UnpackError> {
        let failed = |e| error("make a directory above", entry, e);
        let before = rustix::fs::fstat(above).map_err(failed)?;
        if failure == Errno::NOTDIR {
            let stat =
                rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            if !overlay::is_whiteout(&stat) {
                return Err(UnpackError::refused(
                    entry,
                    "it lies beneath something that is not a directory",
                ));
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
fn open_beneath(root: BorrowedFd<'_>, components: &Components<'_>) -> Result<OwnedFd, Errno> {
    tree::open_directory(root, &path::join(components))
}

fn open_child(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    tree::open_directory(parent.as_fd(), name)
}

fn times(entry: &Entry) -> Timestamps {
    let (seconds, nanoseconds) = entry.mtime;
    same_times(seconds, nanoseconds)
}

fn same_times(seconds: i64, nanoseconds: u32) -> Timestamps {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

fn times_of(stat: &Stat) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: stat.st_atime,
            tv_nsec: stat.st_atime_nsec.cast_signed(),
        },
        last_modification: Timespec {
            tv_sec: stat.st_mtime,
            tv_nsec: stat.st_mtime_nsec.cast_signed(),
        },
    }
}
