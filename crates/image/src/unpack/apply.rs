//! Applies entries beneath a directory descriptor.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use archive::{Piece, path};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::limits::check;
use super::overlay::{self, Marker, error};
use super::parent::{Parent, open_beneath, open_child};
use super::tree;
use super::{Archive, Entry, Kind, LayerStats, Limits, Ownership, UnpackError};

/// Bytes of file content moved at a time.
const COPY_BYTES: usize = 128 * 1024;
/// Directory in which a sandbox has its own devices, so that the archive's may be left out.
const DEVICES: &[u8] = b"dev";

/// A layer being written.
pub(super) struct Layer<'a> {
    pub(super) root: BorrowedFd<'a>,
    pub(super) ownership: Ownership,
    limits: &'a Limits,
    pub(super) stats: LayerStats,
    pub(super) parent: Option<Parent>,
    buffer: Vec<u8>,
}

impl<'a> Layer<'a> {
    pub(super) fn new(root: BorrowedFd<'a>, ownership: Ownership, limits: &'a Limits) -> Self {
        Self { root, ownership, limits, stats: LayerStats::default(), parent: None, buffer: vec![0; COPY_BYTES] }
    }

    pub(super) fn finish(mut self) -> Result<LayerStats, UnpackError> {
        self.leave()?;
        Ok(self.stats)
    }

    pub(super) fn apply<R: Read>(&mut self, entry: Entry, archive: &mut Archive<R>) -> Result<(), UnpackError> {
        self.count_entry()?;
        self.stats.bytes = self.stats.bytes.saturating_add(entry.size);
        check("bytes of file content", self.stats.bytes, self.limits.total_bytes)?;
        let name = entry.name.clone();
        let components = path::parse(&name, &self.limits.archive)?;
        let Some((last, parents)) = components.split_last() else {
            return self.apply_root(&entry);
        };
        for parent in parents {
            match overlay::marker(parent) {
                None => {}
                Some(Marker::Bookkeeping) => return Ok(()),
                Some(_) => {
                    return Err(UnpackError::refused(&name, "it lies beneath the mark of a deleted file"));
                }
            }
        }
        match overlay::marker(last) {
            None => self.apply_named(entry, parents, last, archive),
            Some(Marker::Bookkeeping) => Ok(()),
            Some(Marker::Opaque) => {
                self.enter(parents, &name)?;
                overlay::set_opaque(self.parent_fd()).map_err(|e| error("mark as opaque the directory of", &name, e))
            }
            Some(Marker::Whiteout(b"" | b"." | b"..")) => {
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
            return Err(UnpackError::refused(&entry.name, "it would replace the layer's root"));
        }
        self.leave()?;
        self.finish_open(self.root, entry)
    }

    fn apply_named<R: Read>(
        &mut self,
        entry: Entry,
        parents: &[&[u8]],
        last: &[u8],
        archive: &mut Archive<R>,
    ) -> Result<(), UnpackError> {
        match entry.kind {
            Kind::BlockDevice | Kind::CharacterDevice { .. } if parents.first() == Some(&DEVICES) => {
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
            None => overlay::make_whiteout(self.parent_fd(), hidden).map_err(|e| error("make the mark", entry, e)),
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                let directory = open_child(self.parent_fd(), hidden)
                    .map_err(|e| error("open the directory hidden by", entry, e))?;
                overlay::set_opaque(directory).map_err(|e| error("mark as opaque the directory hidden by", entry, e))
            }
            Some(_) => Ok(()),
        }
    }

    fn directory(&mut self, name: &[u8], entry: &Entry) -> Result<(), UnpackError> {
        let existing = self.existing(name, &entry.name)?;
        let is_directory = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !existing.as_ref().is_some_and(is_directory) {
            self.clear(name, existing.as_ref(), &entry.name)?;
            rustix::fs::mkdirat(self.parent_fd(), name, Mode::RWXU)
                .map_err(|e| error("make directory", &entry.name, e))?;
        }
        let fd = open_child(self.parent_fd(), name).map_err(|e| error("open directory", &entry.name, e))?;
        if existing.as_ref().is_some_and(overlay::is_whiteout) {
            overlay::set_opaque(&fd).map_err(|e| error("mark as opaque", &entry.name, e))?;
        }
        self.finish_open(fd.as_fd(), entry)
    }

    fn file<R: Read>(&mut self, name: &[u8], entry: &Entry, archive: &mut Archive<R>) -> Result<(), UnpackError> {
        self.replace(name, &entry.name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.parent_fd(), name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| error("make file", &entry.name, e))?;
        match &entry.pieces {
            None => self.write(&file, Piece { offset: 0, len: entry.size }, entry, archive)?,
            Some(pieces) => {
                for piece in pieces {
                    self.write(&file, *piece, entry, archive)?;
                }
                rustix::fs::ftruncate(&file, entry.size).map_err(|e| error("set the size of", &entry.name, e))?;
            }
        }
        self.finish_open(file.as_fd(), entry)
    }

    fn write<R: Read>(
        &mut self,
        file: &OwnedFd,
        piece: Piece,
        entry: &Entry,
        archive: &mut Archive<R>,
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
                match rustix::io::pwrite(file, &self.buffer[written..read], offset + written as u64) {
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
        if entry.link.is_empty() || entry.link.contains(&0) || entry.link.len() > self.limits.archive.path_bytes {
            return Err(UnpackError::refused(&entry.name, "its target is empty, too long or has a zero byte"));
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
        rustix::fs::mknodat(self.parent_fd(), name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .map_err(|e| error("make fifo", &entry.name, e))?;
        self.stats.dropped_attributes += entry.attributes.len() as u64;
        self.own_by_name(name, entry)?;
        // By name, since opening a fifo would wait; nothing else can put a link in its place.
        rustix::fs::chmodat(self.parent_fd(), name, Mode::from_raw_mode(entry.mode), AtFlags::empty())
            .map_err(|e| error("set the mode of", &entry.name, e))?;
        self.time_by_name(name, entry)
    }

    fn hard_link(&mut self, parents: &[&[u8]], name: &[u8], entry: &Entry) -> Result<(), UnpackError> {
        let target = path::parse(&entry.link, &self.limits.archive).map_err(|_| {
            UnpackError::refused(
                &entry.name,
                format!("it is a hard link out of the layer, to {}", archive::shown(&entry.link)),
            )
        })?;
        let missing = || {
            UnpackError::refused(
                &entry.name,
                format!("it is a hard link to {}, which the layer does not have", archive::shown(&entry.link)),
            )
        };
        let Some((target_name, target_parents)) = target.split_last() else {
            return Err(missing());
        };
        if target_parents == parents && *target_name == name {
            return Ok(());
        }
        let target_parent = open_beneath(self.root, target_parents).map_err(|e| match e {
            Errno::LOOP => UnpackError::refused(&entry.name, "its target lies behind a symbolic link"),
            Errno::NOENT | Errno::NOTDIR => missing(),
            e => error("open the directory of the target of", &entry.name, e),
        })?;
        let stat = match rustix::fs::statat(&target_parent, *target_name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Err(missing()),
            Err(e) => return Err(error("look at the target of", &entry.name, e)),
        };
        if !matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::Symlink | FileType::Fifo)
        {
            return Err(UnpackError::refused(&entry.name, "it is a hard link to something else than a file"));
        }
        self.replace(name, &entry.name)?;
        rustix::fs::linkat(&target_parent, *target_name, self.parent_fd(), name, AtFlags::empty())
            .map_err(|e| error("make hard link", &entry.name, e))
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

    fn clear(&mut self, name: &[u8], existing: Option<&Stat>, entry: &[u8]) -> Result<(), UnpackError> {
        match existing {
            None => Ok(()),
            Some(_) => tree::remove(self.parent_fd(), name).map_err(|e| error("replace", entry, e)),
        }
    }

    pub(super) fn count_entry(&mut self) -> Result<(), UnpackError> {
        self.stats.entries += 1;
        check("entries", self.stats.entries, self.limits.entries)
    }
}
