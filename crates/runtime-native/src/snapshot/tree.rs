//! Walks a tree, writes down what it is made of, and copies it on the way.
//!
//! The text of a tree is the same for every copy of it, wherever the holes of its files lie and in whichever order a disk
//! lists its names: names are sorted, file content is a list of blocks that are not all zeros.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    Advice, AtFlags, FileType, Gid, Mode, OFlags, RawDir, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::LeaveOut;
use super::attribute::{Attribute, attribute};
use super::text::{Both, Sum, Text};
use crate::error::{Failure, Kind, Result};

/// Directories within directories. Each level costs two descriptors here and one when the layer is removed.
const MAX_DEPTH: usize = 500;
/// Blocks of zeros of this size are holes in the copy: the smallest piece that common file systems leave out.
const BLOCK: usize = 4096;
/// Bytes read at once; what is read is looked at and written while it is in the processor's cache.
const CHUNK: usize = 256 << 10;
/// Bytes of directory entries read at once.
const LISTING_BYTES: usize = 32 << 10;
/// Bytes of the names or of one value of extended attributes: the kernel's own bound.
const ATTRIBUTE_BYTES: usize = 64 << 10;
/// Most characters of a path that an error repeats.
const SHOWN_CHARS: usize = 200;
/// First line of every text; another form of it would be another line.
const FORMAT: &[u8] = b"osb tree 1\n";
/// Where `/usr` comes in the text of a root: last, because of a `host` sandbox only `/usr/local` is copied, from a directory
/// of its own.
const LAST: &[u8] = b"usr";
/// Mark behind the last block of a file.
const NO_MORE_BLOCKS: u64 = u64::MAX;

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of content that are not holes.
    pub bytes: u64,
    /// Sockets that were left out.
    pub sockets_left_out: u64,
    /// Extended attributes that were left out.
    pub attributes_left_out: u64,
}

/// What is copied.
pub(crate) struct Source<'a> {
    /// What the sandbox wrote over its image.
    pub upper: BorrowedFd<'a>,
    /// What it wrote into `/usr/local`, where the machine's own programs lie around that.
    pub local: Option<BorrowedFd<'a>>,
    /// The number that user and group 0 of the sandbox have there.
    pub first_id: u32,
    /// What is not part of a snapshot.
    pub leave_out: &'a LeaveOut,
}

/// Copies a tree into an empty directory; gives the sum of its text. `scratch` is an empty directory beside it.
pub(crate) fn copy(source: &Source<'_>, target: BorrowedFd<'_>, scratch: BorrowedFd<'_>) -> Result<(u32, Counts)> {
    let mut walk = Walk::new(Sum(crc32fast::Hasher::new()), source.leave_out);
    walk.first_id = source.first_id;
    walk.scratch = Some(scratch);
    walk.local = source.local;
    walk.text.put(FORMAT);
    walk.directory(source.upper, Some(target))?;
    Ok((walk.text.0.finalize(), walk.counts))
}

/// Reads a copy from the disk; gives the SHA-256 of its text and the sum that [`copy`] gave.
pub(crate) fn read_back(tree: BorrowedFd<'_>) -> Result<([u8; 32], u32, Counts)> {
    let nothing = LeaveOut::default();
    let mut walk = Walk::new(Both { sum: crc32fast::Hasher::new(), hash: Sha256::new() }, &nothing);
    walk.forgets_cache = true;
    walk.text.put(FORMAT);
    walk.directory(tree, None)?;
    Ok((walk.text.hash.finalize().into(), walk.text.sum.finalize(), walk.counts))
}

struct Walk<'a, T> {
    text: T,
    counts: Counts,
    leave_out: &'a LeaveOut,
    first_id: u32,
    /// Where a copy of each file with several names lies until all of them are made: a path may be longer than the kernel
    /// takes.
    scratch: Option<BorrowedFd<'a>>,
    local: Option<BorrowedFd<'a>>,
    /// Whether what the kernel remembers of a file is given up before it is read.
    forgets_cache: bool,
    /// Files with several names: by device and number, the path of the first one.
    names: HashMap<(u64, u64), Vec<u8>>,
    path: Vec<u8>,
    depth: usize,
    chunk: Vec<u8>,
    attributes: Vec<u8>,
}

impl<'a, T: Text> Walk<'a, T> {
    fn new(text: T, leave_out: &'a LeaveOut) -> Self {
        Self {
            text,
            counts: Counts::default(),
            leave_out,
            first_id: 0,
            scratch: None,
            local: None,
            forgets_cache: false,
            names: HashMap::new(),
            path: Vec::new(),
            depth: 0,
            chunk: vec![0; CHUNK],
            attributes: vec![0; ATTRIBUTE_BYTES],
        }
    }

    /// One directory with all that is in it.
    fn directory(&mut self, source: BorrowedFd<'_>, target: Option<BorrowedFd<'_>>) -> Result<()> {
        let stat = rustix::fs::fstat(source).map_err(|errno| self.failed("look at", errno))?;
        let attributes = self.describe(b'D', source, &stat)?;
        for name in self.list(source)? {
            self.named(&name, |walk| walk.entry(source, &name, target))?;
        }
        if let (0, Some(local)) = (self.depth, self.local) {
            self.named(LAST, |walk| walk.usr_local(local, target))?;
        }
        self.text.put(b"E");
        match target {
            Some(target) => self.finish(target, &stat, &attributes),
            None => Ok(()),
        }
    }

    /// The names in a directory, sorted.
    fn list(&self, directory: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut buffer = Vec::with_capacity(LISTING_BYTES);
        let mut listing = RawDir::new(directory, buffer.spare_capacity_mut());
        while let Some(item) = listing.next() {
            let name = item.map_err(|errno| self.failed("list", errno))?.file_name().to_bytes().to_vec();
            if !matches!(&*name, b"." | b"..") {
                names.push(name);
            }
        }
        if self.depth == 0 {
            if self.local.is_some() {
                // Nothing is written beneath what lies over it.
                names.retain(|name| name != LAST);
            }
            names.sort_unstable_by(|a, b| (a == LAST, a).cmp(&(b == LAST, b)));
        } else {
            names.sort_unstable();
        }
        Ok(names)
    }

    /// Does something at the path of a name in the present directory.
    fn named(&mut self, name: &[u8], action: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let length = self.path.len();
        if length > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        let done = action(self);
        self.path.truncate(length);
        done
    }

    fn entry(&mut self, source: BorrowedFd<'_>, name: &[u8], target: Option<BorrowedFd<'_>>) -> Result<()> {
        let stat = rustix::fs::statat(source, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| self.failed("look at", errno))?;
        if self.leave_out.has(&self.path, &stat) {
            return Ok(());
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Socket {
            self.counts.sockets_left_out += 1;
            return Ok(());
        }
        self.counts.entries += 1;
        self.field(name);
        match kind {
            FileType::Directory => self.child(source, name, target),
            FileType::RegularFile => self.file(source, name, &stat, target),
            FileType::Symlink => self.link(source, name, &stat, target),
            FileType::Fifo => {
                self.describe_without_attributes(b'P', &stat)?;
                self.node(name, FileType::Fifo, &stat, target)
            }
            // What was deleted of a layer below.
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                self.text.put(b"W");
                let Some(target) = target else { return Ok(()) };
                rustix::fs::mknodat(target, name, FileType::CharacterDevice, Mode::empty(), 0)
                    .map_err(|errno| self.failed("make", errno))
            }
            _ => Err(Failure::internal(format!("{}: a device, which no sandbox can make", self.shown()))),
        }
    }

    fn child(&mut self, source: BorrowedFd<'_>, name: &[u8], target: Option<BorrowedFd<'_>>) -> Result<()> {
        let child = self.open_directory(source, name)?;
        let copy = target.map(|target| self.make_directory(target, name)).transpose()?;
        self.below(|walk| walk.directory(child.as_fd(), copy.as_ref().map(AsFd::as_fd)))
    }

    fn below(&mut self, action: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if self.depth >= MAX_DEPTH {
            let message = format!(
                "{}: lies more than {MAX_DEPTH} directories deep, which no snapshot can hold; move it up or delete it",
                self.shown()
            );
            return Err(Failure::new(Kind::Unsupported, message));
        }
        self.depth += 1;
        let done = action(self);
        self.depth -= 1;
        done
    }

    /// `/usr` with nothing in it but `local`, which comes from a directory of its own.
    fn usr_local(&mut self, local: BorrowedFd<'_>, target: Option<BorrowedFd<'_>>) -> Result<()> {
        self.counts.entries += 2;
        self.field(LAST);
        self.text.put(b"D");
        self.owner_and_mode(0o755, 0, 0, 0, 0);
        self.text.put(&0u32.to_le_bytes());
        let usr = target.map(|target| self.make_directory(target, LAST)).transpose()?;
        self.below(|walk| {
            walk.named(b"local", |walk| {
                walk.field(b"local");
                let copy = usr.as_ref().map(|usr| walk.make_directory(usr.as_fd(), b"local")).transpose()?;
                walk.below(|walk| walk.directory(local, copy.as_ref().map(AsFd::as_fd)))
            })
        })?;
        self.text.put(b"E");
        let Some(usr) = usr else { return Ok(()) };
        let epoch = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::fs::fchmod(&usr, Mode::from_raw_mode(0o755))
            .and_then(|()| rustix::fs::futimens(&usr, &Timestamps { last_access: epoch, last_modification: epoch }))
            .map_err(|errno| self.failed("set the mode of", errno))
    }

    fn file(&mut self, source: BorrowedFd<'_>, name: &[u8], seen: &Stat, target: Option<BorrowedFd<'_>>) -> Result<()> {
        let key = (seen.st_dev, seen.st_ino);
        if seen.st_nlink > 1
            && let Some(first) = self.names.get(&key)
        {
            let first = first.clone();
            self.text.put(b"H");
            self.field(&first);
            let (Some(target), Some(scratch)) = (target, self.scratch) else { return Ok(()) };
            return rustix::fs::linkat(scratch, seen.st_ino.to_string(), target, name, AtFlags::empty())
                .map_err(|errno| self.failed("link", errno));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(source, name, flags, Mode::empty()).map_err(|errno| self.failed("open", errno))?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| self.failed("look at", errno))?;
        if (stat.st_dev, stat.st_ino) != key {
            return Err(Failure::internal(format!("{}: was exchanged while it was copied", self.shown())));
        }
        let attributes = self.describe(b'F', file.as_fd(), &stat)?;
        let copy = match target {
            Some(target) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let copy = rustix::fs::openat(target, name, flags, Mode::RUSR | Mode::WUSR);
                Some(copy.map_err(|errno| self.failed("make", errno))?)
            }
            None => None,
        };
        self.content(file.as_fd(), &stat, copy.as_ref().map(AsFd::as_fd))?;
        if let (Some(copy), Some(target)) = (&copy, target) {
            self.finish(copy.as_fd(), &stat, &attributes)?;
            if let (true, Some(scratch)) = (seen.st_nlink > 1, self.scratch) {
                rustix::fs::linkat(target, name, scratch, seen.st_ino.to_string(), AtFlags::empty())
                    .map_err(|errno| self.failed("link", errno))?;
            }
        }
        if seen.st_nlink > 1 {
            self.names.insert(key, self.path.clone());
        }
        Ok(())
    }

    /// Everything in a file that is not zeros.
    fn content(&mut self, source: BorrowedFd<'_>, stat: &Stat, copy: Option<BorrowedFd<'_>>) -> Result<()> {
        let size = stat.st_size.unsigned_abs();
        self.text.put(&size.to_le_bytes());
        if self.forgets_cache {
            // A wish: where the kernel keeps it, what is read is what it would write.
            let _ = rustix::fs::fadvise(source, 0, None, Advice::DontNeed);
        }
        let has_holes = stat.st_blocks.unsigned_abs() * 512 < size;
        let mut at = 0;
        while at < size {
            let end = match has_holes {
                false => size,
                true => match self.data_after(source, at)? {
                    Some((start, end)) => {
                        at = at.max(start / BLOCK as u64 * BLOCK as u64);
                        end.next_multiple_of(BLOCK as u64).min(size)
                    }
                    None => break,
                },
            };
            while at < end {
                let boundary = (at / CHUNK as u64 + 1) * CHUNK as u64;
                let count = (boundary.min(end) - at) as usize;
                self.piece(source, at, count, copy)?;
                at += count as u64;
            }
        }
        self.text.put(&NO_MORE_BLOCKS.to_le_bytes());
        match copy {
            Some(copy) if size > 0 => rustix::fs::ftruncate(copy, size).map_err(|errno| self.failed("write", errno)),
            _ => Ok(()),
        }
    }

    /// Where the next part of a file lies that is no hole.
    fn data_after(&self, file: BorrowedFd<'_>, at: u64) -> Result<Option<(u64, u64)>> {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(self.failed("read", errno)),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start)).map_err(|errno| self.failed("read", errno))?;
        Ok(Some((start, end)))
    }

    fn piece(&mut self, source: BorrowedFd<'_>, at: u64, count: usize, copy: Option<BorrowedFd<'_>>) -> Result<()> {
        let mut chunk = std::mem::take(&mut self.chunk);
        let done = self.piece_in(&mut chunk[..count], source, at, copy);
        self.chunk = chunk;
        done
    }

    fn piece_in(
        &mut self,
        chunk: &mut [u8],
        source: BorrowedFd<'_>,
        at: u64,
        copy: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let mut filled = 0;
        while filled < chunk.len() {
            match rustix::io::pread(source, &mut chunk[filled..], at + filled as u64) {
                Ok(0) => {
                    return Err(Failure::internal(format!("{}: became shorter while it was copied", self.shown())));
                }
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed("read", errno)),
            }
        }
        let mut run = 0..0;
        for (index, block) in chunk.chunks(BLOCK).enumerate() {
            let start = index * BLOCK;
            if block == &[0; BLOCK][..block.len()] {
                continue;
            }
            self.text.put(&((at + start as u64) / BLOCK as u64).to_le_bytes());
            self.text.put(&(block.len() as u32).to_le_bytes());
            self.text.put(block);
            self.counts.bytes += block.len() as u64;
            if run.end != start {
                self.write(copy, &chunk[run.clone()], at + run.start as u64)?;
                run.start = start;
            }
            run.end = start + block.len();
        }
        self.write(copy, &chunk[run.clone()], at + run.start as u64)
    }

    fn write(&self, copy: Option<BorrowedFd<'_>>, mut bytes: &[u8], mut at: u64) -> Result<()> {
        let Some(copy) = copy else { return Ok(()) };
        while !bytes.is_empty() {
            match rustix::io::pwrite(copy, bytes, at) {
                Ok(count) => (bytes, at) = (&bytes[count..], at + count as u64),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed("write", errno)),
            }
        }
        Ok(())
    }

    fn link(&mut self, source: BorrowedFd<'_>, name: &[u8], stat: &Stat, target: Option<BorrowedFd<'_>>) -> Result<()> {
        let place = rustix::fs::readlinkat(source, name, Vec::new()).map_err(|errno| self.failed("read", errno))?;
        self.describe_without_attributes(b'L', stat)?;
        self.field(place.to_bytes());
        let Some(target) = target else { return Ok(()) };
        rustix::fs::symlinkat(&place, target, name).map_err(|errno| self.failed("make", errno))?;
        self.finish_name(target, name, stat)
    }

    fn node(&mut self, name: &[u8], kind: FileType, stat: &Stat, target: Option<BorrowedFd<'_>>) -> Result<()> {
        let Some(target) = target else { return Ok(()) };
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        rustix::fs::mknodat(target, name, kind, mode, 0).map_err(|errno| self.failed("make", errno))?;
        self.finish_name(target, name, stat)?;
        // The process's mask has taken something from the mode, and it is not a link.
        rustix::fs::chmodat(target, name, mode, AtFlags::empty()).map_err(|errno| self.failed("set the mode of", errno))
    }

    fn open_directory(&self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(|errno| self.failed("open", errno))
    }

    fn make_directory(&self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
        rustix::fs::mkdirat(parent, name, Mode::RWXU).map_err(|errno| self.failed("make", errno))?;
        self.open_directory(parent, name)
    }

    /// Writes down what is known of a directory or file beside its content; gives its extended attributes.
    fn describe(&mut self, kind: u8, file: BorrowedFd<'_>, stat: &Stat) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.describe_without_attributes(kind, stat)?;
        let attributes = self.read_attributes(file)?;
        self.text.put(&(attributes.len() as u32).to_le_bytes());
        for (name, value) in &attributes {
            self.field(name);
            self.field(value);
        }
        Ok(attributes)
    }

    fn describe_without_attributes(&mut self, kind: u8, stat: &Stat) -> Result<()> {
        let (uid, gid) = self.owner(stat)?;
        self.text.put(&[kind]);
        self.owner_and_mode(stat.st_mode & 0o7777, uid, gid, stat.st_mtime, stat.st_mtime_nsec as i64);
        Ok(())
    }

    fn owner_and_mode(&mut self, mode: u32, uid: u32, gid: u32, seconds: i64, nanoseconds: i64) {
        for number in [mode, uid, gid] {
            self.text.put(&number.to_le_bytes());
        }
        self.text.put(&seconds.to_le_bytes());
        self.text.put(&nanoseconds.to_le_bytes());
    }

    /// The owner as the sandbox sees it.
    fn owner(&self, stat: &Stat) -> Result<(u32, u32)> {
        let own = |id: u32| id.checked_sub(self.first_id);
        own(stat.st_uid).zip(own(stat.st_gid)).ok_or_else(|| {
            let message =
                format!("{}: belongs to {}:{}, who are not the sandbox's", self.shown(), stat.st_uid, stat.st_gid);
            Failure::internal(message)
        })
    }

    fn read_attributes(&mut self, file: BorrowedFd<'_>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let count = match rustix::fs::flistxattr(file, &mut self.attributes[..]) {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Ok(count) => count,
            Err(errno) => return Err(self.failed("read the attributes of", errno)),
        };
        let names: Vec<Vec<u8>> = self.attributes[..count]
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
            .map(<[u8]>::to_vec)
            .collect();
        let mut found = Vec::new();
        for name in names {
            match attribute(&name) {
                Attribute::Kept => {
                    let length = rustix::fs::fgetxattr(file, &*name, &mut self.attributes[..])
                        .map_err(|errno| self.failed("read the attributes of", errno))?;
                    found.push((name, self.attributes[..length].to_vec()));
                }
                Attribute::Private => {}
                Attribute::LeftOut => self.counts.attributes_left_out += 1,
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Gives a copy its owner, mode, attributes and time, in the order that keeps all of them.
    fn finish(&self, copy: BorrowedFd<'_>, stat: &Stat, attributes: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
        let (uid, gid) = self.owner(stat)?;
        rustix::fs::fchown(copy, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            .map_err(|errno| self.failed("set the owner of", errno))?;
        rustix::fs::fchmod(copy, Mode::from_raw_mode(stat.st_mode & 0o7777))
            .map_err(|errno| self.failed("set the mode of", errno))?;
        for (name, value) in attributes {
            rustix::fs::fsetxattr(copy, &**name, value, XattrFlags::empty())
                .map_err(|errno| self.failed("set the attributes of", errno))?;
        }
        rustix::fs::futimens(copy, &times(stat)).map_err(|errno| self.failed("set the times of", errno))
    }

    /// The same for what cannot be opened.
    fn finish_name(&self, directory: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> Result<()> {
        let (uid, gid) = self.owner(stat)?;
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| self.failed("set the owner of", errno))?;
        rustix::fs::utimensat(directory, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| self.failed("set the times of", errno))
    }

    fn field(&mut self, bytes: &[u8]) {
        self.text.put(&(bytes.len() as u32).to_le_bytes());
        self.text.put(bytes);
    }

    fn failed(&self, op: &str, errno: Errno) -> Failure {
        match errno {
            Errno::NOSPC | Errno::DQUOT => {
                let message = "the disk that holds the layers is full; free some space or remove snapshots and images";
                Failure::new(Kind::Exhausted, message)
            }
            errno => Failure::errno(format!("{op} {}", self.shown()), errno),
        }
    }

    fn shown(&self) -> String {
        let path: String = String::from_utf8_lossy(&self.path).chars().take(SHOWN_CHARS).collect();
        format!("/{}", path.escape_debug())
    }
}

fn times(stat: &Stat) -> Timestamps {
    let at = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ };
    Timestamps { last_access: at, last_modification: at }
}
