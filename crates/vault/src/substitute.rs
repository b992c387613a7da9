//! Placeholders and what takes their place, in the several ways of writing both.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use crate::encode::{self, Case, PLAIN_JSON};
use crate::path;

/// How a text is written where a placeholder is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    Path,
    Query,
    Raw,
    Json,
    Form,
}

/// Replaces placeholders: the first that begins, and of several that begin there the longest; what was put in is not looked
/// at again. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Replacer(Arc<Table>);

struct Table {
    finder: AhoCorasick,
    patterns: Vec<Vec<u8>>,
    values: Vec<encode::Bytes>,
    longest: usize,
}

impl Replacer {
    /// `None` where nothing is to be replaced.
    pub(crate) fn new(of: &[(&str, &str)], writing: Writing) -> Option<Self> {
        let mut patterns: Vec<Vec<u8>> = Vec::new();
        let mut values = Vec::new();
        // Placeholders as they are, before what could be another one written otherwise.
        for variant in 0.. {
            let mut is_done = true;
            for (placeholder, value) in of {
                let Some(pattern) = written(placeholder, writing).into_iter().nth(variant) else { continue };
                is_done = false;
                if !patterns.contains(&pattern) {
                    patterns.push(pattern);
                    values.push(write(value, writing));
                }
            }
            if is_done {
                break;
            }
        }
        if patterns.is_empty() {
            return None;
        }
        let mut builder = AhoCorasick::builder();
        // Many bindings have one each, and it is small.
        builder.match_kind(MatchKind::LeftmostLongest).kind(Some(AhoCorasickKind::ContiguousNFA));
        let finder = builder.build(&patterns).expect("placeholders are few and short");
        let longest = patterns.iter().map(Vec::len).max().unwrap_or_default();
        Some(Self(Arc::new(Table { finder, patterns, values, longest })))
    }

    pub(crate) fn replace(&self, text: &[u8]) -> encode::Bytes {
        self.replace_if_found(text).unwrap_or_else(|| encode::Bytes::new(text.to_vec()))
    }

    /// `None` where there is no placeholder.
    pub(crate) fn replace_if_found(&self, text: &[u8]) -> Option<encode::Bytes> {
        let found: Vec<Found> = std::iter::successors(self.find(text, 0), |last| self.find(text, last.end)).collect();
        if found.is_empty() {
            return None;
        }
        // The exact room: a buffer that grows leaves copies behind.
        let growth: usize = found.iter().map(|found| found.value.len()).sum();
        let mut written = encode::Bytes::new(Vec::with_capacity(text.len() + growth));
        let mut at = 0;
        for found in found {
            written.extend_from_slice(&text[at..found.start]);
            written.extend_from_slice(found.value);
            at = found.end;
        }
        written.extend_from_slice(&text[at..]);
        Some(written)
    }

    /// The first placeholder at or behind a place.
    pub(crate) fn find(&self, text: &[u8], from: usize) -> Option<Found<'_>> {
        let found = self.0.finder.find(aho_corasick::Input::new(text).range(from..))?;
        Some(Found { start: found.start(), end: found.end(), value: &self.0.values[found.pattern().as_usize()] })
    }

    /// The first place at or behind `from` from which the rest of the text may be the beginning of a placeholder.
    pub(crate) fn open_end(&self, text: &[u8], from: usize) -> usize {
        let first = from.max((text.len() + 1).saturating_sub(self.0.longest));
        let is_open =
            |rest: &[u8]| self.0.patterns.iter().any(|pattern| pattern.len() > rest.len() && pattern.starts_with(rest));
        (first..text.len()).find(|at| is_open(&text[*at..])).unwrap_or(text.len())
    }
}

/// A placeholder, and what takes its place.
pub(crate) struct Found<'a> {
    pub start: usize,
    pub end: usize,
    pub value: &'a [u8],
}

/// The ways in which a client may have written a placeholder, the plain one first.
fn written(placeholder: &str, writing: Writing) -> Vec<Vec<u8>> {
    let text = placeholder.as_bytes();
    let percent = |case| encode::percent(text, encode::is_unreserved, case).to_vec();
    let form = |case| encode::form(text, encode::is_kept_in_forms, case).to_vec();
    match writing {
        Writing::Raw => vec![text.to_vec()],
        // Compared with a path in its one form, in which no digit of an escape is small.
        Writing::Path => vec![path::escaped(placeholder).into_bytes(), percent(Case::Upper)],
        Writing::Query | Writing::Form => {
            let [upper, lower] = Case::BOTH;
            vec![text.to_vec(), percent(upper), percent(lower), form(upper), form(lower)]
        }
        Writing::Json => {
            let slashes = encode::Dialect { escapes_slash: true, ..PLAIN_JSON };
            vec![
                text.to_vec(),
                encode::json(placeholder, PLAIN_JSON).to_vec(),
                encode::json(placeholder, slashes).to_vec(),
            ]
        }
    }
}

fn write(value: &str, writing: Writing) -> encode::Bytes {
    match writing {
        Writing::Path | Writing::Query => encode::percent(value.as_bytes(), encode::is_unreserved, Case::Upper),
        Writing::Raw => encode::Bytes::new(value.as_bytes().to_vec()),
        Writing::Json => encode::json(value, PLAIN_JSON),
        Writing::Form => encode::form(value.as_bytes(), encode::is_kept_in_forms, Case::Upper),
    }
}

#[cfg(test)]
mod tests;
