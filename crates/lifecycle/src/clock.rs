//! Time and identifiers as traits, because tests need their own.

use jiff::Timestamp;

use crate::spec::SandboxId;

/// Tells the time of day.
pub trait Clock: Send + Sync + 'static {
    /// The present instant.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Makes identifiers that were never used before.
pub trait Ids: Send + Sync + 'static {
    /// A new identifier.
    fn next(&self) -> SandboxId;
}
