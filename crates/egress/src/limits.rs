//! What one sandbox may take of the process that all share, and how a rate is kept.
//!
//! At a limit the process stops taking from that sandbox: connections wait in the sandbox's own accept queue, questions
//! in its own socket buffer. Nothing is refused that would be served a moment later, and nobody else notices.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Connections of one sandbox at a time: six descriptors each, of the twenty thousand that a machine gives us.
pub const FLOWS: usize = 256;
/// New connections of one sandbox per second, and at once: a package manager opens tens, a scanner thousands.
pub const NEW_FLOWS: Rate = Rate { per_second: 100, burst: 200 };
/// Connections of one sandbox to bound hosts at a time: each may hold two mebibytes of this process.
pub const INTERCEPTED: usize = 64;
/// TLS handshakes with bound hosts of one sandbox per second, and at once: each is a millisecond of this process.
pub const HANDSHAKES: Rate = Rate { per_second: 50, burst: 100 };
/// Questions of one sandbox per second, and at once.
pub const QUESTIONS: Rate = Rate { per_second: 200, burst: 400 };
/// Questions of one sandbox that wait for a resolver at a time.
pub const QUESTIONS_AT_A_TIME: usize = 64;
/// Names that one sandbox asks for the first time per second, and at once: what a tunnel through DNS needs most of. A
/// page of a browser asks for a hundred.
pub const NEW_NAMES: Rate = Rate { per_second: 20, burst: 300 };
/// Names of one sandbox in its whole life; each is an address and a line of the names file.
pub const NAMES: usize = 16 * 1024;
/// Verdicts kept of one sandbox for who reads them; the oldest go first, and are counted.
pub const VERDICTS: usize = 512;
/// Verdicts of one sandbox that are written down per second, and at once; the others are counted.
pub const VERDICT_RATE: Rate = Rate { per_second: 200, burst: 512 };
/// Connections of the whole process: the descriptors that it has, less these for everything else (five for each of a
/// thousand sandboxes, kept pipes, questions to resolvers), by what each may take.
pub const DESCRIPTORS_RESERVED: u64 = 6144;
/// Two sockets and two pipes.
pub const DESCRIPTORS_PER_FLOW: u64 = 6;

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Lasting.
    pub per_second: u32,
    /// At once, after a pause.
    pub burst: u32,
}

/// The limits of each sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// See [`FLOWS`].
    pub flows: usize,
    /// See [`NEW_FLOWS`].
    pub new_flows: Rate,
    /// See [`INTERCEPTED`].
    pub intercepted: usize,
    /// See [`HANDSHAKES`].
    pub handshakes: Rate,
    /// See [`QUESTIONS`].
    pub questions: Rate,
    /// See [`NEW_NAMES`].
    pub new_names: Rate,
    /// See [`VERDICT_RATE`].
    pub verdicts: Rate,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            flows: FLOWS,
            new_flows: NEW_FLOWS,
            intercepted: INTERCEPTED,
            handshakes: HANDSHAKES,
            questions: QUESTIONS,
            new_names: NEW_NAMES,
            verdicts: VERDICT_RATE,
        }
    }
}

/// Keeps a rate: a token bucket.
#[derive(Debug)]
pub struct Bucket {
    rate: Rate,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A full one.
    pub fn new(rate: Rate) -> Self {
        Self { rate, state: Mutex::new(State { tokens: f64::from(rate.burst), at: Instant::now() }) }
    }

    /// Takes one if there is one.
    pub fn try_take(&self) -> bool {
        self.try_take_at(Instant::now())
    }

    fn try_take_at(&self, now: Instant) -> bool {
        self.refill(now, |state| {
            let there = state.tokens >= 1.0;
            state.tokens -= if there { 1.0 } else { 0.0 };
            there
        })
    }

    /// Takes one, waiting until there is one.
    pub async fn take(&self) {
        let wait = self.take_on_credit(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Takes one at once; tells how long to wait for it. Whoever comes next waits behind.
    fn take_on_credit(&self, now: Instant) -> Duration {
        let missing = self.refill(now, |state| {
            state.tokens -= 1.0;
            -state.tokens
        });
        Duration::from_secs_f64(missing.max(0.0) / f64::from(self.rate.per_second.max(1)))
    }

    fn refill<T>(&self, now: Instant, use_it: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let earned = now.duration_since(state.at).as_secs_f64() * f64::from(self.rate.per_second);
        state.tokens = (state.tokens + earned).min(f64::from(self.rate.burst));
        state.at = now;
        use_it(&mut state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_waits_its_turn() {
        let bucket = Bucket::new(Rate { per_second: 10, burst: 3 });
        let start = bucket.state.lock().expect("nobody panicked").at;
        for _ in 0..3 {
            assert_eq!(bucket.take_on_credit(start), Duration::ZERO);
        }
        for place in 1..=10 {
            let expected = Duration::from_millis(100 * place);
            assert!(bucket.take_on_credit(start).abs_diff(expected) < Duration::from_millis(1), "place {place}");
        }
        // A second pays ten back; the next one is earned a tenth later.
        assert!(!bucket.try_take_at(start + Duration::from_millis(1_050)));
        assert!(bucket.try_take_at(start + Duration::from_millis(1_101)));
    }
}
