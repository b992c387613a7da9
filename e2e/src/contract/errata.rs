//! The list of places where we differ from the published contract on purpose.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::check::Violation;

/// `specs/errata.toml`, read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Errata {
    #[serde(default, rename = "erratum")]
    entries: Vec<Erratum>,
}

/// One accepted difference.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Erratum {
    /// `execd DELETE /command`; a `*` stands for anything within its word.
    operation: String,
    /// The kind of violation it accepts.
    kind: String,
    /// A part of the violation's detail; nothing means any.
    #[serde(default)]
    detail: String,
    /// What ours does.
    ours: String,
    /// Why that is right.
    why: String,
}

impl Errata {
    /// Reads the list.
    ///
    /// # Errors
    /// The file is missing, malformed, or an entry lacks its reason.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("parse {}", path.display()))
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let errata: Self = toml::from_str(text)?;
        for entry in &errata.entries {
            anyhow::ensure!(
                !entry.ours.is_empty() && !entry.why.is_empty(),
                "{} {}: `ours` and `why` must say something",
                entry.operation,
                entry.kind
            );
        }
        Ok(errata)
    }

    /// The 1-based number of the entry that accepts `violation` of `operation`
    /// (`api METHOD template`).
    #[must_use]
    pub fn accepts(&self, operation: &str, violation: &Violation) -> Option<usize> {
        let found = self.entries.iter().position(|entry| {
            fits(&entry.operation, operation)
                && entry.kind == violation.kind
                && violation.detail.contains(&entry.detail)
        })?;
        Some(found + 1)
    }
}

/// Word by word; a `*` fits anything within its word.
fn fits(pattern: &str, operation: &str) -> bool {
    let (mut wanted, mut words) = (pattern.split(' '), operation.split(' '));
    loop {
        match (wanted.next(), words.next()) {
            (None, None) => return true,
            (Some(pattern), Some(word)) => {
                let same = match pattern.split_once('*') {
                    Some((head, tail)) if !tail.contains('*') => {
                        word.len() >= head.len() + tail.len() && word.starts_with(head) && word.ends_with(tail)
                    }
                    _ => word == pattern,
                };
                if !same {
                    return false;
                }
            }
            _ => return false,
        }
    }
}
