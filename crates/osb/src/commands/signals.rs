//! The signals with which people and supervisors end a command.

use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Outcome;
use crate::failure::Failure;

/// Listens for INT, TERM and HUP for as long as it lives.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

/// Runs `work` to its end, or until one of the signals, which gives the exit code that a shell would.
///
/// # Errors
/// Those of `work`.
pub async fn until_signal(work: impl Future<Output = Result<(), Failure>>) -> Outcome {
    let mut signals = Signals::listen()?;
    tokio::select! {
        ended = work => ended.map(|()| ExitCode::SUCCESS),
        signal = signals.next() => Ok(ExitCode::from(128 + signal)),
    }
}

impl Signals {
    /// Begins to listen: from now on these signals no longer end the process by themselves.
    pub fn listen() -> Result<Self, Failure> {
        let open = |kind| signal(kind).map_err(|error| Failure::new("CLIENT", format!("listen for signals: {error}")));
        Ok(Self {
            interrupt: open(SignalKind::interrupt())?,
            terminate: open(SignalKind::terminate())?,
            hangup: open(SignalKind::hangup())?,
        })
    }

    /// The number of the next signal.
    pub async fn next(&mut self) -> u8 {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hangup.recv() => SignalKind::hangup(),
        };
        u8::try_from(kind.as_raw_value()).expect("these signals have small numbers")
    }
}
