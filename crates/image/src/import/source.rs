//! Where the blobs of an image are: in a directory, inside a tar, or the file itself.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::scan::{ImageArchive, Member};
use crate::Error;
use crate::digest::{Digest, HashingReader};
use crate::unpack::{Bounded, Compression, Limits};

/// Most links from a member to its data; `docker save` writes one.
const MAX_LINKS: usize = 4;

pub(super) enum Source {
    Directory { path: PathBuf, directory: OwnedFd },
    Archive { path: PathBuf, file: File, members: std::collections::HashMap<String, Member> },
    Whole { path: PathBuf, file: File },
}

/// A layer's blob in a source.
#[derive(Debug, Clone)]
pub(super) struct Blob {
    /// Name within the source; nothing for a source that is the blob.
    pub(super) name: String,
    /// The digest that it must have, where the source states one.
    pub(super) digest: Option<Digest>,
}

impl Source {
    pub(super) fn directory(path: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| Error::io("open", path, e.into()))?;
        Ok(Self::Directory { path: path.to_owned(), directory })
    }

    pub(super) fn whole(path: &Path, file: File) -> Self {
        Self::Whole { path: path.to_owned(), file }
    }

    /// Blobs inside a tar; a packed tar is unpacked first, since its members are read out of order.
    pub(super) fn archive(path: &Path, archive: ImageArchive, temporary: &Path) -> Result<Self, Error> {
        let file = match archive.compression {
            Compression::None => archive.file,
            packed => {
                let failed = |e| Error::io("unpack", path, e);
                let mut plain = anonymous(temporary)?;
                let decoded = packed.reader(archive.file).map_err(failed)?;
                io::copy(&mut Bounded::new(decoded, Limits::default().stream_bytes), &mut plain).map_err(failed)?;
                plain
            }
        };
        Ok(Self::Archive { path: path.to_owned(), file, members: archive.members })
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Directory { path, .. } | Self::Archive { path, .. } | Self::Whole { path, .. } => path,
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory { .. } => self.open_beneath(name).is_ok(),
            Self::Archive { members, .. } => members.contains_key(name),
            Self::Whole { .. } => false,
        }
    }

    /// Reads a small file whole.
    pub(super) fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let read = self.reader(name)?.take(limit + 1).read_to_end(&mut bytes).map_err(|e| self.failed(name, e))?;
        if read as u64 > limit {
            return Err(Error::TooLarge { what: format!("{name} in {}", self.path().display()), limit_bytes: limit });
        }
        Ok(bytes)
    }

    /// The blob as a file of its own, verified where its digest is known.
    pub(super) fn open(&self, blob: &Blob, temporary: &Path) -> Result<File, Error> {
        if let Self::Whole { path, file } = self {
            return file.try_clone().map_err(|e| Error::io("open", path, e));
        }
        let mut hashing = HashingReader::new(self.reader(&blob.name)?);
        let file = match self {
            Self::Directory { .. } => {
                io::copy(&mut hashing, &mut io::sink()).map_err(|e| self.failed(&blob.name, e))?;
                self.open_beneath(&blob.name)?
            }
            _ => {
                let mut copy = anonymous(temporary)?;
                io::copy(&mut hashing, &mut copy)
                    .and_then(|_| copy.flush())
                    .and_then(|()| copy.rewind())
                    .map_err(|e| Error::io("copy a layer to", temporary, e))?;
                copy
            }
        };
        let found = hashing.finish();
        match &blob.digest {
            Some(expected) if found != *expected => Err(Error::DigestMismatch {
                what: format!("{} in {}", blob.name, self.path().display()),
                expected: expected.to_string(),
                found: found.to_string(),
            }),
            _ => Ok(file),
        }
    }

    fn reader(&self, name: &str) -> Result<Box<dyn Read + '_>, Error> {
        match self {
            Self::Directory { .. } => Ok(Box::new(self.open_beneath(name)?)),
            Self::Archive { path, file, members } => {
                let (offset, size) = locate(members, name).ok_or_else(|| self.missing(name))?;
                let mut file = file;
                file.seek(SeekFrom::Start(offset)).map_err(|e| Error::io("read", path, e))?;
                Ok(Box::new(file.take(size)))
            }
            Self::Whole { .. } => Err(self.missing(name)),
        }
    }

    fn open_beneath(&self, name: &str) -> Result<File, Error> {
        let Self::Directory { directory, .. } = self else {
            return Err(self.missing(name));
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve) {
            Ok(fd) => Ok(File::from(fd)),
            Err(rustix::io::Errno::NOENT) => Err(self.missing(name)),
            Err(e) => Err(self.failed(name, e.into())),
        }
    }

    fn missing(&self, name: &str) -> Error {
        Error::malformed(self.path().display().to_string(), format!("{name:?} is missing"))
    }

    fn failed(&self, name: &str, error: io::Error) -> Error {
        Error::io("read", &self.path().join(name), error)
    }
}

fn locate(members: &std::collections::HashMap<String, Member>, name: &str) -> Option<(u64, u64)> {
    let mut name = name;
    for _ in 0..=MAX_LINKS {
        match members.get(name)? {
            Member::File { offset, size } => return Some((*offset, *size)),
            Member::Link(target) => name = target,
        }
    }
    None
}

/// A file without a name: it goes with its last descriptor, also after a crash.
fn anonymous(path: &Path) -> Result<File, Error> {
    let file =
        File::options().read(true).write(true).create_new(true).open(path).map_err(|e| Error::io("make", path, e))?;
    std::fs::remove_file(path).map_err(|e| Error::io("remove", path, e))?;
    Ok(file)
}
