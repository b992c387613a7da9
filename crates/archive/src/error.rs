//! Why an archive was refused, or a tree could not be read or written.

use std::io;

/// Longest part of an entry's name that an error shows, in characters.
const SHOWN_CHARS: usize = 200;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An entry would reach outside of the tree or is something that is not made.
    #[error("entry {entry} is refused: {reason}")]
    Refused {
        /// The entry's name, cut and escaped.
        entry: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A bound of [`crate::Limits`] was passed.
    #[error("the archive has more {what} than the limit of {limit}")]
    Limit {
        /// What there was too much of, with its unit.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The archive is not a tar or is cut off.
    #[error("the archive is damaged or not a tar: {reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// The archive could not be read or written.
    #[error("the archive could not be moved")]
    Stream(#[source] io::Error),
    /// A system call failed.
    #[error("{operation} {subject}")]
    System {
        /// What was being done.
        operation: &'static str,
        /// To which entry.
        subject: String,
        /// What the kernel said.
        #[source]
        error: io::Error,
    },
}

/// The name of an entry as an error shows it.
pub fn shown(name: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(name).chars().take(SHOWN_CHARS).collect();
    format!("{text:?}")
}

impl Error {
    /// The entry is refused.
    pub fn refused(entry: &[u8], reason: impl Into<String>) -> Self {
        Self::Refused { entry: shown(entry), reason: reason.into() }
    }

    /// The archive is damaged.
    pub fn malformed(reason: impl Into<String>) -> Self {
        Self::Malformed { reason: reason.into() }
    }

    /// A system call failed for an entry.
    pub fn system(operation: &'static str, entry: &[u8], error: impl Into<io::Error>) -> Self {
        Self::System { operation, subject: shown(entry), error: error.into() }
    }
}

/// Refuses when `value` is over `limit`.
pub(crate) fn check(what: &'static str, value: u64, limit: u64) -> Result<(), Error> {
    if value > limit { Err(Error::Limit { what, limit }) } else { Ok(()) }
}
