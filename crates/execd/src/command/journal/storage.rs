//! The file behind a journal: two rings of fixed places, the bytes and the index of who wrote them.
//!
//! The file has no name, so nothing is left when execd ends, and deleting the directory loses nothing. It lies
//! on a disk of the sandbox and counts against its limit; where no directory can be written it is a small
//! memory file, charged to the sandbox like any other. All calls here may block: they run on worker threads.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, fstatfs, fstatvfs, memfd_create};

use super::super::spool;

/// How many bytes a journal keeps, by where they lie.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// On a disk.
    pub disk_bytes: u64,
    /// In a directory that lies in memory.
    pub tmpfs_bytes: u64,
    /// Without any directory.
    pub memory_bytes: u64,
    /// A journal that cannot grow any more goes on in a ring of the size it has, when that is at least this.
    pub least_bytes: u64,
    /// Changes between standard output and standard error that are kept.
    pub index_entries: u64,
}

impl Limits {
    /// What execd uses.
    pub const DEFAULT: Self = Self {
        // A run of an hour of build output is some MB; and a process that nobody reads may go on for long.
        disk_bytes: 256 * 1024 * 1024,
        // Charged to the sandbox's memory, of which a small one has 64 MiB.
        tmpfs_bytes: 8 * 1024 * 1024,
        memory_bytes: 2 * 1024 * 1024,
        least_bytes: 64 * 1024,
        // 8 MiB of file at worst.
        index_entries: 1024 * 1024,
    };
}

/// Bytes of one entry of the index.
pub const ENTRY_BYTES: u64 = 8;
/// A journal grows while a quarter of its file system stays free for others, or this much of a large one.
const SPARE_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// How often that is looked at. Before the first look a journal takes what it can get.
const LOOK_EVERY_BYTES: u64 = 1024 * 1024;

/// What holds the bytes.
#[derive(Clone)]
pub struct Storage {
    file: Arc<File>,
    /// Bytes of the ring.
    pub capacity: u64,
    /// Where the index begins; behind the largest ring, so that it never moves.
    index_at: u64,
    /// Whether there is a file system to leave room on.
    on_disk: bool,
}

/// How far a write came.
pub struct Written {
    /// Bytes that are in their place.
    pub bytes: usize,
    /// Why not all of them are.
    pub stopped: Option<Stop>,
}

/// Why a write stopped.
pub enum Stop {
    /// There is no room, or what there is must stay free for others.
    NoSpace,
    /// Anything else.
    Failed(io::Error),
}

impl Storage {
    /// Makes a file on a disk; in a directory that lies in memory where there is no better one; else in memory.
    ///
    /// # Errors
    /// When not even memory is to be had.
    pub fn create(limits: &Limits) -> io::Result<Self> {
        let mut second_best = None;
        for directory in spool::directories() {
            let Ok(file) = unnamed(&directory) else { continue };
            match fstatfs(&file).map(|found| is_memory(found.f_type)) {
                Ok(false) => return Ok(Self::over(file, limits.disk_bytes, true)),
                Ok(true) if second_best.is_none() => second_best = Some(file),
                _ => {}
            }
        }
        match second_best {
            Some(file) => Ok(Self::over(file, limits.tmpfs_bytes, true)),
            None => Self::in_memory(limits),
        }
    }

    /// A file that no directory can refuse.
    ///
    /// # Errors
    /// When memory or descriptors are out.
    pub fn in_memory(limits: &Limits) -> io::Result<Self> {
        let file = File::from(memfd_create("output", MemfdFlags::CLOEXEC)?);
        Ok(Self::over(file, limits.memory_bytes, false))
    }

    fn over(file: File, capacity: u64, on_disk: bool) -> Self {
        Self { file: Arc::new(file), capacity, index_at: capacity, on_disk }
    }

    /// Writes the bytes that begin at `offset` of the run, in their place of the ring.
    pub fn write(&self, offset: u64, data: &[u8]) -> Written {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (place, mut length) = self.span(at, data.len() - done);
            if at < self.capacity {
                // Growth: up to the next look, which comes first when it is due.
                let step = at % LOOK_EVERY_BYTES;
                if step == 0 && at > 0 && !self.may_grow() {
                    return Written { bytes: done, stopped: Some(Stop::NoSpace) };
                }
                length = length.min((LOOK_EVERY_BYTES - step) as usize);
            }
            match self.file.write_at(&data[done..done + length], place) {
                Ok(0) => return Written { bytes: done, stopped: Some(Stop::NoSpace) },
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let no_space = matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG));
                    let stopped = if no_space { Stop::NoSpace } else { Stop::Failed(error) };
                    return Written { bytes: done, stopped: Some(stopped) };
                }
            }
        }
        Written { bytes: done, stopped: None }
    }

    /// Reads the bytes that begin at `offset` of the run.
    ///
    /// # Errors
    /// The disk's.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            let (place, length) = self.span(offset + done as u64, into.len() - done);
            self.file.read_exact_at(&mut into[done..done + length], place)?;
            done += length;
        }
        Ok(())
    }

    /// Place of an offset in the file, and how many bytes follow there in one piece.
    fn span(&self, offset: u64, length: usize) -> (u64, usize) {
        let place = offset % self.capacity;
        (place, (length as u64).min(self.capacity - place) as usize)
    }

    /// Writes entry `number` of the index.
    ///
    /// # Errors
    /// The disk's.
    pub fn write_entry(&self, number: u64, entries: u64, entry: u64) -> io::Result<()> {
        self.file.write_all_at(&entry.to_le_bytes(), self.index_at + number % entries * ENTRY_BYTES)
    }

    /// Reads `count` entries from `number` on.
    ///
    /// # Errors
    /// The disk's.
    pub fn read_entries(&self, number: u64, entries: u64, count: usize) -> io::Result<Vec<u64>> {
        let mut found = Vec::with_capacity(count);
        while found.len() < count {
            let place = (number + found.len() as u64) % entries;
            let length = (count - found.len()).min((entries - place) as usize);
            let mut bytes = vec![0; length * ENTRY_BYTES as usize];
            self.file.read_exact_at(&mut bytes, self.index_at + place * ENTRY_BYTES)?;
            let entry = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("pieces of eight bytes"));
            found.extend(bytes.chunks_exact(ENTRY_BYTES as usize).map(entry));
        }
        Ok(found)
    }

    /// Whether the file system has room to spare.
    fn may_grow(&self) -> bool {
        if !self.on_disk {
            return true;
        }
        fstatvfs(self.file.as_fd()).is_ok_and(|found| {
            let spare = (found.f_blocks / 4).min(SPARE_BYTES / found.f_frsize.max(1));
            found.f_bavail >= spare
        })
    }

    /// Bytes of the whole file system, where there is one.
    pub fn file_system_bytes(&self) -> Option<u64> {
        let found = fstatvfs(self.file.as_fd()).ok().filter(|_| self.on_disk)?;
        Some(found.f_blocks.saturating_mul(found.f_frsize))
    }
}

/// A file without a name in `directory`; where the file system cannot make one, a file whose name is removed.
fn unnamed(directory: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    if let Ok(file) = options.clone().custom_flags(libc::O_TMPFILE).open(directory) {
        return Ok(file);
    }
    let path = directory.join(crate::id::hex());
    let file = options.create_new(true).custom_flags(libc::O_NOFOLLOW).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn is_memory(kind: rustix::fs::FsWord) -> bool {
    /// As `statfs(2)` names it.
    const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
    /// The first root of a machine that boots from memory.
    const RAMFS_MAGIC: rustix::fs::FsWord = 0x8584_58f6;
    kind == TMPFS_MAGIC || kind == RAMFS_MAGIC
}
