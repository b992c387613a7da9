//! One task for each sandbox, the only writer of its state.
//!
//! A driver takes events (requests of clients, facts from the runtime, its deadline), asks
//! [`lifecycle::state::step`] what follows, stores the new state, shows it to readers and only then starts the
//! effect. The effect runs beside the mailbox, so that a deletion reaches a sandbox whose image is still being
//! fetched; a new effect replaces the one under way. It can be killed between any two of these steps: a start
//! finds the stored state and asks the runtime what is true ([`recovery`]).

mod access;
mod copy;
mod effects;
mod handle;
mod hooks;
mod idle;
pub(crate) mod recovery;
pub(crate) mod sweep;
mod vault;

use std::sync::Arc;
use std::time::Duration;

use egress::SandboxStats;
use jiff::Timestamp;
use lifecycle::runtime::{BoxFuture, Exit, Observed, PullAuth, Receipt, RuntimeError};
use lifecycle::spec::{Network, SandboxSpec};
use lifecycle::state::{Effect, EndCause, Event, PauseCause, State, reason, step};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::app::App;
use crate::errors::ApiError;
use crate::network::Edit;
use crate::snapshots;
use crate::store::Row;
pub(crate) use access::Access;
use access::Accesses;
pub(crate) use effects::CONSOLE_BYTES;
use effects::Outcome;
pub(crate) use handle::Sandbox;
use handle::{Command, Reply};
use idle::Idleness;

/// Requests that wait for one driver; more than any client has reason to send at once.
const MAILBOX: usize = 64;
/// Longest sleep before the wall clock is looked at again: it may be set, and machines are suspended.
const MAX_SLEEP: Duration = Duration::from_secs(3600);
/// Wait before a failed write of a fact is tried again.
const WRITE_RETRY: Duration = Duration::from_secs(1);
/// A deadline is kept to the second: what does not end at TERM is killed after this.
const EXPIRY_GRACE: Duration = Duration::from_millis(500);

/// How a driver begins.
pub(crate) enum Start {
    /// A sandbox that was just accepted.
    Fresh(Option<PullAuth>),
    /// A sandbox found in the database.
    Found,
}

/// Starts the driver of a stored row and enters it in the registry.
pub(crate) fn spawn(app: &Arc<App>, row: Row, start: Start) -> Arc<Sandbox> {
    let (mailbox, commands) = mpsc::channel(MAILBOX);
    let (view, reader) = watch::channel(Arc::new(row.clone()));
    let accesses = Arc::new(Accesses::new());
    let sandbox = Arc::new(Sandbox::new(row.id.clone(), mailbox, reader, accesses.clone()));
    app.sandboxes.insert(row.id.clone(), sandbox.clone());
    let grace = app.config.native.grace;
    let driver = Driver {
        app: app.clone(),
        row,
        view: Arc::new(view),
        accesses,
        idleness: Idleness::new(),
        job: None,
        copying: copy::Copying::default(),
        look: None,
        look_wanted: false,
        grace,
        at_once: false,
        failures: 0,
    };
    app.tasks.spawn(driver.run(commands, start));
    sandbox
}

struct Driver {
    app: Arc<App>,
    row: Row,
    view: Arc<watch::Sender<Arc<Row>>>,
    accesses: Arc<Accesses>,
    idleness: Idleness,
    /// The effect under way.
    job: Option<BoxFuture<'static, Outcome>>,
    /// A snapshot under way.
    copying: copy::Copying,
    /// A look at what the runtime says, under way.
    look: Option<BoxFuture<'static, Result<Observed, RuntimeError>>>,
    /// Somebody said that something happened, and it was not looked at yet.
    look_wanted: bool,
    /// Between TERM and KILL.
    grace: Duration,
    /// A client asked for an end without any grace: no hook comes before it.
    at_once: bool,
    /// Failed tries of the present effect, for the wait before the next.
    failures: u32,
}

/// Whether the driver goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    Gone,
}

impl Driver {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>, start: Start) {
        match start {
            Start::Fresh(auth) => self.job = Some(self.create(auth, effects::Leftovers::None)),
            Start::Found => self.job = Some(self.recover()),
        }
        let closing = self.app.closing.clone();
        loop {
            self.look_if_wanted();
            if let Some(command) = self.postponed() {
                match self.obey(command).await {
                    Next::Continue => continue,
                    Next::Gone => break,
                }
            }
            let deadline = self.deadline();
            let next = tokio::select! {
                biased;
                () = closing.cancelled() => break,
                outcome = pending(&mut self.job) => {
                    self.job = None;
                    self.finished(outcome).await
                }
                observed = pending(&mut self.look) => {
                    self.look = None;
                    self.observed(observed).await
                }
                quiet = pending(&mut self.idleness.question) => {
                    self.idleness.question = None;
                    self.told_whether_idle(quiet).await
                }
                outcome = pending(&mut self.copying.job) => self.copied(outcome),
                command = commands.recv() => match command {
                    Some(command) => self.obey(command).await,
                    None => break,
                },
                () = sleep_until(deadline) => {
                    self.ask_whether_idle();
                    self.expire().await
                }
            };
            if next == Next::Gone {
                break;
            }
        }
    }

    /// Asks the runtime when that was wished for and nothing is under way that would change the answer.
    fn look_if_wanted(&mut self) {
        let settled = matches!(self.row.state, State::Running | State::Paused);
        let at_rest = self.job.is_none() && self.copying.job.is_none();
        if self.look_wanted && settled && self.look.is_none() && at_rest {
            self.look_wanted = false;
            self.look = Some(self.observe());
        }
    }

    /// When to look at the clock next.
    fn deadline(&self) -> Option<Instant> {
        let end = self.row.expires_at.filter(|_| self.row.state != State::Stopping).map(|at| {
            let left = Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO);
            Instant::now() + left.min(MAX_SLEEP)
        });
        let idle = self.idle_at().map(Instant::from_std);
        end.into_iter().chain(idle).min()
    }

    async fn expire(&mut self) -> Next {
        if self.row.expires_at.is_some_and(|at| at <= Timestamp::now()) {
            self.grace = self.grace.min(EXPIRY_GRACE);
            return self.fact(Event::EndRequested(EndCause::Expired), None).await;
        }
        Next::Continue
    }

    async fn obey(&mut self, command: Command) -> Next {
        let Some(command) = self.postpone(command) else { return Next::Continue };
        match command {
            Command::Pause(reply) if self.row.state == State::Paused && self.row.wakes_on_access() => {
                let outcome = self.keep_paused().await;
                self.answer(reply, outcome)
            }
            Command::Pause(reply) => self.request(Event::PauseRequested(PauseCause::Asked), reply).await,
            Command::Resume(reply) => self.request(Event::ResumeRequested, reply).await,
            Command::Delete { grace, reply } => {
                self.grace = grace.unwrap_or(self.grace);
                self.at_once = grace.is_some_and(|grace| grace.is_zero());
                self.request(Event::EndRequested(EndCause::Deleted), reply).await
            }
            Command::Renew(at, reply) => {
                let outcome = self.renew(at).await;
                self.answer(reply, outcome)
            }
            Command::Patch(patch, reply) => {
                let outcome = self.patch(patch).await;
                self.answer(reply, outcome)
            }
            Command::Policy(edit, reply) => {
                let outcome = self.change_policy(&edit).await;
                self.answer(reply, outcome)
            }
            Command::Vault(change, reply) => {
                let outcome = self.change_vault(&change).await;
                // The asker may have gone.
                let _ = reply.send(outcome);
                Next::Continue
            }
            Command::Compare(known, reply) => {
                let outcome = self.compare(known).await;
                // The asker ends with the server only.
                let _ = reply.send(outcome);
                Next::Continue
            }
            Command::Copy(id, asker) => self.begin_copy(id, asker),
            Command::Accessed => {
                self.renew_by_access().await;
                Next::Continue
            }
            Command::Wake => self.wake().await,
            Command::Look => {
                self.look_wanted = true;
                Next::Continue
            }
        }
    }

    fn answer(&self, reply: Reply, outcome: Result<(), ApiError>) -> Next {
        // The asker may have gone.
        let _ = reply.send(outcome.map(|()| Arc::new(self.row.clone())));
        Next::Continue
    }

    async fn renew(&mut self, at: Timestamp) -> Result<(), ApiError> {
        use protocol::error::code;
        if self.row.expires_at.is_none() {
            return Err(ApiError::conflict(
                code::INVALID_EXPIRATION,
                "the sandbox was made without a timeout and lasts until it is deleted; there is nothing to renew",
            ));
        }
        if self.row.state == State::Stopping {
            return Err(ApiError::conflict(code::INVALID_STATE, "the sandbox is Stopping and cannot be renewed"));
        }
        if at <= Timestamp::now() {
            return Err(ApiError::bad_request(code::INVALID_EXPIRATION, "expiresAt: must lie in the future"));
        }
        self.app.store.set_deadline(&self.row.id, at).await?;
        self.row.expires_at = Some(at);
        self.show();
        Ok(())
    }

    /// Moves the deadline on because the sandbox is used; never back.
    async fn renew_by_access(&mut self) {
        let (Some(extend), Some(current)) = (self.row.spec.access.renew_extend_seconds, self.row.expires_at) else {
            return;
        };
        let at = self.app.now() + Duration::from_secs(extend.into());
        if self.row.state != State::Running || at <= current {
            return;
        }
        match self.app.store.set_deadline(&self.row.id, at).await {
            Ok(()) => {
                self.row.expires_at = Some(at);
                self.show();
            }
            Err(error) => {
                tracing::warn!(sandbox_id = %self.row.id, error = %protocol::error::chain(&error), "a renewal could not be stored");
                self.accesses.renewal_failed();
            }
        }
    }

    async fn patch(&mut self, patch: std::collections::BTreeMap<String, Option<String>>) -> Result<(), ApiError> {
        let mut spec = self.row.spec.clone();
        spec.metadata = lifecycle::admit::metadata_patch(&spec.metadata, patch)?;
        self.app.store.set_metadata(&self.row.id, &spec).await?;
        self.row.spec = spec;
        self.show();
        Ok(())
    }

    /// Tells the egress process what it does not know of this sandbox. Here, so that no two do so at the same time: only one
    /// can have its sockets made anew.
    async fn compare(&mut self, known: Option<SandboxStats>) -> Result<(), String> {
        if !self.row.is_settled() || self.row.spec.network == Network::None {
            return Ok(());
        }
        let (app, row) = (self.app.clone(), self.row.clone());
        let credentials = row.credentials.as_ref();
        match &known {
            Some(known) if known.revision == row.spec.policy_revision => {}
            Some(_) => app.network.put(&app, &row.id, &row.spec, credentials).await?,
            None => app.network.attach(&app, &row.id, &row.spec, credentials).await?,
        }
        if let (Some(credentials), Some(revision)) = (credentials, known.and_then(|known| known.vault_revision))
            && (credentials.in_doubt || credentials.revision != revision)
        {
            self.look_at_vault().await;
        }
        Ok(())
    }

    /// Stores a new policy, then puts it in force; where that fails the old one is stored and in force again.
    async fn change_policy(&mut self, edit: &Edit) -> Result<(), ApiError> {
        use protocol::error::code;
        if !matches!(self.row.state, State::Running | State::Paused) {
            let message = format!("the sandbox is {}; its network cannot be changed now", self.row.state);
            return Err(ApiError::conflict(code::INVALID_STATE, message));
        }
        let (app, id, before) = (self.app.clone(), self.row.id.clone(), self.row.spec.clone());
        let policy = edit.of(before.policy.as_ref());
        let credentials = self.row.credentials.clone();
        if let Some(credentials) = &credentials {
            app.network.check_covers(&policy, &credentials.bound)?;
        }
        let mut network = app.network.shape(Some(&policy), &app.capabilities().network)?;
        if before.network == Network::None {
            if policy.opens() {
                let message = "the sandbox was made without a way out, and none can be added; make a new one";
                return Err(ApiError::conflict(code::POLICY_NOT_SUPPORTED, message));
            }
            network = Network::None;
        }
        let after = SandboxSpec {
            policy: Some(policy),
            policy_revision: before.policy_revision + 1,
            network,
            ..before.clone()
        };
        app.store.set_metadata(&id, &after).await?;
        if let Err(why) = app.network.put(&app, &id, &after, credentials.as_ref()).await {
            tracing::warn!(sandbox_id = %id, error = why, "a policy could not be put in force; the one before holds");
            let back = SandboxSpec { policy_revision: after.policy_revision + 1, ..before };
            app.store.set_metadata(&id, &back).await?;
            // What is not in force yet is mended when the egress process is looked at next.
            let _ = app.network.put(&app, &id, &back, credentials.as_ref()).await;
            self.row.spec = back;
            self.show();
            return Err(ApiError::internal(format!(
                "the policy could not be put in force: {why}; the one before holds"
            )));
        }
        self.row.spec = after;
        self.show();
        Ok(())
    }

    /// A client's request: answered when the new state is stored.
    async fn request(&mut self, event: Event, reply: Reply) -> Next {
        let outcome = match self.advance(&event, None, None).await {
            Ok(effect) => {
                let next = self.begin(effect).await;
                if next == Next::Gone {
                    return next;
                }
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.answer(reply, outcome)
    }

    /// Something that has happened: it is stored however often that must be tried.
    async fn fact(&mut self, event: Event, receipt: Option<Receipt>) -> Next {
        let exit = match &event {
            Event::Ended(exit) => Some(exit.clone()),
            _ => None,
        };
        loop {
            match self.advance(&event, receipt.clone(), exit.clone()).await {
                Ok(effect) => return self.begin(effect).await,
                Err(error) => {
                    tracing::error!(sandbox_id = %self.row.id, error = %error.message, "a state could not be stored");
                    tokio::select! {
                        () = self.app.closing.cancelled() => return Next::Continue,
                        () = tokio::time::sleep(WRITE_RETRY) => {}
                    }
                }
            }
        }
    }

    /// Steps, stores and shows; says what is to be done. Nothing has changed when it fails.
    async fn advance(
        &mut self,
        event: &Event,
        receipt: Option<Receipt>,
        exit: Option<Exit>,
    ) -> Result<Effect, ApiError> {
        let next = step(self.row.state, event)?;
        if next.state == self.row.state {
            if let Event::DestroyFailed { message } = event {
                self.tell(message.clone());
            }
            return Ok(next.effect);
        }
        let (word, message) = reason(event);
        let mut row = self.row.clone();
        row.state = next.state;
        row.reason = word;
        row.message = message;
        row.transition_at = self.app.now();
        row.receipt = receipt.or(row.receipt);
        row.exit = exit.or(row.exit);
        if let Event::CreateFailed { code, .. } = event {
            row.failure_code = Some(code.clone());
        }
        self.app.store.transition(&row).await?;
        tracing::info!(sandbox_id = %row.id, from = %self.row.state, to = %row.state, reason = %row.reason, "state changed");
        self.row = row;
        crate::pools::settle(&self.app, &self.row);
        self.failures = 0;
        self.used_now();
        if self.row.state != State::Running {
            self.app.ports.forget(self.row.id.as_str());
        }
        self.show();
        Ok(next.effect)
    }

    /// Starts the effect of a stored state.
    async fn begin(&mut self, effect: Effect) -> Next {
        match effect {
            Effect::None => {}
            Effect::Forget => return self.forget().await,
            Effect::Create => self.job = Some(self.create(None, effects::Leftovers::Possible)),
            Effect::Pause => self.job = Some(self.pause()),
            Effect::Resume => self.job = Some(self.resume()),
            Effect::Destroy => self.job = Some(self.destroy()),
            Effect::Clean => self.job = Some(self.clean()),
        }
        if effect != Effect::None {
            self.look = None;
        }
        if matches!(effect, Effect::Destroy | Effect::Clean) {
            self.give_up_copy();
        }
        Next::Continue
    }

    async fn finished(&mut self, outcome: Outcome) -> Next {
        match outcome {
            Outcome::Created { receipt, layers, credentials } => {
                self.row.layers = layers;
                self.row.credentials = credentials.map(|known| *known);
                crate::pools::made(&self.app, &self.row);
                self.fact(Event::Created, Some(*receipt)).await
            }
            Outcome::Event(event) => {
                if matches!(event, Event::DestroyFailed { .. }) {
                    self.failures = self.failures.saturating_add(1);
                }
                match self.fact(event, None).await {
                    Next::Continue => self.wake_if_wanted().await,
                    Next::Gone => Next::Gone,
                }
            }
            Outcome::CleanFailed => {
                self.failures = self.failures.saturating_add(1);
                self.begin(Effect::Clean).await
            }
            Outcome::Found(observed) => self.found(observed).await,
            Outcome::Done => Next::Continue,
        }
    }

    async fn forget(&mut self) -> Next {
        loop {
            match self.app.store.forget(&self.row.id).await {
                Ok(()) => break,
                Err(error) => {
                    tracing::error!(sandbox_id = %self.row.id, error = %protocol::error::chain(&error), "a row could not be removed");
                    tokio::select! {
                        // The row says Stopping: the next start goes on here.
                        () = self.app.closing.cancelled() => return Next::Gone,
                        () = tokio::time::sleep(WRITE_RETRY) => {}
                    }
                }
            }
        }
        self.app.sandboxes.remove(&self.row.id);
        self.app.warm.ended(&self.row.id, self.row.spec.pool.as_deref());
        self.app.network.shelf.forget_sandbox(&self.row.id);
        if let Some(origin) = &self.row.spec.origin {
            snapshots::release(&self.app, &origin.id);
        }
        self.app.ports.forget(self.row.id.as_str());
        tracing::info!(sandbox_id = %self.row.id, "sandbox is gone");
        Next::Gone
    }

    /// Changes the sentence of the present state, for readers only.
    fn tell(&mut self, message: String) {
        self.row.message = message;
        self.show();
    }

    fn show(&self) {
        self.view.send_replace(Arc::new(self.row.clone()));
    }
}

/// The value of a future that may not be there.
async fn pending<T>(slot: &mut Option<BoxFuture<'static, T>>) -> T {
    match slot {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
