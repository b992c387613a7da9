//! Files of an image's root, opened as if that were the root of everything.
//!
//! Links are followed, since distributions use them, but they end beneath the root: an absolute one starts there, and
//! nothing leads above. Only regular files are read, within a bound.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, move_mount};

use crate::error::{Context, Result};
use crate::rootfs::{change, clone_tree, filesystem, mount_onto, open_directory};
use crate::sys;

/// How often a path with `..` in a link is looked up again: the kernel gives up when anything on the machine is mounted
/// or renamed meanwhile.
const LOOKUPS: u32 = 1_000;
/// Bytes and files of what covers files of the image.
const COVER_OPTIONS: &[(&str, &str)] = &[("size", "64m"), ("nr_inodes", "128"), ("mode", "0755")];
/// Directory of the build place where they lie.
const COVERS: &str = "covers";

/// The root of a sandbox that is being built.
#[derive(Clone, Copy)]
pub(super) struct Root<'a>(&'a OwnedFd);

/// A regular file of the image, of a length within a bound. Nobody writes it meanwhile.
pub(super) struct Found {
    file: OwnedFd,
    length: usize,
}

impl Found {
    /// Whether it ends with these bytes and so many others.
    pub fn ends_with(&self, bytes: &[u8], others: usize) -> bool {
        let Some(at) = self.length.checked_sub(bytes.len() + others) else { return false };
        let mut end = vec![0; bytes.len()];
        rustix::io::pread(&self.file, &mut end, at as u64).is_ok_and(|count| count == end.len() && end == bytes)
    }

    /// All of it, with room for so many bytes more: most of the time goes into memory that is touched first.
    pub fn read(&self, room: usize) -> Option<Vec<u8>> {
        let mut content = Vec::with_capacity(self.length + room);
        while content.len() < self.length {
            if rustix::io::read(&self.file, rustix::buffer::spare_capacity(&mut content)).ok()? == 0 {
                break;
            }
        }
        Some(content)
    }
}

impl<'a> Root<'a> {
    pub fn new(root: &'a OwnedFd) -> Self {
        Self(root)
    }

    fn open(self, path: &str, flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        // A FIFO would otherwise be waited for.
        let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        for _ in 1..LOOKUPS {
            match rustix::fs::openat2(self.0, path, flags, Mode::empty(), within) {
                Err(Errno::AGAIN) => {}
                other => return other,
            }
        }
        rustix::fs::openat2(self.0, path, flags, Mode::empty(), within)
    }

    /// Finds a regular file of at most so many bytes.
    pub fn find(self, path: &str, most: usize) -> Option<Found> {
        let file = self.open(path, OFlags::RDONLY).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        let length = usize::try_from(stat.st_size).ok()?;
        let is_fit = stat.st_mode & libc::S_IFMT == libc::S_IFREG && length <= most;
        is_fit.then_some(Found { file, length })
    }

    /// Opens a directory.
    pub fn directory(self, path: &str) -> std::result::Result<OwnedFd, Errno> {
        self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Opens a directory, making what is missing of it.
    pub fn made(self, path: &str) -> std::result::Result<OwnedFd, Errno> {
        match self.directory(path) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
        let path = path.trim_matches('/');
        let parent = match path.rsplit_once('/') {
            Some((parent, _)) => self.made(parent)?,
            None => self.directory(".")?,
        };
        let name = path.rsplit('/').next().unwrap_or(path);
        // A link that leads nowhere is in the way, and stays.
        rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
        self.directory(path)
    }

    /// Gives a file new content; where it cannot be written, something is mounted over it.
    pub fn rewrite(
        self,
        path: &str,
        found: &Found,
        content: &[u8],
        covers: &mut Covers,
    ) -> std::result::Result<(), Errno> {
        match self.open(path, OFlags::WRONLY | OFlags::TRUNC) {
            Ok(file) => write(&file, content),
            // On the machine's own read-only part, or owned by somebody who has no number here.
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM | Errno::OVERFLOW) => covers.cover(&found.file, content),
            Err(errno) => Err(errno),
        }
    }
}

/// Files in memory that lie over files of the image, read-only.
pub(super) struct Covers {
    directory: OwnedFd,
    count: u32,
}

impl Covers {
    /// None yet. They are made in a directory of the build place, since only what is mounted can be bound.
    pub fn new(place: &Path) -> Result<Self> {
        let path: PathBuf = place.join(COVERS);
        std::fs::create_dir(&path).op("make a build directory")?;
        let mount = filesystem("tmpfs", COVER_OPTIONS, sys::ATTR_NOSUID | sys::ATTR_NODEV | sys::ATTR_NOEXEC)?;
        move_mount(&mount, "", CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).op("place the covers")?;
        Ok(Self { directory: open_directory(CWD, &path).op("open the covers")?, count: 0 })
    }

    /// Covers a file.
    pub fn cover(&mut self, target: &OwnedFd, content: &[u8]) -> std::result::Result<(), Errno> {
        let name = self.count.to_string();
        self.count += 1;
        write(&create(&self.directory, &name, 0o644)?, content)?;
        let cover = clone_tree(&self.directory, Path::new(&name))?;
        change(&cover, sys::ATTR_RDONLY | sys::ATTR_NOSUID | sys::ATTR_NODEV | sys::ATTR_NOEXEC)?;
        mount_onto(&cover, target)
    }
}

/// An empty file with this name in place of whatever had it, unless that is a directory.
pub(super) fn fresh(directory: &OwnedFd, name: &str) -> std::result::Result<OwnedFd, Errno> {
    match create(directory, name, 0o644) {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
            create(directory, name, 0o644)
        }
        other => other,
    }
}

/// A link with this name in place of whatever had it, unless that is a directory.
pub(super) fn link(directory: &OwnedFd, name: &str, target: &str) -> std::result::Result<(), Errno> {
    match rustix::fs::symlinkat(target, directory, name) {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
            rustix::fs::symlinkat(target, directory, name)
        }
        other => other,
    }
}

/// A new file with this name.
pub(super) fn create(directory: &OwnedFd, name: &str, mode: u32) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(mode))
}

pub(super) fn write(file: &OwnedFd, mut content: &[u8]) -> std::result::Result<(), Errno> {
    while !content.is_empty() {
        let written = rustix::io::write(file, content)?;
        content = &content[written..];
    }
    Ok(())
}
