//! One overlay of a session, as its two sides: the directory below and what was written over it.
//!
//! Both are walked by descriptors, without following a link: the sandbox's processes may change either at any time.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RawMode, Stat, openat, readlinkat, statat};
use rustix::io::Errno;

/// Attribute that hides everything below a directory of the upper side.
const OPAQUE: &CStr = c"user.overlay.opaque";
/// Piece by which contents are compared.
const COMPARE_BYTES: usize = 128 * 1024;

/// An overlay.
pub struct Overlay {
    /// Where the session sees it.
    pub path: String,
    /// The sandbox's directory.
    pub lower: OwnedFd,
    /// What was written.
    pub upper: OwnedFd,
}

/// What a directory entry is.
pub fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode as RawMode)
}

/// Whether an entry of the upper side stands for nothing.
pub fn is_whiteout(stat: &Stat) -> bool {
    kind_of(stat) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// Whether a directory of the upper side hides the one below.
pub fn is_opaque(directory: impl AsFd) -> bool {
    let mut value = [0; 4];
    matches!(rustix::fs::fgetxattr(directory, OPAQUE, &mut value[..]), Ok(1..)) && value[0] == b'y'
}

/// An entry's status; `None` when there is none.
pub fn look(directory: impl AsFd, name: &CStr) -> io::Result<Option<Stat>> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a directory in a directory.
pub fn enter(directory: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, name, flags, Mode::empty())?)
}

/// Names in a directory, in their order.
pub fn names(directory: impl AsFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Opens a regular file for reading.
pub fn open_file(directory: impl AsFd, name: &CStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(openat(directory, name, flags, Mode::empty())?))
}

/// Whether two entries of one kind, neither a directory, are the same in everything that a commit carries over.
pub fn same(upper: &OwnedFd, ours: &Stat, lower: &OwnedFd, theirs: &Stat, name: &CStr) -> io::Result<bool> {
    if !same_attributes(ours, theirs) {
        return Ok(false);
    }
    match kind_of(ours) {
        FileType::RegularFile => {
            Ok(ours.st_size == theirs.st_size && same_content(open_file(upper, name)?, open_file(lower, name)?)?)
        }
        FileType::Symlink => Ok(readlinkat(upper, name, Vec::new())? == readlinkat(lower, name, Vec::new())?),
        _ => Ok(true),
    }
}

/// Whether kind, mode and owner are the same.
pub fn same_attributes(ours: &Stat, theirs: &Stat) -> bool {
    ours.st_mode == theirs.st_mode && (ours.st_uid, ours.st_gid) == (theirs.st_uid, theirs.st_gid)
}

fn same_content(mut ours: File, mut theirs: File) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; COMPARE_BYTES], vec![0; COMPARE_BYTES]);
    loop {
        let count = fill(&mut ours, &mut left)?;
        if count != fill(&mut theirs, &mut right)? || left[..count] != right[..count] {
            return Ok(false);
        }
        if count == 0 {
            return Ok(true);
        }
    }
}

fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
