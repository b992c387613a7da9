//! The head of a record: one line that says what follows, how long it is, and what its SHA-256 must be. Pure.

use super::Digest;

/// Longest head: the longest word, a digest, a length, and what is between them.
pub const HEAD_BYTES: usize = 8 + 1 + 64 + 1 + MAX_DIGITS + 1;
/// Digits of the longest length.
const MAX_DIGITS: usize = 12;
const DIGEST_DIGITS: usize = 64;
/// What ends a record.
pub const TAIL: &[u8] = b"\n";

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of a body.
    Piece,
    /// An exchange.
    Exchange,
    /// A note.
    Note,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Piece, Self::Exchange, Self::Note];

    fn word(self) -> &'static str {
        match self {
            Self::Piece => "piece",
            Self::Exchange => "exchange",
            Self::Note => "note",
        }
    }
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What follows.
    pub kind: Kind,
    /// Of what follows.
    pub digest: Digest,
    /// How long it is, without [`TAIL`].
    pub length: u64,
}

/// What bytes at the place of a head are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A head, so many bytes long.
    Whole(Head, usize),
    /// The beginning of one.
    Torn,
    /// Nothing that a head begins with.
    Bad,
}

/// A record as it is written.
pub fn written(kind: Kind, digest: Digest, payload: &[u8]) -> Vec<u8> {
    let mut record = format!("{} {digest} {}\n", kind.word(), payload.len()).into_bytes();
    record.extend_from_slice(payload);
    record.extend_from_slice(TAIL);
    record
}

/// Looks at the bytes at the place of a head; as many as [`HEAD_BYTES`] are always enough.
pub fn look(bytes: &[u8]) -> Look {
    let Some(end) = bytes.iter().take(HEAD_BYTES).position(|byte| *byte == b'\n') else {
        let could_be = bytes.len() < HEAD_BYTES && Kind::ALL.iter().any(|kind| begins(bytes, kind.word()));
        return if could_be { Look::Torn } else { Look::Bad };
    };
    match parse(&bytes[..end]) {
        Some(head) => Look::Whole(head, end + 1),
        None => Look::Bad,
    }
}

fn parse(line: &[u8]) -> Option<Head> {
    let mut words = line.split(|byte| *byte == b' ');
    let (word, digest, length) = (words.next()?, words.next()?, words.next()?);
    if words.next().is_some() || !is_number(length) {
        return None;
    }
    let kind = Kind::ALL.into_iter().find(|kind| kind.word().as_bytes() == word)?;
    let length = std::str::from_utf8(length).ok()?.parse().ok()?;
    Some(Head { kind, digest: Digest::parse(digest)?, length })
}

/// A length has one form only: nothing is 0 bytes long.
fn is_number(text: &[u8]) -> bool {
    let digits = text.iter().all(u8::is_ascii_digit);
    digits && !text.is_empty() && text.len() <= MAX_DIGITS && text[0] != b'0'
}

/// Whether a head of this word may begin with these bytes.
fn begins(bytes: &[u8], word: &str) -> bool {
    let lead = format!("{word} ");
    if bytes.len() <= lead.len() {
        return lead.as_bytes().starts_with(bytes);
    }
    let Some(rest) = bytes.strip_prefix(lead.as_bytes()) else { return false };
    let (digest, rest) = rest.split_at(rest.len().min(DIGEST_DIGITS));
    let is_hex = digest.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match rest {
        [] => is_hex,
        [b' '] => is_hex,
        [b' ', number @ ..] => is_hex && is_number(number),
        _ => false,
    }
}
