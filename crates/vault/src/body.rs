//! Placeholders in the body of a request, whole or as it streams.

use std::fmt;

use bytes::{Bytes, BytesMut};

use crate::render::Body;
use crate::substitute::{Replacer, Room};

/// Whether a body with this encoding can be looked into.
pub(crate) fn is_readable(content_encoding: Option<&str>) -> bool {
    let mut codings = content_encoding.unwrap_or_default().split(',').map(str::trim);
    codings.all(|coding| coding.is_empty() || coding.eq_ignore_ascii_case("identity"))
}

impl Body {
    /// How a body of this type is written.
    pub(crate) fn of(&self, content_type: Option<&str>) -> &Replacer {
        let kind = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match kind.as_str() {
            "application/x-www-form-urlencoded" => &self.form,
            _ if kind == "application/json" || kind.ends_with("+json") => &self.json,
            _ => &self.raw,
        }
    }
}

/// Replaces placeholders in one body. Its length changes: `Content-Length` must be set again. At most 4 MiB of values are
/// put in; behind that, placeholders are taken out and nothing is put in.
pub struct BodySubstitution {
    replacer: Replacer,
    /// What may be the beginning of a placeholder: shorter than the longest.
    held: Bytes,
    room: Room,
}

impl fmt::Debug for BodySubstitution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodySubstitution(..)")
    }
}

impl BodySubstitution {
    pub(crate) fn new(replacer: Replacer) -> Self {
        Self { replacer, held: Bytes::new(), room: Room::OF_A_BODY }
    }

    /// Replaces them in a whole body.
    pub fn whole(&self, body: Vec<u8>) -> Vec<u8> {
        match self.replacer.replace(&body, self.room) {
            Some(mut replaced) => std::mem::take(&mut *replaced),
            None => body,
        }
    }

    /// Takes the next part of a body and gives what may go on; what may be the beginning of a placeholder is held back.
    pub fn push(&mut self, chunk: Bytes) -> Bytes {
        let text = if self.held.is_empty() { chunk } else { joined(&self.held, &chunk) };
        let mut written = BytesMut::new();
        let mut at = 0;
        let mut open = self.replacer.open_end(&text, at);
        // One that begins where another, longer one may begin is not decided yet.
        while let Some(found) = self.replacer.find(&text, at).filter(|found| found.start < open) {
            written.extend_from_slice(&text[at..found.start]);
            written.extend_from_slice(self.room.take(found.value));
            at = found.end;
            if at > open {
                open = self.replacer.open_end(&text, at);
            }
        }
        self.held = text.slice(open..);
        if at == 0 {
            return text.slice(..open);
        }
        written.extend_from_slice(&text[at..open]);
        written.freeze()
    }

    /// What was held back, when the body is over.
    pub fn finish(self) -> Bytes {
        match self.replacer.replace(&self.held, self.room) {
            Some(mut replaced) => Bytes::from(std::mem::take(&mut *replaced)),
            None => self.held,
        }
    }
}

fn joined(one: &[u8], other: &[u8]) -> Bytes {
    [one, other].concat().into()
}

#[cfg(test)]
mod tests;
