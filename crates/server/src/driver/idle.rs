//! A sandbox that nobody uses is paused, and the next access wakes it.
//!
//! Use is: a call through the proxy from its arrival to the end of its answer, also a WebSocket or tunnel; and what
//! execd says runs: commands, runs in sessions (isolated ones, too), cells and terminals. The sandbox's main process
//! does not count, nor does whatever it started. The time also begins anew when the sandbox begins to run, when the
//! server starts, and when a pause was refused. What cannot be asked is not paused.
//!
//! An access is counted before it reads the state; the state is shown before accesses are looked at for the last
//! time: either the access sees `Pausing` and asks to be woken, or the driver sees the access and runs on.

use std::time::{Duration, Instant};

use lifecycle::runtime::BoxFuture;
use lifecycle::state::{Event, PauseCause, State};

use super::{Driver, Next};
use crate::errors::ApiError;
use crate::proxy;
use crate::store::Row;

/// Longest wait until a sandbox that is busy by itself, or did not answer, is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// What is known of a sandbox's idleness.
pub(super) struct Idleness {
    /// Not idle before this, whatever accesses say.
    used: Instant,
    /// Do not ask before this.
    ask_from: Instant,
    /// A question to the sandbox, under way.
    pub(super) question: Option<BoxFuture<'static, Result<Option<Duration>, ApiError>>>,
    /// An access came while the sandbox was about to be frozen.
    wake_wanted: bool,
}

impl Idleness {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { used: now, ask_from: now, question: None, wake_wanted: false }
    }
}

impl Row {
    /// Whether the sandbox is paused, or about to be, until the next access.
    pub(crate) fn wakes_on_access(&self) -> bool {
        matches!(self.state, State::Pausing | State::Paused) && PauseCause::of(&self.reason) == PauseCause::Idle
    }
}

impl Driver {
    fn idle_limit(&self) -> Option<Duration> {
        self.row.spec.access.idle_pause_seconds.map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// When the sandbox may have been idle for long enough. While an access is under way that is counted from now:
    /// its end is not told, and lies later.
    pub(super) fn idle_at(&self) -> Option<Instant> {
        let limit = self.idle_limit().filter(|_| self.row.state == State::Running)?;
        if self.idleness.question.is_some() || self.job.is_some() || self.copying.job.is_some() {
            return None;
        }
        let used = self.accesses.last_use().max(self.idleness.used);
        Some((used + limit).max(self.idleness.ask_from))
    }

    /// Asks the sandbox whether something runs in it, when nobody has called it for long enough.
    pub(super) fn ask_whether_idle(&mut self) {
        if self.idle_at().is_some_and(|at| at <= Instant::now()) {
            let (app, id) = (self.app.clone(), self.row.id.clone());
            self.idleness.question = Some(Box::pin(async move { proxy::quiet(&app, &id).await }));
        }
    }

    /// Takes in how long nothing has run.
    pub(super) async fn told_whether_idle(&mut self, quiet: Result<Option<Duration>, ApiError>) -> Next {
        let now = Instant::now();
        let Some(limit) = self.idle_limit() else { return Next::Continue };
        match quiet {
            Ok(Some(quiet)) => {
                let used = now.checked_sub(quiet).unwrap_or(self.idleness.used);
                self.idleness.used = self.idleness.used.max(used);
            }
            Ok(None) => self.idleness.ask_from = now + limit.min(ASK_AGAIN),
            Err(error) => {
                tracing::debug!(sandbox_id = %self.row.id, error = %error.message, "whether it is idle is not known");
                self.idleness.ask_from = now + limit.min(ASK_AGAIN);
            }
        }
        // Somebody may have called meanwhile.
        if self.idle_at().is_some_and(|at| at <= now) {
            return self.fact(Event::PauseRequested(PauseCause::Idle), None).await;
        }
        Next::Continue
    }

    /// An access waits for the sandbox; many may.
    pub(super) async fn wake(&mut self) -> Next {
        if !self.row.wakes_on_access() {
            return Next::Continue;
        }
        if self.row.state == State::Pausing {
            self.idleness.wake_wanted = true;
            return Next::Continue;
        }
        self.fact(Event::ResumeRequested, None).await
    }

    /// Makes good what was wished while it was being frozen.
    pub(super) async fn wake_if_wanted(&mut self) -> Next {
        if self.row.state == State::Pausing || !std::mem::take(&mut self.idleness.wake_wanted) {
            return Next::Continue;
        }
        self.wake().await
    }

    /// A new state: the time begins anew.
    pub(super) fn used_now(&mut self) {
        self.idleness.used = Instant::now();
        self.idleness.question = None;
    }

    /// A client's pause of a sandbox that is paused for want of use: from now on only a client wakes it.
    pub(super) async fn keep_paused(&mut self) -> Result<(), ApiError> {
        let (reason, message) = lifecycle::state::reason(&Event::Paused(PauseCause::Asked));
        let row = Row { reason, message, transition_at: self.app.now(), ..self.row.clone() };
        self.app.store.transition(&row).await?;
        self.row = row;
        self.show();
        Ok(())
    }
}
