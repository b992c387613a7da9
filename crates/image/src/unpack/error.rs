//! Why a layer was refused or could not be written.

use std::io;

use serde::{Deserialize, Serialize};

use super::limits;
use crate::LayerId;

/// Why a layer was not unpacked. Travels between processes as JSON, hence no live `io::Error` inside.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum UnpackError {
    /// An entry would reach outside the layer or make something that a layer may not hold.
    #[error("entry {entry} is refused: {reason}")]
    Refused {
        /// The entry's name, cut and escaped.
        entry: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A bound of [`super::Limits`] was passed.
    #[error("the layer has more {what} than the limit of {limit}")]
    Limit {
        /// What there was too much of, with its unit.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// The archive is not a tar, is cut off, or its compression is damaged.
    #[error("the archive is damaged or not a tar: {reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// The content is not what the image's configuration says.
    #[error("the layer's content hashes to {found}, not to {expected}")]
    DiffId {
        /// The id by which it was asked for.
        expected: LayerId,
        /// The hash of what came.
        found: LayerId,
    },
    /// The disk or quota is full.
    #[error("no space or no inodes left on the disk")]
    NoSpace,
    /// A system call failed.
    #[error("{operation} {subject}: {reason}")]
    System {
        /// What was being done.
        operation: String,
        /// To which entry or file.
        subject: String,
        /// What the kernel said.
        reason: String,
    },
    /// Whoever unpacks could not be reached, or ended before it answered.
    #[error("the unpacking process failed: {reason}")]
    Process {
        /// What became of it.
        reason: String,
    },
}

impl From<archive::Error> for UnpackError {
    fn from(error: archive::Error) -> Self {
        match error {
            archive::Error::Refused { entry, reason } => Self::Refused { entry, reason },
            archive::Error::Limit { what, limit } => Self::Limit { what: what.to_owned(), limit },
            archive::Error::Malformed { reason } => Self::Malformed { reason },
            archive::Error::Stream(error) => Self::read(error),
            archive::Error::System { operation, subject, error } => Self::system(operation, subject, error),
            other => Self::malformed(other.to_string()),
        }
    }
}

impl UnpackError {
    pub(super) fn refused(entry: &[u8], reason: impl Into<String>) -> Self {
        Self::Refused { entry: archive::shown(entry), reason: reason.into() }
    }

    pub(crate) fn malformed(reason: impl Into<String>) -> Self {
        Self::Malformed { reason: reason.into() }
    }

    /// A failure to read the blob: its fault, unless the kernel named one.
    pub(crate) fn read(error: io::Error) -> Self {
        if let Some(limit) = limits::passed(&error) {
            return Self::Limit { what: "bytes in the unpacked archive".to_owned(), limit };
        }
        match error.raw_os_error() {
            Some(_) => Self::system("read", "the layer's blob", error),
            None => Self::malformed(error.to_string()),
        }
    }

    /// A system call failed on `subject`.
    pub fn system(operation: &str, subject: impl Into<String>, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::System { operation: operation.to_owned(), subject: subject.into(), reason: error.to_string() },
        }
    }
}
