//! The file in which what a sandbox fetched is kept, to be served again with the network off: its form, who appends to
//! it, who reads it. It refuses to know where requests come from.
//!
//! ```text
//! osb-recording 1\n                            16 bytes: what it is, and in which version
//! piece    SHA-256 LENGTH\n BYTES \n           a part of a body, each stored once
//! exchange SHA-256 LENGTH\n JSON \n            an [`Exchange`] that is over; its pieces lie before it
//! note     SHA-256 LENGTH\n JSON \n            a [`Note`]: what is not in it
//! ```
//!
//! It only grows. What was begun and not finished when its writer died is a record that lacks bytes at the end of the file,
//! and pieces that no exchange names: the first is left out, the others are harmless. `docs/record.md` describes it for
//! other programs.

use std::fmt;
use std::os::unix::fs::FileExt as _;

use aws_lc_rs::digest::{Context, SHA256};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

mod book;
mod frame;
mod scan;
mod tape;

pub use book::{Book, Key};
pub use scan::{BadRecording, Depth, Summary, survey};
pub use tape::{Dropped, Over, Taking, Tape};

/// First bytes of the file.
pub const HEADER: &[u8; 16] = b"osb-recording 1\n";
/// Longest piece of a body, in bytes: what one exchange holds in memory while it is recorded or served.
pub const PIECE_BYTES: usize = 64 * 1024;
/// Exchanges in one recording: each is a few dozen bytes of memory for whoever serves it.
pub const MAX_EXCHANGES: usize = 65_536;
/// Pieces in one recording: as many as 16 GiB of long bodies have, so that what they are found by fits into memory.
pub const MAX_PIECES: usize = 262_144;
/// Notes in one recording; after as many a last one says that there were more.
pub const MAX_NOTES: usize = 1024;
/// Longest note as JSON, in bytes.
const NOTE_BYTES: u64 = 4096;
/// All that the notes of one recording take, in bytes: they do not count towards its limit. Two more than [`MAX_NOTES`]:
/// that there were more, and that it is full.
pub const ALL_NOTES_BYTES: u64 = (MAX_NOTES as u64 + 2) * (NOTE_BYTES + (frame::HEAD_BYTES + frame::TAIL.len()) as u64);
/// Longest exchange as JSON, in bytes: the pieces of a body of five gigabytes, and heads.
pub const EXCHANGE_BYTES: u64 = 8 * 1024 * 1024;

/// A SHA-256; written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hash = Hash::default();
        hash.push(bytes);
        hash.finish()
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        if text.len() != 2 * bytes.len() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Digest {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(text.as_bytes()).ok_or("is no SHA-256 in 64 lower-case hexadecimal digits")
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// A SHA-256 of bytes that come piece by piece, and how many they are.
pub struct Hash {
    context: Context,
    bytes: u64,
}

impl Default for Hash {
    fn default() -> Self {
        Self { context: Context::new(&SHA256), bytes: 0 }
    }
}

impl Hash {
    /// Takes more bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// How many were taken.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Of all that was taken until now.
    pub fn finish(&self) -> Digest {
        let digest = self.context.clone().finish();
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Digest(bytes)
    }
}

/// A request and what it was answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Exchange {
    /// When it began, in milliseconds since 1970.
    pub at_ms: u64,
    /// What the sandbox's program asked.
    pub request: Asked,
    /// What it got.
    pub answer: Answered,
    /// Why it is not whole; one that is not is never served again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// A request as a program of the sandbox sent it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Asked {
    /// The method.
    pub method: String,
    /// `https` or `http`.
    pub scheme: String,
    /// The name of the host, lower-case.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Path and query.
    pub target: String,
    /// Headers that may have made the answer what it is; none that carry credentials.
    pub headers: Headers,
    /// Length of the body.
    pub bytes: u64,
    /// Of the body.
    pub sha256: Digest,
}

/// An answer as a program of the sandbox got it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Answered {
    /// The status.
    pub status: u16,
    /// Headers, without those about the connection.
    pub headers: Headers,
    /// Length of the body.
    pub bytes: u64,
    /// Of the body.
    pub sha256: Digest,
    /// The body's pieces, in order.
    pub pieces: Vec<Digest>,
    /// What came after the body.
    #[serde(default, skip_serializing_if = "Headers::is_empty")]
    pub trailers: Headers,
}

/// Names and values of headers. A value is any bytes; each is the letter of its number (ISO 8859-1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those of a message for which `is_kept` says so.
    pub fn of(headers: &HeaderMap, is_kept: impl Fn(&HeaderName) -> bool) -> Self {
        let text = |value: &HeaderValue| value.as_bytes().iter().copied().map(char::from).collect();
        let kept = headers.iter().filter(|(name, _)| is_kept(name));
        Self(kept.map(|(name, value)| (name.as_str().to_owned(), text(value))).collect())
    }

    /// As they are sent; `None` where one of them cannot be.
    pub fn to_map(&self) -> Option<HeaderMap> {
        let mut map = HeaderMap::new();
        for (name, value) in &self.0 {
            let bytes: Option<Vec<u8>> = value.chars().map(|letter| u8::try_from(letter).ok()).collect();
            map.append(HeaderName::try_from(name.as_str()).ok()?, HeaderValue::from_bytes(&bytes?).ok()?);
        }
        Some(map)
    }
}

/// Something that is not in a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Note {
    /// No exchange was recorded from here on.
    Full {
        /// Why.
        why: String,
    },
    /// Something that was passed on and not recorded.
    NotRecorded {
        /// Why.
        why: String,
        /// Where it went: a name, or an address.
        host: String,
        /// The port.
        port: u16,
    },
    /// More was not recorded than is noted.
    More,
}

/// Reads all of `buffer` at a place of a file.
fn read_at(file: &std::fs::File, buffer: &mut [u8], at: u64) -> std::io::Result<()> {
    file.read_exact_at(buffer, at)
}

#[cfg(test)]
mod tests;
