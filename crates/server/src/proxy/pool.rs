//! Idle connections to sandboxes, kept for the next call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use hyper::client::conn::http1::SendRequest;
use lifecycle::spec::SandboxId;

use crate::app::App;

/// Idle connections kept for one port: a client's usual parallelism.
const MAX_IDLE_PER_PORT: usize = 8;
/// Idle connections kept in all; each holds two descriptors on this machine.
const MAX_IDLE: usize = 256;
/// How long an idle connection is kept; shorter than what servers in sandboxes usually keep.
const IDLE_LIMIT: Duration = Duration::from_secs(4);
/// Longest wait for a connection whose last answer was just read to become free.
const READY_LIMIT: Duration = Duration::from_millis(20);

struct Idle {
    sender: SendRequest<Body>,
    since: Instant,
}

/// Idle connections by sandbox and port.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<HashMap<(SandboxId, u16), Vec<Idle>>>,
}

impl Pool {
    /// The most recently used idle connection to the port that is still good.
    pub(super) async fn take(&self, id: &SandboxId, port: u16) -> Option<SendRequest<Body>> {
        loop {
            let mut sender = self.pop(id, port)?;
            if let Ok(Ok(())) = tokio::time::timeout(READY_LIMIT, sender.ready()).await {
                return Some(sender);
            }
        }
    }

    fn pop(&self, id: &SandboxId, port: u16) -> Option<SendRequest<Body>> {
        let mut idle = self.idle.lock().expect("no holder panics");
        let list = idle.get_mut(&(id.clone(), port))?;
        let last = list.pop().filter(|last| last.since.elapsed() < IDLE_LIMIT && !last.sender.is_closed());
        if last.is_none() {
            // Those below it are older.
            list.clear();
        }
        last.map(|last| last.sender)
    }

    /// Keeps a connection whose answer was read to its end.
    pub(super) fn give(&self, id: &SandboxId, port: u16, sender: SendRequest<Body>) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock().expect("no holder panics");
        if idle.values().map(Vec::len).sum::<usize>() >= MAX_IDLE {
            return;
        }
        let list = idle.entry((id.clone(), port)).or_default();
        if list.len() < MAX_IDLE_PER_PORT {
            list.push(Idle { sender, since: Instant::now() });
        }
    }

    /// Closes the idle connections of a sandbox.
    pub(crate) fn forget(&self, id: &SandboxId) {
        self.idle.lock().expect("no holder panics").retain(|(of, _), _| of != id);
    }

    fn expire(&self) {
        self.idle.lock().expect("no holder panics").retain(|_, list| {
            list.retain(|idle| idle.since.elapsed() < IDLE_LIMIT && !idle.sender.is_closed());
            !list.is_empty()
        });
    }
}

/// Closes connections that were idle for too long, until the server ends.
pub(crate) async fn expire(app: Arc<App>) {
    loop {
        tokio::select! {
            () = app.closing.cancelled() => return,
            () = tokio::time::sleep(IDLE_LIMIT) => app.pool.expire(),
        }
    }
}
