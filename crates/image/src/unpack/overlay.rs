//! How layer archives say "deleted", and how overlayfs in a user namespace says it.

use std::os::fd::AsFd;

use rustix::fs::{FileType, Mode, XattrFlags};
use rustix::io::Errno;

use super::UnpackError;

/// What the name of an entry means when it is not the name of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Marker<'n> {
    /// The file of that name in lower layers is gone.
    Whiteout(&'n [u8]),
    /// Everything that lower layers have in this directory is gone.
    Opaque,
    /// Bookkeeping of aufs, without meaning here.
    Bookkeeping,
}

const PREFIX: &[u8] = b".wh.";
const BOOKKEEPING_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE_NAME: &[u8] = b".wh..wh..opq";
/// The mark that overlayfs reads when it is mounted with `userxattr`.
const OPAQUE_ATTRIBUTE: &str = "user.overlay.opaque";

pub(super) fn marker(name: &[u8]) -> Option<Marker<'_>> {
    if name == OPAQUE_NAME {
        Some(Marker::Opaque)
    } else if name.starts_with(BOOKKEEPING_PREFIX) {
        Some(Marker::Bookkeeping)
    } else {
        name.strip_prefix(PREFIX).map(Marker::Whiteout)
    }
}

/// Marks a directory as hiding what lower layers have in it.
pub(super) fn set_opaque(directory: impl AsFd) -> Result<(), Errno> {
    rustix::fs::fsetxattr(directory, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty())
}

/// Makes a whiteout: a character device 0/0, which also an ordinary user may make.
pub(super) fn make_whiteout(parent: impl AsFd, name: &[u8]) -> Result<(), Errno> {
    rustix::fs::mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0)
}

pub(super) fn is_whiteout(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// What is done with an extended attribute of an archive.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Attribute {
    /// Plain data of a program.
    Data,
    /// File capabilities: inert on a nosuid mount, and only root may set them.
    Capability,
    /// It would steer the kernel or the overlay.
    Dropped,
}

pub(super) fn attribute(name: &[u8]) -> Attribute {
    match name {
        b"security.capability" => Attribute::Capability,
        _ if name.contains(&0) || name.starts_with(b"user.overlay") => Attribute::Dropped,
        _ if name.starts_with(b"user.") => Attribute::Data,
        _ => Attribute::Dropped,
    }
}

pub(super) fn error(operation: &str, entry: &[u8], error: Errno) -> UnpackError {
    UnpackError::system(operation, archive::shown(entry), error)
}
