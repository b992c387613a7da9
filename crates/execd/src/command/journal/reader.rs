//! Reads a journal from an offset on, while it is written.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Instant;

use protocol::execd::output::StreamName;

use super::storage::Storage;
use super::{Journal, part};
use crate::blocking;

/// Entries of the index that are read at once.
const ENTRIES: u64 = 512;

/// A place in a journal. While it lives, a waiting writer does not overtake what it has delivered.
pub struct Reader {
    journal: Rc<Journal>,
    delivered: Rc<Cell<u64>>,
    /// Offset of the first byte that was not consumed.
    at: u64,
    /// Bytes from `at` on.
    buffer: Vec<u8>,
    /// How many bytes of the buffer were consumed.
    used: usize,
    /// Whose bytes those at `at` are; `None` until the index was asked.
    stream: Option<StreamName>,
    /// Parts that begin after `at`, as far as they were read.
    parts: VecDeque<(u64, StreamName)>,
    /// Number of the first entry that was not read.
    next_entry: u64,
    /// Up to here the parts are known.
    known: u64,
}

/// What there is to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// Bytes: see [`Reader::piece`].
    Bytes,
    /// Nothing now.
    Nothing,
    /// Bytes that are not kept; the reader stands behind them now.
    Lost {
        /// The first of them.
        from: u64,
        /// The first that is not lost.
        to: u64,
    },
}

/// Bytes of one stream in one piece.
pub struct Piece<'a> {
    /// Whose they are.
    pub stream: StreamName,
    /// Offset of the first.
    pub offset: u64,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Whether bytes of the same stream may follow without another's between them.
    pub goes_on: bool,
}

impl Reader {
    pub(super) fn new(journal: Rc<Journal>, at: u64, delivered: Rc<Cell<u64>>) -> Self {
        Self {
            journal,
            delivered,
            at,
            buffer: Vec::new(),
            used: 0,
            stream: None,
            parts: VecDeque::new(),
            next_entry: 0,
            known: 0,
        }
    }

    /// Offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Makes bytes ready, `max` at most with those that are ready already.
    ///
    /// # Errors
    /// The disk's.
    pub async fn fetch(&mut self, max: usize) -> io::Result<Fetched> {
        loop {
            let ready = self.buffer.len() - self.used;
            let from = self.at + ready as u64;
            let (kept, end) = self.journal.inner.borrow().kept_after(from);
            if kept > from {
                if ready > 0 {
                    return Ok(Fetched::Bytes);
                }
                let lost = Fetched::Lost { from, to: kept };
                self.restart(kept);
                return Ok(lost);
            }
            let length = max.saturating_sub(ready).min((end - from) as usize);
            if length == 0 {
                return Ok(if ready > 0 { Fetched::Bytes } else { Fetched::Nothing });
            }
            if self.stream.is_none() && !self.locate().await? {
                continue;
            }
            if self.read(from, length, end).await? {
                return Ok(Fetched::Bytes);
            }
        }
    }

    /// The bytes that are ready, up to the first change of stream. Empty before anything was fetched.
    pub fn piece(&mut self) -> Piece<'_> {
        while let Some((start, stream)) = self.parts.front().copied()
            && start <= self.at
        {
            self.stream = Some(stream);
            self.parts.pop_front();
        }
        let ready = &self.buffer[self.used..];
        let end = self.parts.front().map_or(self.known, |part| part.0);
        let length = ready.len().min(end.saturating_sub(self.at) as usize);
        Piece {
            stream: self.stream.unwrap_or(StreamName::Stdout),
            offset: self.at,
            bytes: &ready[..length],
            goes_on: self.parts.is_empty() && length == ready.len(),
        }
    }

    /// Goes on by so many bytes of the piece.
    pub fn consume(&mut self, length: usize) {
        self.used += length;
        self.at += length as u64;
        if self.used == self.buffer.len() {
            self.buffer.clear();
            self.used = 0;
        }
    }

    /// Says that everything consumed has been handed on.
    pub fn delivered(&self) {
        self.delivered.set(self.at);
        self.journal.progress();
    }

    /// Gives back the buffer's memory, for a reader that waits.
    pub fn release_buffer(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = Vec::new();
        }
    }

    fn restart(&mut self, at: u64) {
        self.at = at;
        self.buffer.clear();
        self.used = 0;
        self.stream = None;
        self.parts.clear();
    }

    /// Finds the part in which `at` lies; false when that is not kept any more.
    async fn locate(&mut self) -> io::Result<bool> {
        let (storage, first, mut low, mut high) = {
            let inner = self.journal.inner.borrow();
            let Some(storage) = inner.storage.clone() else { return Ok(false) };
            (storage, inner.index.first, inner.index.oldest, inner.index.next)
        };
        let (entries, at, oldest) = (self.journal.limits.index_entries, self.at, low);
        let found = blocking::run(move || -> io::Result<(u64, Option<u64>)> {
            // The last entry whose part begins at or before `at`.
            let mut last = None;
            while low < high {
                let middle = low + (high - low) / 2;
                let entry = storage.read_entries(middle, entries, 1)?[0];
                if part(entry).0 <= at {
                    last = Some(entry);
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            Ok((low, last))
        });
        let (next_entry, last) = found.await.flatten()?;
        if self.journal.inner.borrow().index.oldest != oldest {
            return Ok(false); // the entries may have been overwritten meanwhile
        }
        self.stream = Some(last.map_or(first, |entry| part(entry).1));
        self.next_entry = next_entry;
        self.parts.clear();
        self.known = at;
        Ok(true)
    }

    /// Reads bytes behind those that are ready, and the parts they belong to; false when they were overwritten
    /// meanwhile.
    async fn read(&mut self, from: u64, length: usize, end: u64) -> io::Result<bool> {
        let (storage, oldest_entry, all_entries) = {
            let inner = self.journal.inner.borrow();
            let Some(storage) = inner.storage.clone() else { return Ok(false) };
            (storage, inner.index.oldest, inner.index.next)
        };
        if self.next_entry < oldest_entry {
            self.stream = None;
            return Ok(false);
        }
        // Bytes are read up to where the parts are known; behind that, the next entries come with them.
        let is_known = self.known > from;
        let wanted = if is_known { 0 } else { (all_entries - self.next_entry).min(ENTRIES) };
        let length = if is_known { length.min((self.known - from) as usize) } else { length };
        let (entries, number) = (self.journal.limits.index_entries, self.next_entry);
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.drain(..self.used);
        self.used = 0;
        let ready = buffer.len();
        let job = move || {
            buffer.resize(ready + length, 0);
            let read = Storage::read(&storage, from, &mut buffer[ready..]);
            let found = read.and_then(|()| storage.read_entries(number, entries, wanted as usize));
            if found.is_err() {
                buffer.truncate(ready);
            }
            (buffer, found)
        };
        let (buffer, found) = blocking::run(job).await?;
        self.buffer = buffer;
        let found = found?;
        let inner = self.journal.inner.borrow();
        if inner.oldest > from || inner.index.oldest > number {
            self.buffer.truncate(ready);
            if inner.index.oldest > number {
                self.stream = None;
            }
            return Ok(false);
        }
        if !is_known {
            self.next_entry += wanted;
            self.parts.extend(found.iter().map(|entry| part(*entry)));
            // Where more entries are left, what lies beyond the last one that was read is not known yet.
            self.known = match self.parts.back() {
                Some((start, _)) if self.next_entry < all_entries => *start,
                _ => end,
            };
            self.buffer.truncate((self.known - self.at) as usize);
        }
        Ok(true)
    }
}

/// Follows the end of a journal: see [`Journal::follower`].
pub struct Follower(pub(super) Reader);

impl Follower {
    /// Says that everything below `offset` has been handed on.
    pub fn at(&mut self, offset: u64) {
        self.0.at = offset;
        self.0.delivered();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let delivered = self.delivered.replace(u64::MAX);
        let mut inner = self.journal.inner.borrow_mut();
        if !inner.closed || delivered < inner.next {
            inner.left = Some(Instant::now());
        }
        drop(inner);
        self.journal.freed.notify_waiters();
    }
}
