//! The name of an unpacked layer.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Length of a SHA-256 in hexadecimal digits.
const HEX_DIGITS: usize = 64;

/// The diff id of a layer without its `sha256:` prefix: 64 lower-case hexadecimal digits.
///
/// The text is safe as a file name, since nothing else can be parsed into it. The `host` image's
/// skeleton has one too; there it is a fingerprint of the machine, not the hash of an archive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerId(String);

/// A text is not 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("layer id is not 64 lower-case hexadecimal digits")]
pub struct InvalidLayerId;

impl LayerId {
    /// The 64 digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn from_sha256(hash: [u8; 32]) -> Self {
        Self(crate::digest::hex(&hash))
    }
}

impl FromStr for LayerId {
    type Err = InvalidLayerId;

    /// Reads the digits, with or without `sha256:` before them.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        if digits.len() == HEX_DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            Ok(Self(digits.to_owned()))
        } else {
            Err(InvalidLayerId)
        }
    }
}

impl TryFrom<String> for LayerId {
    type Error = InvalidLayerId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<LayerId> for String {
    fn from(id: LayerId) -> Self {
        id.0
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
