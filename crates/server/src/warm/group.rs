//! One stock of waiting sandboxes: a pool's, or that of a kind which was asked for.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lifecycle::pool::{Capacity, Census, Governor, Want, WhenEmpty};
use lifecycle::spec::{SandboxId, SandboxSpec};
use lifecycle::warm::Kind;
use protocol::lifecycle::{CreateSandboxRequest, PoolStatus};

use super::demand::Demand;

/// First wait after one could not be made; it doubles.
const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Longest wait after one could not be made.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Claims whose duration is remembered.
const CLAIMS: usize = 100;
/// How long after a claim nothing is made unless none waits any more: a burst of claims has the cores to itself.
const REST: Duration = Duration::from_millis(20);

/// Number of the next stock.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// What decides how many wait.
pub(super) enum Rule {
    /// Numbers of an operator.
    Pool(Box<Pool>),
    /// What was asked for.
    Demand(Demand),
}

/// A pool.
pub(super) struct Pool {
    pub(super) capacity: Capacity,
    pub(super) when_empty: WhenEmpty,
    pub(super) template: CreateSandboxRequest,
    pub(super) governor: Governor,
    pub(super) revision: u64,
    /// Sandboxes that somebody has.
    pub(super) bound: HashSet<SandboxId>,
}

/// A stock.
pub(super) struct Group {
    /// Which one this is: a pool that is made again under the same name is another.
    pub(super) serial: u64,
    pub(super) kind: Kind,
    /// What those that wait are made by.
    pub(super) spec: SandboxSpec,
    pub(super) rule: Rule,
    /// Those that wait, the oldest first.
    pub(super) ready: VecDeque<SandboxId>,
    /// Those on their way.
    pub(super) making: u32,
    pub(super) counts: Counts,
    /// Templates for which one is to wait, asked for or not.
    pub(super) pins: HashSet<String>,
    taken_at: Option<Instant>,
    failures: u32,
    failed_at: Option<Instant>,
    message: Option<String>,
}

/// How a stock served since the server's start.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Creates that found one waiting.
    pub(super) hits: u64,
    /// Creates for which one was made.
    pub(super) misses: u64,
    /// Creates that waited until one was there, or room for one.
    pub(super) waits: u64,
    /// Creates that were refused.
    pub(super) refused: u64,
    /// Sandboxes that were made to wait.
    pub(super) refilled: u64,
    /// Sandboxes that could not be made to wait.
    pub(super) failed: u64,
    /// Seconds that claims took, in all.
    pub(super) claim_seconds: f64,
    /// How many those are.
    pub(super) claimed: u64,
    /// Milliseconds of the last ones.
    recent: VecDeque<f64>,
}

impl Counts {
    fn claim_ms(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.recent.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).map(|ms| (ms * 1000.0).round() / 1000.0)
    }
}

impl Group {
    pub(super) fn new(kind: Kind, spec: SandboxSpec, rule: Rule) -> Self {
        Self {
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
            kind,
            spec,
            rule,
            ready: VecDeque::new(),
            making: 0,
            counts: Counts::default(),
            pins: HashSet::new(),
            taken_at: None,
            failures: 0,
            failed_at: None,
            message: None,
        }
    }

    pub(super) fn pool(&self) -> Option<&Pool> {
        match &self.rule {
            Rule::Pool(pool) => Some(pool),
            Rule::Demand(_) => None,
        }
    }

    pub(super) fn pool_mut(&mut self) -> Option<&mut Pool> {
        match &mut self.rule {
            Rule::Pool(pool) => Some(pool),
            Rule::Demand(_) => None,
        }
    }

    pub(super) fn census(&self) -> Census {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Census {
            bound: self.pool().map_or(0, |pool| number(pool.bound.len())),
            ready: number(self.ready.len()),
            making: self.making,
        }
    }

    /// Gives one away.
    pub(super) fn take(&mut self, now: Instant) -> Option<SandboxId> {
        let id = self.ready.pop_front()?;
        self.taken_at = Some(now);
        Some(id)
    }

    /// What is to be done. `share` is how many may wait because they were asked for.
    pub(super) fn want(&mut self, share: usize, now: Instant) -> Want {
        let census = self.census();
        let want = match &mut self.rule {
            Rule::Pool(pool) => pool.governor.want(&pool.capacity, &census),
            Rule::Demand(_) => {
                let (share, there) = (u32::try_from(share).unwrap_or(u32::MAX), census.ready + census.making);
                match there.cmp(&share) {
                    std::cmp::Ordering::Less => Want::Make(share - there),
                    std::cmp::Ordering::Equal => Want::Nothing,
                    std::cmp::Ordering::Greater => Want::Drop((there - share).min(census.ready)),
                }
            }
        };
        match want {
            Want::Make(_) if self.rests_until(now).is_some() => Want::Nothing,
            want => want,
        }
    }

    /// Until when nothing is made: a burst of claims is under way, or the last try failed.
    pub(super) fn rests_until(&self, now: Instant) -> Option<Instant> {
        let claims = self.taken_at.filter(|_| !self.ready.is_empty()).map(|at| at + REST);
        let wait = RETRY_FIRST.saturating_mul(1 << self.failures.saturating_sub(1).min(16)).min(RETRY_MAX);
        let failed = self.failed_at.map(|at| at + wait);
        claims.into_iter().chain(failed).max().filter(|until| *until > now)
    }

    /// One was made, or could not be.
    pub(super) fn made(&mut self, outcome: Result<SandboxId, String>, now: Instant) {
        self.making = self.making.saturating_sub(1);
        match outcome {
            Ok(id) => {
                self.ready.push_back(id);
                self.counts.refilled += 1;
                (self.failures, self.failed_at, self.message) = (0, None, None);
            }
            Err(message) => {
                self.counts.failed += 1;
                self.failures = self.failures.saturating_add(1);
                self.failed_at = Some(now);
                self.message = Some(message);
            }
        }
    }

    /// A claim took so long.
    pub(super) fn claimed(&mut self, took: Duration) {
        self.counts.claimed += 1;
        self.counts.claim_seconds += took.as_secs_f64();
        self.counts.recent.push_back(took.as_secs_f64() * 1000.0);
        if self.counts.recent.len() > CLAIMS {
            self.counts.recent.pop_front();
        }
    }

    pub(super) fn status(&self) -> PoolStatus {
        let census = self.census();
        PoolStatus {
            total: census.total().into(),
            allocated: census.bound.into(),
            available: census.ready.into(),
            revision: self.pool().map(|pool| pool.revision.to_string()).unwrap_or_default(),
            hits: self.counts.hits,
            misses: self.counts.misses,
            refused: self.counts.refused,
            claim_ms: self.counts.claim_ms(),
            refilled: self.counts.refilled,
            message: self.message.clone(),
        }
    }
}
