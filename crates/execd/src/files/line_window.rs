//! A window of lines out of a text that arrives in pieces.

use memchr::memchr;

/// Passes on lines `offset..offset+limit`: `\r\n` becomes `\n`, no line end after the last.
pub struct LineWindow {
    first: u64,
    left: u64,
    line: u64,
    begun: bool,
    passed_any: bool,
    held_return: bool,
}

impl LineWindow {
    /// Lines are counted from 1.
    pub fn new(offset: u64, limit: u64) -> Self {
        Self { first: offset, left: limit, line: 1, begun: false, passed_any: false, held_return: false }
    }

    /// Whether nothing more will pass.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Takes a piece and appends what passes.
    pub fn feed(&mut self, mut piece: &[u8], out: &mut Vec<u8>) {
        while !piece.is_empty() && !self.is_done() {
            let end = memchr(b'\n', piece);
            let (text, rest) = match end {
                Some(at) => (&piece[..at], &piece[at + 1..]),
                None => (piece, &[][..]),
            };
            self.part(text, end.is_some(), out);
            piece = rest;
        }
    }

    /// Ends the text: a `\r` that no `\n` followed belongs to the line.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.held_return {
            out.push(b'\r');
        }
    }

    fn part(&mut self, text: &[u8], ends_line: bool, out: &mut Vec<u8>) {
        if self.line >= self.first {
            if !std::mem::replace(&mut self.begun, true) && std::mem::replace(&mut self.passed_any, true) {
                out.push(b'\n');
            }
            if self.held_return && !(text.is_empty() && ends_line) {
                out.push(b'\r');
            }
            let text_without_return = text.strip_suffix(b"\r");
            self.held_return = text_without_return.is_some() && !ends_line;
            out.extend_from_slice(text_without_return.unwrap_or(text));
            if ends_line {
                self.left -= 1;
                self.begun = false;
            }
        }
        self.line += u64::from(ends_line);
    }
}

#[cfg(test)]
mod tests {
    use super::LineWindow;

    #[track_caller]
    fn check(text: &str, offset: u64, limit: u64, expected: &str) {
        for size in 1..=text.len().max(1) {
            let mut window = LineWindow::new(offset, limit);
            let mut out = Vec::new();
            text.as_bytes().chunks(size).for_each(|piece| window.feed(piece, &mut out));
            window.finish(&mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected, "pieces of {size}");
        }
    }

    #[test]
    fn windows_of_any_text_in_any_pieces() {
        check("a\nb\nc\n", 1, u64::MAX, "a\nb\nc");
        check("a\nb\nc", 2, 1, "b");
        check("a\r\nb\rc\r\n", 1, u64::MAX, "a\nb\rc");
        check("a\n\n\nb", 2, 2, "\n");
        check("a\n", 2, 5, "");
        check("", 1, 5, "");
        check("a\nb\r", 2, 5, "b\r");
        check("a\r\r\nb", 1, 1, "a\r");
    }
}
