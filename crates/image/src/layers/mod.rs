//! The directory of unpacked layers: `<root>/<diff id>/fs`.
//!
//! Belongs to whoever unpacks, the jailer. Only its owner may enter it: layers hold other people's
//! set-user-id programs and device-like marks, which must be out of reach of the host's users.
//!
//! A layer is written into a draft and renamed into place, so that a name that exists is a whole,
//! durable layer. Drafts carry a lock; what a killed process left behind is swept by the next.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::unpack::{LayerStats, UnpackError, tree};
use crate::{LayerId, digest};

/// Directory of a layer that holds its files.
const FILES: &str = "fs";
/// File of a layer that tells what came of it.
const STATS: &str = "stats.json";
/// Directory of a draft that is gone when it becomes a layer.
const SCRATCH: &str = "scratch";
/// Beginning of the names of things that are being made or removed.
const TRANSIENT_PREFIX: &str = ".transient-";
/// Random bytes in a transient name.
const TRANSIENT_RANDOM_BYTES: usize = 12;

/// The directory of unpacked layers.
#[derive(Debug)]
pub struct Area {
    root: PathBuf,
    directory: OwnedFd,
}

impl Area {
    /// Opens the area, making it when it is missing, and closes it to everybody but its owner.
    ///
    /// # Errors
    /// The directory cannot be made or opened, or belongs to somebody else.
    pub fn open(root: &Path) -> Result<Self, UnpackError> {
        let failed = |operation| move |e: io::Error| UnpackError::system(operation, root.display().to_string(), e);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(failed("make"))?;
        std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o700)).map_err(failed("close to others"))?;
        let directory = rustix::fs::open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| failed("open")(e.into()))?;
        Ok(Self { root: root.to_owned(), directory })
    }

    /// Where the files of a layer are, whether or not it exists.
    pub fn path(&self, layer: &LayerId) -> PathBuf {
        self.root.join(layer.as_str()).join(FILES)
    }

    /// Whether the layer is there; it is whole then.
    ///
    /// # Errors
    /// The area cannot be read.
    pub fn has(&self, layer: &LayerId) -> Result<bool, UnpackError> {
        match rustix::fs::statat(&self.directory, layer.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(UnpackError::system("look at layer", layer.as_str(), e)),
        }
    }

    /// What came of a layer when it was unpacked; `None` when the layer is not there.
    ///
    /// # Errors
    /// The area cannot be read or its note is damaged.
    pub fn stats(&self, layer: &LayerId) -> Result<Option<LayerStats>, UnpackError> {
        let path = self.root.join(layer.as_str()).join(STATS);
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|e| UnpackError::system("read", path.display().to_string(), io::Error::other(e))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(UnpackError::system("read", path.display().to_string(), e)),
        }
    }

    /// All layers, sorted.
    ///
    /// # Errors
    /// The area cannot be read.
    pub fn list(&self) -> Result<Vec<LayerId>, UnpackError> {
        let mut layers: Vec<LayerId> = self.names()?.iter().filter_map(|name| name.parse().ok()).collect();
        layers.sort();
        Ok(layers)
    }

    /// Begins a layer: an empty directory that only the returned draft knows.
    ///
    /// # Errors
    /// The disk is full or the area cannot be written.
    pub fn begin(&self) -> Result<Draft, UnpackError> {
        let name = transient_name()?;
        let failed = |e: Errno| UnpackError::system("make a new layer in", self.root.display().to_string(), e);
        rustix::fs::mkdirat(&self.directory, &*name, Mode::RWXU).map_err(failed)?;
        let area = self
            .directory
            .try_clone()
            .map_err(|e| UnpackError::system("duplicate the descriptor of", self.root.display().to_string(), e))?;
        let directory = tree::open_directory(area.as_fd(), name.as_bytes()).map_err(failed)?;
        rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).map_err(failed)?;
        rustix::fs::mkdirat(&directory, FILES, Mode::RWXU).map_err(failed)?;
        let files = tree::open_directory(directory.as_fd(), FILES.as_bytes()).map_err(failed)?;
        // The mode of most images' roots; an entry for the root overrules it.
        rustix::fs::fchmod(&files, Mode::from_raw_mode(0o755)).map_err(failed)?;
        Ok(Draft { area, name, directory, files })
    }

    /// Removes a layer; one that is not there is a success.
    ///
    /// The caller sees to it that no sandbox stands on it.
    ///
    /// # Errors
    /// The area cannot be written. The layer's name is gone even when some of its files stayed.
    pub fn remove(&self, layer: &LayerId) -> Result<(), UnpackError> {
        let failed = |e: Errno| UnpackError::system("remove layer", layer.as_str(), e);
        let name = transient_name()?;
        match rustix::fs::renameat(&self.directory, layer.as_str(), &self.directory, &*name) {
            Ok(()) => tree::remove(self.directory.as_fd(), name.as_bytes()).map_err(failed),
            Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(failed(e)),
        }
    }

    /// Removes the draft of this name, whose maker is gone; one that is not there is a success.
    ///
    /// # Errors
    /// The name is not one of a draft, or the area cannot be written.
    pub fn discard(&self, draft: &str) -> Result<(), UnpackError> {
        let failed = |e: Errno| UnpackError::system("discard", draft, e);
        if !draft.starts_with(TRANSIENT_PREFIX) || draft.contains('/') {
            return Err(failed(Errno::INVAL));
        }
        tree::remove(self.directory.as_fd(), draft.as_bytes()).map_err(failed)
    }

    /// Removes what killed processes left half made or half removed; tells how many there were.
    ///
    /// # Errors
    /// The area cannot be written.
    pub fn sweep(&self) -> Result<usize, UnpackError> {
        let mut swept = 0;
        for name in self.names()?.iter().filter(|name| name.starts_with(TRANSIENT_PREFIX)) {
            let failed = |e: Errno| UnpackError::system("sweep", name.as_str(), e);
            let directory = match tree::open_directory(self.directory.as_fd(), name.as_bytes()) {
                Err(Errno::NOENT) => continue,
                other => other.map_err(failed)?,
            };
            match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    tree::remove(self.directory.as_fd(), name.as_bytes()).map_err(failed)?;
                    swept += 1;
                }
                // Somebody is at work on it.
                Err(Errno::WOULDBLOCK) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(swept)
    }

    fn names(&self) -> Result<Vec<String>, UnpackError> {
        let failed = |e: io::Error| UnpackError::system("list", self.root.display().to_string(), e);
        let mut names = Vec::new();
        for item in std::fs::read_dir(&self.root).map_err(failed)? {
            names.extend(item.map_err(failed)?.file_name().into_string());
        }
        Ok(names)
    }
}

/// A layer being made. Dropped without [`Draft::commit`], it disappears.
#[derive(Debug)]
pub struct Draft {
    area: OwnedFd,
    name: String,
    directory: OwnedFd,
    files: OwnedFd,
}

impl Draft {
    /// The empty directory to unpack into.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.files.as_fd()
    }

    /// The name by which the area knows it, see [`Area::discard`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A directory on the same file system that is not part of the layer.
    ///
    /// # Errors
    /// The disk is full or failing.
    pub fn scratch(&self) -> Result<OwnedFd, UnpackError> {
        let failed = |e: Errno| UnpackError::system("make room in", self.name.as_str(), e);
        rustix::fs::mkdirat(&self.directory, SCRATCH, Mode::RWXU).map_err(failed)?;
        tree::open_directory(self.directory.as_fd(), SCRATCH.as_bytes()).map_err(failed)
    }

    /// Puts an empty file beside the layer's files, by which its maker knows it again.
    ///
    /// # Errors
    /// The disk is full or failing, or the name is taken.
    pub fn note(&self, name: &str) -> Result<(), UnpackError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR);
        made.map(drop).map_err(|e| UnpackError::system("note", name, e))
    }

    /// Makes the draft durable and gives it its name. When the layer is there already, the draft goes.
    ///
    /// # Errors
    /// The disk is full or failing.
    pub fn commit(self, layer: &LayerId, stats: &LayerStats) -> Result<(), UnpackError> {
        let failed = |operation: &'static str| move |e: Errno| UnpackError::system(operation, layer.as_str(), e);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let note = rustix::fs::openat(&self.directory, STATS, flags, Mode::RUSR | Mode::WUSR)
            .map_err(failed("describe layer"))?;
        let text = serde_json::to_vec(stats).expect("counters have a JSON form");
        File::from(note).write_all(&text).map_err(|e| UnpackError::system("describe layer", layer.as_str(), e))?;
        tree::remove(self.directory.as_fd(), SCRATCH.as_bytes()).map_err(failed("clear the scratch of layer"))?;
        // One flush for a layer of thousands of files; a sandbox's overlay never flushes its layers.
        rustix::fs::syncfs(&self.files).map_err(failed("flush layer"))?;
        match rustix::fs::renameat_with(&self.area, &*self.name, &self.area, layer.as_str(), RenameFlags::NOREPLACE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(failed("name layer")(e)),
        }
        rustix::fs::fsync(&self.area).map_err(failed("flush the name of layer"))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After a commit the name is gone and this does nothing; otherwise the next sweep tries again.
        let _ = tree::remove(self.area.as_fd(), self.name.as_bytes());
    }
}

fn transient_name() -> Result<String, UnpackError> {
    let mut random = [0; TRANSIENT_RANDOM_BYTES];
    // The system call itself: the library falls back to a device in a static program, and Landlock hides devices
    // from the child that unpacks.
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| UnpackError::system("draw", "a random name", io::Error::from(e)))?;
    Ok(format!("{TRANSIENT_PREFIX}{}", digest::hex(&random)))
}
