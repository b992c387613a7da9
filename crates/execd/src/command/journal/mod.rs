//! The journal of a run's output: every byte has an offset, the newest bytes are kept and can be read again.
//!
//! Both streams are one sequence of bytes, in the order in which execd read them, so that one offset says where
//! a reader is; an index tells which part came from which stream. The bytes lie in a ring of a file.
//!
//! What the ring cannot hold any more goes, oldest first, by one of two rules:
//!
//! ```text
//! wait         a byte goes only when it was delivered: half a ring behind the slowest reader that is attached,
//!              or below an offset from which somebody asked again. Else the writer waits.
//! drop_oldest  the oldest bytes go at once; a reader who comes too late is told the range.
//! ```
//!
//! Invariants: at most `capacity` bytes are kept; a reader sees each byte once, in order, or is told the range
//! that is lost; the writer waits only in `wait`, and never holds more than one buffer meanwhile.

mod reader;
mod storage;

pub use reader::{Fetched, Follower, Piece, Reader};
pub use storage::Limits;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::execd::output::{Overflow, StreamName};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::blocking;
use crate::error::system_text;
use storage::{Stop, Storage, Written};

/// Room that is held back while the process runs: its pipes (256 KiB each) and the buffer in flight.
const RESERVE_BYTES: u64 = 1024 * 1024;

/// A reader that was cut off before the end finds what it has not got for so long, whoever needs the room.
const RETURN_WITHIN: Duration = Duration::from_secs(60);

/// Frees room that finished runs hold; false when there is none.
pub type FreeRoom = dyn Fn() -> bool;

/// The output of one run.
pub struct Journal {
    inner: RefCell<Inner>,
    limits: Limits,
    overflow: Cell<Overflow>,
    free_room: Rc<FreeRoom>,
    /// Bytes came, or the run is closed.
    grown: Notify,
    /// Bytes may go.
    freed: Notify,
}

struct Inner {
    storage: Option<Storage>,
    oldest: u64,
    next: u64,
    /// Bytes from here on are not kept, because something failed.
    hole: Option<u64>,
    /// Bytes below it have arrived: somebody asked for what follows them.
    released: u64,
    /// Bytes below it were delivered to every reader that was there; they may still be lost on their way.
    delivered: u64,
    readers: Vec<Weak<Cell<u64>>>,
    /// When the last reader left that had not got everything.
    left: Option<Instant>,
    index: Index,
    waiting: bool,
    /// Where the writer had to wait for the first time.
    first_wait: Option<u64>,
    /// The process has ended: what it left in its pipes may use the reserve.
    ending: bool,
    closed: bool,
    /// Why nothing can be kept (any more).
    gone: Option<String>,
}

/// Entry `n` says where a part begins and whose it is; the part before the oldest entry is `first`'s.
struct Index {
    first: StreamName,
    last: StreamName,
    oldest: u64,
    next: u64,
}

/// What a journal looks like now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset of the oldest byte that is kept.
    pub oldest: u64,
    /// Offset of the next byte.
    pub next: u64,
    /// Whether the writer waits for room.
    pub waiting: bool,
    /// Where it had to wait for the first time, if it ever had to.
    pub first_wait: Option<u64>,
    /// Whether no more bytes come.
    pub closed: bool,
    /// Why older bytes are not there; `None` when they were overwritten.
    pub gone: Option<String>,
}

fn entry(start: u64, stream: StreamName) -> u64 {
    start << 1 | u64::from(stream == StreamName::Stderr)
}

fn part(entry: u64) -> (u64, StreamName) {
    (entry >> 1, if entry & 1 == 0 { StreamName::Stdout } else { StreamName::Stderr })
}

impl Journal {
    /// An empty one; its file is made with the first byte.
    pub fn new(limits: Limits, overflow: Overflow, free_room: Rc<FreeRoom>) -> Rc<Self> {
        let index = Index { first: StreamName::Stdout, last: StreamName::Stdout, oldest: 0, next: 0 };
        let inner = Inner {
            storage: None,
            oldest: 0,
            next: 0,
            hole: None,
            released: 0,
            delivered: 0,
            readers: Vec::new(),
            left: None,
            index,
            waiting: false,
            first_wait: None,
            ending: false,
            closed: false,
            gone: None,
        };
        Rc::new(Self {
            inner: RefCell::new(inner),
            limits,
            overflow: Cell::new(overflow),
            free_room,
            grown: Notify::new(),
            freed: Notify::new(),
        })
    }

    /// What it looks like now.
    pub fn extent(&self) -> Extent {
        let inner = self.inner.borrow();
        Extent {
            oldest: inner.oldest,
            next: inner.next,
            waiting: inner.waiting,
            first_wait: inner.first_wait,
            closed: inner.closed,
            gone: inner.gone.clone(),
        }
    }

    /// The rule for what does not fit.
    pub fn overflow(&self) -> Overflow {
        self.overflow.get()
    }

    /// Lets the oldest bytes go from now on: the writer must not wait any more.
    pub fn stop_waiting(&self) {
        self.overflow.set(Overflow::DropOldest);
        self.freed.notify_waiters();
    }

    /// Bytes that its file takes.
    pub fn kept_bytes(&self) -> u64 {
        let inner = self.inner.borrow();
        inner.storage.as_ref().map_or(0, |storage| inner.next.min(storage.capacity))
    }

    /// Bytes of the file system on which it lies, if it lies on one.
    pub fn file_system_bytes(&self) -> Option<u64> {
        self.inner.borrow().storage.as_ref().and_then(Storage::file_system_bytes)
    }

    /// The process has ended: what it left in its pipes may use the room that was held back for that, so that a
    /// run whose output nobody reads is complete all the same.
    pub fn ending(&self) {
        self.inner.borrow_mut().ending = true;
        self.freed.notify_waiters();
    }

    /// News from now on: bytes, an event beside them, or the end.
    pub fn news(&self) -> Notified<'_> {
        self.grown.notified()
    }

    /// Wakes readers, for news beside the output.
    pub fn touch(&self) {
        self.grown.notify_waiters();
    }

    /// No more bytes come.
    pub fn close(&self) {
        self.inner.borrow_mut().closed = true;
        self.grown.notify_waiters();
    }

    /// Gives up the bytes and their file; false while somebody reads them, or may come back to.
    pub fn forget(&self, why: &str, now: Instant) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.readers.iter().any(|reader| reader.strong_count() > 0) {
            return false;
        }
        if inner.left.is_some_and(|left| now.saturating_duration_since(left) < RETURN_WITHIN) {
            return false;
        }
        if inner.storage.take().is_some() {
            inner.oldest = inner.next;
            inner.gone = Some(why.to_owned());
        }
        true
    }

    /// Says that everything below `offset` has arrived and need not be kept.
    pub fn release(&self, offset: u64) {
        let mut inner = self.inner.borrow_mut();
        inner.released = inner.released.max(offset.min(inner.next));
        drop(inner);
        self.freed.notify_waiters();
    }

    /// A reader from `offset` on, which must not be beyond the end. What lies before it need not be kept for it.
    pub fn reader(self: &Rc<Self>, offset: u64) -> Reader {
        self.release(offset);
        let delivered = Rc::new(Cell::new(offset));
        let mut inner = self.inner.borrow_mut();
        inner.readers.retain(|reader| reader.strong_count() > 0);
        inner.readers.push(Rc::downgrade(&delivered));
        drop(inner);
        Reader::new(Rc::clone(self), offset, delivered)
    }

    /// A place that is moved along by whoever delivers the bytes as they come.
    pub fn follower(self: &Rc<Self>) -> Follower {
        Follower(self.reader(self.extent().next))
    }

    /// Notes that a reader has delivered more.
    fn progress(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.delivered = inner.delivered.max(inner.slowest().unwrap_or(0));
        drop(inner);
        self.freed.notify_waiters();
    }

    /// Reads bytes that are kept, whoever wrote them.
    ///
    /// # Errors
    /// The disk's, and when the bytes are not kept (any more).
    pub async fn read(&self, offset: u64, length: usize) -> std::io::Result<Vec<u8>> {
        let gone = || std::io::Error::other("these bytes are not kept any more");
        let storage = self.inner.borrow().storage.clone().ok_or_else(gone)?;
        let job = move || {
            let mut bytes = vec![0; length];
            storage.read(offset, &mut bytes).map(|()| bytes)
        };
        let bytes = blocking::run(job).await.flatten()?;
        let (from, end) = self.inner.borrow().kept_after(offset);
        if from == offset && offset + length as u64 <= end { Ok(bytes) } else { Err(gone()) }
    }

    /// Appends bytes of one stream; returns when all of them are kept. Whatever fails is told to readers as a
    /// lost range, and costs the process nothing.
    pub async fn append(&self, stream: StreamName, data: &Arc<Vec<u8>>, length: usize) {
        let mut from = 0;
        while from < length {
            from += self.append_some(stream, data, from..length).await;
            self.grown.notify_waiters();
        }
    }

    async fn append_some(&self, stream: StreamName, data: &Arc<Vec<u8>>, range: std::ops::Range<usize>) -> usize {
        if self.inner.borrow().gone.is_some() {
            return self.skip(range.len());
        }
        let storage = match self.storage().await {
            Ok(storage) => storage,
            Err(why) => return self.give_up(&why, range.len()),
        };
        let turn = match self.turn_to(stream, &storage).await {
            Ok(turn) => turn,
            Err(why) => return self.give_up(&why, range.len()),
        };
        let length = self.room(&storage).await.min(range.len() as u64) as usize;
        let offset = {
            let mut inner = self.inner.borrow_mut();
            let end = inner.next + length as u64;
            // Before the write, so that no reader takes the new bytes for the old ones.
            inner.oldest = inner.oldest.max(end.saturating_sub(storage.capacity));
            inner.next
        };
        let (data, entries) = (Arc::clone(data), self.limits.index_entries);
        let place = storage.clone();
        let job = move || {
            if let Some((number, entry)) = turn
                && let Err(error) = place.write_entry(number, entries, entry)
            {
                return Written { bytes: 0, stopped: Some(Stop::Failed(error)) };
            }
            place.write(offset, &data[range.start..range.start + length])
        };
        let written = match blocking::run(job).await {
            Ok(written) => written,
            Err(error) => Written { bytes: 0, stopped: Some(Stop::Failed(error)) },
        };
        if written.bytes > 0 {
            let mut inner = self.inner.borrow_mut();
            inner.next = offset + written.bytes as u64;
            if turn.is_some() {
                inner.index.next += 1;
            } else if offset == 0 {
                inner.index.first = stream;
            }
            inner.index.last = stream;
        }
        match written.stopped {
            None => {}
            Some(Stop::NoSpace) => self.make_do(&storage).await,
            Some(Stop::Failed(error)) => {
                self.inner.borrow_mut().gone = Some(format!("write the spool: {}", system_text(&error)))
            }
        }
        written.bytes
    }

    /// The file, made now if there is none.
    async fn storage(&self) -> Result<Storage, String> {
        if let Some(storage) = self.inner.borrow().storage.clone() {
            return Ok(storage);
        }
        let limits = self.limits;
        let made = blocking::run(move || Storage::create(&limits)).await.flatten();
        let storage = made.map_err(|error| format!("make the spool: {}", system_text(&error)))?;
        Ok(self.inner.borrow_mut().storage.insert(storage).clone())
    }

    /// The index entry with which bytes of `stream` begin; none when they go on from the last ones.
    async fn turn_to(&self, stream: StreamName, storage: &Storage) -> Result<Option<(u64, u64)>, String> {
        loop {
            let freed = self.freed.notified();
            let (next, oldest) = {
                let inner = self.inner.borrow();
                if inner.index.last == stream || inner.next == 0 {
                    return Ok(None);
                }
                if inner.index.next - inner.index.oldest < self.limits.index_entries {
                    return Ok(Some((inner.index.next, entry(inner.next, stream))));
                }
                (inner.index.next, inner.index.oldest)
            };
            // Full: the older half goes, with the bytes that it describes, once they are delivered. Readers whose
            // last bytes were lost on their way find them in the newer half.
            let middle = oldest + (next - oldest) / 2;
            let (place, entries) = (storage.clone(), self.limits.index_entries);
            let read = blocking::run(move || place.read_entries(middle, entries, 1)).await.flatten();
            let found = read.map_err(|error| format!("read the spool's index: {}", system_text(&error)))?;
            let (start, first) = part(found[0]);
            {
                let mut inner = self.inner.borrow_mut();
                if self.overflow.get() == Overflow::DropOldest || inner.taken() >= start {
                    inner.oldest = inner.oldest.max(start);
                    inner.index.first = first;
                    inner.index.oldest = middle + 1;
                    inner.waits(false);
                    continue;
                }
                inner.waits(true);
            }
            freed.await;
        }
    }

    /// Waits until at least one byte may be written; how many.
    async fn room(&self, storage: &Storage) -> u64 {
        loop {
            let freed = self.freed.notified();
            {
                let mut inner = self.inner.borrow_mut();
                let room = match self.overflow.get() {
                    Overflow::DropOldest => storage.capacity,
                    Overflow::Wait => {
                        let reserve = if inner.ending { 0 } else { RESERVE_BYTES.min(storage.capacity / 4) };
                        (storage.capacity - reserve).saturating_sub(inner.next - inner.keep_from())
                    }
                };
                inner.waits(room == 0);
                if room > 0 {
                    return room;
                }
            }
            freed.await;
        }
    }

    /// The disk is full, or what is free must stay so: go on within what there is.
    async fn make_do(&self, storage: &Storage) {
        if (self.free_room)() {
            return;
        }
        let (oldest, next) = {
            let mut inner = self.inner.borrow_mut();
            if inner.next >= storage.capacity {
                inner.gone = Some("write the spool: the disk is full".into()); // even in places that it had
                return;
            }
            if inner.next >= self.limits.least_bytes {
                let capacity = inner.next;
                if let Some(storage) = &mut inner.storage {
                    storage.capacity = capacity;
                }
                return;
            }
            (inner.oldest, inner.next)
        };
        let (limits, from) = (self.limits, storage.clone());
        let (index_oldest, index_next) = {
            let inner = self.inner.borrow();
            (inner.index.oldest, inner.index.next)
        };
        let moved = blocking::run(move || -> std::io::Result<Storage> {
            let to = Storage::in_memory(&limits)?;
            let mut bytes = vec![0; (next - oldest) as usize];
            from.read(oldest, &mut bytes)?;
            let entries =
                from.read_entries(index_oldest, limits.index_entries, (index_next - index_oldest) as usize)?;
            for (number, entry) in (index_oldest..).zip(entries) {
                to.write_entry(number, limits.index_entries, entry)?;
            }
            match to.write(oldest, &bytes).stopped {
                None => Ok(to),
                Some(_) => Err(std::io::ErrorKind::StorageFull.into()),
            }
        });
        match moved.await.flatten() {
            Ok(storage) => self.inner.borrow_mut().storage = Some(storage),
            Err(error) => self.inner.borrow_mut().gone = Some(format!("make the spool: {}", system_text(&error))),
        }
    }

    fn give_up(&self, why: &str, length: usize) -> usize {
        self.inner.borrow_mut().gone = Some(why.to_owned());
        self.skip(length)
    }

    /// Counts bytes that are not kept.
    fn skip(&self, length: usize) -> usize {
        let mut inner = self.inner.borrow_mut();
        inner.hole = inner.hole.or(Some(inner.next));
        inner.next += length as u64;
        length
    }
}

impl Inner {
    fn waits(&mut self, waits: bool) {
        self.waiting = waits;
        if waits && self.first_wait.is_none() {
            self.first_wait = Some(self.next);
        }
    }

    fn slowest(&self) -> Option<u64> {
        self.readers.iter().filter_map(Weak::upgrade).map(|reader| reader.get()).filter(|at| *at != u64::MAX).min()
    }

    /// The first byte from `offset` on that is kept, and how far from there bytes are; equal where none is.
    fn kept_after(&self, offset: u64) -> (u64, u64) {
        let end = self.hole.unwrap_or(self.next);
        let from = offset.max(self.oldest);
        if from < end { (from, end) } else { (self.next.max(offset), self.next.max(offset)) }
    }

    /// Bytes below it were delivered to everybody who is there.
    fn taken(&self) -> u64 {
        self.released.max(self.delivered).min(self.slowest().unwrap_or(u64::MAX))
    }

    /// Bytes from here on must stay: half a ring of those that were delivered is kept for readers whose last
    /// bytes were lost on their way.
    fn keep_from(&self) -> u64 {
        let spare = self.storage.as_ref().map_or(0, |storage| storage.capacity / 2);
        let free = self.released.max(self.delivered.saturating_sub(spare));
        free.min(self.slowest().unwrap_or(u64::MAX)).max(self.oldest)
    }
}

#[cfg(test)]
mod tests;
