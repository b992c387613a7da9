//! Why a port did not answer.

/// A call that was not passed on, or that broke off before the answer began.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What went wrong, for programs.
    pub kind: ErrorKind,
    /// What went wrong, for people; holds no secrets.
    pub message: String,
}

/// Kinds of failure, for choosing a status and whether to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The port is no number.
    NoPort,
    /// The number is no port.
    PortRange,
    /// The path, the method or the upgrade cannot be passed on.
    Invalid,
    /// The sandbox's daemon cannot be reached.
    Unreachable,
    /// Nothing listens on the port; it may later.
    NotListening,
    /// The port took too long to accept or to answer.
    TimedOut,
    /// The port broke off, or does not speak HTTP.
    Broken,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}
