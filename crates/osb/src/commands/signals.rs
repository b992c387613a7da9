//! The signals with which people and supervisors end a command.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// Listens for INT, TERM and HUP for as long as it lives.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
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
