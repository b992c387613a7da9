//! Output of background commands: one file each, in a private directory that is made again when it is gone.
//!
//! Each log keeps its descriptor, so that deleting the directory loses nothing. Where no directory can be
//! written the log is a memory file, charged to the sandbox like any other.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};

/// Name of the private directory.
const DIRECTORY: &str = "opensandbox-execd";
/// Where it is tried, in this order, after `TMPDIR`.
const BASES: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Makes logs.
#[derive(Default)]
pub struct Spool;

/// One log; its file is removed with it.
pub struct Log {
    file: File,
    path: Option<PathBuf>,
}

impl Spool {
    /// Makes a log and the descriptor through which the command writes it.
    ///
    /// # Errors
    /// When neither a file nor memory is to be had.
    pub fn create(&self, id: &str) -> io::Result<(Log, OwnedFd)> {
        for directory in directories() {
            let path = directory.join(format!("{id}.output"));
            let opened = OpenOptions::new()
                .read(true)
                .append(true)
                .create_new(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&path);
            if let Ok(file) = opened {
                let writer = file.try_clone()?.into();
                return Ok((Log { file, path: Some(path) }, writer));
            }
        }
        let file = File::from(memfd_create("output", MemfdFlags::CLOEXEC)?);
        rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::APPEND)?;
        let writer = file.try_clone()?.into();
        Ok((Log { file, path: None }, writer))
    }
}

/// Private directories that exist or could be made just now.
pub fn directories() -> impl Iterator<Item = PathBuf> {
    let chosen = std::env::var_os("TMPDIR").map(PathBuf::from).filter(|base| base.is_absolute());
    chosen.into_iter().chain(BASES.map(PathBuf::from)).filter_map(|base| private(&base))
}

/// The private directory under `base`: ours, closed to others, and no link.
fn private(base: &Path) -> Option<PathBuf> {
    if base == Path::new(BASES[0]) && !base.exists() {
        // What a user deleted with `rm -rf /tmp` other programs miss, too.
        let _ = DirBuilder::new().mode(0o1777).create(base);
        let _ = fs::set_permissions(base, std::os::unix::fs::PermissionsExt::from_mode(0o1777));
    }
    let path = base.join(DIRECTORY);
    let _ = DirBuilder::new().mode(0o700).create(&path); // it may be there already: looked at next
    let found = fs::symlink_metadata(&path).ok()?;
    let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    ours.then_some(path)
}

impl Log {
    /// Another descriptor of the log.
    ///
    /// # Errors
    /// When descriptors are out.
    pub fn reader(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path); // the user may have removed it already
        }
    }
}
