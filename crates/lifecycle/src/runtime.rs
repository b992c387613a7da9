//! What a runtime must be able to do, as a trait: the border between the domain and kernels or engines.
//!
//! Every call is idempotent, may be repeated after a crash, and answers what is, not what was meant. A
//! capability is an optional trait object ([`Runtime::pause`]): it cannot be claimed and missing.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use protocol::network::Cidr;
use serde::{Deserialize, Serialize};

use crate::isolated::Isolated;
use crate::snapshot::Snapshots;
use crate::spec::{SandboxId, SandboxSpec};
use crate::warm::Warm;

/// A boxed future, so that runtimes can be chosen at run time.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Isolated environments on one kind of engine.
pub trait Runtime: Send + Sync + 'static {
    /// Short stable name: `native`, `docker`, ...
    fn name(&self) -> &'static str;

    /// What this runtime can do on this machine, established once at its start.
    fn capabilities(&self) -> Capabilities;

    /// Makes and starts the sandbox, or claims the one that waits under this id ([`Warm`]); returns when its execd answers. A
    /// failure leaves nothing behind.
    fn create<'a>(&'a self, request: Create<'a>) -> BoxFuture<'a, Result<Created, RuntimeError>>;

    /// Ends the sandbox and removes everything of it; unknown ids succeed. `grace` lies between TERM and KILL.
    fn destroy<'a>(&'a self, id: &'a SandboxId, grace: Duration) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// What the kernel or engine says of the sandbox now.
    fn observe<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Observed, RuntimeError>>;

    /// Every sandbox of which anything exists here, whether or not somebody remembers it.
    fn list(&self) -> BoxFuture<'_, Result<Vec<SandboxId>, RuntimeError>>;

    /// Waits until some sandbox has ended by itself. A hint: callers also observe periodically.
    fn next_end(&self) -> BoxFuture<'_, SandboxId>;

    /// Where the sandbox's execd listens. Pure: answers for any id.
    fn execd(&self, id: &SandboxId) -> ExecdAddress;

    /// The last `max_bytes` of what the main process wrote to its standard output and error.
    fn console<'a>(&'a self, id: &'a SandboxId, max_bytes: usize) -> BoxFuture<'a, Result<Vec<u8>, RuntimeError>>;

    /// Pausing, if this runtime can.
    fn pause(&self) -> Option<&dyn Pause>;

    /// Isolated sessions, if this runtime can.
    fn isolated(&self) -> Option<&dyn Isolated> {
        None
    }

    /// Sockets in the networks of sandboxes, if this runtime can.
    fn sockets(&self) -> Option<&dyn Sockets> {
        None
    }

    /// Named volumes, if this runtime can.
    fn volumes(&self) -> Option<&dyn Volumes> {
        None
    }

    /// Sandboxes that wait to be claimed, if this runtime can.
    fn warm(&self) -> Option<&dyn Warm> {
        None
    }

    /// Snapshots, if this runtime can take any.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }

    /// Steered networks ([`Network::Steered`](crate::spec::Network)), if this runtime can.
    fn network(&self) -> Option<&dyn Network> {
        None
    }
}

/// Sandboxes whose ports are reached from outside without a process inside that passes bytes on.
pub trait Sockets: Send + Sync {
    /// Some TCP sockets over IPv4 that belong to the sandbox's network, whichever it has. They are connected to nothing,
    /// and no process of the sandbox has ever held them: nobody inside can make a call on them wait.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a sandbox that does not run.
    fn sockets<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Vec<OwnedFd>, RuntimeError>>;
}

/// Sandboxes whose connections and questions for names arrive at sockets outside of them.
pub trait Network: Send + Sync {
    /// Makes the sockets of a sandbox anew, after every copy of the last ones was closed.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] while somebody still holds one, [`ErrorKind::Invalid`] for a sandbox without a network.
    fn listen<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Listeners, RuntimeError>>;

    /// Replaces the ranges in which TCP connections may be asked for, in one step, for connections that come after;
    /// those that exist go on.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a sandbox without a network.
    fn steer<'a>(&'a self, id: &'a SandboxId, reachable: &'a [Cidr]) -> BoxFuture<'a, Result<(), RuntimeError>>;
}

/// The sockets on which everything arrives that wants to leave a sandbox. They belong to the sandbox's network and are
/// served from outside.
///
/// The local address of an accepted connection is the address and port that the sandbox asked for. The *sender* of a
/// datagram, which is a DNS question, is the address that was asked, with the asker's port; what is sent back to it
/// reaches the asker as an answer of that address, port 53.
#[derive(Debug)]
pub struct Listeners {
    /// Listens for TCP over IPv4.
    pub tcp4: OwnedFd,
    /// Listens for TCP over IPv6.
    pub tcp6: OwnedFd,
    /// Receives UDP over IPv4.
    pub udp4: OwnedFd,
    /// Receives UDP over IPv6.
    pub udp6: OwnedFd,
}

impl Listeners {
    /// The sockets in the order in which they travel.
    pub fn into_array(self) -> [OwnedFd; 4] {
        [self.tcp4, self.tcp6, self.udp4, self.udp6]
    }
}

impl From<[OwnedFd; 4]> for Listeners {
    /// Takes them in the order of [`Listeners::into_array`].
    fn from([tcp4, tcp6, udp4, udp6]: [OwnedFd; 4]) -> Self {
        Self { tcp4, tcp6, udp4, udp6 }
    }
}

/// Named volumes: directories that outlive sandboxes.
pub trait Volumes: Send + Sync {
    /// Makes the volume; one that exists stays as it is. `bytes` is the most that it may hold.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a size limit that cannot be kept here.
    fn ensure<'a>(&'a self, name: &'a str, bytes: Option<u64>) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// Removes the volume with all that is in it; one that does not exist is no error. No sandbox may have it.
    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// Every volume that exists.
    fn list(&self) -> BoxFuture<'_, Result<Vec<StoredVolume>, RuntimeError>>;
}

/// A named volume as it exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredVolume {
    /// Its name.
    pub name: String,
    /// Its size limit in bytes.
    pub bytes: Option<u64>,
}

/// Freezing with memory kept.
pub trait Pause: Send + Sync {
    /// Freezes every process of the sandbox.
    fn pause<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<(), RuntimeError>>;
    /// Thaws them.
    fn resume<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<(), RuntimeError>>;
}

/// One request to make a sandbox.
pub struct Create<'a> {
    /// The new sandbox's id.
    pub id: &'a SandboxId,
    /// What to make.
    pub spec: &'a SandboxSpec,
    /// The token that its execd will demand.
    pub token: &'a str,
    /// PEM of the certificate of an authority that the sandbox's programs are to trust.
    pub authority: Option<&'a str>,
    /// Login for the image's registry, for this pull only.
    pub pull_auth: Option<PullAuth>,
    /// Called with a sentence for people when something slow moves on. Must not block.
    pub progress: &'a (dyn Fn(String) + Send + Sync),
    /// Called with the sandbox's sockets, for a steered network, as soon as they are there and before the sandbox
    /// answers; more than once when the work begins anew, and the last are good. Must not block.
    pub listening: &'a (dyn Fn(Listeners) + Send + Sync),
}

/// A registry login, for one pull. Its `Debug` shows nothing.
#[derive(Clone)]
pub struct PullAuth {
    /// User name.
    pub username: String,
    /// Password or token.
    pub password: String,
}

impl std::fmt::Debug for PullAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PullAuth(masked)")
    }
}

/// A sandbox that answers.
#[derive(Debug)]
pub struct Created {
    /// What the kernel really applied.
    pub receipt: Receipt,
    /// Its sockets, for a steered network, unless [`Create::listening`] was called with them. `None` also where an earlier
    /// request made the sandbox and somebody holds them since.
    pub listeners: Option<Listeners>,
}

/// Where an execd listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecdAddress {
    /// A unix socket on this machine.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

/// What the kernel or engine says of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// It lives and runs.
    Running,
    /// It lives and is frozen.
    Paused,
    /// Its main process has ended; leftovers may exist.
    Ended(Exit),
    /// Nothing of it exists.
    Absent,
}

/// How a sandbox ended: never guessed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Exit {
    /// The main process ended by itself.
    Exited {
        /// Its exit code, 0 to 255.
        code: i32,
    },
    /// The main process was ended by a signal.
    Signaled {
        /// The signal's number.
        signal: i32,
    },
    /// The memory limit was reached and the kernel ended the main process for it.
    Oom {
        /// A sentence with the limit.
        detail: String,
    },
    /// The main process ended after the process limit was hit.
    Pids {
        /// Its exit code, if it had one.
        code: Option<i32>,
        /// A sentence with the limit.
        detail: String,
    },
    /// The main process ended while the disk limit was exhausted.
    Disk {
        /// Its exit code, if it had one.
        code: Option<i32>,
        /// A sentence with the limit.
        detail: String,
    },
    /// A crash made it unknowable.
    Unknown {
        /// Why it cannot be known.
        detail: String,
    },
}

/// What was really applied, read back from the kernel. Free of secrets; shown to clients as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// `root` or `user`.
    pub mode: String,
    /// First id and number of ids on the host, as in `uid_map`.
    pub id_range: Option<IdRange>,
    /// Namespaces that are the sandbox's own: `user`, `mount`, `pid`, `ipc`, `uts`, `net`, `cgroup`.
    pub namespaces: Vec<String>,
    /// One entry for each limit: `cpu`, `memory`, `swap`, `pids`, `disk`, `inodes`.
    pub limits: BTreeMap<String, AppliedLimit>,
    /// Form of the root filesystem: `overlay (id-mapped)`, ...
    pub rootfs: String,
    /// On which kernel its programs run.
    #[serde(default)]
    pub isolation: Isolation,
    /// Whether a seccomp filter is in force (`Seccomp: 2`).
    pub seccomp: bool,
    /// Whether `no_new_privs` is set.
    pub no_new_privs: bool,
    /// Effective capabilities of execd inside its user namespace.
    pub capabilities: Vec<String>,
    /// Which way out the sandbox has: `none` or `egress`.
    pub network: String,
    /// Its volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<AppliedMount>,
    /// What is weaker than on a machine that can do everything, one sentence each.
    pub weaker: Vec<String>,
}

/// On which kernel a sandbox's programs run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Isolation {
    /// `namespaces`: the machine's own kernel. `gvisor`: one in user space, within namespaces.
    pub kind: String,
    /// How a kernel in user space catches system calls: `ptrace`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The version of a kernel in user space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

impl Default for Isolation {
    /// The machine's own kernel.
    fn default() -> Self {
        Self { kind: "namespaces".to_owned(), platform: None, version: None }
    }
}

/// A range of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// First id on the host.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// One limit as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedLimit {
    /// The value in force; `None` when nothing limits it.
    pub value: Option<u64>,
    /// What enforces it: `cgroup v1`, `cgroup v2`, `ext4 image`, `tmpfs`, `rlimit`, `affinity`, `none`.
    pub by: String,
}

/// One volume as it is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedMount {
    /// Its name within the sandbox.
    pub name: String,
    /// `host` or `named`.
    pub kind: String,
    /// Where it is seen.
    pub mount_path: String,
    /// Whether it can only be read.
    pub read_only: bool,
    /// The file system it lies on: `ext4`, ...
    pub file_system: String,
    /// What the ids of its files are outside: `id-mapped` (the same numbers), or `shifted`.
    pub ids: String,
}

/// What a runtime can do about volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMeans {
    /// Whether there are named volumes; and host paths, where the operator allows some.
    pub named: bool,
    /// What keeps a size limit: `ext4 image`; `none` means that a create that asks for one is refused.
    pub size_limit: String,
    /// What the ids of files are outside: `id-mapped` (the same numbers as inside), or `shifted` (inside's root is the
    /// user, others lie in his range of /etc/subuid; the same in each of his sandboxes).
    pub ids: String,
}

/// What a runtime can do here: data for `GET /v1/capabilities` and for `admit`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// The runtime's name.
    pub runtime: String,
    /// `amd64` or `arm64`.
    pub arch: String,
    /// `root` or `user`.
    pub mode: String,
    /// On which kernel programs run.
    #[serde(default)]
    pub isolation: Isolation,
    /// Whether pause and resume exist.
    pub pause: bool,
    /// Whether snapshots can be taken.
    #[serde(default)]
    pub snapshots: bool,
    /// How each limit is enforced: name to means; `none` means that a create that asks for it is refused.
    pub limits: BTreeMap<String, String>,
    /// Whether fractions of a core can be enforced.
    pub fractional_cpu: bool,
    /// Which network a sandbox can have: `none`, or `egress` where what wants to leave can be steered.
    pub network: String,
    /// What can be had of volumes.
    #[serde(default)]
    pub volumes: VolumeMeans,
    /// What is weaker here, one sentence each.
    pub weaker: Vec<String>,
}

/// Why a runtime could not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct RuntimeError {
    /// What kind of failure it is.
    pub kind: ErrorKind,
    /// Whole sentence with the cause and, where there is one, the remedy. No secrets.
    pub message: String,
}

impl RuntimeError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// Kinds of failure, for choosing a code and whether to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The image does not exist or may not be pulled.
    Image,
    /// The main process could not be started.
    Entrypoint,
    /// The machine is out of something (ids, disk, memory, pids).
    Exhausted,
    /// The request asks for what this runtime cannot enforce.
    Unsupported,
    /// The sandbox is not there.
    NotFound,
    /// The request names something that cannot be so.
    Invalid,
    /// Somebody still holds what was asked for.
    Held,
    /// A host path leads to where the operator allows none.
    HostPath,
    /// A host path could not be opened or made.
    HostPathFailed,
    /// A path within a volume leads out of it, or cannot be made.
    SubPath,
    /// What a snapshot stands on is not there any more.
    Restore,
    /// The runtime itself failed; worth another try.
    Internal,
}
