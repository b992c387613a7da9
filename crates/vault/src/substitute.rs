//! Placeholders and what takes their place, in the several ways of writing both.

use std::sync::{Arc, OnceLock};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use secrecy::{ExposeSecret, SecretString};

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

/// Room for what is put into one part of a request. A sandbox may write a short placeholder a million times where its value
/// is long: what there is no room for is put in as nothing.
#[derive(Clone, Copy)]
pub(crate) struct Room(usize);

impl Room {
    /// For a path, a query or a header: more than servers take.
    pub(crate) const OF_A_LINE: Self = Self(64 * 1024);
    /// For a body: more than anybody sends of secrets.
    pub(crate) const OF_A_BODY: Self = Self(4 * 1024 * 1024);

    /// The value, or nothing where there is no room for it.
    pub(crate) fn take<'a>(&mut self, value: &'a [u8]) -> &'a [u8] {
        match self.0.checked_sub(value.len()) {
            Some(left) => {
                self.0 = left;
                value
            }
            None => &[],
        }
    }
}

/// Replaces placeholders: the first that begins, and of several that begin there the longest; what was put in is not looked
/// at again. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Replacer(Arc<Lazy>);

struct Lazy {
    of: Vec<(String, Arc<SecretString>)>,
    writing: Writing,
    /// Made when the first request comes: most bindings see few kinds of bodies.
    table: OnceLock<Table>,
}

struct Table {
    finder: AhoCorasick,
    patterns: Vec<Vec<u8>>,
    values: Vec<encode::Bytes>,
    longest: usize,
}

impl Table {
    fn new(of: &[(String, Arc<SecretString>)], writing: Writing) -> Self {
        let mut patterns: Vec<Vec<u8>> = Vec::new();
        let mut values = Vec::new();
        let written: Vec<_> = of.iter().map(|(placeholder, value)| (written(placeholder, writing), value)).collect();
        let variants = written.iter().map(|(variants, _)| variants.len()).max().unwrap_or_default();
        // Placeholders as they are, before what could be another one written otherwise.
        for variant in 0..variants {
            for (variants, value) in &written {
                let Some(pattern) = variants.get(variant).filter(|pattern| !patterns.contains(pattern)) else {
                    continue;
                };
                patterns.push(pattern.clone());
                values.push(write(value.expose_secret(), writing));
            }
        }
        let mut builder = AhoCorasick::builder();
        // Many bindings have one each, and it is small.
        builder.match_kind(MatchKind::LeftmostLongest).kind(Some(AhoCorasickKind::ContiguousNFA));
        let finder = builder.build(&patterns).expect("placeholders are few and short");
        let longest = patterns.iter().map(Vec::len).max().unwrap_or_default();
        Self { finder, patterns, values, longest }
    }
}

impl Replacer {
    /// `None` where nothing is to be replaced.
    pub(crate) fn new(of: Vec<(String, Arc<SecretString>)>, writing: Writing) -> Option<Self> {
        let is_something = !of.is_empty();
        is_something.then(|| Self(Arc::new(Lazy { of, writing, table: OnceLock::new() })))
    }

    fn table(&self) -> &Table {
        self.0.table.get_or_init(|| Table::new(&self.0.of, self.0.writing))
    }

    /// A text with values in place; `None` where there is no placeholder.
    pub(crate) fn replace(&self, text: &[u8], mut room: Room) -> Option<encode::Bytes> {
        // The exact length: a buffer that grows leaves copies behind.
        let mut length = text.len();
        let mut left = room;
        let mut at = 0;
        while let Some(found) = self.find(text, at) {
            length = length - (found.end - found.start) + left.take(found.value).len();
            at = found.end;
        }
        if at == 0 {
            return None;
        }
        let mut written = encode::Bytes::new(Vec::with_capacity(length));
        at = 0;
        while let Some(found) = self.find(text, at) {
            written.extend_from_slice(&text[at..found.start]);
            written.extend_from_slice(room.take(found.value));
            at = found.end;
        }
        written.extend_from_slice(&text[at..]);
        Some(written)
    }

    /// The first placeholder at or behind a place.
    pub(crate) fn find(&self, text: &[u8], from: usize) -> Option<Found<'_>> {
        let table = self.table();
        let found = table.finder.find(aho_corasick::Input::new(text).range(from..))?;
        Some(Found { start: found.start(), end: found.end(), value: &table.values[found.pattern().as_usize()] })
    }

    /// The first place at or behind `from` from which the rest of the text may be the beginning of a placeholder.
    pub(crate) fn open_end(&self, text: &[u8], from: usize) -> usize {
        let table = self.table();
        let first = from.max((text.len() + 1).saturating_sub(table.longest));
        let is_open =
            |rest: &[u8]| table.patterns.iter().any(|pattern| pattern.len() > rest.len() && pattern.starts_with(rest));
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
