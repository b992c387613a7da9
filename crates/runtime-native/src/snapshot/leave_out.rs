//! What the platform itself writes into a sandbox's file system, which is made anew in every sandbox and is no part of a
//! snapshot.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use serde::{Deserialize, Serialize};

use crate::disk;
use crate::error::{Context, Result};
use crate::state;

/// Files that every sandbox gets anew, whoever changed them since.
const ALWAYS: [&str; 4] = ["etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/machine-id"];
/// Where execd keeps the output of commands.
const SPOOLS: [&str; 2] = ["tmp/opensandbox-execd", "var/tmp/opensandbox-execd"];
/// Name of the list of [`note_platform_files`] in a sandbox's directory.
const NOTE: &str = "platform.json";
/// Directories within directories that are looked at for it: far more than the platform makes.
const MAX_DEPTH: usize = 16;
/// Bytes of directory entries read at once.
const LISTING_BYTES: usize = 4096;

/// A file as the platform wrote it: every change of it changes the time, which nobody inside can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    inode: u64,
    changed: (i64, i64),
}

impl Mark {
    fn of(stat: &Stat) -> Self {
        Self { inode: stat.st_ino, changed: (stat.st_ctime, stat.st_ctime_nsec as i64) }
    }
}

/// What is not part of a snapshot.
#[derive(Debug, Default)]
pub(crate) struct LeaveOut {
    paths: HashSet<Vec<u8>>,
    unchanged: HashMap<Vec<u8>, Mark>,
}

impl LeaveOut {
    /// What is left out of a snapshot of this sandbox.
    pub(crate) fn of(sandbox: &Path) -> Result<Self> {
        let noted: Vec<(Vec<u8>, Mark)> = state::load(sandbox, NOTE)?.unwrap_or_default();
        let paths = ALWAYS.iter().chain(&SPOOLS).map(|path| path.as_bytes().to_vec()).collect();
        Ok(Self { paths, unchanged: noted.into_iter().collect() })
    }

    /// Whether a file is left out.
    pub(super) fn has(&self, path: &[u8], stat: &Stat) -> bool {
        self.paths.contains(path) || self.unchanged.get(path).is_some_and(|mark| *mark == Mark::of(stat))
    }
}

/// Writes down every file that is on a sandbox's disk before anything of its owner has run: all of them are the
/// platform's. Called only where there may be others than [`ALWAYS`].
pub(crate) fn note_platform_files(disk: BorrowedFd<'_>, sandbox: &Path) -> Result<()> {
    let mut noted = Vec::new();
    for (area, path) in [(disk::UPPER, &b""[..]), (disk::LOCAL, b"usr/local")] {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let area = rustix::fs::openat(disk, area, flags, Mode::empty()).op("open the disk")?;
        note(area.as_fd(), path, 0, &mut noted)?;
    }
    state::store(sandbox, NOTE, &noted)
}

fn note(directory: BorrowedFd<'_>, path: &[u8], depth: usize, noted: &mut Vec<(Vec<u8>, Mark)>) -> Result<()> {
    let mut buffer = Vec::with_capacity(LISTING_BYTES);
    let mut listing = RawDir::new(directory, buffer.spare_capacity_mut());
    while let Some(item) = listing.next() {
        let item = item.op("list the disk")?;
        let name = item.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).op("look at the disk")?;
        let full = if path.is_empty() { name.to_bytes().to_vec() } else { [path, b"/", name.to_bytes()].concat() };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if depth < MAX_DEPTH => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let child = rustix::fs::openat(directory, name, flags, Mode::empty()).op("open the disk")?;
                note(child.as_fd(), &full, depth + 1, noted)?;
            }
            FileType::Directory => {}
            _ => noted.push((full, Mark::of(&stat))),
        }
    }
    Ok(())
}
