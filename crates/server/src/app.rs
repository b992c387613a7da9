//! What every request handler shares.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use lifecycle::admit::NO_NETWORK;
use lifecycle::runtime::{Capabilities, Runtime};
use lifecycle::spec::SandboxId;
use lifecycle::state::{Event, State, reason};
use protocol::error::code;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::Auth;
use crate::config::Config;
use crate::driver::Sandbox;
use crate::errors::{ApiError, create_failure};
use crate::network::Network;
use crate::snapshots::Forking;
use crate::store::{Row, Store};
use crate::volumes::Turns;
use crate::warm::Warm;
use crate::wire;

/// Longest wait of a look-up for the outcome of a create; the published clients give up after 30 s in all.
pub(crate) const OUTCOME_WAIT: Duration = Duration::from_secs(24);

/// What every request handler and driver shares.
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) auth: Auth,
    pub(crate) store: Store,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) images: Option<image::Store>,
    pub(crate) sandboxes: Registry,
    /// What leaves sandboxes.
    pub(crate) network: Network,
    /// Sandboxes that nobody has yet.
    pub(crate) warm: Arc<Warm>,
    /// Held while the pools change.
    pub(crate) pool_turn: tokio::sync::Mutex<()>,
    /// Whose turn it is to change a named volume.
    pub(crate) volume_turns: Turns,
    /// Snapshots that are about to be forked from.
    pub(crate) forking: Forking,
    /// The way to ports.
    pub(crate) ports: Arc<ingress::Ports>,
    /// Requests that may be worked on at the same time; `None` when there is no limit.
    pub(crate) slots: Option<Arc<Semaphore>>,
    /// Every task that the server starts.
    pub(crate) tasks: TaskTracker,
    /// Set when the server ends: drivers stop between two steps, waits end.
    pub(crate) closing: CancellationToken,
    /// Held from the look-up of a create's key until its sandbox has a driver.
    pub(crate) keyed: tokio::sync::Mutex<()>,
    /// Where uploads of images are kept while they arrive.
    pub(crate) uploads: PathBuf,
    /// Whether sandboxes end with this engine.
    pub(crate) leased: bool,
}

impl App {
    /// What the runtime can do in this server: without an egress process nothing leaves, whatever the runtime can.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.runtime.capabilities();
        if !self.network.can_leave() {
            capabilities.network = NO_NETWORK.to_owned();
        }
        capabilities
    }

    /// The present instant, to the microsecond.
    pub(crate) fn now(&self) -> Timestamp {
        wire::micros(Timestamp::now())
    }

    /// The sandbox with this id.
    pub(crate) fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>, ApiError> {
        self.sandboxes.get(id).ok_or_else(|| ApiError::not_found(id))
    }

    /// Waits until the sandbox runs: the way to its execd is open. Anything else is an error with its cause. An access
    /// wakes a sandbox that is paused because nobody used it; all that come meanwhile wait for the same wake.
    pub(crate) async fn running(&self, id: &str, wake: Wake) -> Result<Arc<Sandbox>, ApiError> {
        let sandbox = self.sandbox(id)?;
        if sandbox.state() == State::Running {
            return Ok(sandbox);
        }
        let wakes = wake == Wake::Yes && sandbox.row().wakes_on_access();
        if wakes {
            sandbox.wake().await;
        }
        let on_its_way =
            |row: &Row| matches!(row.state, State::Pending | State::Resuming) || (wakes && row.wakes_on_access());
        let row = sandbox.wait(|row| !on_its_way(row), OUTCOME_WAIT).await.ok_or_else(|| ApiError::not_found(id))?;
        match row.state {
            State::Running => Ok(sandbox),
            State::Failed | State::Terminated => Err(ended(&row)),
            State::Pending | State::Resuming => Err(ApiError::new(
                http::StatusCode::NOT_FOUND,
                code::POD_IP_NOT_AVAILABLE,
                format!("the sandbox is still {}: {}", row.state, row.message),
            )),
            State::Paused if wakes && row.reason == wake_failed() => Err(ApiError::new(
                http::StatusCode::SERVICE_UNAVAILABLE,
                code::RESUME_FAILED,
                format!("the sandbox was paused because nobody used it, and could not be woken: {}", row.message),
            )),
            State::Paused | State::Pausing => {
                Err(ApiError::conflict(code::NOT_RUNNING, format!("the sandbox is {}; resume it first", row.state)))
            }
            State::Stopping => {
                Err(ApiError::conflict(code::NOT_RUNNING, format!("the sandbox is Stopping: {}", row.message)))
            }
        }
    }
}

/// Whether a call is an access that wakes a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    Yes,
    No,
}

/// The reason word of a sandbox that could not be thawed.
fn wake_failed() -> String {
    reason(&Event::ResumeFailed { message: String::new() }).0
}

/// Why a sandbox that has ended cannot be reached.
fn ended(row: &Row) -> ApiError {
    match &row.failure_code {
        Some(code) => create_failure(code, &row.message),
        None => ApiError::conflict(code::NOT_RUNNING, format!("the sandbox has ended: {}", row.message)),
    }
}

/// The sandboxes of this server, by id.
#[derive(Default)]
pub(crate) struct Registry {
    by_id: RwLock<HashMap<SandboxId, Arc<Sandbox>>>,
}

impl Registry {
    pub(crate) fn get(&self, id: &str) -> Option<Arc<Sandbox>> {
        let id = SandboxId::parse(id)?;
        self.read().get(&id).cloned()
    }

    pub(crate) fn contains(&self, id: &SandboxId) -> bool {
        self.read().contains_key(id)
    }

    pub(crate) fn insert(&self, id: SandboxId, sandbox: Arc<Sandbox>) {
        self.by_id.write().expect("no holder panics").insert(id, sandbox);
    }

    pub(crate) fn remove(&self, id: &SandboxId) {
        self.by_id.write().expect("no holder panics").remove(id);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Sandbox>> {
        self.read().values().cloned().collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<SandboxId, Arc<Sandbox>>> {
        self.by_id.read().expect("no holder panics")
    }
}
