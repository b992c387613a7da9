//! What a driver does with a sandbox that it found in the database, and with what the runtime says of one.
//!
//! Stored state and the runtime's word are compared; the runtime is right about what is, the row about what
//! is meant. No connection is opened: adopting a thousand sandboxes costs a thousand looks.

use lifecycle::runtime::{BoxFuture, Exit, Observed, RuntimeError};
use lifecycle::state::{Effect, Event, State, resume_effect};

use super::effects::{Leftovers, Outcome};
use super::{Driver, Next};

/// Looks at once while a start adopts many: enough to hide the latency of one, few enough not to flood.
const LOOKS_AT_ONCE: usize = 16;
static LOOKS: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(LOOKS_AT_ONCE);

impl Driver {
    /// The first job of a sandbox found in the database.
    pub(super) fn recover(&self) -> BoxFuture<'static, Outcome> {
        match self.row.state {
            State::Pending => self.create(None, Leftovers::Possible),
            State::Stopping => self.destroy(),
            State::Terminated | State::Failed => self.clean(),
            State::Running | State::Pausing | State::Paused | State::Resuming => {
                let look = self.observe();
                Box::pin(async move {
                    let _turn = LOOKS.acquire().await.expect("never closed");
                    Outcome::Found(look.await)
                })
            }
        }
    }

    /// Goes on from what the runtime has of a sandbox found in the database.
    pub(super) async fn found(&mut self, observed: Result<Observed, RuntimeError>) -> Next {
        match (&observed, self.row.state) {
            (Ok(Observed::Running | Observed::Paused), State::Pausing | State::Resuming) => {
                self.begin(resume_effect(self.row.state)).await
            }
            _ => self.observed(observed).await,
        }
    }

    /// Takes in what the runtime says of a settled sandbox.
    pub(super) async fn observed(&mut self, observed: Result<Observed, RuntimeError>) -> Next {
        match (observed, self.row.state) {
            (Ok(Observed::Ended(exit)), _) => self.fact(Event::Ended(exit), None).await,
            (Ok(Observed::Absent), state) => {
                let detail = format!(
                    "the sandbox was {state}, and then nothing of it was left: somebody else removed it, or the \
                     machine was restarted"
                );
                self.fact(Event::Ended(Exit::Unknown { detail }), None).await
            }
            // Frozen or thawed behind our back: what is meant is made true again.
            (Ok(Observed::Paused), State::Running) => self.begin(Effect::Resume).await,
            (Ok(Observed::Running), State::Paused) => self.begin(Effect::Pause).await,
            (Ok(Observed::Running | Observed::Paused), _) => Next::Continue,
            (Err(error), _) => {
                tracing::warn!(sandbox_id = %self.row.id, error = %error, "the runtime could not be asked");
                Next::Continue
            }
        }
    }
}
