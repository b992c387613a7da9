//! Values taken out of answers: from headers, and from bodies as they stream.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};

use crate::{encode, header};

mod finder;

use finder::{Cursor, Finder, Region};

/// What takes the place of a value.
const MARK: &[u8] = b"[REDACTED]";
/// What takes the place of the bytes of a value for which there is no room in [`MARK`], or that are behind it.
const FILL: u8 = b'*';
/// Shortest value that is looked for in bodies: nothing shorter is a secret, and numbers and words would be hit.
const MIN_BODY_BYTES: usize = 4;

/// Takes some values, however they are written, out of answers. Cheap to clone.
///
/// The tables with which it searches are made of the values and are not wiped from memory.
#[derive(Clone)]
pub struct Redactor {
    /// `None`: there is nothing to take out.
    any: Option<Arc<Finder>>,
    in_bodies: Option<Arc<Finder>>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redactor(..)")
    }
}

impl Redactor {
    pub(crate) fn new(secrets: impl IntoIterator<Item = encode::Bytes>) -> Self {
        let mut secrets: Vec<encode::Bytes> = secrets.into_iter().filter(|secret| !secret.is_empty()).collect();
        secrets.sort_by(|one, other| one.as_slice().cmp(other.as_slice()));
        secrets.dedup_by(|one, other| one.as_slice() == other.as_slice());
        let any = Finder::new(&secrets).map(Arc::new);
        let count = secrets.len();
        secrets.retain(|secret| secret.len() >= MIN_BODY_BYTES);
        let in_bodies = if secrets.len() == count { any.clone() } else { Finder::new(&secrets).map(Arc::new) };
        Self { any, in_bodies }
    }

    /// Whether there is nothing that it could find.
    pub fn is_empty(&self) -> bool {
        self.any.is_none()
    }

    /// Replaces values in headers or trailers by `[REDACTED]`. Names, and headers that say how an answer is framed, are left.
    pub fn headers(&self, headers: &mut HeaderMap) {
        for (_, value) in headers.iter_mut().filter(|(name, _)| !header::is_framing(name)) {
            let Some(redacted) = self.text(value.as_bytes()) else { continue };
            // What is left of a header and the mark are a header.
            *value = HeaderValue::from_bytes(&redacted).unwrap_or(HeaderValue::from_static("[REDACTED]"));
        }
    }

    /// A text with `[REDACTED]` for each value; `None` where there is none.
    pub fn text(&self, text: &[u8]) -> Option<Vec<u8>> {
        let finder = self.any.as_ref()?;
        let mut cursor = finder.cursor();
        finder.scan(&mut cursor, text);
        if cursor.regions.is_empty() {
            return None;
        }
        let mut written = Vec::with_capacity(text.len());
        let mut at = 0;
        for region in &cursor.regions {
            written.extend_from_slice(&text[at..region.start]);
            written.extend_from_slice(MARK);
            at = region.end;
        }
        written.extend_from_slice(&text[at..]);
        Some(written)
    }

    /// Begins with a body, or with one direction of anything else that streams.
    pub fn stream(&self) -> RedactStream {
        let at = self.in_bodies.as_ref().map(|finder| (finder.clone(), finder.cursor()));
        RedactStream { at, held: Bytes::new() }
    }
}

/// Takes values out of a body as it streams, in memory that does not grow with it.
///
/// What comes out is as long as what went in: each value becomes `[REDACTED]` and `*` up to its length, only `*` where that
/// is too long. Lengths, ranges and frames stay right. Only what may be the beginning of a value is held back.
pub struct RedactStream {
    at: Option<(Arc<Finder>, Cursor)>,
    held: Bytes,
}

impl fmt::Debug for RedactStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedactStream").field("held", &self.held.len()).finish_non_exhaustive()
    }
}

impl RedactStream {
    /// Takes the next part and gives what may go on, which is often all of it, not copied.
    pub fn push(&mut self, chunk: Bytes) -> Bytes {
        let Some((finder, cursor)) = &mut self.at else { return chunk };
        finder.scan(cursor, &chunk);
        let text = match self.held.is_empty() {
            true => chunk,
            false => [&self.held[..], &chunk].concat().into(),
        };
        let end = text.len() - finder.open(cursor);
        // A region that may still grow, and of which it is not known whether the mark has room in it, waits as a whole.
        let grows = |region: &&Region| region.start < end && region.end > end && region.len() < MARK.len();
        let end = cursor.regions.iter().find(grows).map_or(end, |region| region.start);
        self.held = text.slice(end..);
        masked(text.slice(..end), cursor)
    }

    /// What was held back, when the body is over. The next push begins another one.
    pub fn finish(&mut self) -> Bytes {
        let held = std::mem::take(&mut self.held);
        let Some((finder, cursor)) = &mut self.at else { return held };
        let held = masked(held, cursor);
        *cursor = finder.cursor();
        held
    }

    /// How many bytes are held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

/// Masks what goes on, which is the beginning of what the cursor knows, and has the cursor forget it.
fn masked(text: Bytes, cursor: &mut Cursor) -> Bytes {
    let length = text.len();
    let masked = match cursor.regions.iter().any(|region| region.start < length) {
        false => text,
        true => {
            let mut copy = BytesMut::from(text);
            for region in &cursor.regions {
                let part = region.start.min(length)..region.end.min(length);
                for at in part {
                    copy[at] = region.mask(at);
                }
            }
            copy.freeze()
        }
    };
    cursor.forget(length);
    masked
}

#[cfg(test)]
mod tests;
