//! Sockets of sandboxes' networks, kept for the next connection to a port.
//!
//! A port can always be reached by execd, which then passes every byte on: two more reads, writes and wake-ups for each
//! message. Where calls go on, sockets of the sandbox's own network save that. Making them costs more than a tunnel does,
//! so they are asked for only once a sandbox is busy, and nobody waits for them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

/// Sandboxes that are looked at at once. With [`MAX_SOCKETS`] this bounds the descriptors.
const MAX_SANDBOXES: usize = 64;
/// Sockets kept for one sandbox.
const MAX_SOCKETS: usize = 32;
/// Fewer left than this, more are asked for.
const LOW: usize = 8;
/// Calls by a tunnel, none of them [`IDLE_LIMIT`] after the last, after which a sandbox counts as busy.
const BUSY_CALLS: u32 = 16;
/// How long sockets are kept that nobody takes: they hold the network of a sandbox that may have ended.
const IDLE_LIMIT: Duration = Duration::from_secs(4);
/// How long a question that was not answered is not repeated.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Sandboxes whose sockets are wanted.
pub type Wanted = mpsc::Receiver<Arc<str>>;

/// The sockets.
pub(crate) struct Stock {
    kept: Mutex<HashMap<Arc<str>, Kept>>,
    wanted: mpsc::Sender<Arc<str>>,
}

struct Kept {
    sockets: Vec<OwnedFd>,
    /// Calls by a tunnel.
    calls: u32,
    /// When sockets were asked for that have not come.
    asked: Option<Instant>,
    used: Instant,
}

impl Stock {
    /// Nothing yet, and where it says of which sandboxes it wants something.
    pub(crate) fn new() -> (Self, Wanted) {
        let (wanted, questions) = mpsc::channel(MAX_SANDBOXES);
        (Self { kept: Mutex::default(), wanted }, questions)
    }

    /// A socket of the sandbox's network.
    pub(crate) fn take(&self, id: &Arc<str>) -> Option<OwnedFd> {
        let mut all = self.kept.lock().expect("no holder panics");
        let kept = all.get_mut(id)?;
        let socket = kept.sockets.pop()?;
        kept.used = Instant::now();
        if kept.sockets.len() < LOW {
            kept.ask(id, &self.wanted);
        }
        Some(socket)
    }

    /// Whether there is one.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.kept.lock().expect("no holder panics").get(id).is_some_and(|kept| !kept.sockets.is_empty())
    }

    /// Counts a call by a tunnel; asks for sockets once the sandbox is busy.
    pub(crate) fn count_tunnelled(&self, id: &Arc<str>) {
        let mut all = self.kept.lock().expect("no holder panics");
        if all.len() >= MAX_SANDBOXES && !all.contains_key(id) {
            return;
        }
        let now = Instant::now();
        let kept =
            all.entry(id.clone()).or_insert_with(|| Kept { sockets: Vec::new(), calls: 0, asked: None, used: now });
        kept.calls = kept.calls.saturating_add(1);
        kept.used = now;
        if kept.calls >= BUSY_CALLS && kept.sockets.is_empty() {
            kept.ask(id, &self.wanted);
        }
    }

    /// Keeps what was asked for. For a sandbox that was forgotten meanwhile it is dropped.
    pub(crate) fn add(&self, id: &str, sockets: Vec<OwnedFd>) {
        if let Some(kept) = self.kept.lock().expect("no holder panics").get_mut(id) {
            kept.sockets.extend(sockets);
            kept.sockets.truncate(MAX_SOCKETS);
            (kept.asked, kept.used) = (None, Instant::now());
        }
    }

    pub(crate) fn forget(&self, id: &str) {
        self.kept.lock().expect("no holder panics").remove(id);
    }

    pub(crate) fn expire(&self) {
        self.kept.lock().expect("no holder panics").retain(|_, kept| kept.used.elapsed() < IDLE_LIMIT);
    }
}

impl Kept {
    fn ask(&mut self, id: &Arc<str>, wanted: &mpsc::Sender<Arc<str>>) {
        // A full queue means that others wait; the next call asks again.
        if self.asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) && wanted.try_send(id.clone()).is_ok() {
            self.asked = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket").into()).collect()
    }

    #[test]
    fn only_a_busy_sandbox_asks_and_once() {
        let (stock, mut wanted) = Stock::new();
        let id: Arc<str> = "a".into();
        for _ in 1..BUSY_CALLS {
            stock.count_tunnelled(&id);
        }
        assert!(wanted.try_recv().is_err());
        stock.count_tunnelled(&id);
        stock.count_tunnelled(&id);
        assert_eq!(wanted.try_recv().as_deref(), Ok("a"));
        assert!(wanted.try_recv().is_err());
    }

    #[test]
    fn sockets_that_run_low_are_asked_for_again() {
        let (stock, mut wanted) = Stock::new();
        let id: Arc<str> = "a".into();
        stock.count_tunnelled(&id);
        stock.add("a", sockets(LOW + 1));
        assert!(stock.has("a") && stock.take(&id).is_some());
        assert!(wanted.try_recv().is_err());
        assert!(stock.take(&id).is_some());
        assert!(wanted.try_recv().is_ok());
    }

    #[test]
    fn what_comes_for_a_forgotten_sandbox_is_dropped() {
        let (stock, _wanted) = Stock::new();
        let id: Arc<str> = "a".into();
        stock.count_tunnelled(&id);
        stock.forget("a");
        stock.add("a", sockets(1));
        assert!(!stock.has("a") && stock.take(&id).is_none());
    }
}
