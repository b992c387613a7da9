//! Snapshots: what a sandbox had written over its image, kept as one more layer that others can stand on.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::runtime::{BoxFuture, RuntimeError};
use crate::spec::SandboxId;

#[cfg(test)]
mod tests;

/// Longest name that a client may give to a snapshot, in characters.
pub const MAX_NAME_CHARS: usize = 253;

/// Identifier of a snapshot: a lower-case UUID, never reused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotId(String);

impl SnapshotId {
    /// Accepts what is a [`SandboxId`]: such a text is also a file name.
    pub fn parse(text: &str) -> Option<Self> {
        SandboxId::parse(text).map(|id| Self(id.into()))
    }

    /// The identifier as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for SnapshotId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("\"{text}\" is not a snapshot id"))
    }
}

impl From<SnapshotId> for String {
    fn from(id: SnapshotId) -> Self {
        id.0
    }
}

/// What a sandbox stands on that is made from a snapshot. It holds nothing that belongs to the source alone: no label, no
/// variable that its owner set, no token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Layers, lowest first; the last one is the snapshot's own.
    pub layers: Vec<String>,
    /// Whether the machine's own programs lie over them; the lowest layer is their fingerprint then.
    pub host_programs: bool,
    /// The image's environment.
    pub env: Vec<(String, String)>,
    /// The image's working directory.
    pub working_dir: Option<String>,
    /// The image's user.
    pub user: Option<String>,
}

/// A snapshot that is wholly there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// What a sandbox that is made from it stands on.
    pub standing: Standing,
    /// Bytes of file content in the snapshot's own layer; holes do not count.
    pub bytes: u64,
    /// Files, directories and links in it.
    pub entries: u64,
    /// Sockets, which only mean something to who listens on them, and were left out.
    pub sockets_left_out: u64,
    /// Extended attributes that were left out: those of the host's security modules.
    pub attributes_left_out: u64,
    /// How long the sandbox stood still for it; zero for one that was paused.
    pub frozen: Duration,
}

/// How a sandbox is found and left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// It runs: it is frozen for the copy and goes on whatever comes of that.
    Running,
    /// It is paused and stays so.
    Paused,
}

/// Where a sandbox comes from that was made from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Which snapshot.
    pub id: SnapshotId,
    /// The image of its source, as that was asked for.
    pub image: String,
    /// What it stands on.
    pub standing: Standing,
}

/// Snapshots of sandboxes.
pub trait Snapshots: Send + Sync {
    /// Takes a snapshot. When this returns the sandbox is as it was found, and the snapshot is wholly there and was read
    /// back, or nothing of it is.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::runtime::ErrorKind::NotFound) for a sandbox that does not run, `Unsupported` where
    /// none can be taken of it, `Exhausted` where the disk is full.
    fn take<'a>(
        &'a self,
        id: &'a SnapshotId,
        sandbox: &'a SandboxId,
        found: Found,
    ) -> BoxFuture<'a, Result<Taken, RuntimeError>>;

    /// Every snapshot that is wholly there.
    fn list(&self) -> BoxFuture<'_, Result<Vec<(SnapshotId, Taken)>, RuntimeError>>;

    /// Removes a snapshot, and those of its layers that no other snapshot and no sandbox needs; one that does not exist is
    /// no error.
    fn remove<'a>(&'a self, id: &'a SnapshotId) -> BoxFuture<'a, Result<(), RuntimeError>>;
}

/// Where a snapshot is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Accepted; it is being taken.
    Creating,
    /// Wholly there.
    Ready,
    /// It could not be taken; nothing of it is there but its record.
    Failed,
    /// Being removed.
    Deleting,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Creating, Self::Ready, Self::Failed, Self::Deleting];

    /// The protocol's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "Creating",
            Self::Ready => "Ready",
            Self::Failed => "Failed",
            Self::Deleting => "Deleting",
        }
    }

    /// Reads the protocol's word, whose letter case counts (published).
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
