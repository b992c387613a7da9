//! One certificate: its PEM, its DER, and the name by which OpenSSL finds it in a directory.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

/// First line of a certificate in PEM (RFC 7468, section 5).
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
/// Last line.
const END: &str = "-----END CERTIFICATE-----";
/// Most certificates taken from one bundle; real ones have 150.
const MAX_CERTIFICATES: usize = 2_000;

/// Tags of DER.
pub(super) mod tag {
    pub const INTEGER: u8 = 0x02;
    pub const OCTET_STRING: u8 = 0x04;
    pub const OBJECT: u8 = 0x06;
    pub const SEQUENCE: u8 = 0x30;
    pub const SET: u8 = 0x31;
    /// Context-specific, constructed, number 0.
    pub const ZERO: u8 = 0xa0;
}

/// A certificate.
pub(super) struct Certificate {
    pem: String,
    der: Vec<u8>,
}

impl Certificate {
    /// Reads a text that is one certificate and nothing else.
    pub fn parse(text: &str) -> Option<Self> {
        let body = text.trim().strip_prefix(BEGIN)?.strip_suffix(END)?;
        let der = decode(body)?;
        subject(&der)?;
        Some(Self { pem: format!("{}\n", text.trim()), der })
    }

    /// As text that ends with its last line.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// As bytes.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// What OpenSSL's directories call it: the first bytes of a hash of the subject in its canonical form, as
    /// `X509_NAME_hash_ex` of OpenSSL computes it (crypto/x509/x509_cmp.c and x_name.c).
    pub fn subject_hash(&self) -> Option<String> {
        let digest = Sha1::digest(canonical(subject(&self.der)?)?);
        let number = u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]);
        Some(format!("{number:08x}"))
    }
}

/// The certificates of a bundle, as far as they can be decoded.
pub(super) fn all_of(bundle: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut body: Option<String> = None;
    for line in bundle.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
        if line == BEGIN.as_bytes() {
            body = Some(String::new());
        } else if line == END.as_bytes() {
            found.extend(body.take().and_then(|body| decode(&body)).filter(|der| subject(der).is_some()));
            if found.len() == MAX_CERTIFICATES {
                break;
            }
        } else if let (Some(body), Ok(line)) = (&mut body, std::str::from_utf8(line)) {
            body.push_str(line);
        }
    }
    found
}

fn decode(body: &str) -> Option<Vec<u8>> {
    let text: Vec<u8> = body.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    STANDARD.decode(text).ok()
}

/// One element of DER, and what follows it.
pub(super) struct Element<'a> {
    pub tag: u8,
    pub content: &'a [u8],
    pub rest: &'a [u8],
}

/// Reads the first element, if it is whole.
pub(super) fn element(bytes: &[u8]) -> Option<Element<'_>> {
    let (&tag, bytes) = bytes.split_first()?;
    let (&first, bytes) = bytes.split_first()?;
    // Tags above 30 and lengths that are not definite occur in no certificate.
    if tag & 0x1f == 0x1f {
        return None;
    }
    let (length, bytes) = match first {
        0..=0x7f => (usize::from(first), bytes),
        0x81..=0x84 => {
            let (length, rest) = bytes.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = bytes.split_at_checked(length)?;
    Some(Element { tag, content, rest })
}

/// Content of the first element, which must have this tag, and what follows it.
pub(super) fn expect(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    element(bytes).filter(|found| found.tag == tag).map(|found| (found.content, found.rest))
}

/// The relative names of a certificate's subject (RFC 5280, section 4.1).
fn subject(der: &[u8]) -> Option<&[u8]> {
    let (certificate, trailing) = expect(der, tag::SEQUENCE)?;
    if !trailing.is_empty() {
        return None;
    }
    let (mut fields, _) = expect(certificate, tag::SEQUENCE)?;
    if let Some((_version, rest)) = expect(fields, tag::ZERO) {
        fields = rest;
    }
    let (_serial, rest) = expect(fields, tag::INTEGER)?;
    let (_algorithm, rest) = expect(rest, tag::SEQUENCE)?;
    let (_issuer, rest) = expect(rest, tag::SEQUENCE)?;
    let (_validity, rest) = expect(rest, tag::SEQUENCE)?;
    expect(rest, tag::SEQUENCE).map(|(subject, _)| subject)
}

/// OpenSSL's canonical form of a name: without its own header, values as lower-case UTF-8 with single spaces.
fn canonical(mut names: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while !names.is_empty() {
        let (mut set, rest) = expect(names, tag::SET)?;
        names = rest;
        let mut entries = Vec::new();
        while !set.is_empty() {
            let (entry, rest) = expect(set, tag::SEQUENCE)?;
            set = rest;
            let (kind, value) = expect(entry, tag::OBJECT)?;
            let value = element(value)?;
            let value = match canonical_text(value.tag, value.content) {
                Some(text) => wrap(UTF8_STRING, text.as_bytes()),
                None => wrap(value.tag, value.content),
            };
            entries.push(wrap(tag::SEQUENCE, &[wrap(tag::OBJECT, kind), value].concat()));
        }
        // The order of a set in DER.
        entries.sort();
        text.extend(wrap(tag::SET, &entries.concat()));
    }
    Some(text)
}

const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const T61_STRING: u8 = 0x14;
const IA5_STRING: u8 = 0x16;
const VISIBLE_STRING: u8 = 0x1a;
const UNIVERSAL_STRING: u8 = 0x1c;
const BMP_STRING: u8 = 0x1e;

/// A text in canonical form; `None` if it is of another kind, or none.
fn canonical_text(tag: u8, content: &[u8]) -> Option<String> {
    let text: String = match tag {
        UTF8_STRING => std::str::from_utf8(content).ok()?.to_owned(),
        // Read as Latin-1, which is what they hold where they are not ASCII.
        PRINTABLE_STRING | T61_STRING | IA5_STRING | VISIBLE_STRING => {
            content.iter().copied().map(char::from).collect()
        }
        BMP_STRING => wide::<2>(content)?,
        UNIVERSAL_STRING => wide::<4>(content)?,
        _ => return None,
    };
    let is_space = |c: char| matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r');
    let words: Vec<&str> = text.split(is_space).filter(|word| !word.is_empty()).collect();
    Some(words.join(" ").to_ascii_lowercase())
}

/// Characters of so many bytes each.
fn wide<const BYTES: usize>(content: &[u8]) -> Option<String> {
    let (characters, rest) = content.as_chunks::<BYTES>();
    let number = |bytes: &[u8; BYTES]| bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
    let text = characters.iter().map(|bytes| char::from_u32(number(bytes))).collect();
    if rest.is_empty() { text } else { None }
}

/// An element of DER.
fn wrap(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    match content.len() {
        short @ 0..=0x7f => bytes.push(short as u8),
        long => {
            let length = long.to_be_bytes();
            let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
            bytes.push(0x80 | length.len() as u8);
            bytes.extend(length);
        }
    }
    bytes.extend(content);
    bytes
}

#[cfg(test)]
mod tests;
