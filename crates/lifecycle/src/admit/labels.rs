//! Metadata by the rules of Kubernetes labels, which the published server applies on every runtime.

use std::collections::BTreeMap;

use protocol::error::code;

use super::Refusal;

/// Most labels of one sandbox: they are stored with it and searched.
const MAX_LABELS: usize = 128;
/// Longest name or value (Kubernetes).
const MAX_NAME: usize = 63;
/// Longest prefix of a key (Kubernetes).
const MAX_PREFIX: usize = 253;
/// Keys below this prefix belong to the platform.
const RESERVED_PREFIX: &str = "opensandbox.io/";

/// Checks labels that a client gave.
///
/// # Errors
/// A [`Refusal`] with 400 for the first that is none.
pub fn check(metadata: &BTreeMap<String, String>) -> Result<(), Refusal> {
    if metadata.len() > MAX_LABELS {
        return Err(label(
            "metadata".to_owned(),
            format!("has {} entries; at most {MAX_LABELS} are kept", metadata.len()),
        ));
    }
    metadata.iter().try_for_each(|(key, value)| check_one(key, value))
}

/// The labels after a patch: a value replaces, `None` removes, other labels stay.
///
/// # Errors
/// A [`Refusal`] with 400 for a key of the platform or a malformed entry; nothing is changed then.
pub fn metadata_patch(
    current: &BTreeMap<String, String>,
    patch: BTreeMap<String, Option<String>>,
) -> Result<BTreeMap<String, String>, Refusal> {
    let mut result = current.clone();
    for (key, value) in patch {
        if key.starts_with(RESERVED_PREFIX) {
            let field = format!("metadata.{key}");
            return Err(Refusal::new(
                400,
                code::RESERVED_METADATA_LABEL,
                field,
                format!("keys below {RESERVED_PREFIX} belong to the platform"),
            ));
        }
        match value {
            Some(value) => {
                check_one(&key, &value)?;
                result.insert(key, value);
            }
            None => {
                result.remove(&key);
            }
        }
    }
    check(&result)?;
    Ok(result)
}

fn check_one(key: &str, value: &str) -> Result<(), Refusal> {
    let field = format!("metadata.{key}");
    if key.starts_with(RESERVED_PREFIX) {
        return Err(label(field, format!("keys below {RESERVED_PREFIX} belong to the platform")));
    }
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if prefix.is_some_and(|prefix| !is_subdomain(prefix)) {
        return Err(label(field, "the part of the key before \"/\" must be a DNS name of at most 253 characters"));
    }
    if name.is_empty() || !is_label(name) {
        return Err(label(
            field,
            "a key is 1 to 63 characters of [A-Za-z0-9._-], beginning and ending with a letter or digit",
        ));
    }
    if !value.is_empty() && !is_label(value) {
        return Err(label(
            field,
            format!(
                "the value \"{}\" must be empty or at most 63 characters of [A-Za-z0-9._-], beginning and ending with a letter or digit",
                shorten(value)
            ),
        ));
    }
    Ok(())
}

fn label(field: String, problem: impl AsRef<str>) -> Refusal {
    Refusal::new(400, code::INVALID_METADATA_LABEL, field, problem)
}

/// Keeps messages short whatever was sent.
fn shorten(text: &str) -> String {
    if text.chars().count() <= MAX_NAME {
        text.to_owned()
    } else {
        text.chars().take(MAX_NAME).chain(['…']).collect()
    }
}

fn is_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= MAX_NAME && bytes.iter().all(|b| inner(*b)) && ends(bytes.first()) && ends(bytes.last())
}

fn is_subdomain(text: &str) -> bool {
    let part = |p: &str| {
        let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = p.as_bytes();
        bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
            && edge(bytes.first())
            && edge(bytes.last())
    };
    text.len() <= MAX_PREFIX && text.split('.').all(part)
}
