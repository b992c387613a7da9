//! What the server and the jailer say to each other, in [`packets`].
//!
//! Each request carries its own reply socket, on which the process that does the work answers: a jailer that dies loses
//! nothing in flight.

use lifecycle::isolated::{Record, SessionId, SessionSpec};
use lifecycle::runtime::{Observed, Receipt, StoredVolume};
use lifecycle::snapshot::{Found, SnapshotId, Taken};
use lifecycle::spec::{Network, SandboxId};
use lifecycle::volume::Volume;
pub use packets::{PACKET_BYTES, Packet, pair, receive_bytes, send, send_bytes};
use protocol::network::Cidr;
use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::probe::Probe;
use crate::trust::Authority;

/// Something the jailer can do. Descriptors travel beside it in the order named at each variant, after the reply
/// socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// Make and start a sandbox. Descriptors: boot configuration (memory file), then the lease if the plan is leased.
    Create(Box<Plan>),
    /// Make a sandbox up to where its execd waits for its configuration. Answered by [`Reply::Prepared`]; a [`Claim`] then goes
    /// over the same reply socket, on which the sandbox's monitor listens. When its other end closes, the sandbox is removed.
    Prepare(Box<Plan>),
    /// End a sandbox and remove everything of it.
    Destroy {
        /// Which one.
        id: SandboxId,
        /// Milliseconds between TERM and KILL.
        grace_ms: u64,
    },
    /// Freeze every process of a sandbox.
    Pause {
        /// Which one.
        id: SandboxId,
    },
    /// Thaw them.
    Resume {
        /// Which one.
        id: SandboxId,
    },
    /// Say what the kernel says of a sandbox.
    Inspect {
        /// Which one.
        id: SandboxId,
    },
    /// Name every sandbox of which anything exists.
    List,
    /// Read the end of a sandbox's console log.
    Console {
        /// Which one.
        id: SandboxId,
        /// How much of it at most.
        max_bytes: u64,
    },
    /// Unpack an image layer. Descriptor: the blob.
    Unpack {
        /// Digest of the uncompressed layer, 64 hex digits.
        layer: String,
        /// How the blob is packed.
        compression: image::unpack::Compression,
    },
    /// Say whether a layer is there.
    HasLayer {
        /// Which one.
        layer: String,
    },
    /// Remove an unpacked layer.
    RemoveLayer {
        /// Which one.
        layer: String,
    },
    /// Make the layer that the `host` image stands on.
    HostImage,
    /// Make and start an isolated session in a sandbox. Descriptor: its execd's boot configuration (memory file).
    StartSession {
        /// The sandbox.
        sandbox: SandboxId,
        /// What is kept of it.
        record: Box<Record>,
        /// What to make.
        spec: Box<SessionSpec>,
    },
    /// End an isolated session and remove everything of it.
    EndSession {
        /// The sandbox.
        sandbox: SandboxId,
        /// Which one.
        session: SessionId,
    },
    /// Make the sockets of a steered network anew. Answered by [`Reply::Listening`].
    Listen {
        /// The sandbox.
        id: SandboxId,
    },
    /// Make sockets that are connected to nothing in a sandbox's network. Answered by [`Reply::Sockets`].
    Sockets {
        /// The sandbox.
        id: SandboxId,
    },
    /// Replace the ranges in which connections may be asked for.
    Steer {
        /// The sandbox.
        id: SandboxId,
        /// The ranges.
        reachable: Vec<Cidr>,
    },
    /// Name every session of a sandbox of which anything exists.
    ListSessions {
        /// The sandbox.
        sandbox: SandboxId,
    },
    /// Make a named volume, unless it exists.
    MakeVolume {
        /// Its name.
        name: String,
        /// Most bytes that it may hold.
        bytes: Option<u64>,
    },
    /// Remove a named volume and all that is in it.
    RemoveVolume {
        /// Its name.
        name: String,
    },
    /// Name every volume that exists. Answered by [`Reply::Volumes`].
    ListVolumes,
    /// Take a snapshot of a sandbox. Answered by [`Reply::Snapshot`].
    TakeSnapshot {
        /// The snapshot.
        id: SnapshotId,
        /// The sandbox.
        sandbox: SandboxId,
        /// How it is found and left.
        found: Found,
    },
    /// Name every snapshot that is wholly there. Answered by [`Reply::Snapshots`].
    ListSnapshots,
    /// Remove a snapshot and what only it needs.
    RemoveSnapshot {
        /// The snapshot.
        id: SnapshotId,
    },
    /// Say what this machine can do.
    Probe,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Reply {
    /// Done, nothing to say.
    Done,
    /// The sockets of a steered network, as descriptors: sent as soon as the kernel has all of that network, while the
    /// sandbox is still being made. [`Reply::Created`] or [`Reply::Failed`] follows.
    Steered,
    /// The sandbox runs and its execd answers.
    Created {
        /// What the kernel applied.
        receipt: Box<Receipt>,
    },
    /// The sandbox waits for a [`Claim`].
    Prepared,
    /// The state of a sandbox.
    Observed {
        /// As the kernel says.
        observed: Seen,
    },
    /// Sandboxes.
    Listed {
        /// Their ids.
        ids: Vec<SandboxId>,
    },
    /// Console output follows in a memory file beside this packet.
    Console,
    /// A layer was unpacked.
    Unpacked {
        /// What came of it.
        stats: image::unpack::LayerStats,
    },
    /// A layer could not be unpacked, looked at or removed.
    UnpackFailed(image::unpack::UnpackError),
    /// Whether something is there.
    Has {
        /// The answer.
        present: bool,
    },
    /// The host image's layer.
    Host {
        /// Its layer id.
        layer: String,
        /// Environment of its processes.
        env: Vec<(String, String)>,
        /// Their working directory.
        working_dir: Option<String>,
    },
    /// The sockets of a steered network follow beside this packet, in the order of
    /// [`Listeners`](lifecycle::runtime::Listeners).
    Listening,
    /// Sockets of a sandbox's network, connected to nothing, follow beside this packet.
    Sockets,
    /// Isolated sessions.
    Sessions {
        /// Oldest first.
        sessions: Vec<lifecycle::isolated::Seen>,
    },
    /// Named volumes.
    Volumes {
        /// In no order.
        volumes: Vec<StoredVolume>,
    },
    /// A snapshot is there.
    Snapshot {
        /// What it is.
        taken: Box<Taken>,
    },
    /// Snapshots follow in a memory file beside this packet, as JSON: there may be more than a packet holds.
    Snapshots,
    /// What this machine can do.
    Probed(Box<Probe>),
    /// It could not be done.
    Failed(Failure),
}

/// What turns a waiting sandbox into somebody's. Descriptor: the boot configuration (memory file). Answered as
/// [`Request::Create`] is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// What it is to be: the plan that it was prepared with, but for what can be changed still.
    pub plan: Plan,
}

/// [`Observed`] in a form that crosses the socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Seen {
    /// It runs.
    Running,
    /// It is frozen.
    Paused,
    /// Its main process ended.
    Ended {
        /// How.
        exit: lifecycle::runtime::Exit,
    },
    /// Nothing of it exists.
    Absent,
}

impl From<Seen> for Observed {
    fn from(seen: Seen) -> Self {
        match seen {
            Seen::Running => Observed::Running,
            Seen::Paused => Observed::Paused,
            Seen::Ended { exit } => Observed::Ended(exit),
            Seen::Absent => Observed::Absent,
        }
    }
}

/// On which kernel a sandbox's programs run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// The machine's.
    #[default]
    Host,
    /// gVisor's, in user space.
    Gvisor,
}

/// What to build: no secret in it, and no host path but those of volumes, which the jailer compares with its own list. The
/// jailer keeps a copy on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The sandbox.
    pub id: SandboxId,
    /// Image layers, lowest first, each 64 hex digits.
    pub layers: Vec<String>,
    /// Whether the machine's own programs are bound read-only over the layers.
    pub host_programs: bool,
    /// Identity of the image's `USER`, resolved in the sandbox's own `/etc/passwd`.
    pub user: Option<String>,
    /// Working directory of the image, made if the image lacks it.
    pub working_dir: Option<String>,
    /// Limits to enforce.
    pub limits: PlanLimits,
    /// On which kernel its programs run.
    #[serde(default)]
    pub kernel: Kernel,
    /// Which way out it has.
    #[serde(default)]
    pub network: Network,
    /// Whom its programs are to trust beside the image's roots.
    #[serde(default)]
    pub authority: Option<Authority>,
    /// What it shares with the machine and with other sandboxes.
    #[serde(default)]
    pub volumes: Vec<Volume>,
    /// The environment of its image, for those that are made from a snapshot of it.
    #[serde(default)]
    pub image_env: Vec<(String, String)>,
    /// Whether a lease comes with the request: the sandbox ends when the other end of that pipe is closed.
    pub leased: bool,
    /// Milliseconds until execd must have answered.
    pub start_deadline_ms: u64,
    /// Milliseconds between TERM and KILL when the lease ends.
    pub grace_ms: u64,
}

impl Plan {
    /// Whether a sandbox that was prepared by this plan can become one of the other.
    pub fn can_become(&self, other: &Self) -> bool {
        let mut changed = self.clone();
        changed.limits.cpu_millis = other.limits.cpu_millis;
        changed.limits.memory_bytes = other.limits.memory_bytes;
        changed.limits.pids = other.limits.pids;
        if let (Network::Steered { .. }, Network::Steered { .. }) = (&self.network, &other.network) {
            changed.network = other.network.clone();
        }
        changed.start_deadline_ms = other.start_deadline_ms;
        changed == *other
    }
}

/// Limits of a sandbox; `None` is unlimited except by what bounds all sandboxes together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanLimits {
    /// Thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Bytes, page cache and tmpfs included.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Bytes of everything the sandbox writes.
    pub disk_bytes: Option<u64>,
    /// Files, directories and links that it makes.
    pub disk_inodes: Option<u64>,
}
