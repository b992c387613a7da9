//! Names of images as people type them, and the one full form that each has.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::Error;
use crate::digest::Digest;

/// The registry meant when a name does not say one.
const DEFAULT_REGISTRY: &str = "docker.io";
/// The tag meant when a name has neither tag nor digest.
const DEFAULT_TAG: &str = "latest";
/// Longest repository name registries accept, in bytes.
const MAX_REPOSITORY_BYTES: usize = 255;
/// Longest tag registries accept, in bytes.
const MAX_TAG_BYTES: usize = 128;
/// Longest text that is looked at, in bytes: registry, repository, tag and digest with room.
const MAX_BYTES: usize = 1024;
/// The name of the machine's own file system; never an image of this store.
const RESERVED: &str = "host";

/// The full name of an image in a registry: `registry/repository:tag@digest`.
///
/// `alpine`, `docker.io/alpine` and `docker.io/library/alpine:latest` are the same reference.
/// A digest pins the content; a tag beside it is only remembered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// Host and optional port of the registry, as written in the name.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Path of the repository in its registry.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// What the registry is asked for: the digest where there is one, else the tag.
    pub(crate) fn version(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => DEFAULT_TAG.to_owned(),
        }
    }

    pub(crate) fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }
}

/// Whether `host`, with or without a port, names this machine without a look-up.
pub(crate) fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).map_err(|reason| Error::Reference { reference: text.chars().take(MAX_TAG_BYTES).collect(), reason })
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.len() > MAX_BYTES {
        return Err("it is longer than 1024 bytes");
    }
    if text == RESERVED {
        return Err("the name host is kept for the machine's own file system");
    }
    let (name, digest) = match text.split_once('@') {
        Some((name, digest)) => (
            name,
            Some(
                digest
                    .parse::<Digest>()
                    .map_err(|_| "the part after @ must be sha256: and 64 lower-case hexadecimal digits")?,
            ),
        ),
        None => (text, None),
    };
    let (registry, rest) = match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
        _ => (DEFAULT_REGISTRY, name),
    };
    let registry = match registry {
        "index.docker.io" | "registry-1.docker.io" => DEFAULT_REGISTRY,
        other => other,
    };
    if !is_registry(registry) {
        return Err("the registry must be a host name or address with an optional port");
    }
    let (repository, tag) = match rest.rsplit_once(':') {
        Some((repository, tag)) => (repository, Some(tag)),
        None => (rest, None),
    };
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err("a tag has letters, digits, _ . - and at most 128 of them");
    }
    if !is_repository(repository) {
        return Err("a repository has lower-case letters and digits, joined by single . _ - or /");
    }
    let repository = match repository.contains('/') {
        false if registry == DEFAULT_REGISTRY => format!("library/{repository}"),
        _ => repository.to_owned(),
    };
    let tag = match (tag, &digest) {
        (Some(tag), _) => Some(tag.to_owned()),
        (None, None) => Some(DEFAULT_TAG.to_owned()),
        (None, Some(_)) => None,
    };
    Ok(Reference { registry: registry.to_owned(), repository, tag, digest })
}

fn is_registry(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((v6, "")) => return v6.parse::<std::net::Ipv6Addr>().is_ok(),
            Some((v6, port)) if v6.parse::<std::net::Ipv6Addr>().is_ok() => ("v6", port.strip_prefix(':').or(Some(""))),
            _ => return false,
        },
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.len() <= 253
        && host.split('.').all(label)
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0))
}

fn is_tag(text: &str) -> bool {
    text.len() <= MAX_TAG_BYTES
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
        && text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn is_repository(text: &str) -> bool {
    text.len() <= MAX_REPOSITORY_BYTES && text.split('/').all(is_component)
}

/// Lower-case runs of letters and digits, joined by `.`, `_`, `__` or any number of `-`.
fn is_component(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    alphanumeric(*first)
        && alphanumeric(*last)
        && text
            .split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            .all(|separator| matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-'))
}
