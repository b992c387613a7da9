//! Output bytes to events: one event per line, terminator kept, whatever the pieces they came in.
//!
//! The texts of a stream's events, put together, are its output again. An unfinished line waits for its
//! end, up to a bound; `\r\n` is never torn apart, so a final `\r` waits for what follows it.

use memchr::memchr2_iter;

use super::show::unfinished_character;

/// Bytes of a line that are held for its end; a longer one comes in pieces, cut between characters.
pub const MAX_LINE_BYTES: usize = 64 * 1024;

/// A line that is longer than its form of text allows; its length is told to the client.
#[derive(Debug, PartialEq, Eq)]
pub struct Overlong {
    /// The bound.
    pub max_bytes: usize,
}

/// Cuts the bytes of one stream into events.
pub trait Cut {
    /// Takes the next bytes and appends the events of what is whole now. `suffix` closes an event.
    ///
    /// # Errors
    /// A line beyond the bound.
    fn feed(&mut self, data: &[u8], suffix: &[u8], out: &mut Vec<u8>) -> Result<(), Overlong>;

    /// Ends the stream: what is left is the last event.
    fn finish(&mut self, suffix: &[u8], out: &mut Vec<u8>);
}

/// One of the two output streams of a command.
pub struct Lines {
    prefix: &'static [u8],
    pending: Vec<u8>,
}

/// How an event of standard output begins.
const STDOUT_PREFIX: &[u8] = br#"{"type":"stdout","text":""#;

impl Lines {
    /// For standard output.
    pub fn stdout() -> Self {
        Self { prefix: STDOUT_PREFIX, pending: Vec::new() }
    }

    /// For standard error.
    pub fn stderr() -> Self {
        Self { prefix: br#"{"type":"stderr","text":""#, pending: Vec::new() }
    }

    fn flush(&mut self, suffix: &[u8], out: &mut Vec<u8>) {
        line(self.prefix, &self.pending, suffix, out);
        self.pending.clear();
    }
}

impl Cut for Lines {
    fn feed(&mut self, data: &[u8], suffix: &[u8], out: &mut Vec<u8>) -> Result<(), Overlong> {
        let mut start = 0;
        if self.pending.last() == Some(&b'\r') && !data.is_empty() {
            if data[0] == b'\n' {
                self.pending.push(b'\n');
                start = 1;
            }
            self.flush(suffix, out);
        }
        let offset = start;
        for at in memchr2_iter(b'\n', b'\r', &data[offset..]).map(|at| at + offset) {
            if at < start {
                continue;
            }
            let end = match (data[at], data.get(at + 1)) {
                (b'\n', _) => at + 1,
                (_, Some(b'\n')) => at + 2,
                (_, Some(_)) => at + 1,
                (_, None) => break, // a final `\r` may be half of `\r\n`
            };
            if self.pending.is_empty() {
                line(self.prefix, &data[start..end], suffix, out);
            } else {
                self.pending.extend_from_slice(&data[start..end]);
                self.flush(suffix, out);
            }
            start = end;
        }
        self.pending.extend_from_slice(&data[start..]);
        if self.pending.len() > MAX_LINE_BYTES {
            let sent = pieces(self.prefix, &self.pending, suffix, out);
            self.pending.drain(..sent);
        }
        Ok(())
    }

    fn finish(&mut self, suffix: &[u8], out: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            self.flush(suffix, out);
        }
        self.pending = Vec::new();
    }
}

/// A whole line; a long one in pieces.
fn line(prefix: &[u8], text: &[u8], suffix: &[u8], out: &mut Vec<u8>) {
    let sent = if text.len() > MAX_LINE_BYTES { pieces(prefix, text, suffix, out) } else { 0 };
    event(prefix, &text[sent..], suffix, out);
}

/// Sends pieces until no more than the bound is left; returns how many bytes were sent.
fn pieces(prefix: &[u8], text: &[u8], suffix: &[u8], out: &mut Vec<u8>) -> usize {
    let mut sent = 0;
    while text.len() - sent > MAX_LINE_BYTES {
        let piece = &text[sent..sent + MAX_LINE_BYTES];
        let held = if piece.ends_with(b"\r") { 1 } else { unfinished_character(piece) };
        let piece = &piece[..piece.len() - held];
        event(prefix, piece, suffix, out);
        sent += piece.len();
    }
    sent
}

/// Appends one event of standard output.
pub fn stdout_event(text: &[u8], suffix: &[u8], out: &mut Vec<u8>) {
    event(STDOUT_PREFIX, text, suffix, out);
}

fn event(prefix: &[u8], text: &[u8], suffix: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(prefix);
    match std::str::from_utf8(text) {
        Ok(text) => escape(text, out),
        Err(_) => escape(&String::from_utf8_lossy(text), out),
    }
    out.extend_from_slice(suffix);
}

/// Appends `text` as the inside of a JSON string.
pub fn escape(text: &str, out: &mut Vec<u8>) {
    let bytes = text.as_bytes();
    let mut start = 0;
    while let Some(length) = bytes[start..].iter().position(|byte| NEEDS_ESCAPE[usize::from(*byte)]) {
        let at = start + length;
        out.extend_from_slice(&bytes[start..at]);
        match bytes[at] {
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            other => out.extend_from_slice(format!("\\u{other:04x}").as_bytes()),
        }
        start = at + 1;
    }
    out.extend_from_slice(&bytes[start..]);
}

const NEEDS_ESCAPE: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = true;
        byte += 1;
    }
    table[b'"' as usize] = true;
    table[b'\\' as usize] = true;
    table
};

#[cfg(test)]
mod tests;
