//! Operating system and processor of an image.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What an image was built for, such as `linux/amd64` or `linux/arm64/v8`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Platform {
    /// Operating system in Go's spelling; sandboxes run `linux`.
    pub os: String,
    /// Processor in Go's spelling: `amd64`, `arm64`.
    pub architecture: String,
    /// Variant of the processor, such as `v8`; absent where there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// A text is not `os/architecture` or `os/architecture/variant`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("platform {0:?} is not of the form linux/amd64 or linux/arm64")]
pub struct InvalidPlatform(String);

impl Platform {
    /// The platform of this machine.
    pub fn current() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self::new("linux", architecture, None)
    }

    pub(crate) fn new(os: &str, architecture: &str, variant: Option<&str>) -> Self {
        let architecture = match architecture {
            "x86_64" | "x86-64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        // `arm64` and `arm64/v8` are one platform under two names; keep the shorter.
        let variant = variant.filter(|v| !(v.is_empty() || architecture == "arm64" && *v == "v8"));
        Self { os: os.to_owned(), architecture: architecture.to_owned(), variant: variant.map(str::to_owned) }
    }

    /// Whether an image for `self` satisfies someone who asked for `wanted`.
    pub(crate) fn satisfies(&self, wanted: &Platform) -> bool {
        self.os == wanted.os
            && self.architecture == wanted.architecture
            && (wanted.variant.is_none() || wanted.variant == self.variant)
    }
}

impl FromStr for Platform {
    type Err = InvalidPlatform;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let word = |part: &str| {
            !part.is_empty()
                && part.len() <= 32
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
        };
        let parts: Vec<&str> = text.split('/').collect();
        if !parts.iter().all(|part| word(part)) {
            return Err(InvalidPlatform(text.to_owned()));
        }
        match parts[..] {
            [os, architecture] => Ok(Self::new(os, architecture, None)),
            [os, architecture, variant] => Ok(Self::new(os, architecture, Some(variant))),
            _ => Err(InvalidPlatform(text.to_owned())),
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(f, "/{variant}"),
            None => Ok(()),
        }
    }
}
