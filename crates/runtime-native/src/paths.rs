//! Where things lie in the data directory. Only the jailer writes here; names are ids and digests, never texts of users.

use std::path::{Path, PathBuf};

use lifecycle::spec::SandboxId;
use sha2::{Digest, Sha256};

/// The data directory and the names in it.
#[derive(Clone, Debug)]
pub struct Paths {
    root: PathBuf,
}

impl Paths {
    /// The layout beneath this directory.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The data directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Unpacked layers: `layers/<digest>/fs`.
    pub fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    /// The file tree of one layer.
    pub fn layer(&self, digest: &str) -> PathBuf {
        self.root.join("layers").join(digest).join("fs")
    }

    /// One directory for each sandbox.
    pub fn sandboxes(&self) -> PathBuf {
        self.root.join("sandboxes")
    }

    /// The directory of one sandbox.
    pub fn sandbox(&self, id: &SandboxId) -> PathBuf {
        self.root.join("sandboxes").join(id.as_str())
    }

    /// The socket on which a sandbox's execd listens.
    pub fn socket(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join("execd.sock")
    }

    /// Copies of exit records, one file for each ended sandbox: one directory to watch.
    pub fn exits(&self) -> PathBuf {
        self.root.join("exits")
    }

    /// Claimed id ranges: one symbolic link for each slot, whose text is the sandbox's id.
    pub fn id_slots(&self) -> PathBuf {
        self.root.join("ids")
    }

    /// Templates of disk images, and images until a loop device holds them.
    pub fn disks(&self) -> PathBuf {
        self.root.join("disks")
    }

    /// Name of the cgroup that bounds all sandboxes of this data directory.
    pub fn cgroup(&self) -> String {
        let digest = Sha256::digest(self.root.as_os_str().as_encoded_bytes());
        let hex: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        format!("osb-{hex}")
    }
}

/// Longest path of a unix socket in bytes, without the final NUL.
pub const SOCKET_PATH_BYTES: usize = 107;
