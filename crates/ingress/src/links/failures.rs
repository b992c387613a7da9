//! How often a sandbox was asked with links that do not open it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Wrong links that are checked at once; people mistype and reload, guessers need four thousand million.
const BURST: u32 = 20;
/// One more is checked after each of these.
const REFILL: Duration = Duration::from_secs(3);

/// Counts wrong links to one sandbox. At the most one in [`REFILL`] is checked over time: guessing a signature of 32
/// bits takes 200 years on average.
#[derive(Debug)]
pub struct Failures(Mutex<Bucket>);

#[derive(Debug)]
struct Bucket {
    left: u32,
    since: Instant,
}

impl Default for Failures {
    fn default() -> Self {
        Self(Mutex::new(Bucket { left: BURST, since: Instant::now() }))
    }
}

impl Failures {
    /// Takes the right to be wrong once; the wait until there is one again where there is none.
    ///
    /// # Errors
    /// How long to wait.
    pub fn try_take(&self) -> Result<(), Duration> {
        self.try_take_at(Instant::now())
    }

    pub(super) fn try_take_at(&self, now: Instant) -> Result<(), Duration> {
        let mut bucket = self.0.lock().expect("no holder panics");
        let elapsed = now.saturating_duration_since(bucket.since);
        let refills = u32::try_from(elapsed.as_millis() / REFILL.as_millis()).unwrap_or(u32::MAX);
        bucket.left = bucket.left.saturating_add(refills).min(BURST);
        bucket.since = if bucket.left == BURST { now } else { bucket.since + REFILL * refills };
        if bucket.left == 0 {
            return Err(REFILL.saturating_sub(now.saturating_duration_since(bucket.since)));
        }
        bucket.left -= 1;
        Ok(())
    }

    /// Gives it back: the link was right.
    pub fn give_back(&self) {
        let mut bucket = self.0.lock().expect("no holder panics");
        bucket.left = (bucket.left + 1).min(BURST);
    }
}
