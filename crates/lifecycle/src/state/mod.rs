//! The state machine of a sandbox: a total function from state and event to the next state and an effect.
//!
//! ```text
//!            Created             PauseRequested        Paused
//!  Pending ----------> Running -----------------> Pausing ----> Paused
//!     |                 | ^  ^ <- Failed/Refused/CalledOff        | ResumeRequested
//!     | CreateFailed    | |  '------------- Resumed ------------ Resuming
//!     v                 | |                                        | ResumeFailed -> Paused
//!   Failed <---Ended----' '
//!     |        (exit 0 -> Terminated, anything else -> Failed; also from Pausing, Paused, Resuming)
//!     |
//!     '--- EndRequested (delete or expiry, from every state) ---> Stopping --- Destroyed ---> gone
//! ```
//!
//! The driver stores the new state before it runs the effect; effects are idempotent.

use std::fmt;
use std::str::FromStr;

use protocol::error::code;

use crate::runtime::Exit;

#[cfg(test)]
mod tests;

/// Where a sandbox is in its life, as stored and as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Accepted; the image is fetched or the environment is being made.
    Pending,
    /// Its execd answers.
    Running,
    /// Being frozen.
    Pausing,
    /// Frozen; memory is kept.
    Paused,
    /// Being thawed.
    Resuming,
    /// Being ended and removed; by deletion or by its deadline.
    Stopping,
    /// The main process ended with 0.
    Terminated,
    /// It could not be made, or ended otherwise than with 0.
    Failed,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Running,
        Self::Pausing,
        Self::Paused,
        Self::Resuming,
        Self::Stopping,
        Self::Terminated,
        Self::Failed,
    ];

    /// The protocol's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Pausing => "Pausing",
            Self::Paused => "Paused",
            Self::Resuming => "Resuming",
            Self::Stopping => "Stopping",
            Self::Terminated => "Terminated",
            Self::Failed => "Failed",
        }
    }

    /// Whether something of the sandbox is meant to exist on the machine.
    pub fn is_live(self) -> bool {
        !matches!(self, Self::Terminated | Self::Failed)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for State {
    type Err = ();

    /// Reads the protocol's word in any letter case.
    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|s| s.as_str().eq_ignore_ascii_case(text)).ok_or(())
    }
}

/// What happened, or what somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The runtime made it and its execd answers.
    Created,
    /// The runtime could not make it.
    CreateFailed {
        /// Code of the cause.
        code: String,
        /// The cause.
        message: String,
    },
    /// It is to be frozen.
    PauseRequested(PauseCause),
    /// It is frozen.
    Paused(PauseCause),
    /// It could not be frozen and runs on.
    PauseFailed {
        /// The cause.
        message: String,
    },
    /// Its own hook refused to have it frozen; it runs on.
    PauseRefused {
        /// What the hook failed at.
        message: String,
    },
    /// It was used just before it was frozen for want of use; it runs on.
    PauseCalledOff,
    /// A client asks to thaw it, or an access wakes it.
    ResumeRequested,
    /// It runs again.
    Resumed,
    /// It could not be thawed and stays frozen.
    ResumeFailed {
        /// The cause.
        message: String,
    },
    /// Its main process ended by itself.
    Ended(Exit),
    /// A client deletes it, or its deadline has come.
    EndRequested(EndCause),
    /// Nothing of it is left.
    Destroyed,
    /// Removing it failed; it will be tried again.
    DestroyFailed {
        /// The cause.
        message: String,
    },
}

/// Why a sandbox is frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseCause {
    /// A client asked for it: only a client thaws it.
    Asked,
    /// Nobody used it: the next access thaws it.
    Idle,
}

impl PauseCause {
    /// The cause that goes with the reason word of a sandbox that is `Pausing` or `Paused`.
    pub fn of(word: &str) -> Self {
        let idle = [Event::PauseRequested(Self::Idle), Event::Paused(Self::Idle)];
        if idle.iter().any(|event| reason(event).0 == word) { Self::Idle } else { Self::Asked }
    }
}

/// Why a sandbox is ended from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// A client deleted it.
    Deleted,
    /// Its deadline has come.
    Expired,
}

/// What the driver must do after the new state is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// Make it.
    Create,
    /// Freeze it.
    Pause,
    /// Thaw it.
    Resume,
    /// End it and remove everything of it, then report `Destroyed`.
    Destroy,
    /// Remove what an ended sandbox left behind; the record stays for its readers.
    Clean,
    /// Remove the record: the id answers 404 from now on.
    Forget,
}

/// The outcome of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The state to store.
    pub state: State,
    /// What to do then.
    pub effect: Effect,
}

/// The request cannot be met in this state (HTTP 409).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Rejected {
    /// Code of [`protocol::error::code`].
    pub code: &'static str,
    /// Names the state and what would be needed.
    pub message: String,
}

/// The effect to run again for a sandbox found in `state` at a start, when the runtime still has it as expected.
pub fn resume_effect(state: State) -> Effect {
    match state {
        State::Pending => Effect::Create,
        State::Pausing => Effect::Pause,
        State::Resuming => Effect::Resume,
        State::Stopping => Effect::Destroy,
        State::Terminated | State::Failed => Effect::Clean,
        State::Running | State::Paused => Effect::None,
    }
}

/// The next state and effect. Facts are accepted in every state (a late one changes nothing); requests are
/// rejected where they make no sense.
///
/// # Errors
/// [`Rejected`] for a pause or resume in a state that has none.
pub fn step(state: State, event: &Event) -> Result<Step, Rejected> {
    use State::{Failed, Paused, Pausing, Pending, Resuming, Running, Stopping, Terminated};

    let to = |state, effect| Ok(Step { state, effect });
    let stay = || Ok(Step { state, effect: Effect::None });
    match (state, event) {
        (Stopping, Event::EndRequested(_)) => stay(),
        (_, Event::EndRequested(_)) => to(Stopping, Effect::Destroy),
        (Stopping, Event::Destroyed) => to(Stopping, Effect::Forget),
        (Stopping, Event::DestroyFailed { .. }) => to(Stopping, Effect::Destroy),
        // The other facts cannot change an end that is already under way.
        (Stopping, Event::PauseRequested(_)) => Err(rejected(code::NOT_RUNNING, "pause", state)),
        (Stopping, Event::ResumeRequested) => Err(rejected(code::NOT_PAUSED, "resume", state)),
        (Stopping, _) => stay(),

        (Pending, Event::Created) => to(Running, Effect::None),
        (Pending, Event::CreateFailed { .. }) => to(Failed, Effect::Clean),

        (Running, Event::PauseRequested(_)) => to(Pausing, Effect::Pause),
        (Pausing, Event::Paused(_)) => to(Paused, Effect::None),
        (Pausing, Event::PauseFailed { .. } | Event::PauseRefused { .. } | Event::PauseCalledOff) => {
            to(Running, Effect::None)
        }
        (Paused, Event::ResumeRequested) => to(Resuming, Effect::Resume),
        (Resuming, Event::Resumed) => to(Running, Effect::None),
        (Resuming, Event::ResumeFailed { .. }) => to(Paused, Effect::None),
        (_, Event::PauseRequested(_)) => Err(rejected(code::NOT_RUNNING, "pause", state)),
        (_, Event::ResumeRequested) => Err(rejected(code::NOT_PAUSED, "resume", state)),

        (Terminated | Failed, _) => stay(),
        (_, Event::Ended(Exit::Exited { code: 0 })) => to(Terminated, Effect::Clean),
        (_, Event::Ended(_)) => to(Failed, Effect::Clean),

        (
            _,
            Event::Created
            | Event::CreateFailed { .. }
            | Event::Paused(_)
            | Event::PauseFailed { .. }
            | Event::PauseRefused { .. }
            | Event::PauseCalledOff
            | Event::Resumed
            | Event::ResumeFailed { .. }
            | Event::Destroyed
            | Event::DestroyFailed { .. },
        ) => stay(),
    }
}

fn rejected(code: &'static str, verb: &str, state: State) -> Rejected {
    let need = if verb == "pause" { "Running" } else { "Paused" };
    Rejected { code, message: format!("cannot {verb} a sandbox that is {state}; it must be {need}") }
}

/// The stable reason word and the sentence that go with a state entered by `event`.
pub fn reason(event: &Event) -> (String, String) {
    let (reason, message) = match event {
        Event::Created => ("RUNNING", "Sandbox is running.".to_owned()),
        Event::CreateFailed { code, message } => {
            // `SANDBOX::SANDBOX_IMAGE_PULL_FAILED` reads as `IMAGE_PULL_FAILED` in a status.
            let word = code.rsplit("::").next().unwrap_or(code);
            return (word.strip_prefix("SANDBOX_").unwrap_or(word).to_owned(), message.clone());
        }
        Event::PauseRequested(PauseCause::Asked) => ("PAUSING", "Sandbox is being paused.".to_owned()),
        Event::PauseRequested(PauseCause::Idle) => {
            ("IDLE_PAUSING", "Sandbox is being paused because nobody uses it.".to_owned())
        }
        Event::Paused(PauseCause::Asked) => ("PAUSED", "Sandbox is paused; its memory is kept.".to_owned()),
        Event::Paused(PauseCause::Idle) => {
            ("IDLE_PAUSED", "Sandbox is paused because nobody used it; the next access wakes it.".to_owned())
        }
        Event::PauseCalledOff => ("RUNNING", "Sandbox is running: it was used before it was paused.".to_owned()),
        Event::PauseFailed { message } => ("PAUSE_FAILED", message.clone()),
        Event::PauseRefused { message } => ("PAUSE_REFUSED", message.clone()),
        Event::ResumeRequested => ("RESUMING", "Sandbox is being resumed.".to_owned()),
        Event::Resumed => ("RUNNING", "Sandbox is running again.".to_owned()),
        Event::ResumeFailed { message } => ("RESUME_FAILED", message.clone()),
        Event::Ended(exit) => return exit_reason(exit),
        Event::EndRequested(EndCause::Deleted) => ("DELETING", "Sandbox is being deleted.".to_owned()),
        Event::EndRequested(EndCause::Expired) => ("EXPIRED", "Sandbox reached its deadline.".to_owned()),
        Event::Destroyed => ("DESTROYED", "Nothing of the sandbox is left.".to_owned()),
        Event::DestroyFailed { message } => ("DESTROY_FAILED", message.clone()),
    };
    (reason.to_owned(), message)
}

fn exit_reason(exit: &Exit) -> (String, String) {
    let (reason, message) = match exit {
        Exit::Exited { code: 0 } => ("EXITED", "The main process exited with code 0.".to_owned()),
        Exit::Exited { code } => ("EXITED_ERROR", format!("The main process exited with code {code}.")),
        Exit::Signaled { signal } => ("SIGNALED", format!("The main process was ended by signal {signal}.")),
        Exit::Oom { detail } => ("OOM_KILLED", detail.clone()),
        Exit::Pids { detail, .. } => ("PIDS_LIMIT", detail.clone()),
        Exit::Disk { detail, .. } => ("DISK_LIMIT", detail.clone()),
        Exit::Unknown { detail } => ("EXIT_UNKNOWN", detail.clone()),
    };
    (reason.to_owned(), message)
}

/// The exit as clients see it.
pub fn exit_status(exit: &Exit) -> protocol::lifecycle::ExitStatus {
    let (kind, code, signal, detail) = match exit {
        Exit::Exited { code } => ("exited", Some(*code), None, None),
        Exit::Signaled { signal } => ("signaled", None, Some(*signal), None),
        Exit::Oom { detail } => ("oom", None, Some(9), Some(detail)),
        Exit::Pids { code, detail } => ("pids", *code, None, Some(detail)),
        Exit::Disk { code, detail } => ("disk", *code, None, Some(detail)),
        Exit::Unknown { detail } => ("unknown", None, None, Some(detail)),
    };
    protocol::lifecycle::ExitStatus { kind: kind.to_owned(), code, signal, detail: detail.cloned() }
}
