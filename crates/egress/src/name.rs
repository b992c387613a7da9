//! A DNS name in its one canonical form, so that comparing bytes compares names.
//!
//! Lower case, A-labels, no trailing dot. What could be read as an address is no name: `0x7f.1` and `2130706433` are
//! addresses to some programs and names to others, and a policy that both read differently would be none.

use std::borrow::Borrow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Longest name in bytes without the trailing dot (RFC 1035).
pub const NAME_BYTES: usize = 253;
/// Longest label in bytes (RFC 1035).
pub const LABEL_BYTES: usize = 63;

/// A canonical DNS name. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

/// Why a text is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Nothing is there.
    #[error("is empty")]
    Empty,
    /// It is longer than DNS allows.
    #[error("is longer than {NAME_BYTES} bytes, or has a label of more than {LABEL_BYTES}")]
    TooLong,
    /// A label is empty.
    #[error("has an empty label")]
    EmptyLabel,
    /// It has a byte that no host name has.
    #[error("has a character other than letters, digits, `-`, `_` and `.`")]
    BadCharacter,
    /// Its last label is a number: some programs read it as an address.
    #[error("ends in a number, which some programs read as an address; write addresses as a.b.c.d")]
    LooksLikeAddress,
    /// It is not ASCII and no valid international name.
    #[error("is not a valid international name")]
    BadInternational,
}

impl Name {
    /// Reads a name that a person wrote; international names become A-labels.
    ///
    /// # Errors
    /// When it is no name, or could be read as an address.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        if text.is_ascii() {
            return Self::from_ascii(text);
        }
        let ascii = idna::domain_to_ascii_strict(text).map_err(|_| BadName::BadInternational)?;
        Self::from_ascii(&ascii)
    }

    /// Reads a name from the wire, where everything is ASCII.
    ///
    /// # Errors
    /// As [`Name::parse`].
    pub fn from_ascii(text: &str) -> Result<Self, BadName> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Err(BadName::Empty);
        }
        if text.len() > NAME_BYTES || text.split('.').any(|label| label.len() > LABEL_BYTES) {
            return Err(BadName::TooLong);
        }
        if text.split('.').any(str::is_empty) {
            return Err(BadName::EmptyLabel);
        }
        let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if !text.bytes().all(known) {
            return Err(BadName::BadCharacter);
        }
        let name = text.to_ascii_lowercase();
        if text.parse::<IpAddr>().is_ok() || ends_in_number(&name) {
            return Err(BadName::LooksLikeAddress);
        }
        Ok(Self(name.into()))
    }

    /// The name as text, without a trailing dot.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this name is somewhere below `suffix`; a name is not below itself.
    pub fn is_below(&self, suffix: &Name) -> bool {
        self.0.strip_suffix(suffix.as_str()).is_some_and(|head| head.ends_with('.'))
    }

    /// The host that a service name such as `_xmpp._tcp.example.com` speaks of; the name itself if it is none.
    #[must_use]
    pub fn without_service_labels(&self) -> Self {
        let mut rest = self.as_str();
        while let Some((label, tail)) = rest.split_once('.') {
            if !label.starts_with('_') {
                break;
            }
            rest = tail;
        }
        if rest.len() == self.0.len() { self.clone() } else { Self(rest.into()) }
    }
}

/// The WHATWG rule: a host whose last label is decimal or hexadecimal is an IPv4 address, or nothing.
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    match last.strip_prefix("0x") {
        Some(hex) => hex.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => last.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests;
