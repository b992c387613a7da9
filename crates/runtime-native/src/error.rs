//! The one failure type of this crate: it crosses process borders as JSON, so it carries words, not sources.

use std::fmt;

use lifecycle::runtime::{ErrorKind, RuntimeError};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// What could not be done, and whose concern that is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind of failure it is.
    pub kind: Kind,
    /// Operation, subject and cause, for example `mount overlay: permission denied`.
    pub message: String,
}

/// Kinds of failure, as [`lifecycle::runtime::ErrorKind`] but able to cross a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The image's layers are missing or unusable.
    Image,
    /// The main process could not be started.
    Entrypoint,
    /// The machine is out of ids, disk, memory, processes or descriptors.
    Exhausted,
    /// What was asked cannot be enforced here.
    Unsupported,
    /// The sandbox is not there.
    NotFound,
    /// The request names something of the sandbox that cannot be so.
    Invalid,
    /// Somebody still holds what was asked for.
    Held,
    /// A host path leads to where the operator allows none.
    HostPath,
    /// A host path could not be opened or made.
    HostPathFailed,
    /// A path within a volume leads out of it, or cannot be made.
    SubPath,
    /// The jailer's own policy refuses the plan: a fault of the caller or an attack.
    Refused,
    /// Anything else.
    Internal,
}

/// Result of everything in this crate that talks to the kernel.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A failure that is nobody's in particular.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Kind::Internal, message)
    }

    /// A failed system call, with what it was done for.
    pub fn errno(op: impl fmt::Display, errno: Errno) -> Self {
        let kind = match errno {
            Errno::NOSPC | Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::NOMEM | Errno::USERS | Errno::DQUOT => {
                Kind::Exhausted
            }
            _ => Kind::Internal,
        };
        Self::new(kind, format!("{op}: {}", describe(errno)))
    }

    /// The same failure seen from one level up.
    pub fn during(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

/// The system's words for an error number, without Rust's suffix.
fn describe(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_lowercase()
}

impl From<Failure> for RuntimeError {
    fn from(failure: Failure) -> Self {
        let kind = match failure.kind {
            Kind::Image => ErrorKind::Image,
            Kind::Entrypoint => ErrorKind::Entrypoint,
            Kind::Exhausted => ErrorKind::Exhausted,
            Kind::Unsupported => ErrorKind::Unsupported,
            Kind::NotFound => ErrorKind::NotFound,
            Kind::Invalid => ErrorKind::Invalid,
            Kind::Held => ErrorKind::Held,
            Kind::HostPath => ErrorKind::HostPath,
            Kind::HostPathFailed => ErrorKind::HostPathFailed,
            Kind::SubPath => ErrorKind::SubPath,
            Kind::Refused | Kind::Internal => ErrorKind::Internal,
        };
        RuntimeError::new(kind, failure.message)
    }
}

/// Names the operation of a system call that failed.
pub trait Context<T> {
    /// Turns the error into a [`Failure`] that starts with `op`.
    fn op(self, op: impl fmt::Display) -> Result<T>;
}

impl<T> Context<T> for std::result::Result<T, Errno> {
    fn op(self, op: impl fmt::Display) -> Result<T> {
        self.map_err(|errno| Failure::errno(op, errno))
    }
}

impl<T> Context<T> for std::io::Result<T> {
    fn op(self, op: impl fmt::Display) -> Result<T> {
        self.map_err(|error| match Errno::from_io_error(&error) {
            Some(errno) => Failure::errno(op, errno),
            None => Failure::internal(format!("{op}: {error}")),
        })
    }
}
