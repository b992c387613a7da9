//! Finds the marks in an output stream: what a driver writes before it answers, so that what was printed before
//! the answer is known.

use memchr::memmem;

use crate::command::unfinished_character;

/// One output stream of an interpreter, cut at its marks.
pub struct Marked {
    mark: Vec<u8>,
    pending: Vec<u8>,
    /// A mark was found, and what follows it waits until [`Marked::pass`].
    at_mark: bool,
    is_over: bool,
}

impl Marked {
    /// A stream that has said nothing.
    pub fn new(mark: Vec<u8>) -> Self {
        Self { mark, pending: Vec::new(), at_mark: false, is_over: false }
    }

    /// Takes the next bytes.
    pub fn feed(&mut self, data: &[u8]) {
        self.pending.extend_from_slice(data);
    }

    /// No more comes.
    pub fn end(&mut self) {
        self.is_over = true;
    }

    /// Whether it wants more bytes.
    pub fn wants(&self) -> bool {
        !self.at_mark && !self.is_over
    }

    /// Whether an answer may be taken: what was printed before it has been.
    pub fn allows_answer(&self) -> bool {
        self.at_mark || (self.is_over && self.pending.is_empty())
    }

    /// Whether it has ended and was taken.
    pub fn is_done(&self) -> bool {
        self.is_over && self.pending.is_empty()
    }

    /// The answer was taken: what follows the mark may be.
    pub fn pass(&mut self) {
        self.at_mark = false;
    }

    /// What was printed before the next mark, as far as that is known: whole characters, and nothing that may be
    /// the beginning of a mark. Empty when there is nothing now.
    pub fn take(&mut self) -> Vec<u8> {
        if self.at_mark {
            return Vec::new();
        }
        if let Some(at) = memmem::find(&self.pending, &self.mark) {
            let mut text = std::mem::take(&mut self.pending);
            self.pending = text.split_off(at + self.mark.len());
            text.truncate(at);
            self.at_mark = true;
            return text;
        }
        let held = if self.is_over { 0 } else { self.held() };
        let rest = self.pending.split_off(self.pending.len() - held);
        std::mem::replace(&mut self.pending, rest)
    }

    /// Bytes at the end that may be half a mark or half a character.
    fn held(&self) -> usize {
        let longest = self.pending.len().min(self.mark.len() - 1);
        let half_mark = (1..=longest).rev().find(|length| self.pending.ends_with(&self.mark[..*length]));
        half_mark.unwrap_or_else(|| unfinished_character(&self.pending))
    }
}

#[cfg(test)]
mod tests {
    use super::Marked;

    /// Feeds pieces, and tells what comes before each mark.
    fn parts(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut stream = Marked::new(b"<MARK>".to_vec());
        let mut parts = vec![Vec::new()];
        for piece in pieces {
            stream.feed(piece);
            loop {
                let text = stream.take();
                parts.last_mut().expect("a part").extend_from_slice(&text);
                if stream.allows_answer() {
                    stream.pass();
                    parts.push(Vec::new());
                } else if text.is_empty() {
                    break;
                }
            }
        }
        stream.end();
        let text = stream.take();
        parts.last_mut().expect("a part").extend_from_slice(&text);
        assert!(stream.is_done());
        parts
    }

    #[test]
    fn marks_are_found_wherever_the_pieces_are_cut() {
        let whole = b"a\xc3\xa9<M<MARK><MARK>b<MARK";
        let expected = vec![b"a\xc3\xa9<M".to_vec(), b"".to_vec(), b"b<MARK".to_vec()];
        for cut in 0..whole.len() {
            assert_eq!(parts(&[&whole[..cut], &whole[cut..]]), expected, "cut at {cut}");
        }
        let single: Vec<&[u8]> = whole.chunks(1).collect();
        assert_eq!(parts(&single), expected);
    }

    #[test]
    fn fuzz_marks() {
        let examples: [&[u8]; 3] = [b"a<MARK>b", b"<MA<MARK><MARK>", b"\xf0\x9f\x98\x80<MARK>\xff"];
        fuzz::run_briefly("marks", &examples, |input| {
            let whole = parts(&[input]);
            let halves = input.split_at(input.len() / 2);
            assert_eq!(parts(&[halves.0, halves.1]), whole);
            assert_eq!(whole.join(&b"<MARK>"[..]), input);
        });
    }
}
