//! A snapshot of a sandbox is being taken: what its driver does meanwhile.
//!
//! The sandbox is what it was before, `Running` or `Paused`, and for a moment it may stand still. So the runtime is not
//! asked how it is, and whoever wants to pause or resume it waits until the copy is made. An end does not wait: the copy
//! is given up.

use std::collections::VecDeque;

use lifecycle::runtime::{BoxFuture, ErrorKind, RuntimeError};
use lifecycle::snapshot::{Found, SnapshotId, Taken};
use lifecycle::state::State;
use tokio::sync::oneshot;

use super::handle::Command;
use super::{Driver, Next};

/// Where the outcome of a snapshot goes.
pub(super) type Outcome = Result<Taken, RuntimeError>;

/// A copy under way, and what waits for its end.
#[derive(Default)]
pub(super) struct Copying {
    pub(super) job: Option<BoxFuture<'static, Outcome>>,
    asker: Option<oneshot::Sender<Outcome>>,
    waiting: VecDeque<Command>,
}

impl Driver {
    /// Begins a snapshot, or says why not.
    pub(super) fn begin_copy(&mut self, id: SnapshotId, asker: oneshot::Sender<Outcome>) -> Next {
        let found = match self.row.state {
            State::Running => Found::Running,
            State::Paused => Found::Paused,
            state => {
                let message = format!("the sandbox was {state} when its snapshot was to be taken");
                // The asker ends with the server only.
                let _ = asker.send(Err(RuntimeError::new(ErrorKind::NotFound, message)));
                return Next::Continue;
            }
        };
        if self.copying.job.is_some() {
            let message = "another snapshot of the sandbox is being taken";
            let _ = asker.send(Err(RuntimeError::new(ErrorKind::Held, message))); // as above
            return Next::Continue;
        }
        let (app, sandbox) = (self.app.clone(), self.row.id.clone());
        // What it would say is of a sandbox that stands still.
        self.look = None;
        self.copying.asker = Some(asker);
        self.copying.job = Some(Box::pin(async move {
            match app.runtime.snapshots() {
                Some(snapshots) => snapshots.take(&id, &sandbox, found).await,
                None => Err(RuntimeError::new(ErrorKind::Unsupported, "this runtime takes no snapshots")),
            }
        }));
        Next::Continue
    }

    /// Whether a command waits for the end of a copy; then it is kept until then.
    pub(super) fn postpone(&mut self, command: Command) -> Option<Command> {
        let waits = matches!(command, Command::Pause(_) | Command::Resume(_) | Command::Wake);
        if self.copying.job.is_some() && waits {
            self.copying.waiting.push_back(command);
            return None;
        }
        Some(command)
    }

    /// Tells how a copy ended. One that failed may have left the sandbox frozen: the runtime is asked.
    pub(super) fn copied(&mut self, outcome: Outcome) -> Next {
        self.copying.job = None;
        self.look_wanted |= outcome.is_err();
        self.used_now();
        if let Some(asker) = self.copying.asker.take() {
            // The asker ends with the server only.
            let _ = asker.send(outcome);
        }
        Next::Continue
    }

    /// Gives a copy up, because the sandbox ends.
    pub(super) fn give_up_copy(&mut self) {
        if self.copying.job.take().is_some()
            && let Some(asker) = self.copying.asker.take()
        {
            let message = "the sandbox ended while its snapshot was being taken";
            // The asker ends with the server only.
            let _ = asker.send(Err(RuntimeError::new(ErrorKind::NotFound, message)));
        }
    }

    /// The next command that waited for a copy which has ended.
    pub(super) fn postponed(&mut self) -> Option<Command> {
        if self.copying.job.is_some() {
            return None;
        }
        self.copying.waiting.pop_front()
    }
}
