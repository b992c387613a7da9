//! Where things lie in the data directory. Only the jailer writes here; names are ids, digests and checked names of
//! volumes, never other texts of users.

use std::path::{Path, PathBuf};

use lifecycle::isolated::SessionId;
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

    /// One directory for each isolated session of a sandbox.
    pub fn sessions(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join("sessions")
    }

    /// The directory of one session.
    pub fn session(&self, id: &SandboxId, session: &SessionId) -> PathBuf {
        self.sessions(id).join(session.as_str())
    }

    /// The socket on which a session's execd listens.
    pub fn session_socket(&self, id: &SandboxId, session: &SessionId) -> PathBuf {
        self.session(id, session).join("execd.sock")
    }

    /// Copies of exit records, one file for each ended sandbox: one directory to watch.
    pub fn exits(&self) -> PathBuf {
        self.root.join("exits")
    }

    /// Claimed id ranges of this machine: one symbolic link for each slot, whose text is the sandbox's directory. Gone
    /// after a restart of the machine, as the sandboxes are.
    pub fn id_slots(&self) -> PathBuf {
        PathBuf::from("/run/osb/ids")
    }

    /// execd, where sandboxes run on a kernel that opens it by name.
    pub fn program(&self) -> PathBuf {
        self.root.join("execd")
    }

    /// Templates of disk images, and images until a loop device holds them.
    pub fn disks(&self) -> PathBuf {
        self.root.join("disks")
    }

    /// Named volumes, one directory for each.
    pub fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    /// Records of snapshots, one file for each.
    pub fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }

    /// Name of the cgroup that bounds all sandboxes of this data directory.
    pub fn cgroup(&self) -> String {
        let digest = Sha256::digest(self.root.as_os_str().as_encoded_bytes());
        let hex: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        format!("osb-{hex}")
    }
}

/// Longest path of a unix socket in bytes, without the final NUL.
const SOCKET_PATH_BYTES: usize = 107;

/// A name for a socket that fits into a socket address: the path itself, or one through a descriptor of its directory,
/// which must stay open while the name is used.
///
/// # Errors
/// The directory of a long path cannot be opened.
pub fn socket_name(path: &Path) -> std::io::Result<(PathBuf, Option<std::os::fd::OwnedFd>)> {
    use std::os::fd::AsRawFd;
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    if path.as_os_str().len() <= SOCKET_PATH_BYTES {
        return Ok((path.to_owned(), None));
    }
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, rustix::fs::Mode::empty())?;
    Ok((Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name), Some(directory)))
}

#[cfg(test)]
mod tests;
