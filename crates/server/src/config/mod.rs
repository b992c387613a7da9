//! The configuration of a server: built-in defaults, a TOML file, the environment and flags, in rising order.
//!
//! Names are the published ones where the concept exists; ours lie under `[native]` and `[images]`. A key that
//! is not known refuses the start and names the nearest known one; a published key whose subject does not exist
//! here is refused with that reason. No key is ignored.

mod keys;
mod load;
mod values;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ingress::links::Keys;
use lifecycle::admit::VolumeRules;
use secrecy::SecretString;

pub use load::{Sources, load};

/// What a server is told at its start.
#[derive(Clone)]
pub struct Config {
    /// `[server]`.
    pub server: Server,
    /// `[proxy]`.
    pub proxy: Proxy,
    /// `[ingress]`.
    pub ingress: Ingress,
    /// `[renew_intent]`.
    pub renew_intent: RenewIntent,
    /// `[log]`.
    pub log: Log,
    /// `[store]`.
    pub store: StoreConfig,
    /// `[native]`.
    pub native: Native,
    /// `[images]`.
    pub images: Images,
    /// `[storage]`.
    pub storage: Storage,
    /// `[egress]`.
    pub egress: Egress,
    /// `[secure_runtime]`.
    pub secure_runtime: SecureRuntime,
    /// `[warm]`.
    pub warm: Warm,
}

/// Listening, access and limits.
#[derive(Clone)]
pub struct Server {
    /// Address to listen on.
    pub host: String,
    /// Port to listen on; 0 takes a free one.
    pub port: u16,
    /// The API key; absent means the one in the data directory.
    pub api_key: Option<SecretString>,
    /// `host[:port]` that clients reach this server by, when it is not what they send as `Host`.
    pub eip: Option<String>,
    /// Longest lifetime of a sandbox in seconds.
    pub max_sandbox_timeout_seconds: Option<u64>,
    /// Requests worked on at the same time; 0 means no limit.
    pub limit_concurrency: usize,
    /// How long an idle connection is kept.
    pub timeout_keep_alive: Duration,
    /// How long open requests may go on after a stop.
    pub timeout_graceful_shutdown: Duration,
    /// Connections that the kernel holds before they are accepted.
    pub backlog: u32,
}

/// The proxy to ports.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Whether `X-Forwarded-*` of a caller are kept; otherwise they are replaced.
    pub trust_forwarded: bool,
}

/// Signed links.
#[derive(Clone)]
pub struct Ingress {
    /// Keys of links; absent means one made from the server's secret.
    pub keys: Option<Arc<Keys>>,
}

/// Renewal by access.
#[derive(Clone, Debug)]
pub struct RenewIntent {
    /// Whether a sandbox may ask for it.
    pub enabled: bool,
    /// Least time between two renewals of one sandbox.
    pub min_interval: Duration,
}

/// Logs.
#[derive(Clone, Debug)]
pub struct Log {
    /// `ERROR`, `WARN`, `INFO`, `DEBUG` or `TRACE`, in any letter case.
    pub level: String,
}

/// Where records are kept.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Database file; absent means the one in the data directory.
    pub path: Option<PathBuf>,
}

/// The native runtime.
#[derive(Clone, Debug)]
pub struct Native {
    /// Between TERM and KILL when a sandbox is ended.
    pub grace: Duration,
}

/// Images.
#[derive(Clone, Debug)]
pub struct Images {
    /// Registries that speak plain HTTP, `host[:port]`, beside those on loopback.
    pub plain_http_hosts: Vec<String>,
    /// Until when pulled images stay that nobody uses.
    pub bounds: image::Bounds,
}

/// Volumes.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    /// Paths of the machine that sandboxes may mount, with all beneath; each absolute and canonical by its text.
    pub allowed_host_paths: Vec<String>,
    /// Size limit in bytes of a named volume that is made without one.
    pub volume_default_bytes: Option<u64>,
}

impl Storage {
    /// What is asked of volumes at a create.
    pub(crate) fn rules(&self) -> VolumeRules {
        VolumeRules { allowed_host_paths: self.allowed_host_paths.clone(), default_bytes: self.volume_default_bytes }
    }
}

/// The way out of sandboxes.
#[derive(Clone, Debug)]
pub struct Egress {
    /// What a sandbox without a policy of its own may reach.
    pub default_policy: DefaultPolicy,
    /// Names, addresses and networks that every sandbox may reach.
    pub always_allow: Vec<String>,
    /// Those that none may reach, whatever else is said.
    pub always_deny: Vec<String>,
    /// Resolvers, `address[:port]`; empty means the machine's.
    pub resolvers: Vec<String>,
    /// Where every refusal is posted.
    pub deny_webhook: Option<SecretString>,
    /// The proxy by which the internet is reached, with its login.
    pub upstream_proxy: Option<SecretString>,
    /// Names, addresses and networks that are reached without it.
    pub upstream_direct: Vec<String>,
    /// Certificates, as PEM, by which origins may be verified beside those that the machine trusts.
    pub upstream_ca_pem: Vec<String>,
    /// How long the recording of one sandbox may get, in bytes, and one that is uploaded.
    pub recording_max_bytes: u64,
    /// Whether credentials may be bound to requests that are not encrypted.
    pub vault_plain_http: bool,
}

/// What every sandbox runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecureRuntime {
    /// The machine's own kernel.
    None,
    /// gVisor.
    Gvisor,
}

/// Sandboxes that are kept ready.
#[derive(Clone, Copy, Debug)]
pub struct Warm {
    /// Memory that those may take which are kept ready because such were asked for; 0 keeps none.
    pub max_memory_bytes: u64,
    /// How long a create waits for a place in a pool that is full.
    pub pool_wait: Duration,
}

/// What a sandbox without a policy of its own may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultPolicy {
    /// The public internet: no private, local or metadata address.
    Public,
    /// Nothing.
    Nothing,
    /// The public internet and private networks.
    All,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Built in.
    Default,
    /// The configuration file.
    File,
    /// This environment variable.
    Env(String),
    /// A command-line flag.
    Flag,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File => f.write_str("file"),
            Self::Env(name) => write!(f, "env {name}"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// One value in force.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Dotted name, `server.port`.
    pub key: &'static str,
    /// As TOML writes it; secrets are masked; `None` when unset.
    pub value: Option<String>,
    /// Where it came from.
    pub source: Source,
    /// What it is for.
    pub purpose: &'static str,
}

/// The configuration in force, for people: secrets are masked. Its `Display` is a TOML file.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// Every key, in order.
    pub entries: Vec<Entry>,
}

impl std::fmt::Display for Effective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.file {
            Some(path) => writeln!(f, "# file: {}", path.display())?,
            None => writeln!(f, "# file: none")?,
        }
        let mut section = "";
        for entry in &self.entries {
            let (head, name) = entry.key.split_once('.').expect("every key has a section");
            if head != section {
                writeln!(f, "\n[{head}]")?;
                section = head;
            }
            match &entry.value {
                Some(value) => writeln!(f, "{name} = {value}  # {}", entry.source)?,
                None => writeln!(f, "# {name} is not set")?,
            }
        }
        Ok(())
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("read the configuration file \"{}\"", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("the configuration file \"{}\" is not TOML", path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A key is not known.
    #[error("unknown key {key} in {place}{}", nearest.as_ref().map(|n| format!("; did you mean {n}?")).unwrap_or_default())]
    Unknown {
        /// The key as it was written.
        key: String,
        /// The file or the variable.
        place: String,
        /// The nearest known key.
        nearest: Option<&'static str>,
    },
    /// A published key whose subject does not exist here.
    #[error("{key} in {place} cannot be obeyed: {why}; remove it")]
    Unsupported {
        /// The key as it was written.
        key: String,
        /// The file or the variable.
        place: String,
        /// The reason.
        why: &'static str,
    },
    /// A value is of the wrong type or outside its range.
    #[error("{key} from {origin}: {problem}")]
    Value {
        /// The key.
        key: &'static str,
        /// Where the value came from.
        origin: Source,
        /// What is wanted.
        problem: String,
    },
}
