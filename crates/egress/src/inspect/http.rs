//! The Host of an HTTP/1 request that asks for a path. A request to a proxy (`CONNECT`, an absolute URI) names the host
//! behind the proxy, which is the proxy's business, and is opaque here.
//!
//! This finds mistakes and simple tricks. Whoever means to can ask for another host in a second request on the same
//! connection, or in HTTP/2: only a proxy that reads every request, an interceptor, closes that.

use super::{BadHead, Head};
use crate::name::Name;

/// Longest method: known ones have at most 17 letters (`VERSION-CONTROL` and kin).
const METHOD_BYTES: usize = 20;

pub fn look(bytes: &[u8]) -> Result<Head, BadHead> {
    // Servers pass over empty lines before a request.
    let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let bytes = &bytes[blank..];
    if let Some(known) = not_a_request(bytes) {
        return Ok(known);
    }
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return Ok(Head::Unsure) };
    let line = trim(&bytes[..end]);
    if !line.ends_with(b" HTTP/1.1") && !line.ends_with(b" HTTP/1.0") {
        return Ok(Head::Opaque);
    }
    let mut host = None;
    let mut rest = &bytes[end + 1..];
    loop {
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { return Ok(Head::Unfinished) };
        let line = trim(&rest[..end]);
        rest = &rest[end + 1..];
        if line.is_empty() {
            return Ok(Head::Http(host));
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        // Blanks before the colon are refused by every server worth the name, and skipped by some others.
        if line[..colon].trim_ascii().eq_ignore_ascii_case(b"host") {
            if host.is_some() {
                return Err(BadHead::Ambiguous);
            }
            host = Some(without_port(&line[colon + 1..])?);
        }
    }
}

/// `Some` once bytes cannot become `METHOD /path ...`, or too few of them are there to say.
fn not_a_request(bytes: &[u8]) -> Option<Head> {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase() || **byte == b'-').count();
    match bytes.get(method..) {
        _ if method > METHOD_BYTES => Some(Head::Opaque),
        Some([]) | Some([b' ']) if method > 0 || bytes.is_empty() => Some(Head::Unsure),
        Some([b' ', b'/', ..]) if method > 0 => None,
        _ => Some(Head::Opaque),
    }
}

fn trim(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn without_port(value: &[u8]) -> Result<Name, BadHead> {
    let value = std::str::from_utf8(value).map_err(|_| BadHead::Name(crate::name::BadName::BadCharacter))?.trim();
    let host = match value.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => value,
    };
    Name::from_ascii(host).map_err(BadHead::Name)
}
