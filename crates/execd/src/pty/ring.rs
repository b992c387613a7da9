//! The output of a terminal: what was written, at which offset, and what of it can still be read.
//!
//! Every byte has an offset that never changes; the ring holds the last [`CAPACITY_BYTES`]. It is the only place
//! that knows offsets: a reader keeps a [`Cursor`] and asks for what comes next. A reader that falls behind the
//! ring is told where it goes on, by a replay with the true offset, and never gets a gap unannounced.

use std::collections::VecDeque;

/// Bytes that can be replayed, as published.
pub const CAPACITY_BYTES: usize = 1024 * 1024;
/// Bytes of one live frame, as published.
pub const LIVE_BYTES: usize = 32 * 1024;
/// Bytes of output in one replay: with its head it stays within the 1 MiB that common clients take as a message.
pub const REPLAY_BYTES: usize = CAPACITY_BYTES - protocol::execd::pty::REPLAY_HEAD_BYTES;
/// Changes between the two streams that are remembered; beyond them the oldest output goes early.
const MAX_STRETCHES: usize = 16 * 1024;

/// Which stream a byte came from; a terminal has only the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, or the terminal.
    Out,
    /// Standard error, in pipe mode.
    Err,
}

/// Bytes of one stream that follow each other.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    stream: Stream,
    end: u64,
}

/// The last output of a terminal.
pub struct Ring {
    bytes: VecDeque<u8>,
    stretches: VecDeque<Stretch>,
    start: u64,
    capacity: usize,
}

/// What a reader gets next.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Output from an offset on, of both streams; it need not follow what came before.
    Replay { offset: u64, bytes: Vec<u8> },
    /// Output that follows what came before.
    Live { stream: Stream, bytes: Vec<u8> },
}

/// How far a reader has come.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    at: u64,
    /// The reader does not know where it is: it must be told before it gets live output.
    lost: bool,
}

impl Default for Ring {
    fn default() -> Self {
        Self::new(CAPACITY_BYTES)
    }
}

impl Ring {
    /// An empty ring of so many bytes.
    pub fn new(capacity: usize) -> Self {
        Self { bytes: VecDeque::new(), stretches: VecDeque::new(), start: 0, capacity }
    }

    /// Offset of the oldest byte that is still there.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Offset of the next byte that will come.
    pub fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Adds output; the oldest goes where there is no room.
    pub fn push(&mut self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = self.end() + bytes.len() as u64;
        match self.stretches.back_mut() {
            Some(last) if last.stream == stream => last.end = end,
            _ => self.stretches.push_back(Stretch { stream, end }),
        }
        let kept = &bytes[bytes.len().saturating_sub(self.capacity)..];
        let room = self.capacity - kept.len();
        self.bytes.drain(..self.bytes.len().saturating_sub(room));
        let needed = self.bytes.len() + kept.len();
        if self.bytes.capacity() < needed {
            let target = (needed * 2).min(self.capacity);
            self.bytes.reserve_exact(target - self.bytes.len());
        }
        self.bytes.extend(kept);
        self.start = end - self.bytes.len() as u64;
        if self.stretches.len() > MAX_STRETCHES {
            let oldest = self.stretches[0].end;
            self.bytes.drain(..oldest.saturating_sub(self.start) as usize);
            self.start = self.start.max(oldest);
        }
        while self.stretches.front().is_some_and(|first| first.end <= self.start) {
            self.stretches.pop_front();
        }
    }

    fn copy(&self, from: u64, length: usize) -> Vec<u8> {
        let begin = (from - self.start) as usize;
        let (first, second) = self.bytes.as_slices();
        let end = begin + length;
        let mut copy = Vec::with_capacity(length);
        copy.extend_from_slice(&first[begin.min(first.len())..end.min(first.len())]);
        copy.extend_from_slice(&second[begin.saturating_sub(first.len())..end.saturating_sub(first.len())]);
        copy
    }

    fn stretch_at(&self, at: u64) -> Option<Stretch> {
        let index = self.stretches.partition_point(|stretch| stretch.end <= at);
        self.stretches.get(index).copied()
    }
}

impl Cursor {
    /// A reader that has everything before `since`; an offset beyond the end means all of it.
    pub fn new(ring: &Ring, since: u64) -> Self {
        Self { at: since.min(ring.end()), lost: true }
    }

    /// Offset of the next byte for this reader.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// From here on output is live: there was nothing to replay, or it was sent.
    pub fn follow(&mut self) {
        self.lost = false;
    }

    /// What comes next, before the offset `until`; `None` when the reader has it all.
    pub fn next(&mut self, ring: &Ring, until: u64) -> Option<Piece> {
        let until = until.min(ring.end());
        if self.at < ring.start() {
            (self.at, self.lost) = (ring.start(), true);
        }
        if self.at >= until {
            return None;
        }
        let left = usize::try_from(until - self.at).unwrap_or(usize::MAX);
        if self.lost {
            let (offset, bytes) = (self.at, ring.copy(self.at, left.min(REPLAY_BYTES)));
            self.at += bytes.len() as u64;
            self.lost = false;
            return Some(Piece::Replay { offset, bytes });
        }
        let stretch = ring.stretch_at(self.at)?;
        let same = usize::try_from(stretch.end - self.at).unwrap_or(usize::MAX);
        let bytes = ring.copy(self.at, left.min(same).min(LIVE_BYTES));
        self.at += bytes.len() as u64;
        Some(Piece::Live { stream: stretch.stream, bytes })
    }
}

#[cfg(test)]
mod tests;
