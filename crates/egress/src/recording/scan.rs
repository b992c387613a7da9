//! Reads a recording from its beginning to where it is whole. What is in it may be written by anybody: hostile input.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;

use super::frame::{self, HEAD_BYTES, Head, Kind, Look, TAIL};
use super::{
    Digest, EXCHANGE_BYTES, Exchange, HEADER, Hash, MAX_EXCHANGES, MAX_NOTES, MAX_PIECES, NOTE_BYTES, Note,
    PIECE_BYTES, read_at,
};
use crate::name::Name;

/// Why a file is no recording that can be used.
#[derive(Debug, thiserror::Error)]
pub enum BadRecording {
    /// It does not begin as one.
    #[error("it is no recording of this version: it does not begin with \"osb-recording 1\"")]
    Header,
    /// A record is not what it should be.
    #[error("the record at byte {at} {what}")]
    Record {
        /// Where it begins.
        at: u64,
        /// What is wrong with it.
        what: String,
    },
    /// It holds more than is taken.
    #[error("it holds more than {most} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many are taken.
        most: usize,
    },
    /// It ends within a record.
    #[error("it was cut off: the record at byte {at} lacks its end")]
    Torn {
        /// Where that record begins.
        at: u64,
    },
    /// The system does not read it.
    #[error("read it")]
    System(#[from] io::Error),
}

/// How much of a recording is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// All of it: every digest is compared.
    Everything,
    /// All but the bytes of bodies.
    Heads,
}

/// What is in a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Exchanges that are whole.
    pub exchanges: u64,
    /// Exchanges that broke off.
    pub broken: u64,
    /// Length of the file as far as it is whole.
    pub bytes: u64,
    /// Why nothing more was recorded, if it is full.
    pub full: Option<String>,
    /// How often something was not recorded: why, host, port.
    pub not_recorded: BTreeMap<(String, String, u16), u64>,
    /// Whether more was not recorded than that.
    pub has_more: bool,
    /// Whether its last record lacks bytes, and is left out.
    pub is_torn: bool,
}

/// Where the pieces of a recording lie.
pub(super) type Pieces = HashMap<Digest, Place>;

/// Where something lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub at: u64,
    pub length: u32,
}

/// Reads a recording and says what is in it. One whose last record is torn is good up to there.
///
/// # Errors
/// Where it is no recording.
pub fn survey(file: &File, depth: Depth) -> Result<Summary, BadRecording> {
    walk(file, depth, |_, _, _| Ok(())).map(|(summary, _)| summary)
}

/// The same, telling each whole exchange with the SHA-256 of its JSON and where that lies.
pub(super) fn walk(
    file: &File,
    depth: Depth,
    mut each: impl FnMut(Digest, &Exchange, Place) -> Result<(), BadRecording>,
) -> Result<(Summary, Pieces), BadRecording> {
    let end = file.metadata()?.len();
    let mut summary = Summary::default();
    let mut pieces = Pieces::new();
    let mut notes = 0;
    if end < HEADER.len() as u64 {
        let mut beginning = vec![0; usize::try_from(end).unwrap_or_default()];
        read_at(file, &mut beginning, 0)?;
        if !HEADER.starts_with(&beginning) {
            return Err(BadRecording::Header);
        }
        summary.is_torn = end > 0;
        return Ok((summary, pieces));
    }
    let mut header = [0; HEADER.len()];
    read_at(file, &mut header, 0)?;
    if header != *HEADER {
        return Err(BadRecording::Header);
    }
    let mut at = HEADER.len() as u64;
    while at < end {
        let bad = |what: &str| BadRecording::Record { at, what: what.to_owned() };
        let room = usize::try_from(end - at).unwrap_or(usize::MAX);
        let mut bytes = [0; HEAD_BYTES];
        let bytes = &mut bytes[..room.min(HEAD_BYTES)];
        read_at(file, bytes, at)?;
        let (head, head_bytes) = match frame::look(bytes) {
            Look::Whole(head, length) => (head, length as u64),
            Look::Torn => {
                summary.is_torn = true;
                break;
            }
            Look::Bad => return Err(bad("does not begin as one does")),
        };
        if head.length > longest(head.kind) {
            return Err(bad("is longer than any of its kind"));
        }
        let payload = at + head_bytes;
        let next = payload + head.length + TAIL.len() as u64;
        if next > end {
            summary.is_torn = true;
            break;
        }
        let mut tail = [0; TAIL.len()];
        read_at(file, &mut tail, next - TAIL.len() as u64)?;
        if tail != *TAIL {
            return Err(bad("is not as long as it says"));
        }
        let place = Place { at: payload, length: u32::try_from(head.length).map_err(|_| bad("is too long"))? };
        match head.kind {
            Kind::Piece => {
                if depth == Depth::Everything {
                    read(file, &head, place, at)?;
                }
                if pieces.len() >= MAX_PIECES {
                    return Err(BadRecording::TooMany { what: "pieces of bodies", most: MAX_PIECES });
                }
                pieces.insert(head.digest, place);
            }
            Kind::Exchange => {
                let exchange: Exchange = parse(&read(file, &head, place, at)?, at)?;
                check(&exchange, &pieces).map_err(|what| BadRecording::Record { at, what })?;
                if summary.exchanges + summary.broken >= MAX_EXCHANGES as u64 {
                    return Err(BadRecording::TooMany { what: "exchanges", most: MAX_EXCHANGES });
                }
                if exchange.broken.is_none() {
                    each(head.digest, &exchange, place)?;
                    summary.exchanges += 1;
                } else {
                    summary.broken += 1;
                }
            }
            Kind::Note => {
                notes += 1;
                // Two more: that there were more, and that it is full.
                if notes > MAX_NOTES + 2 {
                    return Err(BadRecording::TooMany { what: "notes", most: MAX_NOTES });
                }
                match parse(&read(file, &head, place, at)?, at)? {
                    Note::Full { why } => summary.full = Some(why),
                    Note::More => summary.has_more = true,
                    Note::NotRecorded { why, host, port } => {
                        *summary.not_recorded.entry((why, host, port)).or_default() += 1;
                    }
                }
            }
        }
        at = next;
    }
    summary.bytes = at;
    Ok((summary, pieces))
}

/// All bytes of a record, if they are those that its head means.
pub(super) fn read(file: &File, head: &Head, place: Place, at: u64) -> Result<Vec<u8>, BadRecording> {
    let mut bytes = vec![0; place.length as usize];
    read_at(file, &mut bytes, place.at)?;
    if Digest::of(&bytes) != head.digest {
        let what = format!("is not what it was: its SHA-256 is not {}", head.digest);
        return Err(BadRecording::Record { at, what });
    }
    Ok(bytes)
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8], at: u64) -> Result<T, BadRecording> {
    serde_json::from_slice(bytes)
        .map_err(|error| BadRecording::Record { at, what: format!("is no record of this version: {error}") })
}

fn longest(kind: Kind) -> u64 {
    match kind {
        Kind::Piece => PIECE_BYTES as u64,
        Kind::Exchange => EXCHANGE_BYTES,
        Kind::Note => NOTE_BYTES,
    }
}

/// What an exchange says of itself must hold together, so that nothing is found missing while it is served.
fn check(exchange: &Exchange, pieces: &Pieces) -> Result<(), String> {
    let answer = &exchange.answer;
    let mut bytes = 0;
    for digest in &answer.pieces {
        let place = pieces.get(digest).ok_or_else(|| format!("names a piece that is not before it: {digest}"))?;
        bytes += u64::from(place.length);
    }
    if bytes != answer.bytes {
        return Err(format!("says that the body has {} bytes, and its pieces have {bytes}", answer.bytes));
    }
    let digest = match &answer.pieces[..] {
        [] => Some(Hash::default().finish()),
        [one] => Some(*one),
        // Compared while it is served: hostile files may name few pieces many times.
        _ => None,
    };
    if digest.is_some_and(|digest| digest != answer.sha256) {
        return Err("says another SHA-256 of the body than its piece has".to_owned());
    }
    Name::from_ascii(&exchange.request.host).map_err(|error| format!("is for a host that {error}"))?;
    if !(100..1000).contains(&answer.status) || answer.headers.to_map().is_none() || answer.trailers.to_map().is_none()
    {
        return Err("has an answer that cannot be sent".to_owned());
    }
    Ok(())
}
