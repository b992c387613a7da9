//! Paths: what a binding is about, and the one form in which a path of a request is matched and forwarded.
//!
//! A server may read a path otherwise than we do: decode it again, take `\` for `/`, drop what follows `;`, join empty
//! segments. [`readings`] gives every such reading, so that a path that another reading puts elsewhere is refused.

use serde::{Deserialize, Serialize};

use crate::encode::{Case, is_unreserved};

/// How often a path is decoded to find what a server may read.
const LAYERS: usize = 3;
/// Longest path that is read in several ways, each of which is work; longer ones are refused where it would matter.
const MAX_READ_BYTES: usize = 8 * 1024;
/// Longest pattern.
const MAX_PATTERN_BYTES: usize = 2048;

/// A path, or with `*` at the end every path that begins so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct PathPattern {
    text: String,
    /// The text in the form of [`Path::text`], without the `*`.
    start: String,
    /// The same, decoded: for readings.
    decoded: Vec<u8>,
    is_prefix: bool,
}

impl PathPattern {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (start, is_prefix) = text.strip_suffix('*').map_or((text, false), |start| (start, true));
        if !start.starts_with('/') {
            return Err("must begin with /".to_owned());
        }
        if text.len() > MAX_PATTERN_BYTES {
            return Err(format!("is longer than {MAX_PATTERN_BYTES} bytes"));
        }
        if text.bytes().any(|byte| byte.is_ascii_control() || matches!(byte, b'?' | b'#' | b'\\')) {
            return Err("has a character that no path has".to_owned());
        }
        let (start, is_odd) = encoded(start);
        // The last segment of a prefix is not whole: `/.*` is about `/.git`.
        let whole = if is_prefix { start.rsplit_once('/').map_or("", |(whole, _)| whole) } else { &start };
        let is_ambiguous = ["%2F", "%5C", "//", ";"].iter().any(|part| start.contains(part));
        if is_odd || is_ambiguous || has_dots(whole) {
            return Err("can match nothing: what can be read in two ways is refused".to_owned());
        }
        let decoded = decode(start.as_bytes()).unwrap_or_else(|| start.clone().into_bytes());
        Ok(Self { text: text.to_owned(), start, decoded, is_prefix })
    }

    /// Whether it is about every path.
    pub(crate) fn is_all(&self) -> bool {
        self.is_prefix && self.start == "/"
    }

    /// Whether it is about this path.
    pub(crate) fn matches(&self, path: &Path) -> bool {
        within(self.start.as_bytes(), self.is_prefix, path.text.as_bytes())
    }

    /// Whether it is about a path that is read so.
    pub(crate) fn matches_reading(&self, reading: &Reading) -> bool {
        let start = if reading.is_decoded { &self.decoded } else { self.start.as_bytes() };
        within(start, self.is_prefix, &reading.path)
    }

    /// Whether both are about some path.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        match (self.is_prefix, other.is_prefix) {
            (true, true) => self.start.starts_with(&other.start) || other.start.starts_with(&self.start),
            (true, false) => other.start.starts_with(&self.start),
            (false, true) => self.start.starts_with(&other.start),
            (false, false) => self.start == other.start,
        }
    }
}

fn within(start: &[u8], is_prefix: bool, path: &[u8]) -> bool {
    if is_prefix { path.starts_with(start) } else { path == start }
}

impl TryFrom<String> for PathPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<PathPattern> for String {
    fn from(pattern: PathPattern) -> Self {
        pattern.text
    }
}

/// The path of a request in its one form: escapes that need not be are decoded, others have capital digits, what must be
/// escaped is, and dot segments are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub text: String,
    /// Whether it has an escape that servers read differently or not at all.
    pub is_odd: bool,
}

impl Path {
    /// Reads a path, which begins with `/`.
    pub(crate) fn parse(raw: &str) -> Self {
        let (text, is_odd) = encoded(raw);
        let text = if has_dots(&text) { String::from_utf8_lossy(&dotless(text.as_bytes())).into_owned() } else { text };
        Self { text, is_odd }
    }

    /// Whether some server could read it as another path.
    pub(crate) fn is_plain(&self) -> bool {
        !self.is_odd && !self.text.contains("//") && !self.text.bytes().any(|byte| matches!(byte, b'%' | b'\\' | b';'))
    }
}

/// A part of a path with escapes in their one form.
pub(crate) fn escaped(raw: &str) -> String {
    encoded(raw).0
}

/// A path with escapes in their one form, and whether one of them is odd.
fn encoded(raw: &str) -> (String, bool) {
    let mut written = Vec::with_capacity(raw.len());
    let mut is_odd = false;
    let mut rest = raw.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        match (*byte, escape(after)) {
            (b'%', Some(value)) => {
                // Ends a path in C; never in UTF-8, yet read as `.` and `/` by decoders that do not look.
                is_odd |= matches!(value, 0 | 0xc0 | 0xc1);
                push(&mut written, value, is_unreserved(value));
                rest = &after[2..];
            }
            (b'%', None) => {
                // A `%` as such: what is behind it may become two digits when that is decoded.
                is_odd = true;
                written.extend(b"%25");
            }
            (byte, _) => {
                is_odd |= byte == 0;
                push(&mut written, byte, is_path_byte(byte));
            }
        }
    }
    // Only ASCII was written.
    (String::from_utf8_lossy(&written).into_owned(), is_odd)
}

fn push(written: &mut Vec<u8>, byte: u8, is_kept: bool) {
    if is_kept {
        written.push(byte);
    } else {
        written.push(b'%');
        Case::Upper.push(written, byte);
    }
}

fn is_path_byte(byte: u8) -> bool {
    is_unreserved(byte) || b"!$&'()*+,;=:@/\\".contains(&byte)
}

/// The value of two hexadecimal digits.
fn escape(text: &[u8]) -> Option<u8> {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}

fn has_dots(text: &str) -> bool {
    text.split('/').any(|segment| matches!(segment, "." | ".."))
}

/// Without dot segments (RFC 3986, 5.2.4).
fn dotless(path: &[u8]) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut ends_in_dots = false;
    for segment in path.split(|byte| *byte == b'/').skip(1) {
        ends_in_dots = matches!(segment, b"." | b"..");
        match segment {
            b"." => {}
            b".." => drop(kept.pop()),
            _ => kept.push(segment),
        }
    }
    let mut written = Vec::with_capacity(path.len());
    for segment in kept {
        written.push(b'/');
        written.extend(segment);
    }
    if ends_in_dots || written.is_empty() {
        written.push(b'/');
    }
    written
}

/// One way in which a server may read a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub path: Vec<u8>,
    pub is_decoded: bool,
}

/// Every way in which servers are known to read a path; `None` if it is longer or escaped more often than anybody means.
pub(crate) fn readings(path: &Path) -> Option<Vec<Reading>> {
    if path.text.len() > MAX_READ_BYTES {
        return None;
    }
    let mut readings: Vec<Reading> = Vec::new();
    let mut text = path.text.clone().into_bytes();
    for layer in 0..=LAYERS {
        for variant in 0..8u8 {
            let mut path = text.clone();
            if variant & 1 != 0 {
                path.iter_mut().filter(|byte| **byte == b'\\').for_each(|byte| *byte = b'/');
            }
            if variant & 2 != 0 {
                path = without_parameters(&path);
            }
            if variant & 4 != 0 {
                path.dedup_by(|one, other| *one == b'/' && *other == b'/');
            }
            for path in [dotless(&path), path] {
                let reading = Reading { path, is_decoded: layer > 0 };
                if !readings.contains(&reading) {
                    readings.push(reading);
                }
            }
        }
        match decode(&text) {
            Some(decoded) if layer < LAYERS => text = decoded,
            Some(_) => return None,
            None => break,
        }
    }
    Some(readings)
}

/// Decodes every escape once; `None` where there is none.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut is_changed = false;
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        rest = after;
        match escape(after) {
            Some(value) if *byte == b'%' => {
                decoded.push(value);
                rest = &after[2..];
                is_changed = true;
            }
            _ => decoded.push(*byte),
        }
    }
    is_changed.then_some(decoded)
}

/// Without `;` and what follows it, in each segment.
fn without_parameters(path: &[u8]) -> Vec<u8> {
    let segments = path.split(|byte| *byte == b'/');
    let segments = segments.map(|segment| segment.split(|byte| *byte == b';').next().unwrap_or_default());
    segments.collect::<Vec<_>>().join(&b'/')
}

#[cfg(test)]
mod tests;
