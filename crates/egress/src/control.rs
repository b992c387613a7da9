//! What the server and the egress process say to each other, and how: JSON in one packet, descriptors beside it.
//!
//! The control socket is a `SOCK_SEQPACKET` pair. Each request carries its own reply socket as its first descriptor: a
//! server that dies loses no answer of another, and a new one needs no handshake. A policy travels as a memory file, for
//! it may be longer than a packet. Nobody but the server holds the other end; what comes over it is trusted to be meant,
//! not to be right.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::limits::Limits;
use crate::sealed::{Key, Memory};
use crate::secrets::Refusal;
use crate::upstream::UpstreamProxy;
use crate::verdicts::Event;

mod client;
mod packet;
mod serve;

pub use client::{Beside, Control, ControlError, Watch};
pub use packet::pair;
pub(crate) use packet::receive_blocking;
pub(crate) use serve::serve;

/// Events in one packet: each has a kilobyte and a half at its longest, a name of nothing but bytes that are escaped.
pub const EVENTS_PER_PACKET: usize = 64;
/// Longest policy as JSON: as many rules as there may be, each with a long name and many ports.
pub const POLICY_BYTES: u64 = 16 * 1024 * 1024;
/// Longest request about a vault, in bytes; the published limit.
pub const VAULT_BODY_BYTES: u64 = 1024 * 1024;
/// Longest list of what a sandbox's vault should hold: as many hosts as fit into requests, and its certificate.
const EXPECTED_BYTES: u64 = 16 * 1024 * 1024;
/// Longest id of a sandbox.
pub const SANDBOX_ID_BYTES: usize = 128;

/// Who a new egress process is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boot {
    /// User and group id to become; `None` stays who it is.
    pub run_as: Option<u32>,
}

/// The first packet, from whoever started the process. No reply socket. Descriptor: the sealed memory file, if there is a
/// key.
#[derive(Serialize, Deserialize)]
pub(crate) struct First {
    pub run_as: Option<u32>,
    /// What opens the memory file; without it, secrets end with the process.
    pub key: Option<Key>,
    /// What the keys of authorities follow from.
    pub authorities: Option<Key>,
}

/// Tells a new egress process who to be, and where the secrets of the one before lie sealed. For whoever starts it, before
/// anybody asks it anything. Without a memory file its secrets end with it.
///
/// # Errors
/// When it is gone already.
pub fn boot(control: BorrowedFd<'_>, boot: &Boot, memory: Option<&Memory>) -> io::Result<()> {
    let first = First {
        run_as: boot.run_as,
        key: memory.map(|memory| memory.key.clone()),
        authorities: memory.and_then(|memory| memory.authorities.clone()),
    };
    let fds: Vec<BorrowedFd<'_>> = memory.iter().map(|memory| memory.file.as_fd()).collect();
    packet::send_secret_now(control, &first, &fds)
}

/// Asks a new egress process for something; whatever comes over the socket that is returned, it serves by then. For whoever
/// starts it and wants to know no more.
///
/// # Errors
/// When it is gone already.
pub fn greet(control: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let (ours, theirs) = pair()?;
    packet::send_now(control, &Request::Stats, &[theirs.as_fd()])?;
    Ok(ours)
}

/// What holds for all sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The machine's resolvers, in the order in which they are asked.
    pub resolvers: Vec<SocketAddr>,
    /// Where names live, for sandboxes that are attached from now on.
    pub synthetic: Ipv4Net,
    /// Limits of sandboxes that are attached from now on.
    pub limits: Limits,
    /// Certificates, as PEM, by which origins may be verified beside those that the machine trusts.
    pub upstream_ca_pem: Vec<String>,
    /// By which proxy the internet is reached, if not directly.
    #[serde(default)]
    pub upstream_proxy: Option<UpstreamProxy>,
    /// Whether credentials may be bound to requests that are not encrypted.
    pub vault_plain_http: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            resolvers: Vec::new(),
            synthetic: crate::names::DEFAULT_RANGE,
            limits: Limits::default(),
            upstream_ca_pem: Vec::new(),
            upstream_proxy: None,
            vault_plain_http: false,
        }
    }
}

/// Something that the egress process can do. Descriptors follow the reply socket in the order named.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// Set what holds for all.
    Configure {
        /// All of it.
        settings: Settings,
    },
    /// Serve a sandbox, in place of whatever is attached by that id. Descriptors: TCP over IPv4 and IPv6, UDP over IPv4
    /// and IPv6, the names file, the policy; of a sandbox that may have credentials, or whose TLS is read, an
    /// [`Expected`](crate::Expected); and, if it is recorded or answered from a recording, that file.
    Attach {
        /// The sandbox.
        sandbox: String,
        /// Number of the policy.
        revision: u64,
        /// Whether it is recorded or answered from a recording.
        #[serde(default)]
        taping: Option<Taping>,
    },
    /// Put another policy in force. Descriptor: the policy.
    SetPolicy {
        /// The sandbox.
        sandbox: String,
        /// Its number; an older one than that in force is refused, the same is put in force again.
        revision: u64,
    },
    /// Serve a sandbox no more. Nothing to do when it is not attached.
    Detach {
        /// The sandbox.
        sandbox: String,
    },
    /// Hand out a sandbox's sockets. Descriptors of the reply: the four of `Attach`.
    Listeners {
        /// The sandbox.
        sandbox: String,
    },
    /// Say what became of a sandbox's questions and connections; of one that is not attached, what is kept.
    Verdicts {
        /// The sandbox.
        sandbox: String,
        /// Only events after this sequence.
        after: u64,
    },
    /// Say what became of questions and connections, as it happens. The reply socket stays open. The first packet comes at
    /// once, whether or not there is an event.
    Watch {
        /// Of which sandbox; of all if absent.
        sandbox: Option<String>,
        /// Only events after this sequence.
        after: u64,
    },
    /// Make the authority of a sandbox whose programs are to trust it, or give it again.
    Authority {
        /// The sandbox.
        sandbox: String,
    },
    /// Fill a sandbox's vault. Descriptor: the request as it came.
    CreateVault {
        /// The sandbox.
        sandbox: String,
        /// Put again, it is done once.
        operation: Operation,
        /// What is demanded of it.
        demands: Demands,
    },
    /// Change what a sandbox's vault holds. Descriptor: the request as it came.
    PatchVault {
        /// The sandbox.
        sandbox: String,
        /// As above.
        operation: Operation,
        /// What is demanded of it.
        demands: Demands,
    },
    /// Empty a sandbox's vault.
    DeleteVault {
        /// The sandbox.
        sandbox: String,
        /// As above.
        operation: Operation,
    },
    /// Say what a sandbox's vault holds; no value is told.
    Vault {
        /// The sandbox.
        sandbox: String,
    },
    /// Forget a sandbox's authority and vault. Nothing to do where there are none.
    Forget {
        /// The sandbox.
        sandbox: String,
    },
    /// Say what there is.
    Stats,
}

/// What is done with a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tape", rename_all = "snake_case")]
pub enum Taping {
    /// What comes back is appended to it. The file must be open for reading and writing, and nobody else may write to it.
    Record {
        /// How long it may get, in bytes; notes are not counted.
        limit_bytes: u64,
    },
    /// The sandbox is answered from it; nothing leaves.
    Replay,
}

/// The number of one change of a vault: however often the change is put, it is made once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Operation(u64);

impl Operation {
    /// One that no other change has.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn new() -> io::Result<Self> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|_| io::Error::other("the kernel gives no random bytes"))?;
        Ok(Self(u64::from_ne_bytes(bytes)))
    }

    #[cfg(test)]
    pub(crate) fn numbered(number: u64) -> Self {
        Self(number)
    }
}

/// What a sandbox's owner demands of its bindings, beyond what holds for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Demands {
    /// Each must name its methods and paths.
    pub scoped_match: bool,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Reply {
    /// Done, nothing to say.
    Done,
    /// A policy is in force.
    PolicySet {
        /// Connections that it cut.
        cut: usize,
    },
    /// Sockets are beside this packet.
    Listeners,
    /// An authority.
    Authority {
        /// PEM of its certificate.
        certificate_pem: String,
    },
    /// What a vault holds is beside this packet: a memory file with a [`Shown`](crate::Shown).
    Vault,
    /// Events, oldest first.
    Events(Events),
    /// What there is.
    Stats(Stats),
    /// It could not be done.
    Failed(Failure),
}

/// Some events of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// The process: sequences of another one mean nothing to it.
    pub instance: u64,
    /// How many events the sandbox has had, those included that were not kept; what is not among these, nor was before, is
    /// lost. 0 where that cannot be said: more packets follow, or several sandboxes are told of.
    pub count: u64,
    /// At most [`EVENTS_PER_PACKET`], oldest first.
    pub events: Vec<Event>,
}

/// Why something could not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Failure {
    /// No sandbox of that id is attached.
    #[error("the sandbox is not attached to the egress process")]
    NotAttached,
    /// A newer policy is in force.
    #[error("revision {in_force} is in force, which is newer")]
    Stale {
        /// The one in force.
        in_force: u64,
    },
    /// The policy is wrong.
    #[error("{field}: {reason}")]
    Policy {
        /// Which field.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A vault is not as it was asked to be.
    #[error("{message}")]
    Vault {
        /// Why, for programs.
        refusal: Refusal,
        /// Why, for people; no value of a secret.
        message: String,
    },
    /// A request that does not fit this protocol.
    #[error("a request that is none: {message}")]
    Malformed {
        /// What is wrong with it.
        message: String,
    },
    /// The system did not let it.
    #[error("{operation}: {message}")]
    System {
        /// What was tried.
        operation: String,
        /// What the system said.
        message: String,
    },
}

/// What an egress process has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Of this process, chosen at its start: another one means that everything must be attached again.
    pub instance: u64,
    /// Version of the program.
    pub version: String,
    /// The newest event.
    pub sequence: u64,
    /// What is attached.
    pub sandboxes: Vec<SandboxStats>,
    /// Whose authorities and vaults are kept, attached or not.
    pub kept: Vec<String>,
}

/// What is attached of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxStats {
    /// The sandbox.
    pub sandbox: String,
    /// The policy in force.
    pub revision: u64,
    /// Connections at this moment.
    pub flows: usize,
    /// Names that it has asked for.
    pub names: usize,
    /// Events so far, those that were not kept included.
    pub events: u64,
    /// Revision of its vault, 0 while it is empty; `None` where it cannot have one, or has lost it.
    pub vault_revision: Option<u64>,
}

#[cfg(test)]
mod tests;
