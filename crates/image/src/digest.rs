//! SHA-256 digests as registries and layouts write them.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::LayerId;

/// `sha256:` and 64 lower-case digits. Other algorithms are refused: nobody publishes them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Digest(LayerId);

impl Digest {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(LayerId::from_sha256(Sha256::digest(bytes).into()))
    }

    pub(crate) fn hex(&self) -> &str {
        self.0.as_str()
    }

    pub(crate) fn layer_id(&self) -> &LayerId {
        &self.0
    }

    pub(crate) fn from_hasher(hasher: Sha256) -> Self {
        Self(LayerId::from_sha256(hasher.finalize().into()))
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_prefix("sha256:")
            .and_then(|digits| digits.parse().ok())
            .map(Self)
            .ok_or_else(|| format!("{:?} is not a sha256 digest", text.chars().take(100).collect::<String>()))
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// Hashes what is read through it.
pub(crate) struct HashingReader<R> {
    inner: R,
    hasher: Sha256,
}

impl<R: Read> HashingReader<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, hasher: Sha256::new() }
    }

    pub(crate) fn finish(self) -> Digest {
        Digest::from_hasher(self.hasher)
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}
