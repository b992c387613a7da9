//! From a directory to an archive.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

use crate::error::{Error, check};
use crate::links::{Links, leads_inside};
use crate::read::Kind;
use crate::write::{Head, Writer};
use crate::{Limits, Special};

/// Bytes of file content moved at a time.
const COPY_BYTES: usize = 128 * 1024;

/// How a tree becomes an archive.
pub struct Packing<'a> {
    /// Symbolic links.
    pub links: Links,
    /// Fifos, sockets and devices.
    pub special: Special,
    /// Mode of every file; its own where absent.
    pub mode: Option<u32>,
    /// Hears of what is left out, by name and reason.
    pub left_out: &'a mut dyn FnMut(&[u8], &str),
    /// Hears of each file that is packed, by name.
    pub packed: &'a mut dyn FnMut(&[u8]),
}

/// Writes everything below `root`, which itself is not in the archive, to `out`. A directory comes before what
/// it holds; else the order is the file system's. What vanishes meanwhile is as if it had never been there.
///
/// # Errors
/// Something cannot be read, is refused or became shorter while it was read, or `out` breaks.
pub fn pack<W: Write>(root: BorrowedFd<'_>, packing: &mut Packing<'_>, out: W) -> Result<W, Error> {
    let mut writer = Writer::new(out);
    let mut buffer = vec![0; COPY_BYTES];
    visit(root, &mut |found| packing.add(found, &mut writer, &mut buffer))?;
    writer.finish().map_err(Error::Stream)
}

/// Looks at a tree as [`pack`] would, without reading files: so that what is refused is refused before anything
/// was sent. Tells how many bytes of content there are.
///
/// # Errors
/// A directory cannot be read, or something is refused.
pub fn survey(root: BorrowedFd<'_>, special: Special) -> Result<u64, Error> {
    let mut bytes = 0u64;
    visit(root, &mut |found| {
        match FileType::from_raw_mode(found.stat.st_mode) {
            FileType::RegularFile => bytes = bytes.saturating_add(found.stat.st_size.cast_unsigned()),
            FileType::Directory | FileType::Symlink => {}
            _ if special == Special::Refuse => return Err(is_special(found.path)),
            _ => {}
        }
        Ok(())
    })?;
    Ok(bytes)
}

/// One thing in a tree.
struct Found<'a> {
    parent: BorrowedFd<'a>,
    name: &'a [u8],
    /// From the root, without a slash at either end.
    path: &'a [u8],
    stat: Stat,
}

impl Packing<'_> {
    fn add(&mut self, found: &Found<'_>, writer: &mut Writer<impl Write>, buffer: &mut [u8]) -> Result<(), Error> {
        match FileType::from_raw_mode(found.stat.st_mode) {
            FileType::Directory => {
                let name = [found.path, b"/"].concat();
                let head = Head { name: &name, kind: Kind::Directory, ..head(found, &found.stat) };
                writer.begin(&head).map_err(Error::Stream)
            }
            FileType::RegularFile => self.add_file(found, OFlags::NOFOLLOW, writer, buffer),
            FileType::Symlink => self.add_link(found, writer, buffer),
            _ if self.special == Special::Refuse => Err(is_special(found.path)),
            _ => {
                (self.left_out)(found.path, "is neither file, directory nor link");
                Ok(())
            }
        }
    }

    fn add_link(&mut self, found: &Found<'_>, writer: &mut Writer<impl Write>, buffer: &mut [u8]) -> Result<(), Error> {
        let target = match readlinkat(found.parent, found.name, Vec::new()) {
            Ok(target) => target,
            Err(Errno::NOENT | Errno::INVAL) => return Ok(()), // it has gone, or become something else
            Err(error) => return Err(Error::system("read the link", found.path, error)),
        };
        let depth = found.path.iter().filter(|byte| **byte == b'/').count();
        if self.links == Links::Inside && !leads_inside(depth, target.to_bytes()) {
            return self.add_file(found, OFlags::empty(), writer, buffer);
        }
        let head = Head { link: target.to_bytes(), kind: Kind::Symlink, size: 0, ..head(found, &found.stat) };
        writer.begin(&head).map_err(Error::Stream)?;
        (self.packed)(found.path);
        Ok(())
    }

    fn add_file(
        &mut self,
        found: &Found<'_>,
        following: OFlags,
        writer: &mut Writer<impl Write>,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        let failed = |error: Errno| Error::system("read", found.path, error);
        // Without NONBLOCK a fifo put there meanwhile would be waited for.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | following;
        let is_followed = following.is_empty();
        let file = match openat(found.parent, found.name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP) if is_followed => {
                (self.left_out)(found.path, "is a link that leads nowhere");
                return Ok(());
            }
            Err(Errno::NOENT | Errno::LOOP) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        let stat = fstat(&file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            if is_followed {
                (self.left_out)(found.path, "is a link out of the directory to something that is not a file");
            }
            return Ok(());
        }
        let mut head = head(found, &stat);
        head.size = stat.st_size.cast_unsigned();
        head.mode = self.mode.unwrap_or(head.mode);
        writer.begin(&head).map_err(Error::Stream)?;
        copy(&file, head.size, found.path, writer, buffer)?;
        (self.packed)(found.path);
        Ok(())
    }
}

/// Moves exactly the bytes that the header announced.
fn copy(
    file: &OwnedFd,
    size: u64,
    path: &[u8],
    writer: &mut Writer<impl Write>,
    buffer: &mut [u8],
) -> Result<(), Error> {
    let mut left = size;
    while left > 0 {
        let want = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match rustix::io::read(file, &mut buffer[..want]) {
            Ok(0) => {
                let shorter = io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter while it was read");
                return Err(Error::system("read", path, shorter));
            }
            Ok(read) => {
                writer.data(&buffer[..read]).map_err(Error::Stream)?;
                left -= read as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(Error::system("read", path, error)),
        }
    }
    Ok(())
}

fn head<'a>(found: &Found<'a>, stat: &Stat) -> Head<'a> {
    Head {
        name: found.path,
        link: b"",
        kind: Kind::File,
        mode: stat.st_mode & 0o777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: stat.st_mtime,
        size: 0,
    }
}

fn is_special(path: &[u8]) -> Error {
    Error::refused(path, "it is neither file, directory nor link, and an archive cannot hold it")
}

struct Level {
    directory: Dir,
    path_bytes: usize,
}

/// Calls `look` for everything below `root`; links are looked at and not followed.
fn visit(root: BorrowedFd<'_>, look: &mut dyn FnMut(&Found<'_>) -> Result<(), Error>) -> Result<(), Error> {
    let failed = |path: &[u8], error: Errno| Error::system("read the directory", path, error);
    let mut path = Vec::new();
    let mut stack = vec![Level { directory: Dir::read_from(root).map_err(|e| failed(b".", e))?, path_bytes: 0 }];
    while let Some(level) = stack.last_mut() {
        path.truncate(level.path_bytes);
        let entry = match level.directory.read() {
            None => {
                stack.pop();
                continue;
            }
            Some(entry) => entry.map_err(|error| failed(&path, error))?,
        };
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let parent = level.directory.fd().map_err(|error| failed(&path, error))?;
        let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue, // removed meanwhile
            Err(error) => return Err(Error::system("look at", &path, error)),
        };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        look(&Found { parent: parent.as_fd(), name, path: &path, stat })?;
        if is_directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = match openat(parent, name, flags, Mode::empty()) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue, // removed or exchanged meanwhile
                opened => opened.map_err(|error| failed(&path, error))?,
            };
            let directory = Dir::new(opened).map_err(|error| failed(&path, error))?;
            stack.push(Level { directory, path_bytes: path.len() });
            check("directories in one path", stack.len() as u64, Limits::default().depth as u64)?;
        }
    }
    Ok(())
}
