//! The server name of a ClientHello (RFC 8446, RFC 6066), which may be spread over several records.

use super::{BadHead, Head};
use crate::name::Name;

const HANDSHAKE: u8 = 22;
/// Types of records: change of cipher, alert, handshake, data, heartbeat. Some servers pass over an alert before the
/// ClientHello, so a connection that begins with any of them is TLS to somebody, and only a handshake may come first.
const RECORDS: std::ops::RangeInclusive<u8> = 20..=24;
const MAJOR: u8 = 3;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// Longest record with slack for what TLS 1.2 allowed.
const RECORD_BYTES: usize = (1 << 14) + 2048;

/// Whether bytes begin, or could begin, a TLS record: content type, then major version.
pub fn could_be(bytes: &[u8]) -> bool {
    match bytes {
        [first] => RECORDS.contains(first),
        [first, second, ..] => RECORDS.contains(first) && *second == MAJOR,
        [] => true,
    }
}

pub fn look(bytes: &[u8]) -> Result<Head, BadHead> {
    let message = match join_records(bytes)? {
        Some(message) => message,
        None => return Ok(Head::Unfinished),
    };
    let mut hello = Reader(&message);
    // Cannot fail: the records were joined until the message was whole.
    let body = hello.skip(1).and_then(|()| hello.vector(3)).ok_or(BadHead::Hello)?;
    server_name(Reader(body))
}

/// The handshake message, once all its records are there.
fn join_records(bytes: &[u8]) -> Result<Option<Vec<u8>>, BadHead> {
    let mut records = Reader(bytes);
    let mut message = Vec::new();
    loop {
        let Some(header) = records.take(5) else { return Ok(None) };
        if header[0] != HANDSHAKE || header[1] != MAJOR {
            return Err(BadHead::Hello);
        }
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if length == 0 || length > RECORD_BYTES {
            return Err(BadHead::Hello);
        }
        let whole = records.take(length);
        message.extend_from_slice(whole.unwrap_or(records.0));
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(BadHead::Hello);
        }
        if let [_, high, middle, low, ..] = message[..] {
            let needed = 4 + ((usize::from(high) << 16) | (usize::from(middle) << 8) | usize::from(low));
            if needed > super::HEAD_BYTES {
                return Err(BadHead::TooLong);
            }
            if message.len() >= needed {
                message.truncate(needed);
                return Ok(Some(message));
            }
        }
        if whole.is_none() {
            return Ok(None);
        }
    }
}

fn server_name(mut hello: Reader<'_>) -> Result<Head, BadHead> {
    const VERSION_AND_RANDOM: usize = 2 + 32;
    hello.skip(VERSION_AND_RANDOM).ok_or(BadHead::Hello)?;
    for width in [1, 2, 1] {
        // Session id, cipher suites, compression methods.
        hello.vector(width).ok_or(BadHead::Hello)?;
    }
    if hello.0.is_empty() {
        return Ok(Head::Tls(None));
    }
    let mut extensions = Reader(hello.vector(2).ok_or(BadHead::Hello)?);
    if !hello.0.is_empty() {
        return Err(BadHead::Hello);
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number(2).ok_or(BadHead::Hello)?;
        let body = extensions.vector(2).ok_or(BadHead::Hello)?;
        if kind == usize::from(SERVER_NAME) {
            if found.is_some() {
                return Err(BadHead::Ambiguous);
            }
            found = Some(host_name(Reader(body))?);
        }
    }
    Ok(Head::Tls(found))
}

/// Exactly one entry, of the one type that exists.
fn host_name(mut extension: Reader<'_>) -> Result<Name, BadHead> {
    let mut list = Reader(extension.vector(2).ok_or(BadHead::Hello)?);
    let kind = list.number(1).ok_or(BadHead::Hello)?;
    let host = list.vector(2).ok_or(BadHead::Hello)?;
    if !list.0.is_empty() || !extension.0.is_empty() {
        return Err(BadHead::Ambiguous);
    }
    if kind != usize::from(HOST_NAME) {
        return Err(BadHead::Hello);
    }
    let text = std::str::from_utf8(host).map_err(|_| BadHead::Name(crate::name::BadName::BadCharacter))?;
    Name::from_ascii(text).map_err(BadHead::Name)
}

/// Reads big-endian numbers and vectors; `None` when bytes are missing.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.take(count).map(|_| ())
    }

    fn number(&mut self, width: usize) -> Option<usize> {
        self.take(width).map(|bytes| bytes.iter().fold(0, |number, byte| (number << 8) | usize::from(*byte)))
    }

    /// Bytes behind a length of `width` bytes.
    fn vector(&mut self, width: usize) -> Option<&'a [u8]> {
        let length = self.number(width)?;
        self.take(length)
    }
}
