//! Accesses to one sandbox through the proxy: how many are under way, when the last one ended, when one renewed it.
//!
//! Written by every call, without waiting; read by the sandbox's driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::Sandbox;

/// Stands for "never".
const NEVER: i64 = i64::MIN;

/// The counters of one sandbox. Instants are milliseconds since they were made.
pub(crate) struct Accesses {
    start: Instant,
    open: AtomicUsize,
    ended_ms: AtomicI64,
    renewed_ms: AtomicI64,
}

impl Accesses {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            open: AtomicUsize::new(0),
            ended_ms: AtomicI64::new(0),
            renewed_ms: AtomicI64::new(NEVER),
        }
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// When the sandbox was last used: now, while an access is under way.
    pub(super) fn last_use(&self) -> Instant {
        if self.is_used() {
            return Instant::now();
        }
        self.start + Duration::from_millis(self.ended_ms.load(Ordering::SeqCst).unsigned_abs())
    }

    /// Whether an access is under way.
    pub(super) fn is_used(&self) -> bool {
        self.open.load(Ordering::SeqCst) > 0
    }

    /// Takes the one renewal of this interval; `false` when another access has it.
    pub(super) fn takes_renewal(&self, interval: Duration) -> bool {
        let interval = i64::try_from(interval.as_millis()).unwrap_or(i64::MAX);
        let now = self.now_ms();
        let last = self.renewed_ms.load(Ordering::Acquire);
        let due = last == NEVER || now.saturating_sub(last) >= interval;
        due && self.renewed_ms.compare_exchange(last, now, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Gives it back: it could not be stored, the next access tries again.
    pub(super) fn renewal_failed(&self) {
        self.renewed_ms.store(NEVER, Ordering::Release);
    }
}

/// One access, under way until it is dropped.
pub(crate) struct Access(Arc<Sandbox>);

impl Access {
    pub(super) fn begin(sandbox: Arc<Sandbox>) -> Self {
        // Counted before the state is read: a driver that is about to pause looks at both in the other order.
        sandbox.accesses().open.fetch_add(1, Ordering::SeqCst);
        Self(sandbox)
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        let accesses = self.0.accesses();
        accesses.ended_ms.fetch_max(accesses.now_ms(), Ordering::SeqCst);
        accesses.open.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Accesses;

    #[test]
    fn of_many_accesses_at_once_one_renews() {
        let accesses = Accesses::new();
        let renew = || usize::from(accesses.takes_renewal(Duration::from_secs(60)));
        let count = || {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..16).map(|_| scope.spawn(renew)).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).sum::<usize>()
            })
        };
        assert_eq!((count(), count()), (1, 0));
        accesses.renewal_failed();
        assert_eq!(count(), 1);
        assert!(accesses.takes_renewal(Duration::ZERO), "the next interval has its own");
    }
}
