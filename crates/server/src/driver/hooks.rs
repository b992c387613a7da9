//! The hooks around a pause and before the end, which the sandbox's execd runs when its driver asks.
//!
//! A hook is asked for at its moment and at least once: a server that was killed meanwhile asks again. The bound
//! is kept here, whatever execd says, and its word is only shown. How it went is an event of the sandbox.

use std::sync::Arc;
use std::time::Duration;

use lifecycle::runtime::Observed;
use lifecycle::state::State;
use protocol::execd::hook::HookReport;
use protocol::hooks::{Moment, OnFailure};

use super::Driver;
use crate::app::App;
use crate::proxy;
use crate::store::Row;

/// What the way to execd and back may take beyond the hook's own time.
const MARGIN: Duration = Duration::from_secs(1);
/// Characters of what execd says of a hook that are kept.
const MAX_PROBLEM_CHARS: usize = 500;

/// A hook that is due.
pub(super) struct Due {
    app: Arc<App>,
    row: Row,
    moment: Moment,
    seconds: u32,
}

impl Driver {
    /// The hook of this moment, where the sandbox has one and is on its way into it.
    pub(super) fn due(&self, moment: Moment) -> Option<Due> {
        let (_, seconds) = self.row.spec.hooks.at(moment)?;
        let now = match moment {
            // Otherwise what is meant is only made true again.
            Moment::BeforePause => self.row.state == State::Pausing,
            Moment::AfterResume => self.row.state == State::Resuming,
            // It has run and not ended by itself, this is the first try, and nobody wants it gone at once.
            Moment::BeforeEnd => {
                let ran = self.row.receipt.is_some() && self.row.exit.is_none();
                ran && self.failures == 0 && !self.at_once
            }
        };
        now.then(|| Due { app: self.app.clone(), row: self.row.clone(), moment, seconds })
    }
}

impl Due {
    /// Has the hook run to its end; an error when it failed and its sandbox was made to refuse then.
    pub(super) async fn run(self) -> Result<(), String> {
        let bound = Duration::from_secs(self.seconds.into());
        let name = self.moment.as_str();
        let ended = match tokio::time::timeout(bound + MARGIN, self.ask()).await {
            Ok(Some(report)) => report,
            Ok(None) => return Ok(()),
            Err(_late) => Err(format!("did not end within {} s", self.seconds)),
        };
        let (reason, message) = match &ended {
            Ok(elapsed_ms) => ("HOOK_SUCCEEDED", format!("The {name} hook ended with 0 after {elapsed_ms} ms.")),
            Err(why) => ("HOOK_FAILED", format!("The {name} hook {why}.")),
        };
        tracing::info!(sandbox_id = %self.row.id, hook = name, reason, message, "a hook was run");
        let at = self.app.now();
        let event = Row { reason: reason.to_owned(), message: message.clone(), transition_at: at, ..self.row.clone() };
        if let Err(error) = self.app.store.note(&event).await {
            tracing::warn!(sandbox_id = %self.row.id, error = %protocol::error::chain(&error), "an event could not be stored");
        }
        let refuses = self.moment == Moment::BeforePause && self.row.spec.hooks.on_pause_failure() == OnFailure::Refuse;
        if refuses && ended.is_err() { Err(message) } else { Ok(()) }
    }

    /// Milliseconds that it took, or what went wrong; `None` where the sandbox cannot run anything any more.
    async fn ask(&self) -> Option<Result<u64, String>> {
        match self.app.runtime.observe(&self.row.id).await {
            Ok(Observed::Running) => {}
            Ok(Observed::Paused) if self.moment == Moment::BeforeEnd => {
                if let Err(error) = self.app.runtime.pause()?.resume(&self.row.id).await {
                    return Some(Err(format!("was not run: {}", error.message)));
                }
            }
            Ok(Observed::Paused | Observed::Ended(_) | Observed::Absent) => return None,
            Err(error) => return Some(Err(format!("was not run: {}", error.message))),
        }
        let path = format!("/v1/hooks/{}", self.moment.as_str());
        let answer = match proxy::ask(&self.app, &self.row.id, &path).await {
            Ok(answer) => answer,
            Err(error) => return Some(Err(format!("was not run: {}", shown(&error.message)))),
        };
        Some(match serde_json::from_slice(&answer) {
            Ok(HookReport { succeeded: true, elapsed_ms, .. }) => Ok(elapsed_ms),
            Ok(HookReport { problem, .. }) => Err(shown(problem.as_deref().unwrap_or("failed"))),
            Err(_) => Err("cannot be judged: execd gave an answer that is no report of a hook".to_owned()),
        })
    }
}

/// What a sandbox says of itself, in one line of bounded length.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_PROBLEM_CHARS).collect()
}
