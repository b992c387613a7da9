//! Finds in a recording what a request is answered with.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::{Mutex, PoisonError};

use super::frame::{Head, Kind};
use super::scan::{Pieces, Place, parse, read, walk};
use super::{Asked, BadRecording, Depth, Digest, Exchange, Hash};
use crate::name::Name;

/// What a request is found by: method, scheme, host, port, path with query, and the SHA-256 of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(Digest);

impl Key {
    /// Of a request.
    pub fn of(request: &Asked) -> Self {
        let Asked { method, scheme, host, port, target, sha256, .. } = request;
        let mut hash = Hash::default();
        for text in [method, scheme, host, &port.to_string(), target] {
            hash.push(&(text.len() as u64).to_be_bytes());
            hash.push(text.as_bytes());
        }
        hash.push(&sha256.0);
        Self(hash.finish())
    }
}

/// A recording that is served. It holds where things are, not what they are.
#[derive(Debug)]
pub struct Book {
    file: File,
    pieces: Pieces,
    hosts: HashMap<Name, HashSet<u16>>,
    /// Equal requests, in the order in which they were recorded.
    exchanges: HashMap<Key, Vec<(Digest, Place)>>,
    /// How often each was asked for.
    asked: Mutex<HashMap<Key, usize>>,
}

impl Book {
    /// Of a recording, open for reading. A torn last record is left out, and so is what broke off.
    ///
    /// # Errors
    /// When it is no recording.
    pub fn open(file: File) -> Result<Self, BadRecording> {
        let mut hosts: HashMap<Name, HashSet<u16>> = HashMap::new();
        let mut exchanges: HashMap<Key, Vec<(Digest, Place)>> = HashMap::new();
        let (_, pieces) = walk(&file, Depth::Heads, |digest, exchange, place| {
            let request = &exchange.request;
            let name = Name::from_ascii(&request.host)
                .map_err(|error| BadRecording::Record { at: place.at, what: format!("is for a host that {error}") })?;
            hosts.entry(name).or_default().insert(request.port);
            exchanges.entry(Key::of(request)).or_default().push((digest, place));
            Ok(())
        })?;
        Ok(Self { file, pieces, hosts, exchanges, asked: Mutex::default() })
    }

    /// Whether anything of a host was recorded.
    pub fn has_host(&self, name: &Name) -> bool {
        self.hosts.contains_key(name)
    }

    /// Whether anything of a host at a port was recorded.
    pub fn has_port(&self, name: &Name, port: u16) -> bool {
        self.hosts.get(name).is_some_and(|ports| ports.contains(&port))
    }

    /// The next exchange of this request: equal requests are answered as they were one after the other, and then as the last
    /// one was.
    ///
    /// # Errors
    /// When the file is not what it was.
    pub fn next(&self, key: Key) -> Result<Option<Exchange>, BadRecording> {
        let Some(recorded) = self.exchanges.get(&key) else { return Ok(None) };
        let turn = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            let count = asked.entry(key).or_default();
            let turn = (*count).min(recorded.len().saturating_sub(1));
            *count = count.saturating_add(1);
            turn
        };
        let Some((digest, place)) = recorded.get(turn).copied() else { return Ok(None) };
        let head = Head { kind: Kind::Exchange, digest, length: place.length.into() };
        parse(&read(&self.file, &head, place, place.at)?, place.at).map(Some)
    }

    /// A piece of a body.
    ///
    /// # Errors
    /// When the file is not what it was.
    pub fn piece(&self, digest: Digest) -> Result<Vec<u8>, BadRecording> {
        let missing = || BadRecording::Record { at: 0, what: format!("names a piece that is not there: {digest}") };
        let place = self.pieces.get(&digest).copied().ok_or_else(missing)?;
        let head = Head { kind: Kind::Piece, digest, length: place.length.into() };
        read(&self.file, &head, place, place.at)
    }
}
