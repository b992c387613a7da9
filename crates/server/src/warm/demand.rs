//! How many sandboxes of a kind should wait because creates of that kind came lately. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Creates within this time are a burst: about what it takes to make some more.
const BURST: Duration = Duration::from_secs(1);
/// How long the greatest burst is remembered before half of it is forgotten.
const MEMORY: Duration = Duration::from_secs(60);
/// How long after the last create of a kind one waits still.
pub(super) const IDLE: Duration = Duration::from_secs(600);
/// Creates that are looked back at: more than can wait at all.
const LOOK_BACK: usize = 1024;

/// The creates of one kind.
#[derive(Debug)]
pub(super) struct Demand {
    recent: VecDeque<Instant>,
    /// The greatest burst, and since when it counts.
    peak: (usize, Instant),
}

impl Demand {
    pub(super) fn new(now: Instant) -> Self {
        Self { recent: VecDeque::new(), peak: (0, now) }
    }

    /// A create came.
    pub(super) fn count(&mut self, now: Instant) {
        self.fade(now);
        self.recent.push_back(now);
        while self.recent.len() > LOOK_BACK || self.recent.front().is_some_and(|at| now.duration_since(*at) > BURST) {
            self.recent.pop_front();
        }
        if self.recent.len() >= self.peak.0 {
            self.peak = (self.recent.len(), now);
        }
    }

    /// When the last create came.
    pub(super) fn last(&self) -> Instant {
        self.recent.back().copied().unwrap_or(self.peak.1).max(self.peak.1)
    }

    /// How many should wait.
    pub(super) fn target(&mut self, now: Instant) -> usize {
        if self.recent.back().is_none_or(|last| now.duration_since(*last) > IDLE) {
            return 0;
        }
        self.fade(now);
        self.peak.0.max(1)
    }

    fn fade(&mut self, now: Instant) {
        while now.duration_since(self.peak.1) >= MEMORY && self.peak.0 > 0 {
            self.peak = (self.peak.0 / 2, self.peak.1 + MEMORY);
        }
    }
}

/// Shares so many places among kinds, those asked for last first. `targets` are in that order.
pub(super) fn share(places: usize, targets: &[usize]) -> Vec<usize> {
    let mut left = places;
    let mut shares = Vec::with_capacity(targets.len());
    for target in targets {
        let share = (*target).min(left);
        left -= share;
        shares.push(share);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn as_many_wait_as_came_in_the_greatest_burst() {
        let start = Instant::now();
        let mut demand = Demand::new(start);
        assert_eq!(demand.target(start), 0);
        demand.count(start);
        assert_eq!(demand.target(start), 1);
        for step in 0..10 {
            demand.count(after(start, 5000 + step * 50));
        }
        assert_eq!(demand.target(after(start, 6000)), 10);
        demand.count(after(start, 20_000));
        assert_eq!(demand.target(after(start, 20_000)), 10, "a lone create does not forget the burst");
    }

    #[test]
    fn a_burst_is_forgotten_by_halves_and_the_kind_in_the_end() {
        let start = Instant::now();
        let mut demand = Demand::new(start);
        (0..8).for_each(|step| demand.count(after(start, step)));
        assert_eq!(demand.target(after(start, 30_000)), 8);
        assert_eq!(demand.target(after(start, 70_000)), 4);
        assert_eq!(demand.target(after(start, 400_000)), 1);
        assert_eq!(demand.target(start + IDLE + Duration::from_secs(1)), 0);
    }

    #[test]
    fn who_was_asked_for_last_comes_first() {
        assert_eq!(share(10, &[4, 9, 2]), [4, 6, 0]);
        assert_eq!(share(0, &[1, 1]), [0, 0]);
        assert_eq!(share(10, &[1, 1]), [1, 1]);
    }
}
