//! New content beside its target, put in place at once: a reader sees the old file or the new one.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::path::{Asked, Place};
use super::permission::Applied;
use crate::clock;
use crate::command::private_directories;

/// Mode of a new file before the umask; the published daemon's.
const NEW_FILE_MODE: u32 = 0o777;
/// Links that are followed to the file that is really written.
const MAX_LINKS: u32 = 40;
/// Names tried for a temporary file.
const MAX_TRIES: u32 = 100;

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A temporary file; it is removed unless it was put in place.
pub struct Stage {
    /// For writing.
    pub file: File,
    path: PathBuf,
    /// In strict mode `path` goes through this descriptor.
    _directory: Option<Arc<OwnedFd>>,
}

impl Stage {
    /// Makes a temporary file in the directory of `target`; where that cannot be written, in execd's private
    /// directory.
    ///
    /// # Errors
    /// When no directory takes it.
    pub fn beside(target: &Place) -> io::Result<Self> {
        let file = final_target(target)?;
        let mut stage = Self::above(&file)?;
        stage._directory = target.directory();
        Ok(stage)
    }

    /// Makes a temporary file for a target whose directory is still to be made: in the first of its parents
    /// that exists, or in execd's private directory when no link may be followed.
    ///
    /// # Errors
    /// As [`Stage::beside`].
    pub fn for_missing(target: &Asked) -> io::Result<Self> {
        if target.is_strict() { Self::anywhere() } else { Self::above(Path::new(&target.shown)) }
    }

    fn above(file: &Path) -> io::Result<Self> {
        let parent = file.ancestors().skip(1).find(|ancestor| ancestor.is_dir());
        match parent.map(Self::inside) {
            Some(Ok(stage)) => Ok(stage),
            Some(Err(error)) if error.kind() == io::ErrorKind::StorageFull => Err(error),
            // What is wrong with the place that was asked for says more than that there is no other.
            Some(Err(error)) => Self::anywhere().map_err(|_| error),
            None => Self::anywhere(),
        }
    }

    /// Makes a temporary file for a target that is not known yet.
    ///
    /// # Errors
    /// As [`Stage::beside`].
    pub fn anywhere() -> io::Result<Self> {
        let none = io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "no directory for temporary files can be written");
        private_directories().map(|directory| Self::inside(&directory)).find(Result::is_ok).unwrap_or(Err(none))
    }

    fn inside(directory: &Path) -> io::Result<Self> {
        let mut tries = 0;
        loop {
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let path = directory.join(format!(".execd-{:x}-{number:x}.tmp", clock::now_ms()));
            match OpenOptions::new().read(true).write(true).create_new(true).mode(NEW_FILE_MODE).open(&path) {
                Ok(file) => {
                    return Ok(Self { file, path, _directory: None });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < MAX_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Puts the content at `place`. An existing file's mode and owner stay unless `applied` says otherwise;
    /// its links are followed. A file that cannot be replaced (a bind mount, another's file, a directory
    /// that is closed to us, another file system) is overwritten instead.
    ///
    /// # Errors
    /// The system's refusal; the target is as before, except after an overwrite that failed midway.
    pub fn commit(self, place: &Place, applied: &Applied) -> io::Result<()> {
        let target = final_target(place)?;
        let existing = look(place, &target)?;
        match existing.as_ref().map_or(Ok(()), |found| self.adopt(found)) {
            Ok(()) => {
                applied.apply_to(&self.file)?;
                self.file.sync_all()?;
                match fs::rename(&self.path, &target) {
                    Ok(()) => return sync_directory(&target),
                    Err(error) if is_irreplaceable(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
        let written = self.overwrite(place, &target, applied);
        if written.is_err() && existing.is_none() {
            let _ = fs::remove_file(&target); // made by us just now, if at all
        }
        written
    }

    /// Takes on the mode and owner of the file that is replaced.
    fn adopt(&self, found: &fs::Metadata) -> io::Result<()> {
        let own = self.file.metadata()?;
        if (own.uid(), own.gid()) != (found.uid(), found.gid()) {
            fchown(&self.file, Some(found.uid()), Some(found.gid()))?;
        }
        self.file.set_permissions(fs::Permissions::from_mode(found.mode() & 0o7777))
    }

    fn overwrite(&self, place: &Place, target: &Path, applied: &Applied) -> io::Result<()> {
        let mut source = OpenOptions::new().read(true).open(&self.path)?;
        let no_links = if place.is_strict() { libc::O_NOFOLLOW } else { 0 };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(NEW_FILE_MODE).custom_flags(no_links);
        let mut file = options.open(target)?;
        applied.apply_to(&file)?; // first, so that a refusal changes nothing
        let length = io::copy(&mut source, &mut file)?;
        file.set_len(length)?;
        file.sync_all()
    }
}

fn look(place: &Place, target: &Path) -> io::Result<Option<fs::Metadata>> {
    let found = if place.is_strict() { fs::symlink_metadata(target) } else { fs::metadata(target) };
    match found {
        Ok(found) if found.is_symlink() => Err(io::Error::from_raw_os_error(libc::ELOOP)),
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a rename failed because of what the target is, and not because the disk did.
fn is_irreplaceable(error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, PermissionDenied, ResourceBusy};
    matches!(error.kind(), PermissionDenied | ResourceBusy | CrossesDevices)
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // gone already when it was put in place
    }
}

/// Follows links at the end of a path, also one that points to nothing yet; none in strict mode.
fn final_target(place: &Place) -> io::Result<PathBuf> {
    let mut path = place.path.clone();
    if place.is_strict() {
        return Ok(path);
    }
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            Ok(link) => path = path.parent().unwrap_or(Path::new("/")).join(link),
            Err(_) => return Ok(path), // no link, or nothing at all
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

fn sync_directory(target: &Path) -> io::Result<()> {
    let parent = target.parent().filter(|parent| parent.as_os_str() != OsStr::new("")).unwrap_or(Path::new("/"));
    // A directory that may be written and not read cannot be synced; the file itself is.
    File::open(parent).map_or(Ok(()), |directory| directory.sync_all())
}
