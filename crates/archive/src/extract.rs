//! From an archive to a directory.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chownat, fchmod, fchown, fstat, ftruncate,
    futimens, linkat, mkdirat, openat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use crate::error::{Error, shown};
use crate::links::{Links, leads_inside};
use crate::read::{Archive, Entry, Kind, Piece};
use crate::{Limits, Special, open_directory, path};

/// Bytes of file content moved at a time.
const COPY_BYTES: usize = 128 * 1024;
/// Mode of directories before the umask, those that the archive does not describe.
const DIRECTORY_MODE: u32 = 0o777;
/// Names tried for a file that has not all of its content yet.
const MAX_TRIES: u32 = 100;

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// How an archive becomes a tree.
pub struct Extraction<'a> {
    /// Bounds.
    pub limits: Limits,
    /// Symbolic links.
    pub links: Links,
    /// Fifos and devices.
    pub special: Special,
    /// Owner of everything that is made; the caller where absent. Those in the archive count for nothing.
    pub uid: Option<u32>,
    /// Group of everything that is made; the caller's where absent.
    pub gid: Option<u32>,
    /// Mode of every file; the archive's where absent. Set-id bits are dropped.
    pub mode: Option<u32>,
    /// Hears of each entry that is no directory, by name.
    pub told: &'a mut dyn FnMut(&[u8], Made),
}

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// It is there.
    Whole,
    /// It was left out, for this reason.
    LeftOut(&'static str),
}

/// Makes what the archive holds beneath `root`. A file, link or fifo in the place of an entry is replaced, at
/// once; directories are merged; what was made before an error stays. Modes and times of files are the
/// archive's, those of directories that are there already stay. Reads the stream to its end.
///
/// # Errors
/// An entry is refused or cannot be made, or the archive is damaged; the message names the entry.
pub fn extract(root: BorrowedFd<'_>, input: impl Read, extraction: &mut Extraction<'_>) -> Result<(), Error> {
    let mut archive = Archive::new(input, extraction.limits);
    let mut tree = Tree { root, extraction, parent: None, buffer: vec![0; COPY_BYTES] };
    let extracted = loop {
        match archive.next_entry() {
            Ok(Some(entry)) => {
                if let Err(error) = tree.make(&entry, &mut archive) {
                    break Err(error);
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let left = tree.leave();
    extracted?;
    left?;
    archive.drain()
}

struct Tree<'a, 'b> {
    root: BorrowedFd<'a>,
    extraction: &'a mut Extraction<'b>,
    parent: Option<Parent>,
    buffer: Vec<u8>,
}

/// The directory that entries are being put into.
struct Parent {
    path: Vec<u8>,
    fd: OwnedFd,
    /// Its mode, when that had to be widened to put something in.
    narrow: Option<Mode>,
}

/// What will get its name when it is complete; removed unless it does.
struct Draft<'a> {
    parent: BorrowedFd<'a>,
    name: Vec<u8>,
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        let _ = unlinkat(self.parent, self.name.as_slice(), AtFlags::empty()); // gone already when it got its name
    }
}

impl Tree<'_, '_> {
    fn make(&mut self, entry: &Entry, archive: &mut Archive<impl Read>) -> Result<(), Error> {
        let components = path::parse(&entry.name, &self.extraction.limits)?;
        let Some((name, parents)) = components.split_last() else {
            return match entry.kind {
                Kind::Directory => Ok(()), // the top is there, with the mode it has
                _ => Err(Error::refused(&entry.name, "it would replace the top directory")),
            };
        };
        if let Some(reason) = self.left_out(entry, parents.len())? {
            (self.extraction.told)(&entry.name, Made::LeftOut(reason));
            return Ok(());
        }
        self.enter(parents, &entry.name)?;
        match entry.kind {
            Kind::Directory => return self.directory(name, entry),
            Kind::File => self.file(name, entry, archive)?,
            Kind::Symlink => self.symlink(name, entry)?,
            Kind::HardLink => self.hard_link(name, entry)?,
            Kind::Fifo | Kind::CharacterDevice { .. } | Kind::BlockDevice => {
                unreachable!("left out or refused above")
            }
        }
        (self.extraction.told)(&entry.name, Made::Whole);
        Ok(())
    }

    /// Why an entry is not made, if it is left out.
    fn left_out(&self, entry: &Entry, depth: usize) -> Result<Option<&'static str>, Error> {
        match entry.kind {
            Kind::Fifo | Kind::CharacterDevice { .. } | Kind::BlockDevice => match self.extraction.special {
                Special::Refuse => Err(Error::refused(&entry.name, "it is a fifo or a device, which is not made")),
                Special::LeaveOut => Ok(Some("is a fifo or a device")),
            },
            Kind::Symlink if self.extraction.links == Links::Inside && !leads_inside(depth, &entry.link) => {
                Ok(Some("is a link that may lead out of the directory"))
            }
            _ => Ok(None),
        }
    }

    fn parent_fd(&self) -> BorrowedFd<'_> {
        self.parent.as_ref().map_or(self.root, |parent| parent.fd.as_fd())
    }

    fn enter(&mut self, parents: &[&[u8]], entry: &[u8]) -> Result<(), Error> {
        let path = path::join(parents);
        if self.parent.as_ref().is_some_and(|parent| parent.path == path) {
            return Ok(());
        }
        self.leave()?;
        let fd = match open_directory(self.root, &path) {
            Err(Errno::NOENT) => self.make_parents(parents, entry)?,
            opened => opened.map_err(|error| misplaced("open the directory of", entry, error))?,
        };
        let mode = Mode::from_raw_mode(stat_of(&fd, entry)?.st_mode & 0o7777);
        let writable = Mode::WUSR | Mode::XUSR;
        // Where it is not ours the attempt to put something in says what is wrong.
        let widened = !mode.contains(writable) && fchmod(&fd, mode | writable).is_ok();
        self.parent = Some(Parent { path, fd, narrow: widened.then_some(mode) });
        Ok(())
    }

    fn leave(&mut self) -> Result<(), Error> {
        match self.parent.take() {
            Some(Parent { path, fd, narrow: Some(mode) }) => {
                fchmod(&fd, mode).map_err(|error| Error::system("set the mode of", &path, error))
            }
            _ => Ok(()),
        }
    }

    fn make_parents(&self, parents: &[&[u8]], entry: &[u8]) -> Result<OwnedFd, Error> {
        let failed = |error| misplaced("make a directory above", entry, error);
        let mut fd = open_directory(self.root, b".").map_err(failed)?;
        for name in parents {
            match mkdirat(&fd, *name, Mode::from_raw_mode(DIRECTORY_MODE)) {
                Ok(()) => {
                    let made = open_directory(fd.as_fd(), name).map_err(failed)?;
                    self.own(&made, entry)?;
                    fd = made;
                }
                Err(Errno::EXIST) => fd = open_directory(fd.as_fd(), name).map_err(failed)?,
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(fd)
    }

    fn directory(&self, name: &[u8], entry: &Entry) -> Result<(), Error> {
        let failed = |error| misplaced("make the directory", &entry.name, error);
        match mkdirat(self.parent_fd(), name, Mode::from_raw_mode(DIRECTORY_MODE)) {
            Ok(()) => {
                let made = open_directory(self.parent_fd(), name).map_err(failed)?;
                self.own(&made, &entry.name)?;
                fchmod(&made, Mode::from_raw_mode(entry.mode & 0o777)).map_err(failed)
            }
            // It stays as it is; what is no directory is an error here.
            Err(Errno::EXIST) => open_directory(self.parent_fd(), name).map(drop).map_err(failed),
            Err(error) => Err(failed(error)),
        }
    }

    fn file(&mut self, name: &[u8], entry: &Entry, archive: &mut Archive<impl Read>) -> Result<(), Error> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut buffer = std::mem::take(&mut self.buffer);
        let parent = self.parent_fd();
        let (draft, file) = draft(parent, &entry.name, |name| openat(parent, name, flags, Mode::RUSR | Mode::WUSR))?;
        let whole = [Piece { offset: 0, len: entry.size }];
        for piece in entry.pieces.as_deref().unwrap_or(&whole) {
            write(&file, *piece, entry, archive, &mut buffer)?;
        }
        let failed = |error| Error::system("write", &entry.name, error);
        ftruncate(&file, entry.size).map_err(failed)?;
        self.own(&file, &entry.name)?;
        fchmod(&file, Mode::from_raw_mode(self.extraction.mode.unwrap_or(entry.mode) & 0o777)).map_err(failed)?;
        futimens(&file, &times(entry)).map_err(failed)?;
        put_in_place(draft, name, entry)?;
        self.buffer = buffer;
        Ok(())
    }

    fn symlink(&self, name: &[u8], entry: &Entry) -> Result<(), Error> {
        if entry.link.is_empty() || entry.link.contains(&0) || entry.link.len() > self.extraction.limits.path_bytes {
            return Err(Error::refused(&entry.name, "its target is empty, too long or has a zero byte"));
        }
        let parent = self.parent_fd();
        let (draft, ()) = draft(parent, &entry.name, |name| symlinkat(entry.link.as_slice(), parent, name))?;
        let failed = |error| Error::system("make the link", &entry.name, error);
        if let (uid, gid) = self.owner()
            && (uid.is_some() || gid.is_some())
        {
            chownat(parent, draft.name.as_slice(), uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        }
        utimensat(parent, draft.name.as_slice(), &times(entry), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        put_in_place(draft, name, entry)
    }

    fn hard_link(&self, name: &[u8], entry: &Entry) -> Result<(), Error> {
        let target = path::parse(&entry.link, &self.extraction.limits).map_err(|_| {
            Error::refused(&entry.name, format!("it is a hard link out of the directory, to {}", shown(&entry.link)))
        })?;
        let missing = || {
            let reason = format!("it is a hard link to {}, which is not a file of the directory", shown(&entry.link));
            Error::refused(&entry.name, reason)
        };
        let (target_name, target_parents) = target.split_last().ok_or_else(missing)?;
        let target_parent = open_directory(self.root, &path::join(target_parents)).map_err(|_| missing())?;
        let found = statat(&target_parent, *target_name, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| missing())?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(missing());
        }
        let parent = self.parent_fd();
        let (draft, ()) =
            draft(parent, &entry.name, |name| linkat(&target_parent, *target_name, parent, name, AtFlags::empty()))?;
        put_in_place(draft, name, entry)
    }

    fn owner(&self) -> (Option<Uid>, Option<Gid>) {
        (self.extraction.uid.map(Uid::from_raw), self.extraction.gid.map(Gid::from_raw))
    }

    fn own(&self, fd: &OwnedFd, entry: &[u8]) -> Result<(), Error> {
        match self.owner() {
            (None, None) => Ok(()),
            (uid, gid) => fchown(fd, uid, gid).map_err(|error| Error::system("set the owner of", entry, error)),
        }
    }
}

/// Makes something under a name that nothing else has.
fn draft<'a, T>(
    parent: BorrowedFd<'a>,
    entry: &[u8],
    mut make: impl FnMut(&[u8]) -> Result<T, Errno>,
) -> Result<(Draft<'a>, T), Error> {
    let mut tries = 0;
    loop {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!(".osb-{:x}-{number:x}.partial", std::process::id()).into_bytes();
        match make(&name) {
            Ok(made) => return Ok((Draft { parent, name }, made)),
            Err(Errno::EXIST) if tries < MAX_TRIES => tries += 1,
            Err(error) => return Err(Error::system("make", entry, error)),
        }
    }
}

fn put_in_place(draft: Draft<'_>, name: &[u8], entry: &Entry) -> Result<(), Error> {
    match renameat(draft.parent, draft.name.as_slice(), draft.parent, name) {
        Ok(()) => Ok(()),
        Err(Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY) => {
            Err(Error::refused(&entry.name, "a directory is in its place; remove it first"))
        }
        Err(error) => Err(Error::system("put in place", &entry.name, error)),
    }
}

fn write(
    file: &OwnedFd,
    piece: Piece,
    entry: &Entry,
    archive: &mut Archive<impl Read>,
    buffer: &mut [u8],
) -> Result<(), Error> {
    let mut offset = piece.offset;
    let end = piece.offset + piece.len; // the reader has checked the sum
    while offset < end {
        let want = buffer.len().min(usize::try_from(end - offset).unwrap_or(usize::MAX));
        let read = archive.read_data(&mut buffer[..want])?;
        if read == 0 {
            return Err(Error::malformed("a file has less data than its size"));
        }
        let mut written = 0;
        while written < read {
            match rustix::io::pwrite(file, &buffer[written..read], offset + written as u64) {
                Ok(count) => written += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(Error::system("write", &entry.name, error)),
            }
        }
        offset += read as u64;
    }
    Ok(())
}

fn misplaced(operation: &'static str, entry: &[u8], error: Errno) -> Error {
    match error {
        Errno::LOOP => Error::refused(entry, "it lies behind a symbolic link"),
        Errno::NOTDIR => Error::refused(entry, "something that is no directory is in the place of one"),
        error => Error::system(operation, entry, error),
    }
}

fn stat_of(fd: &OwnedFd, entry: &[u8]) -> Result<Stat, Error> {
    fstat(fd).map_err(|error| Error::system("look at the directory of", entry, error))
}

fn times(entry: &Entry) -> Timestamps {
    let (seconds, nanoseconds) = entry.mtime;
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}
