//! Appends to a recording while a sandbox is served. What is written is whole records, one after the other.
//!
//! It is written from the threads that move bytes, at most a piece at a time and to the page cache; nothing is flushed to
//! the disk, since a recording is worth nothing without the sandbox whose server keeps it.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::frame::{self, Kind};
use super::scan::walk;
use super::{
    Answered, Asked, BadRecording, Depth, Digest, EXCHANGE_BYTES, Exchange, HEADER, Hash, Headers, MAX_EXCHANGES,
    MAX_NOTES, MAX_PIECES, Note, PIECE_BYTES,
};

/// Exchanges of one sandbox that are recorded at a time: each holds a piece in memory. Further ones pass unrecorded.
const AT_A_TIME: usize = 256;

/// Why something is not recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// The recording is full from now on; told once.
    Filled {
        /// Why.
        why: String,
    },
    /// It was full before.
    Full,
    /// Too many are recorded at this moment, or this one is too long.
    TooMuch,
    /// Nobody records any more.
    Closed,
}

/// A recording that grows.
#[derive(Debug)]
pub struct Tape {
    inner: Mutex<Inner>,
    limit_bytes: u64,
    slots: Arc<Semaphore>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    end: u64,
    pieces: HashSet<Digest>,
    exchanges: u64,
    notes: usize,
    has_more: bool,
    is_full: bool,
    is_closed: bool,
}

impl Tape {
    /// Goes on with a recording, which must be open for reading and writing, or begins one in an empty file. A last record
    /// that is torn is taken away. `limit_bytes` is how long the file may get, notes not counted.
    ///
    /// # Errors
    /// When the file is no recording, or cannot be read or written.
    pub fn open(file: File, limit_bytes: u64) -> Result<Self, BadRecording> {
        let (summary, pieces) = walk(&file, Depth::Heads, |_, _, _| Ok(()))?;
        file.set_len(summary.bytes)?;
        let mut end = summary.bytes;
        if end == 0 {
            file.write_all_at(HEADER, 0)?;
            end = HEADER.len() as u64;
        }
        let noted: u64 = summary.not_recorded.values().sum();
        let inner = Inner {
            file,
            end,
            pieces: pieces.into_keys().collect(),
            exchanges: summary.exchanges + summary.broken,
            notes: usize::try_from(noted).unwrap_or(MAX_NOTES),
            has_more: summary.has_more,
            is_full: summary.full.is_some(),
            is_closed: false,
        };
        Ok(Self { inner: Mutex::new(inner), limit_bytes, slots: Arc::new(Semaphore::new(AT_A_TIME)) })
    }

    /// Begins to record an exchange.
    ///
    /// # Errors
    /// Why it is not recorded.
    pub fn take(self: &Arc<Self>) -> Result<Taking, Dropped> {
        {
            let inner = self.lock();
            if inner.is_closed {
                return Err(Dropped::Closed);
            }
            if inner.is_full {
                return Err(Dropped::Full);
            }
        }
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| Dropped::TooMuch)?;
        Ok(Taking {
            tape: self.clone(),
            held: Vec::new(),
            hash: Hash::default(),
            pieces: Vec::new(),
            lost: None,
            _slot: slot,
        })
    }

    /// Writes down that something was not recorded.
    pub fn not_recorded(&self, why: &str, host: &str, port: u16) {
        let mut inner = self.lock();
        if inner.is_closed || inner.has_more {
            return;
        }
        inner.notes += 1;
        inner.has_more = inner.notes > MAX_NOTES;
        let note = match inner.has_more {
            true => Note::More,
            false => Note::NotRecorded { why: why.to_owned(), host: host.to_owned(), port },
        };
        inner.note(&note);
    }

    /// Writes nothing any more: another writer may go on.
    pub fn close(&self) {
        self.lock().is_closed = true;
    }

    fn piece(&self, bytes: &[u8]) -> Result<Digest, Dropped> {
        let digest = Digest::of(bytes);
        let mut inner = self.lock();
        if inner.pieces.contains(&digest) {
            return Ok(digest);
        }
        if inner.pieces.len() >= MAX_PIECES {
            return Err(inner.fill(format!("it has {MAX_PIECES} pieces of bodies")));
        }
        inner.append(Kind::Piece, digest, bytes, self.limit_bytes)?;
        inner.pieces.insert(digest);
        Ok(digest)
    }

    fn commit(&self, exchange: &Exchange) -> Result<(), Dropped> {
        let Some(json) = json(exchange).filter(|json| json.len() as u64 <= EXCHANGE_BYTES) else {
            return Err(Dropped::TooMuch);
        };
        let mut inner = self.lock();
        if inner.exchanges >= MAX_EXCHANGES as u64 {
            return Err(inner.fill(format!("it has {MAX_EXCHANGES} exchanges")));
        }
        inner.append(Kind::Exchange, Digest::of(&json), &json, self.limit_bytes)?;
        inner.exchanges += 1;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn append(&mut self, kind: Kind, digest: Digest, payload: &[u8], limit_bytes: u64) -> Result<(), Dropped> {
        if self.is_closed {
            return Err(Dropped::Closed);
        }
        if self.is_full {
            return Err(Dropped::Full);
        }
        let record = frame::written(kind, digest, payload);
        if self.end + record.len() as u64 > limit_bytes {
            return Err(self.fill(format!("it has reached its limit of {limit_bytes} bytes")));
        }
        self.write(&record).map_err(|error| self.fill(format!("it cannot be written: {error}")))
    }

    /// Says that it is full, in the file, too: who reads it must not take it for complete.
    fn fill(&mut self, why: String) -> Dropped {
        if self.is_full {
            return Dropped::Full;
        }
        self.is_full = true;
        self.note(&Note::Full { why: why.clone() });
        Dropped::Filled { why }
    }

    fn note(&mut self, note: &Note) {
        let Some(json) = json(note) else { return };
        let record = frame::written(Kind::Note, Digest::of(&json), &json);
        if let Err(error) = self.write(&record) {
            tracing::warn!(%error, "a note cannot be written into a recording");
        }
    }

    /// A whole record or none.
    fn write(&mut self, record: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all_at(record, self.end) {
            // What is left of it would be overwritten by the next one, which may be shorter.
            let _ = self.file.set_len(self.end);
            return Err(error);
        }
        self.end += record.len() as u64;
        Ok(())
    }
}

/// `None` of what has no form as JSON, which nothing here is.
fn json(value: &impl Serialize) -> Option<Vec<u8>> {
    serde_json::to_vec(value).ok()
}

/// One exchange that is being recorded: the body of its answer, as it passes.
pub struct Taking {
    tape: Arc<Tape>,
    /// What is not a whole piece yet.
    held: Vec<u8>,
    hash: Hash,
    pieces: Vec<Digest>,
    /// Why it cannot be recorded after all.
    lost: Option<Dropped>,
    _slot: OwnedSemaphorePermit,
}

impl Taking {
    /// Takes more of the body.
    pub fn push(&mut self, mut bytes: &[u8]) {
        if self.lost.is_some() {
            return;
        }
        self.hash.push(bytes);
        while self.held.len() + bytes.len() >= PIECE_BYTES {
            let (now, later) = bytes.split_at(PIECE_BYTES - self.held.len());
            self.held.extend_from_slice(now);
            bytes = later;
            self.flush();
        }
        self.held.extend_from_slice(bytes);
    }

    fn flush(&mut self) {
        let held = std::mem::take(&mut self.held);
        match self.tape.piece(&held) {
            Ok(digest) => self.pieces.push(digest),
            Err(dropped) => self.lost = Some(dropped),
        }
    }

    /// Writes the exchange down, which is over.
    ///
    /// # Errors
    /// Why it is not recorded.
    pub fn finish(mut self, exchange: Over) -> Result<(), Dropped> {
        if !self.held.is_empty() && self.lost.is_none() {
            self.flush();
        }
        if let Some(dropped) = self.lost.take() {
            return Err(dropped);
        }
        let Over { at_ms, request, status, headers, trailers, broken } = exchange;
        let (bytes, sha256) = (self.hash.bytes(), self.hash.finish());
        let pieces = std::mem::take(&mut self.pieces);
        let answer = Answered { status, headers, bytes, sha256, pieces, trailers };
        self.tape.commit(&Exchange { at_ms, request, answer, broken })
    }
}

/// What is known of an exchange when it is over, beside the body of its answer.
pub struct Over {
    /// When it began, in milliseconds since 1970.
    pub at_ms: u64,
    /// What was asked.
    pub request: Asked,
    /// The answer's status.
    pub status: u16,
    /// Its headers.
    pub headers: Headers,
    /// What came after its body.
    pub trailers: Headers,
    /// Why it is not whole.
    pub broken: Option<String>,
}
