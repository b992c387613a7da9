//! Metrics of the sandbox: its limits as totals, its own use as used.
//!
//! Numbers come from the sandbox's cgroup (v2 or v1) where it is readable and limited, otherwise from
//! `/proc`. Processor use is the mean since the last sample when that is recent; otherwise the call itself
//! takes two samples a short time apart. So a polled sandbox answers at once, and no call takes a second.

mod cgroup;
mod host;

pub use cgroup::place as cgroup_file;

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::header::CACHE_CONTROL;
use http::{HeaderValue, StatusCode};
use protocol::execd::metrics::Metrics;
use protocol::execd::stream::CONTENT_TYPE;

use crate::clock;
use crate::daemon::Daemon;
use crate::error::Result;
use crate::http::{Answer, json, stream};

/// A sample older than this says nothing about now.
const STALE: Duration = Duration::from_secs(5);
/// A sample younger than this is too short a span to divide by.
const SHORT: Duration = Duration::from_millis(500);
/// The span of a call that has no recent sample.
const SPAN: Duration = Duration::from_millis(100);
/// Between two lines of the watch.
const WATCH_EVERY: Duration = Duration::from_secs(2);
const MIB: f64 = 1024.0 * 1024.0;

/// Keeps the last sample of processor time.
pub struct Sampler {
    last: Cell<Option<Sample>>,
}

#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    /// Processor seconds used so far.
    used: f64,
}

impl Sampler {
    /// Has no sample yet: taking one at the start would cost every sandbox what few ask for.
    pub fn start() -> Self {
        Self { last: Cell::new(None) }
    }

    async fn measure(&self) -> Metrics {
        let before = match self.last.get().filter(|sample| sample.at.elapsed() < STALE) {
            Some(sample) => sample,
            None => {
                let first = sample();
                tokio::time::sleep(SPAN).await;
                first
            }
        };
        let now = sample();
        if before.at.elapsed() >= SHORT || self.last.get().is_none_or(|last| last.at.elapsed() >= STALE) {
            self.last.set(Some(now));
        }
        let cpu_count = cgroup::cpu_limit().unwrap_or(f64::MAX).min(host::cpu_count());
        let span = (now.at - before.at).as_secs_f64();
        let share = if span > 0.0 { (now.used - before.used) / span / cpu_count } else { 0.0 };
        let (total, used) = memory();
        Metrics {
            cpu_count,
            cpu_used_pct: (share * 100.0).clamp(0.0, 100.0),
            mem_total_mib: total / MIB,
            mem_used_mib: used / MIB,
            timestamp: clock::now_ms(),
        }
    }
}

fn sample() -> Sample {
    let used = cgroup::cpu_seconds().unwrap_or_else(host::cpu_seconds);
    Sample { at: Instant::now(), used }
}

/// Total and used bytes: of the cgroup when it has a limit, of the machine otherwise.
fn memory() -> (f64, f64) {
    let (total, used) = host::memory();
    match cgroup::memory() {
        Some((limit, own)) if limit < total => (limit, own),
        _ => (total, used),
    }
}

/// One answer now.
///
/// # Errors
/// None: what cannot be read is taken from the next best source.
pub async fn get(daemon: &Daemon) -> Result<Answer> {
    Ok(json(StatusCode::OK, &daemon.metrics.measure().await))
}

/// One line at once, then every two seconds, until the client leaves.
pub fn watch(daemon: Rc<Daemon>) -> Answer {
    let (sender, mut answer) = stream(CONTENT_TYPE, None);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    tokio::task::spawn_local(async move {
        loop {
            let metrics = daemon.metrics.measure().await;
            let mut line = serde_json::to_vec(&metrics).expect("numbers can always be written as JSON");
            line.push(b'\n');
            if sender.send(Ok(line.into())).await.is_err() {
                return;
            }
            tokio::select! {
                () = sender.closed() => return,
                () = tokio::time::sleep(WATCH_EVERY) => {}
            }
        }
    });
    answer
}
