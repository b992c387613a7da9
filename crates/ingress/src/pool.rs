//! Idle connections to sandboxes, kept for the next call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use hyper::client::conn::http1::SendRequest;

/// Idle connections kept for one port: a client's usual parallelism.
const MAX_IDLE_PER_PORT: usize = 8;
/// Idle connections kept in all; each holds two descriptors on this machine.
const MAX_IDLE: usize = 256;
/// How long an idle connection is kept; shorter than what servers in sandboxes usually keep.
pub(crate) const IDLE_LIMIT: Duration = Duration::from_secs(4);
/// Longest wait for a connection whose last answer was just read to become free.
const READY_LIMIT: Duration = Duration::from_millis(20);

/// By which way a connection reaches its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a socket of the sandbox's network, or by execd for its own port.
    Direct,
    /// By execd, which passes every byte on.
    Tunnel,
}

/// A connection that speaks HTTP.
pub(crate) struct Line {
    pub(crate) sender: SendRequest<Body>,
    pub(crate) way: Way,
}

struct Idle {
    line: Line,
    since: Instant,
}

/// Idle connections by sandbox and port.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    lists: HashMap<(Arc<str>, u16), Vec<Idle>>,
    count: usize,
}

impl Kept {
    fn retain(&mut self, mut keeps: impl FnMut(&str, &Idle) -> bool) {
        self.lists.retain(|(id, _), list| {
            list.retain(|idle| keeps(id, idle));
            !list.is_empty()
        });
        self.count = self.lists.values().map(Vec::len).sum();
    }
}

impl Pool {
    /// The most recently used idle connection to the port that is still good.
    pub(crate) async fn take(&self, id: &Arc<str>, port: u16) -> Option<Line> {
        loop {
            let mut line = self.pop(id, port)?;
            // Nearly always it is free already, and then no timer is needed.
            if line.sender.is_ready() {
                return Some(line);
            }
            if let Ok(Ok(())) = tokio::time::timeout(READY_LIMIT, line.sender.ready()).await {
                return Some(line);
            }
        }
    }

    fn pop(&self, id: &Arc<str>, port: u16) -> Option<Line> {
        let mut kept = self.0.lock().expect("no holder panics");
        let list = kept.lists.get_mut(&(id.clone(), port))?;
        let before = list.len();
        let last = list.pop().filter(|last| last.since.elapsed() < IDLE_LIMIT && !last.line.sender.is_closed());
        if last.is_none() {
            // Those below it are older.
            list.clear();
        }
        let taken = before - list.len();
        kept.count -= taken;
        last.map(|last| last.line)
    }

    /// Keeps a connection whose answer was read to its end.
    pub(crate) fn give(&self, id: &Arc<str>, port: u16, line: Line) {
        if line.sender.is_closed() {
            return;
        }
        let mut kept = self.0.lock().expect("no holder panics");
        if kept.count >= MAX_IDLE {
            return;
        }
        let list = kept.lists.entry((id.clone(), port)).or_default();
        if list.len() < MAX_IDLE_PER_PORT {
            list.push(Idle { line, since: Instant::now() });
            kept.count += 1;
        }
    }

    pub(crate) fn forget(&self, id: &str) {
        self.0.lock().expect("no holder panics").retain(|of, _| of != id);
    }

    pub(crate) fn expire(&self) {
        let is_good = |idle: &Idle| idle.since.elapsed() < IDLE_LIMIT && !idle.line.sender.is_closed();
        self.0.lock().expect("no holder panics").retain(|_, idle| is_good(idle));
    }
}
