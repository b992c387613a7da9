//! Volumes: what a sandbox shares with the machine, or with the sandboxes before, after and beside it.
//!
//! The rules of their names and paths stand here, because more than one process checks them: `admit` for whoever asks,
//! and a runtime for itself.

use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// Most volumes of one sandbox: real requests have a few, and each travels as a descriptor of a packet that takes 200.
pub const MAX_VOLUMES: usize = 32;
/// Longest path in bytes, inside and outside: a plan with as many volumes as there may be fits into one packet.
pub const MAX_PATH_BYTES: usize = 1024;
/// Longest name of a named volume in bytes (published); it is the name of a directory.
pub const MAX_CLAIM_BYTES: usize = 253;
/// Longest name of a volume within its sandbox in bytes (published).
pub const MAX_NAME_BYTES: usize = 63;
/// Smallest size limit in bytes: room for a journal and the file system's own tables.
pub const MIN_BYTES: u64 = 16 << 20;
/// Largest size limit in bytes: a sparse image of the default file system stays well below its own limit.
pub const MAX_BYTES: u64 = 4 << 40;
/// Where the platform's own file systems lie: nothing else can be mounted there or beneath.
pub const RESERVED: [&str; 3] = ["/proc", "/sys", "/dev"];

/// A volume as it was admitted; durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Its name within the sandbox.
    pub name: String,
    /// What is mounted.
    pub source: Source,
    /// Where, inside: absolute, without a slash at the end.
    pub mount_path: String,
    /// A file or directory within it that is mounted instead of the whole: relative.
    pub sub_path: Option<String>,
    /// Whether the sandbox may only read.
    pub read_only: bool,
}

/// What a volume shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Source {
    /// A file or directory of the machine.
    Host {
        /// Where: absolute.
        path: String,
    },
    /// A volume of the server's own.
    Named(Claim),
}

/// A named volume, as a create asks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Its name.
    pub name: String,
    /// Whether it is made where it does not exist.
    pub create: bool,
    /// Whether it goes with the sandbox, if that made it.
    pub delete_at_end: bool,
    /// The size limit in bytes that it must have.
    pub bytes: Option<u64>,
    /// The size limit in bytes that it gets if it is made and none was asked for.
    pub default_bytes: Option<u64>,
}

impl Volume {
    /// The named volume that it shows, if it shows one.
    pub fn claim(&self) -> Option<&Claim> {
        match &self.source {
            Source::Named(claim) => Some(claim),
            Source::Host { .. } => None,
        }
    }
}

/// Whether a text is a name of a volume: letters, digits and `-` in lower case, not at the ends.
pub fn is_name(text: &str, most_bytes: usize) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = text.as_bytes();
    bytes.len() <= most_bytes
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| edge(Some(byte)) || *byte == b'-')
}

/// What is wrong with an absolute path, if anything: it must be canonical as far as a text can be.
pub fn mistake_in_path(path: &str) -> Option<&'static str> {
    match path.strip_prefix('/') {
        None => Some("must be absolute"),
        Some("") => None,
        Some(rest) => mistake_in_relative(rest),
    }
}

/// What is wrong with a relative path, if anything.
pub fn mistake_in_relative(path: &str) -> Option<&'static str> {
    if path.len() > MAX_PATH_BYTES {
        return Some("is longer than 1024 bytes");
    }
    if path.chars().any(char::is_control) {
        return Some("must not contain control characters");
    }
    if path.starts_with('/') {
        return Some("must not begin with a slash");
    }
    if path.ends_with('/') {
        return Some("must not end with a slash");
    }
    path.split('/').find_map(|part| match part {
        "" => Some("must not contain \"//\""),
        "." | ".." => Some("must not contain \".\" or \"..\""),
        _ => None,
    })
}

/// What is wrong with a place to mount at, if anything, beyond [`mistake_in_path`].
pub fn mistake_in_mount_path(path: &str) -> Option<&'static str> {
    if let Some(mistake) = mistake_in_path(path) {
        return Some(mistake);
    }
    if path == "/" {
        return Some("must not be the root of the sandbox");
    }
    let is_reserved = RESERVED.iter().any(|place| is_beneath(path, place));
    is_reserved.then_some("must not lie in /proc, /sys or /dev, which are the platform's")
}

/// Whether a path is another one or lies beneath it, by their texts; both as [`mistake_in_path`] wants them.
pub fn is_beneath(path: &str, other: &str) -> bool {
    other == "/" || path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
