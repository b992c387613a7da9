//! Where a request's path leads, and how it is walked.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use protocol::execd::{code, header};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2};

use crate::environment::Paths;
use crate::error::{ApiError, Result};

/// How links on the way to a path are treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolve {
    /// Followed, like any program does.
    Follow,
    /// Refused wherever they stand, the last component included.
    NoSymlinks,
}

impl Resolve {
    /// What the request asks for.
    ///
    /// # Errors
    /// 400 for an unknown value.
    pub fn of(headers: &HeaderMap) -> Result<Self> {
        match headers.get(header::RESOLVE) {
            None => Ok(Self::Follow),
            Some(value) if value == header::RESOLVE_NO_SYMLINKS => Ok(Self::NoSymlinks),
            Some(value) => Err(ApiError::body(format!(
                "header {}: {value:?} is not {:?}",
                header::RESOLVE,
                header::RESOLVE_NO_SYMLINKS
            ))),
        }
    }
}

/// A path of a request, expanded but not yet looked at. It can be sent to a worker.
#[derive(Clone, Debug)]
pub struct Asked {
    /// As the client wrote it: the key of answers.
    pub given: String,
    /// Absolute: the name in messages.
    pub shown: String,
    resolve: Resolve,
}

/// A path that can be used: in strict mode its directory is held by descriptor, so that no later exchange of
/// a component for a link changes where it leads.
pub struct Place {
    /// For messages.
    pub shown: String,
    /// For system calls.
    pub path: PathBuf,
    directory: Option<Arc<OwnedFd>>,
}

/// Whether missing directories on the way are made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Parents {
    /// They must exist.
    Existing,
    /// They are made with the default mode.
    Made,
}

/// Mode of directories made on the way, before the umask.
const PARENT_MODE: u32 = 0o777;

impl Asked {
    /// Expands a path by the sandbox's environment.
    ///
    /// # Errors
    /// 400 for an empty path or an undefined variable.
    pub fn new(paths: &Paths, given: &str, resolve: Resolve) -> Result<Self> {
        Ok(Self { given: given.to_owned(), shown: paths.expand(given)?, resolve })
    }

    /// Expands all paths of a request.
    ///
    /// # Errors
    /// As [`Asked::new`], for the first that fails.
    pub fn all<'a>(paths: &Paths, given: impl Iterator<Item = &'a str>, resolve: Resolve) -> Result<Vec<Self>> {
        given.map(|path| Self::new(paths, path, resolve)).collect()
    }

    /// Walks to the path's directory.
    ///
    /// # Errors
    /// 404 for a missing directory, 400 for a link in strict mode or one that cannot be made.
    pub fn locate(&self, parents: Parents) -> Result<Place> {
        let path = PathBuf::from(&self.shown);
        match (self.resolve, path.parent().map(Path::to_owned), path.file_name()) {
            (Resolve::NoSymlinks, Some(parent), Some(name)) => {
                let directory = self.open_strictly(&parent, parents)?;
                let path = descriptor_path(&directory).join(name);
                if path.is_symlink() {
                    return Err(self.is_link(&path));
                }
                Ok(Place { shown: self.shown.clone(), path, directory: Some(Arc::new(directory)) })
            }
            (_, parent, _) => {
                if let (Parents::Made, Some(parent)) = (parents, parent) {
                    std::fs::create_dir_all(&parent)
                        .map_err(|error| ApiError::io("make the directory of", &self.shown, &error))?;
                }
                Ok(Place { shown: self.shown.clone(), path, directory: None })
            }
        }
    }

    /// Whether links are refused.
    pub fn is_strict(&self) -> bool {
        self.resolve == Resolve::NoSymlinks
    }

    fn open_strictly(&self, directory: &Path, parents: Parents) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match openat2(CWD, directory, flags, Mode::empty(), resolve) {
            Ok(directory) => Ok(directory),
            Err(rustix::io::Errno::NOENT) if parents == Parents::Made => self.make_strictly(directory),
            Err(rustix::io::Errno::LOOP) => Err(self.is_link(directory)),
            Err(rustix::io::Errno::NOSYS) => {
                let message = format!(
                    "{}: this kernel or sandbox has no openat2; ask without the header {}",
                    self.shown,
                    header::RESOLVE
                );
                Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, code::NOT_SUPPORTED, message))
            }
            Err(error) => Err(ApiError::io("open the directory of", &self.shown, &error.into())),
        }
    }

    /// Makes what is missing, one component after the other, each opened without following links.
    fn make_strictly(&self, directory: &Path) -> Result<OwnedFd> {
        let failed = |error: rustix::io::Errno| match error {
            rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => self.is_link(directory),
            error => ApiError::io("make the directory of", &self.shown, &error.into()),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut current = openat(CWD, "/", flags, Mode::empty()).map_err(failed)?;
        for component in directory.components().skip(1) {
            let name =
                CString::new(component.as_os_str().as_encoded_bytes()).map_err(|_| failed(rustix::io::Errno::INVAL))?;
            match mkdirat(current.as_fd(), &name, Mode::from(PARENT_MODE)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(failed(error)),
            }
            current = openat(current.as_fd(), &name, flags, Mode::empty()).map_err(failed)?;
        }
        Ok(current)
    }

    fn is_link(&self, at: &Path) -> ApiError {
        ApiError::file(format!(
            "{}: {} is reached through a symbolic link, which this request forbids",
            self.shown,
            at.display()
        ))
    }
}

/// A path to what a descriptor holds, good as long as the descriptor is.
pub fn descriptor_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

impl Place {
    /// Whether links are refused: `path` then goes through a held directory, and its last component must be
    /// opened without following.
    pub fn is_strict(&self) -> bool {
        self.directory.is_some()
    }

    /// Fixes also the last component, so that what is looked at next is what was looked at before. Without
    /// strict mode nothing changes.
    ///
    /// # Errors
    /// 404 when nothing lies there, 400 for a link.
    pub fn pin(self) -> Result<Self> {
        if !self.is_strict() {
            return Ok(self);
        }
        let failed = |error: rustix::io::Errno| self.failed("open", &error.into());
        let fd = openat(CWD, &self.path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed)?;
        let kind = FileType::from_raw_mode(fstat(&fd).map_err(failed)?.st_mode);
        if kind == FileType::Symlink {
            return Err(ApiError::file(format!("{}: is a symbolic link, which this request forbids", self.shown)));
        }
        Ok(Self { path: descriptor_path(&fd), shown: self.shown, directory: Some(Arc::new(fd)) })
    }

    /// What keeps `path` valid; whoever uses the path after the place is gone holds this.
    pub fn directory(&self) -> Option<Arc<OwnedFd>> {
        self.directory.clone()
    }

    /// What lies there, not following a link; 404 when nothing does.
    ///
    /// # Errors
    /// As [`ApiError::io`].
    pub fn lstat(&self) -> Result<std::fs::Metadata> {
        std::fs::symlink_metadata(&self.path).map_err(|error| self.failed("look at", &error))
    }

    /// What lies there, following a link; `None` when nothing does.
    ///
    /// # Errors
    /// As [`ApiError::io`].
    pub fn stat_if_exists(&self) -> Result<Option<std::fs::Metadata>> {
        match std::fs::metadata(&self.path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("look at", &error)),
        }
    }

    /// The refusal for a failed operation here.
    pub fn failed(&self, operation: &str, error: &io::Error) -> ApiError {
        ApiError::io(operation, &self.shown, error)
    }
}
