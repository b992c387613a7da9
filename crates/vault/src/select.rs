//! Which binding a request is given, if any.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::binding::Binding;
use crate::host::{self, HostPattern};
use crate::injection::Injection;
use crate::path::{Path, readings};
use crate::render::Rendered;

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// Within TLS.
    Https,
    /// In the clear.
    Http,
}

impl Scheme {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "https" => Some(Self::Https),
            "http" => Some(Self::Http),
            _ => None,
        }
    }

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
        }
    }

    /// The port that belongs to it.
    pub fn port(self) -> u16 {
        match self {
            Self::Https => 443,
            Self::Http => 80,
        }
    }
}

/// What a binding is looked for by. The caller vouches that the server at the other end is `host`.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// How it is sent.
    pub scheme: Scheme,
    /// To whom, without a port.
    pub host: &'a str,
    /// The port that the sandbox connected to.
    pub port: u16,
    /// The method, upper case; that of a WebSocket's handshake over HTTP/2 is `GET`.
    pub method: &'a str,
    /// What it asks for, as the sandbox wrote it.
    pub path_and_query: &'a str,
}

/// What is done to a request.
#[derive(Clone, Debug)]
pub enum Selection {
    /// Nothing: no binding is about it.
    None,
    /// What the one binding that is about it says.
    One(Arc<Injection>),
    /// It is refused: several are.
    Ambiguous,
    /// It is refused: its path is no path, or servers may read it as one that another binding or none is about.
    BadPath,
}

/// Bindings by the hosts that they are about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    exact: HashMap<String, Vec<Arc<Rendered>>>,
    /// By what is behind `*.`.
    below: HashMap<String, Vec<Arc<Rendered>>>,
}

impl Index {
    pub(crate) fn new<'a>(bindings: impl IntoIterator<Item = &'a Arc<Rendered>>) -> Self {
        let mut index = Self::default();
        for rendered in bindings {
            for host in &rendered.binding.hosts {
                let (of, name) = match host {
                    HostPattern::Exact(name) => (&mut index.exact, name),
                    HostPattern::Below(suffix) => (&mut index.below, suffix),
                };
                of.entry(name.clone()).or_default().push(rendered.clone());
            }
        }
        index
    }

    /// The bindings that name a host, and those that have a wildcard for it, each once.
    fn of(&self, host: &str) -> [Vec<&Arc<Rendered>>; 2] {
        let exact = self.exact.get(host).into_iter().flatten().collect();
        let mut below: Vec<&Arc<Rendered>> = Vec::new();
        for rendered in host::above(host).filter_map(|suffix| self.below.get(suffix)).flatten() {
            if !below.iter().any(|other| Arc::ptr_eq(other, rendered)) {
                below.push(rendered);
            }
        }
        [exact, below]
    }

    pub(crate) fn is_bound(&self, host: &str, is_about: impl Fn(&Binding) -> bool) -> bool {
        let [exact, below] = self.of(&host::canonical(host));
        exact.iter().chain(&below).any(|rendered| is_about(&rendered.binding))
    }

    pub(crate) fn select(&self, facts: &Facts<'_>) -> Selection {
        let host = host::canonical(facts.host);
        let mut tiers = self.of(&host);
        for tier in &mut tiers {
            tier.retain(|rendered| is_sent_to(&rendered.binding, facts));
        }
        if tiers.iter().all(Vec::is_empty) || facts.path_and_query == "*" {
            return Selection::None;
        }
        let (path, query) = match facts.path_and_query.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (facts.path_and_query, None),
        };
        let path = if path.is_empty() { "/" } else { path };
        if !path.starts_with('/') {
            return Selection::BadPath;
        }
        let path = Path::parse(path);
        let found = match choose(&tiers, facts.method, |binding| binding.paths.iter().any(|own| own.matches(&path))) {
            Chosen::None => return Selection::None,
            Chosen::Several => return Selection::Ambiguous,
            Chosen::One(found) => found,
        };
        if !path.is_plain() && !is_read_alike(&tiers, facts.method, &path, found) {
            return Selection::BadPath;
        }
        match Injection::new(found.clone(), &path.text, query) {
            Some(injection) => Selection::One(Arc::new(injection)),
            None => Selection::BadPath,
        }
    }
}

fn is_sent_to(binding: &Binding, facts: &Facts<'_>) -> bool {
    binding.endpoints().any(|endpoint| endpoint == (facts.scheme, facts.port))
        && (binding.names_method(facts.method) || (facts.method == "HEAD" && binding.names_method("GET")))
}

/// Whether every reading of the path leads to the same binding.
fn is_read_alike(tiers: &[Vec<&Arc<Rendered>>; 2], method: &str, path: &Path, found: &Arc<Rendered>) -> bool {
    let mut bindings = tiers.iter().flatten();
    if bindings.all(|rendered| rendered.binding.paths.iter().any(|path| path.is_all())) {
        return true;
    }
    let Some(readings) = readings(path).filter(|_| !path.is_odd) else { return false };
    readings.iter().all(|reading| {
        let is_about = |binding: &Binding| binding.paths.iter().any(|own| own.matches_reading(reading));
        matches!(choose(tiers, method, is_about), Chosen::One(also) if Arc::ptr_eq(also, found))
    })
}

enum Chosen<'a> {
    None,
    One(&'a Arc<Rendered>),
    Several,
}

/// A host's name beats a wildcard, and within each who names `HEAD` beats who names `GET`, which `HEAD` comes with.
fn choose<'a>(tiers: &[Vec<&'a Arc<Rendered>>; 2], method: &str, is_about: impl Fn(&Binding) -> bool) -> Chosen<'a> {
    for tier in tiers {
        for method in [method, "GET"] {
            let mut found = tier.iter().filter(|of| of.binding.names_method(method) && is_about(&of.binding));
            match (found.next(), found.next()) {
                (None, _) => {}
                (Some(one), None) => return Chosen::One(one),
                (Some(_), Some(_)) => return Chosen::Several,
            }
            if method != "HEAD" {
                break;
            }
        }
    }
    Chosen::None
}

#[cfg(test)]
mod tests;
