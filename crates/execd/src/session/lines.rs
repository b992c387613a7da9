//! A session's output to events, in the published form: one event per line, without its terminator, empty
//! lines left out.

use std::cell::Cell;

use memchr::memchr;

use crate::command::{Cut, Overlong, stdout_event};

/// Bytes of a line, as published; a longer one ends the run with an error.
pub const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of memory that are kept for the next unfinished line.
const KEPT_BYTES: usize = 64 * 1024;

/// Bytes of unfinished lines that all sessions hold together; whoever would need more is beyond the bound.
const MAX_HELD_BYTES: usize = 2 * MAX_LINE_BYTES;

thread_local! {
    static HELD_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The unfinished line.
#[derive(Default)]
pub struct SessionLines {
    pending: Vec<u8>,
    /// What of it counts in [`HELD_BYTES`].
    held: usize,
}

impl SessionLines {
    /// Counts what is held now.
    fn account(&mut self) -> Result<(), Overlong> {
        let before = std::mem::replace(&mut self.held, self.pending.len());
        let held = HELD_BYTES.get() - before + self.held;
        HELD_BYTES.set(held);
        if held > MAX_HELD_BYTES { Err(Overlong { max_bytes: self.held }) } else { within_bound(&self.pending) }
    }
}

impl Drop for SessionLines {
    fn drop(&mut self) {
        HELD_BYTES.set(HELD_BYTES.get() - self.held);
    }
}

impl Cut for SessionLines {
    fn feed(&mut self, data: &[u8], suffix: &[u8], out: &mut Vec<u8>) -> Result<(), Overlong> {
        let mut rest = data;
        while let Some(end) = memchr(b'\n', rest) {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            if self.pending.is_empty() {
                event(line, suffix, out)?;
            } else {
                self.pending.extend_from_slice(line);
                event(&self.pending, suffix, out)?;
                self.pending.clear();
                self.pending.shrink_to(KEPT_BYTES);
            }
        }
        self.pending.extend_from_slice(rest);
        self.account()
    }

    fn finish(&mut self, suffix: &[u8], out: &mut Vec<u8>) {
        // Its length was looked at when it came.
        let _ = event(&self.pending, suffix, out);
        self.pending = Vec::new();
        let _ = self.account(); // it holds nothing now
    }
}

fn event(line: &[u8], suffix: &[u8], out: &mut Vec<u8>) -> Result<(), Overlong> {
    within_bound(line)?;
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if !line.is_empty() {
        stdout_event(line, suffix, out);
    }
    Ok(())
}

fn within_bound(line: &[u8]) -> Result<(), Overlong> {
    if line.len() > MAX_LINE_BYTES { Err(Overlong { max_bytes: MAX_LINE_BYTES }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::{MAX_LINE_BYTES, SessionLines};
    use crate::command::{Cut, Overlong};

    fn texts(pieces: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut out) = (SessionLines::default(), Vec::new());
        for piece in pieces {
            lines.feed(piece, b"\"}\n\n", &mut out).expect("short lines");
        }
        lines.finish(b"\"}\n\n", &mut out);
        let text = String::from_utf8(out).expect("UTF-8");
        let event = |event: &str| -> serde_json::Value { serde_json::from_str(event).expect("an event") };
        text.split_terminator("\n\n").map(|one| event(one)["text"].as_str().expect("text").to_owned()).collect()
    }

    #[test]
    fn lines_come_without_terminators_and_empty_ones_not_at_all() {
        assert_eq!(texts(&[b"a\n\nb\r\n\r\nc\rd\ne"]), ["a", "b", "c\rd", "e"]);
        assert_eq!(texts(&[b"a", b"b\r", b"\nc"]), ["ab", "c"]);
    }

    #[test]
    fn a_line_just_over_the_bound_is_refused() {
        let line = vec![b'x'; MAX_LINE_BYTES];
        let mut lines = SessionLines::default();
        assert_eq!(lines.feed(&line, b"", &mut Vec::new()), Ok(()));
        assert_eq!(lines.feed(b"y", b"", &mut Vec::new()), Err(Overlong { max_bytes: MAX_LINE_BYTES }));
    }
}
