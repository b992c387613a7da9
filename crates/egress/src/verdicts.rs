//! What became of questions and connections: a bounded record for whoever answers for a sandbox.
//!
//! Each sandbox has a ring of its own, so that a noisy one pushes out nobody else's. Events of a sandbox are numbered
//! without gaps when they happen; a reader that sees a gap knows exactly how many it lost.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::limits::{self, Bucket, Rate};
use crate::policy::{Action, Because};

/// Events that are kept of sandboxes which are gone, for readers that are a little late.
const DEPARTED: usize = 4096;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Place among all events of this process, from 1; cursors are made of it.
    pub sequence: u64,
    /// Place among the events of this sandbox, from 1, without gaps.
    pub number: u64,
    /// The sandbox.
    pub sandbox: String,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A question for a name was not answered with an address.
    Question {
        /// The name as it was asked for.
        name: String,
        /// Type of record.
        kind: String,
        /// Why not.
        reason: Reason,
    },
    /// A connection was decided about.
    Connection {
        /// Number of the connection in this process.
        flow: u64,
        /// The name that the sandbox connected to, if it came by name.
        name: Option<String>,
        /// Where the sandbox meant to go, as it sees it.
        to: SocketAddr,
        /// The address that was dialled, or that the policy refused.
        dialled: Option<IpAddr>,
        /// Allowed or denied.
        action: Action,
        /// Why.
        reason: Reason,
    },
    /// A credential was put into a request.
    Injected {
        /// Number of the connection.
        flow: u64,
        /// The host.
        host: String,
        /// The request's method.
        method: String,
        /// Its path as the sandbox wrote it, without what comes after `?`, cut off where it is long.
        path: String,
        /// The binding by which.
        binding: String,
        /// The revision of the vault.
        revision: i64,
        /// Names of the headers that were set.
        headers: Vec<String>,
    },
    /// A request for a bound host was not passed on.
    Request {
        /// Number of the connection.
        flow: u64,
        /// The host.
        host: String,
        /// The request's method.
        method: String,
        /// With which status it was answered.
        status: u16,
        /// Why.
        reason: Reason,
    },
    /// A connection that was allowed is over.
    Closed {
        /// Its number.
        flow: u64,
        /// The name that the sandbox connected to, if it came by name.
        name: Option<String>,
        /// Where the sandbox meant to go, as it sees it.
        to: SocketAddr,
        /// The name in its first bytes (SNI, Host), if there was one.
        presented: Option<String>,
        /// Bytes from the sandbox.
        sent_bytes: u64,
        /// Bytes to the sandbox.
        received_bytes: u64,
        /// How it ended.
        end: End,
    },
    /// Something was passed on and not recorded, or nothing more is recorded from now on.
    NotRecorded {
        /// Number of the connection.
        flow: u64,
        /// The host: a name, or an address.
        host: String,
        /// The port.
        port: u16,
        /// Why.
        message: String,
    },
    /// A request was not answered from a recording, because it is not in it.
    Replay {
        /// Number of the connection.
        flow: u64,
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// The request's method; empty where none was read.
        method: String,
        /// Its path as the sandbox wrote it, without what comes after `?`, cut off where it is long.
        path: String,
        /// With which status it was answered; 0 where it was not.
        status: u16,
        /// Why.
        message: String,
    },
    /// The sandbox's vault was made, changed or deleted. No value is told, and no name.
    Vault {
        /// Which of these.
        change: VaultChange,
        /// Its revision from now on; 0 where there is none.
        revision: u64,
        /// How many credentials it holds.
        credentials: usize,
        /// How many bindings.
        bindings: usize,
    },
}

/// What happened to a vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VaultChange {
    /// It was made.
    Created,
    /// It was changed.
    Patched,
    /// It was deleted.
    Deleted,
}

/// Why something was decided as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Reason {
    /// The policy says so.
    Policy {
        /// What of it.
        because: Because,
    },
    /// It meant the sandbox itself: no business of ours.
    Local,
    /// An address for names, which stands for none.
    UnknownName,
    /// It is no name.
    BadName,
    /// The first bytes name another host than the connection is bound to.
    OtherHost {
        /// Whom they name.
        presented: String,
    },
    /// The first bytes are made to be misread, or never end.
    BadHead {
        /// What is wrong with them.
        message: String,
    },
    /// The name has no address, or nobody says.
    Unresolved {
        /// What the resolver said.
        message: String,
    },
    /// Nobody answered at any permitted address.
    Unreachable {
        /// What the last attempt said.
        message: String,
    },
    /// The credential vault, or what could not be done for it.
    Vault {
        /// Why.
        message: String,
    },
    /// Nothing leaves the sandbox, and what it is answered from does not have it.
    NotInRecording,
    /// A limit of the sandbox.
    Limit {
        /// Which.
        what: String,
    },
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum End {
    /// Both sides were done.
    Done,
    /// One side broke it off.
    Broken {
        /// What the system said.
        message: String,
    },
    /// It was refused after its first bytes.
    Refused {
        /// Why.
        reason: Reason,
    },
    /// A change of the policy cut it.
    PolicyChanged {
        /// The revision that did.
        revision: u64,
    },
    /// The sandbox's vault became another while its requests were served with credentials.
    VaultChanged,
    /// Nothing moved for too long.
    Idle,
    /// The sandbox was detached.
    Detached,
}

/// All events of this process.
#[derive(Debug)]
pub struct Verdicts {
    sequence: AtomicU64,
    /// Wakes readers.
    changes: watch::Sender<()>,
    departed: Mutex<VecDeque<Arc<Event>>>,
}

impl Default for Verdicts {
    fn default() -> Self {
        Self { sequence: AtomicU64::new(0), changes: watch::Sender::new(()), departed: Mutex::default() }
    }
}

impl Verdicts {
    /// Tells that there are new events.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The newest sequence. Whoever looks into the rings after this finds every event up to it that is still kept: a
    /// sequence is given out under the lock of the ring that the event goes to.
    pub fn newest(&self) -> u64 {
        self.sequence.load(Ordering::SeqCst)
    }

    /// What is kept of sandboxes that are gone, after a sequence.
    pub fn departed(&self, after: u64) -> Vec<Arc<Event>> {
        let departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        departed.iter().filter(|event| event.sequence > after).cloned().collect()
    }

    /// Takes over the events of a sandbox that goes.
    pub fn depart(&self, journal: &Journal) {
        let mut ring = journal.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        departed.extend(ring.events.drain(..));
        let excess = departed.len().saturating_sub(DEPARTED);
        departed.drain(..excess);
    }
}

/// The events of one sandbox.
#[derive(Debug)]
pub struct Journal {
    sandbox: String,
    all: Arc<Verdicts>,
    bucket: Bucket,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    number: u64,
}

impl Journal {
    /// An empty one.
    pub fn new(sandbox: &str, all: Arc<Verdicts>, rate: Rate) -> Self {
        Self { sandbox: sandbox.to_owned(), all, bucket: Bucket::new(rate), ring: Mutex::default() }
    }

    /// Writes down an event, or counts it if there are too many.
    pub fn record(&self, what: What) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.number += 1;
        if !self.bucket.try_take() {
            return;
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let sequence = self.all.sequence.fetch_add(1, Ordering::SeqCst) + 1;
        let event = Event {
            sequence,
            number: ring.number,
            sandbox: self.sandbox.clone(),
            at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            what,
        };
        if ring.events.len() >= limits::VERDICTS {
            ring.events.pop_front();
        }
        ring.events.push_back(Arc::new(event));
        drop(ring);
        self.all.changes.send_replace(());
    }

    /// Events after a sequence, oldest first.
    pub fn after(&self, sequence: u64) -> Vec<Arc<Event>> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.events.iter().filter(|event| event.sequence > sequence).cloned().collect()
    }

    /// How many events there were, those that were not kept included.
    pub fn count(&self) -> u64 {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(n: usize) -> What {
        What::Question { name: format!("n{n}.example"), kind: "A".into(), reason: Reason::BadName }
    }

    #[test]
    fn what_is_lost_shows_as_a_gap_in_the_numbers() {
        let journal = Journal::new("s", Arc::default(), Rate { per_second: 1, burst: 2 });
        for n in 0..5 {
            journal.record(question(n));
        }
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        journal.record(question(5));
        let numbers: Vec<u64> = journal.after(0).iter().map(|event| event.number).collect();
        assert_eq!((numbers, journal.count()), (vec![1, 2, 6], 6));
    }

    #[test]
    fn the_ring_is_bounded_and_outlives_its_sandbox() {
        let all: Arc<Verdicts> = Arc::default();
        let journal = Journal::new("s", all.clone(), Rate { per_second: 1, burst: 10_000 });
        for n in 0..limits::VERDICTS + 10 {
            journal.record(question(n));
        }
        assert_eq!(journal.after(0).len(), limits::VERDICTS);
        all.depart(&journal);
        assert_eq!(all.departed(0).first().map(|event| event.number), Some(11));
    }
}
