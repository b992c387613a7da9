//! What the rest of the server holds of a sandbox: its present row and its driver's mailbox.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use egress::{SandboxStats, Shown};
use ingress::Daemon;
use ingress::links::Failures;
use jiff::Timestamp;
use lifecycle::runtime::RuntimeError;
use lifecycle::snapshot::{SnapshotId, Taken};
use lifecycle::spec::SandboxId;
use lifecycle::state::State;
use tokio::sync::{mpsc, oneshot, watch};

use super::access::{Access, Accesses};
use crate::errors::ApiError;
use crate::network::{Edit, VaultChange};
use crate::store::Row;

pub(super) type Reply = oneshot::Sender<Result<Arc<Row>, ApiError>>;

/// What a driver is asked to do.
pub(super) enum Command {
    Pause(Reply),
    Resume(Reply),
    Delete {
        grace: Option<Duration>,
        reply: Reply,
    },
    Renew(Timestamp, Reply),
    Patch(BTreeMap<String, Option<String>>, Reply),
    Policy(Edit, Reply),
    Vault(VaultChange, oneshot::Sender<Result<Option<Shown>, ApiError>>),
    /// What the egress process has of it, if it has it at all, may not be what it should have.
    Compare(Option<SandboxStats>, oneshot::Sender<Result<(), String>>),
    /// Take a snapshot of it.
    Copy(SnapshotId, oneshot::Sender<Result<Taken, RuntimeError>>),
    /// It was used, and no other access of this interval renews it.
    Accessed,
    /// An access waits for it.
    Wake,
    /// Something may have happened: ask the runtime.
    Look,
}

/// A sandbox as the rest of the server sees it.
pub(crate) struct Sandbox {
    id: SandboxId,
    mailbox: mpsc::Sender<Command>,
    view: watch::Receiver<Arc<Row>>,
    link_failures: Failures,
    accesses: Arc<Accesses>,
    /// The way to its execd, made at the first call.
    daemon: OnceLock<Arc<Daemon>>,
}

impl Sandbox {
    pub(super) fn new(
        id: SandboxId,
        mailbox: mpsc::Sender<Command>,
        view: watch::Receiver<Arc<Row>>,
        accesses: Arc<Accesses>,
    ) -> Self {
        Self { id, mailbox, view, link_failures: Failures::default(), accesses, daemon: OnceLock::new() }
    }

    pub(crate) fn id(&self) -> &SandboxId {
        &self.id
    }

    /// The way to its execd.
    pub(crate) fn daemon(&self, make: impl FnOnce(&SandboxId) -> Daemon) -> Arc<Daemon> {
        self.daemon.get_or_init(|| Arc::new(make(&self.id))).clone()
    }

    /// Wrong links to it.
    pub(crate) fn link_failures(&self) -> &Failures {
        &self.link_failures
    }

    pub(super) fn accesses(&self) -> &Accesses {
        &self.accesses
    }

    /// Counts an access until what is returned is dropped.
    pub(crate) fn access(self: &Arc<Self>) -> Access {
        Access::begin(self.clone())
    }

    /// Renews the sandbox if it was made so, once in each `interval`.
    pub(crate) fn renew_by_access(&self, interval: Duration) {
        let renews = self.view.borrow().spec.access.renew_extend_seconds.is_some();
        if renews && self.accesses.takes_renewal(interval) && self.mailbox.try_send(Command::Accessed).is_err() {
            self.accesses.renewal_failed();
        }
    }

    /// The row as it is now.
    pub(crate) fn row(&self) -> Arc<Row> {
        self.view.borrow().clone()
    }

    pub(crate) fn state(&self) -> State {
        self.view.borrow().state
    }

    /// Waits until the row satisfies `wanted`, at most `limit`; the row then, or `None` when the sandbox is gone.
    pub(crate) async fn wait(&self, wanted: impl Fn(&Row) -> bool, limit: Duration) -> Option<Arc<Row>> {
        let mut view = self.view.clone();
        let waited = tokio::time::timeout(limit, view.wait_for(|row| wanted(row))).await;
        match waited {
            Ok(Ok(row)) => Some(row.clone()),
            Ok(Err(_gone)) => None,
            Err(_late) => Some(self.row()),
        }
    }

    /// Waits until nothing of the sandbox is left; `false` when `limit` was not enough.
    pub(crate) async fn gone(&self, limit: Duration) -> bool {
        let mut view = self.view.clone();
        tokio::time::timeout(limit, view.wait_for(|_| false)).await.is_ok()
    }

    pub(crate) async fn pause(&self) -> Result<Arc<Row>, ApiError> {
        self.ask(Command::Pause).await
    }

    pub(crate) async fn resume(&self) -> Result<Arc<Row>, ApiError> {
        self.ask(Command::Resume).await
    }

    pub(crate) async fn delete(&self, grace: Option<Duration>) -> Result<Arc<Row>, ApiError> {
        self.ask(|reply| Command::Delete { grace, reply }).await
    }

    pub(crate) async fn renew(&self, at: Timestamp) -> Result<Arc<Row>, ApiError> {
        self.ask(|reply| Command::Renew(at, reply)).await
    }

    pub(crate) async fn patch(&self, patch: BTreeMap<String, Option<String>>) -> Result<Arc<Row>, ApiError> {
        self.ask(|reply| Command::Patch(patch, reply)).await
    }

    /// Changes what may leave. Once it is asked for it is done, also when the asker goes.
    pub(crate) async fn change_policy(&self, edit: Edit) -> Result<Arc<Row>, ApiError> {
        self.ask(|reply| Command::Policy(edit, reply)).await
    }

    /// Changes its vault; what that holds then. Once it is asked for it is done, also when the asker goes.
    pub(crate) async fn change_vault(&self, change: VaultChange) -> Result<Option<Shown>, ApiError> {
        let (reply, answer) = oneshot::channel();
        let gone = || ApiError::not_found(self.id.as_str());
        self.mailbox.send(Command::Vault(change, reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Has the egress process told what it does not know of it; `known` is what it has.
    ///
    /// # Errors
    /// Why it is not told.
    pub(crate) async fn bring_into_step(&self, known: Option<SandboxStats>) -> Result<(), String> {
        let (reply, answer) = oneshot::channel();
        match self.mailbox.send(Command::Compare(known, reply)).await {
            Ok(()) => answer.await.unwrap_or(Ok(())),
            // It has ended meanwhile.
            Err(_) => Ok(()),
        }
    }

    /// Takes a snapshot of it; `None` when the server ends before that is done.
    pub(crate) async fn copy(&self, id: SnapshotId) -> Option<Result<Taken, RuntimeError>> {
        let (reply, answer) = oneshot::channel();
        match self.mailbox.send(Command::Copy(id, reply)).await {
            Ok(()) => answer.await.ok(),
            Err(_) => {
                let message = "the sandbox ended before its snapshot was taken";
                Some(Err(RuntimeError::new(lifecycle::runtime::ErrorKind::NotFound, message)))
            }
        }
    }

    /// Asks for a sandbox to be woken that nobody used; for others nothing happens.
    pub(crate) async fn wake(&self) {
        // Without a driver there is nothing to wake.
        let _ = self.mailbox.send(Command::Wake).await;
    }

    /// Tells the driver to ask the runtime; a full mailbox means that it is awake anyway.
    pub(crate) fn look(&self) {
        let _ = self.mailbox.try_send(Command::Look);
    }

    async fn ask(&self, command: impl FnOnce(Reply) -> Command) -> Result<Arc<Row>, ApiError> {
        let (reply, answer) = oneshot::channel();
        let gone = || ApiError::not_found(self.id.as_str());
        self.mailbox.send(command(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}
