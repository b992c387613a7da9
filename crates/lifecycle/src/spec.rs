//! What was admitted: a sandbox's specification in the domain's own types.

use std::collections::BTreeMap;
use std::fmt;

use protocol::egress::NetworkPolicy;
use protocol::hooks::Hooks;
use protocol::network::Cidr;
use serde::{Deserialize, Serialize};

use crate::snapshot::Origin;
use crate::volume::Volume;

#[cfg(test)]
mod tests;

/// Identifier of a sandbox: a lower-case UUID, never reused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

impl SandboxId {
    /// Accepts 1 to 63 characters of `[a-z0-9-]` that neither start nor end with `-`.
    pub fn parse(text: &str) -> Option<Self> {
        let ok = !text.is_empty()
            && text.len() <= 63
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !text.starts_with('-')
            && !text.ends_with('-');
        ok.then(|| Self(text.to_owned()))
    }

    /// The identifier as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for SandboxId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("\"{text}\" is not a sandbox id"))
    }
}

impl From<SandboxId> for String {
    fn from(id: SandboxId) -> Self {
        id.0
    }
}

/// Name of the image that is the machine's own programs, read-only.
pub const HOST_IMAGE: &str = "host";

/// A sandbox's specification: durable, without secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Image reference as it was asked for, or [`HOST_IMAGE`].
    pub image: String,
    /// Whether the pull was asked for with credentials, which are not kept.
    pub private_pull: bool,
    /// The requested platform; echoed only when requested.
    pub platform: Option<Platform>,
    /// Argument vector of the main process, at least one element.
    pub entrypoint: Vec<String>,
    /// Environment of every process.
    pub env: BTreeMap<String, String>,
    /// Limits as asked.
    pub limits: Limits,
    /// The user's labels.
    pub metadata: BTreeMap<String, String>,
    /// Extensions that are echoed.
    pub extensions: BTreeMap<String, String>,
    /// Lifetime in seconds from acceptance; `None` lasts until it is deleted.
    pub timeout_seconds: Option<u64>,
    /// Whether the sandbox ends with the engine that made it (`osb run` without a server).
    #[serde(default)]
    pub leased: bool,
    /// Commands that the sandbox runs by itself: checked, and passed on to execd as they are.
    #[serde(default)]
    pub hooks: Hooks,
    /// Which way out it has.
    #[serde(default)]
    pub network: Network,
    /// What may leave, as its owner wrote it; `None` is what the operator lets every sandbox do.
    #[serde(default)]
    pub policy: Option<NetworkPolicy>,
    /// How often that was changed.
    #[serde(default)]
    pub policy_revision: u64,
    /// Whether credentials are put into its requests on the way out.
    #[serde(default)]
    pub credential_proxy: bool,
    /// Whether what it fetches is recorded, or comes from a recording.
    #[serde(default)]
    pub taping: Taping,
    /// What calls to its ports need and do.
    #[serde(default)]
    pub access: Access,
    /// What it shares with the machine and with other sandboxes.
    #[serde(default)]
    pub volumes: Vec<Volume>,
    /// The pool that it counts against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The template that it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The snapshot that it was made from instead of an image.
    #[serde(default)]
    pub origin: Option<Origin>,
}

impl SandboxSpec {
    /// Takes over what a fork has in common with its source and no request can say: all but what is its own.
    pub fn take_over(&mut self, source: &Self) {
        self.platform.clone_from(&source.platform);
        self.limits = source.limits.clone();
        self.extensions.clone_from(&source.extensions);
        self.hooks = source.hooks.clone();
        self.taping = source.taping.clone();
        self.access = source.access;
        self.volumes.clone_from(&source.volumes);
    }

    /// Whether its programs must trust an authority of its own: its TLS is read.
    pub fn needs_authority(&self) -> bool {
        self.credential_proxy || self.taping != Taping::None
    }
}

/// What a sandbox has to do with recordings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tape", rename_all = "snake_case")]
pub enum Taping {
    /// Nothing.
    #[default]
    None,
    /// What it fetches is recorded.
    Record,
    /// It is answered from a recording, and nothing leaves.
    Replay {
        /// Id of the recording.
        recording: String,
    },
}

/// Most ranges of addresses that one sandbox may reach: their rules fit into one message to a kernel.
pub const MAX_REACHABLE: usize = 1024;

/// Which way out a sandbox has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Network {
    /// None: it has a loopback interface, and nothing leaves.
    #[default]
    None,
    /// What wants to leave is steered to sockets that whoever decides about it holds
    /// ([`Listeners`](crate::runtime::Listeners)).
    Steered {
        /// Where TCP connections may be asked for, [`MAX_REACHABLE`] ranges at most; one to any other address is refused
        /// by the kernel. Names are asked for in any case.
        reachable: Vec<Cidr>,
    },
}

/// What calls to a sandbox's ports need and do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// Whether only the sandbox's own token or a signed link opens its ports (`secureAccess`); the API key does not.
    pub secured: bool,
    /// Seconds by which an access moves the deadline on.
    pub renew_extend_seconds: Option<u32>,
    /// Seconds without access after which the sandbox is paused until the next.
    pub idle_pause_seconds: Option<u32>,
}

/// What a sandbox's owner demands of its credential vault, beyond what holds for all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VaultDemands {
    /// Each binding must name its methods and paths.
    pub scoped_match: bool,
    /// Secrets are taken over encrypted connections only.
    pub require_tls: bool,
    /// Whose word is taken for that a connection was encrypted before it came to them.
    pub trusted_proxies: Vec<Cidr>,
}

impl SandboxSpec {
    /// The argument vector to start: as asked, except that a single element with a space in it is split into
    /// words as a shell does (published behaviour). Quotes that do not close leave it as it is.
    pub fn argv(&self) -> Vec<String> {
        match self.entrypoint.as_slice() {
            [line] if line.contains(' ') => {
                words(line).filter(|words| !words.is_empty()).unwrap_or_else(|| self.entrypoint.clone())
            }
            argv => argv.to_vec(),
        }
    }
}

/// Splits at blanks; single quotes keep everything, double quotes everything but `\"` and `\\`, a backslash one character.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '"' => break,
                        '\\' => match chars.next()? {
                            c @ ('"' | '\\') => word.push(c),
                            c => word.extend(['\\', c]),
                        },
                        c => word.push(c),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(chars.next()?),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

/// Operating system and architecture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// Always `linux` here.
    pub os: String,
    /// `amd64` or `arm64`.
    pub arch: String,
}

/// Limits as asked; `None` means the runtime's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Bytes of memory, page cache and tmpfs included.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Bytes of everything the sandbox writes.
    pub disk_bytes: Option<u64>,
    /// Files, directories and links that the sandbox makes.
    pub disk_inodes: Option<u64>,
}
