//! Hosts that a binding is about: a name, or every name below one.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest name in bytes (RFC 1035).
const NAME_BYTES: usize = 253;
/// Longest label in bytes (RFC 1035).
const LABEL_BYTES: usize = 63;
/// What stands for any name below a wildcard when a policy is asked, as published.
const PROBE: &str = "probe";

/// A name, or every name below one at any depth, never the name itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum HostPattern {
    /// This name.
    Exact(String),
    /// Every name below this one.
    Below(String),
}

/// Whether any of these patterns, as [`crate::Vault::hosts`] tells them, is about this host. What is no pattern is about none.
pub fn is_any<S: AsRef<str>>(patterns: impl IntoIterator<Item = S>, host: &str) -> bool {
    patterns.into_iter().any(|text| HostPattern::parse(text.as_ref()).is_ok_and(|pattern| pattern.matches(host)))
}

/// The host in the form in which it is compared: lower case, without the last dot.
pub(crate) fn canonical(host: &str) -> Cow<'_, str> {
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    }
}

/// The names above this one, the nearest first.
pub(crate) fn above(host: &str) -> impl Iterator<Item = &str> {
    host.match_indices('.').map(|(at, _)| &host[at + 1..])
}

impl HostPattern {
    /// Reads a pattern: a name of at least two labels of letters, digits and hyphens, or `*.` before one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix("*.") {
            Some(suffix) => Ok(Self::Below(name(suffix)?)),
            None => Ok(Self::Exact(name(text)?)),
        }
    }

    /// Whether it is about this host.
    pub fn matches(&self, host: &str) -> bool {
        let host = canonical(host);
        match self {
            Self::Exact(own) => *own == *host,
            Self::Below(suffix) => above(&host).any(|above| above == suffix),
        }
    }

    /// Whether some host is meant by both, and neither beats the other: a name beats a wildcard.
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(one), Self::Exact(other)) => one == other,
            (Self::Below(one), Self::Below(other)) => {
                one == other || above(one).any(|above| above == other) || above(other).any(|above| above == one)
            }
            _ => false,
        }
    }

    /// A host for which a policy is asked whether it covers the pattern.
    pub(crate) fn probe(&self) -> Cow<'_, str> {
        match self {
            Self::Exact(name) => Cow::Borrowed(name),
            Self::Below(suffix) => Cow::Owned(format!("{PROBE}.{suffix}")),
        }
    }
}

fn name(text: &str) -> Result<String, String> {
    let name = text.to_ascii_lowercase();
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= LABEL_BYTES
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    if name.len() > NAME_BYTES || !name.contains('.') || is_number || !name.split('.').all(is_label) {
        return Err(format!("{text:?} is not a full host name such as api.example.com or *.example.com; no ports"));
    }
    Ok(name)
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Below(suffix) => write!(f, "*.{suffix}"),
        }
    }
}

impl TryFrom<String> for HostPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<HostPattern> for String {
    fn from(pattern: HostPattern) -> Self {
        pattern.to_string()
    }
}

#[cfg(test)]
mod tests;
