//! The way out of sandboxes, as the server sees it: the operator's settings, the policy of each sandbox, and the egress
//! process that puts them in force.
//!
//! The egress process knows nothing that is not told to it, and may die at any time. The rows hold the policies; the sockets
//! of each sandbox are kept here, too, so that what a sandbox asks while there is no egress process waits in them. When both
//! processes are gone the jailer makes new ones. [`keep`] compares what is with what should be and mends it.

pub(crate) mod api;
mod apply;
pub(crate) mod counts;
mod credentials;
mod edit;
pub(crate) mod events;
mod keep;
mod listen;
pub(crate) mod recordings;
mod settings;
mod shelf;
mod told;
mod webhook;

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use egress::policy::{Policy, Source};
use lifecycle::admit::NO_NETWORK;
use lifecycle::spec::{MAX_REACHABLE, Network as Shape, SandboxId};
use protocol::egress::NetworkPolicy;
use protocol::error::code;
use protocol::network::Cidr;
use tokio::sync::watch;

use crate::config::Egress as Config;
use crate::errors::ApiError;
pub(crate) use credentials::{Change as VaultChange, Credentials, told as vault_error};
pub(crate) use edit::Edit;
pub(crate) use keep::keep;
pub(crate) use listen::listen;
pub(crate) use settings::{mistake_in, resolver};
use shelf::Shelf;

/// How long a start waits for the egress process.
const START_WAIT: std::time::Duration = std::time::Duration::from_secs(2);

/// The way to the egress process.
pub struct Egress {
    /// Asks it.
    pub control: egress::Control,
    /// Changes whenever another process took over, which knows nothing.
    pub restarts: watch::Receiver<u64>,
}

/// The way out of all sandboxes.
pub(crate) struct Network {
    egress: Option<Egress>,
    config: Config,
    /// Where each sandbox has its file of names; in memory where nothing outlives this process.
    names: Option<PathBuf>,
    /// Recordings.
    pub(crate) shelf: Shelf,
    held: Mutex<HashMap<SandboxId, Arc<egress::Listeners>>>,
    counts: counts::Counts,
}

impl Network {
    /// With where files of names and recordings are; both in memory or unnamed where nothing outlives this process.
    pub(crate) fn new(
        egress: Option<Egress>,
        config: Config,
        names: Option<PathBuf>,
        recordings: Option<PathBuf>,
    ) -> Self {
        let shelf = Shelf::new(recordings);
        Self { egress, config, names, shelf, held: Mutex::default(), counts: counts::Counts::default() }
    }

    /// Whether there is an egress process at all.
    pub(crate) fn can_leave(&self) -> bool {
        self.egress.is_some()
    }

    /// The shape of a sandbox's network under this policy; `None` is what the operator lets every sandbox do.
    ///
    /// # Errors
    /// The first field of the policy that means nothing, by its name.
    pub(crate) fn shape(&self, policy: Option<&NetworkPolicy>, capability: &str) -> Result<Shape, ApiError> {
        let parsed = Policy::parse(&self.source(policy), "networkPolicy").map_err(|invalid| refused(&invalid))?;
        if capability == NO_NETWORK {
            return Ok(Shape::None);
        }
        let ranges = parsed.reachable(egress::names::DEFAULT_RANGE.into());
        if ranges.len() > MAX_REACHABLE {
            let message = format!(
                "networkPolicy.egress: allows {} ranges of addresses; at most {MAX_REACHABLE} can be, use larger networks",
                ranges.len()
            );
            return Err(ApiError::new(http::StatusCode::PAYLOAD_TOO_LARGE, code::INVALID_PARAMETER, message));
        }
        let cidr = |range: &ipnet::IpNet| Cidr::new(range.network(), range.prefix_len()).ok();
        let reachable: Option<Vec<Cidr>> = ranges.iter().map(cidr).collect();
        let reachable = reachable.ok_or_else(|| ApiError::internal("a policy gave a range that is none"))?;
        Ok(Shape::Steered { reachable })
    }

    /// The whole policy, the operator's part included.
    pub(crate) fn source(&self, policy: Option<&NetworkPolicy>) -> Source {
        self.config.source(policy)
    }

    /// Tells the egress process what holds for all; [`keep`] goes on with that if it does not answer yet.
    pub(crate) async fn configure(&self) {
        if let Some(control) = self.control()
            && !matches!(tokio::time::timeout(START_WAIT, control.configure(self.config.settings())).await, Ok(Ok(())))
        {
            tracing::warn!("the egress process does not answer yet");
        }
    }

    /// Whether the egress process answers.
    async fn answers(&self) -> bool {
        match self.control() {
            Some(control) => matches!(tokio::time::timeout(START_WAIT, control.stats()).await, Ok(Ok(_))),
            None => false,
        }
    }

    fn control(&self) -> Option<&egress::Control> {
        self.egress.as_ref().map(|egress| &egress.control)
    }

    fn held(&self) -> std::sync::MutexGuard<'_, HashMap<SandboxId, Arc<egress::Listeners>>> {
        self.held.lock().expect("no holder panics")
    }

    /// The sandbox's file of names, made where it is missing.
    fn names_of(&self, id: &SandboxId) -> std::io::Result<File> {
        let Some(directory) = &self.names else {
            return Ok(File::from(rustix::fs::memfd_create("names", rustix::fs::MemfdFlags::CLOEXEC)?));
        };
        use std::os::unix::fs::OpenOptionsExt as _;
        std::fs::create_dir_all(directory)?;
        let path = directory.join(id.as_str());
        File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
    }

    fn forget_names(&self, id: &SandboxId) {
        if let Some(directory) = &self.names {
            // It may never have had one.
            let _ = std::fs::remove_file(directory.join(id.as_str()));
        }
    }
}

fn refused(invalid: &egress::policy::Invalid) -> ApiError {
    let message = invalid.to_string();
    if invalid.is_too_much {
        return ApiError::new(http::StatusCode::PAYLOAD_TOO_LARGE, code::INVALID_PARAMETER, message);
    }
    ApiError::bad_request(code::INVALID_PARAMETER, message)
}
