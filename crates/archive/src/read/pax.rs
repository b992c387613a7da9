//! Extended headers: `length key=value` records that overrule the fixed header of the next entry.

use super::sparse::{self, Piece};
use crate::Limits;
use crate::error::Error;

/// Prefix under which tars carry extended attributes.
const ATTRIBUTE_PREFIX: &[u8] = b"SCHILY.xattr.";
/// Prefix of GNU's records about holes.
const SPARSE_PREFIX: &[u8] = b"GNU.sparse.";

/// What extended headers said about the next entry.
#[derive(Debug, Default)]
pub(super) struct Extended {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mtime: Option<(i64, u32)>,
    pub(super) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) sparse: Option<SparseHeader>,
    /// Bytes of headers so far, against the limit.
    pub(super) bytes: u64,
}

/// The PAX forms of a sparse file: 0.0 and 0.1 have the map here, 1.0 has it in the data.
#[derive(Debug, Default)]
pub(super) struct SparseHeader {
    pub(super) name: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) pieces: Vec<Piece>,
    pub(super) map_is_in_data: bool,
    pending_offset: Option<u64>,
}

impl Extended {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The name; sparse files have a made-up one in `path` and theirs beside it.
    pub(super) fn take_path(&mut self) -> Option<Vec<u8>> {
        let sparse = self.sparse.as_mut().and_then(|sparse| sparse.name.take());
        sparse.or_else(|| self.path.take())
    }

    pub(super) fn read(&mut self, mut bytes: &[u8], limits: &Limits) -> Result<(), Error> {
        while !bytes.is_empty() && bytes[0] != 0 {
            let (record, rest) = split_record(bytes)?;
            bytes = rest;
            let at = record
                .iter()
                .position(|b| *b == b'=')
                .ok_or_else(|| Error::malformed("a record of an extended header has no ="))?;
            self.set(&record[..at], &record[at + 1..], limits)?;
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8], limits: &Limits) -> Result<(), Error> {
        if let Some(name) = key.strip_prefix(ATTRIBUTE_PREFIX) {
            self.attributes.retain(|(existing, _)| existing != name);
            self.attributes.push((name.to_vec(), value.to_vec()));
            return Ok(());
        }
        if let Some(key) = key.strip_prefix(SPARSE_PREFIX) {
            return self.sparse.get_or_insert_default().set(key, value, limits);
        }
        // An empty value takes back what an earlier header said.
        let present = !value.is_empty();
        match key {
            b"path" => self.path = present.then(|| value.to_vec()),
            b"linkpath" => self.link = present.then(|| value.to_vec()),
            b"size" => self.size = present.then(|| decimal(value)).transpose()?,
            b"uid" => self.uid = present.then(|| decimal(value)).transpose()?,
            b"gid" => self.gid = present.then(|| decimal(value)).transpose()?,
            b"mtime" => self.mtime = present.then(|| time(value)).transpose()?,
            _ => {}
        }
        Ok(())
    }
}

impl SparseHeader {
    fn set(&mut self, key: &[u8], value: &[u8], limits: &Limits) -> Result<(), Error> {
        match key {
            b"major" => self.map_is_in_data = decimal(value)? == 1,
            b"minor" | b"numblocks" => _ = decimal(value)?,
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = Some(decimal(value)?),
            b"offset" => self.pending_offset = Some(decimal(value)?),
            b"numbytes" => {
                let offset = self
                    .pending_offset
                    .take()
                    .ok_or_else(|| Error::malformed("a sparse map has a length without an offset"))?;
                sparse::push(&mut self.pieces, Piece { offset, len: decimal(value)? }, limits.sparse_pieces)?;
            }
            b"map" => {
                self.pieces.clear();
                let numbers: Vec<&[u8]> = value.split(|b| *b == b',').filter(|n| !n.is_empty()).collect();
                for pair in numbers.chunks(2) {
                    let [offset, len] = pair else {
                        return Err(Error::malformed("a sparse map has an odd number of numbers"));
                    };
                    let piece = Piece { offset: decimal(offset)?, len: decimal(len)? };
                    sparse::push(&mut self.pieces, piece, limits.sparse_pieces)?;
                }
            }
            _ => {
                return Err(Error::malformed("a sparse file has a form that is not known"));
            }
        }
        Ok(())
    }
}

/// Splits `17 key=value\n` off; the number counts the whole record.
fn split_record(bytes: &[u8]) -> Result<(&[u8], &[u8]), Error> {
    let wrong = || Error::malformed("a record of an extended header has a wrong length");
    let space = bytes.iter().position(|b| *b == b' ').ok_or_else(wrong)?;
    let len = usize::try_from(decimal(&bytes[..space])?).map_err(|_| wrong())?;
    if len <= space + 1 || len > bytes.len() || bytes[len - 1] != b'\n' {
        return Err(wrong());
    }
    Ok((&bytes[space + 1..len - 1], &bytes[len..]))
}

pub(super) fn decimal(text: &[u8]) -> Result<u64, Error> {
    str::from_utf8(text)
        .ok()
        .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Error::malformed("a number of an extended header cannot be read"))
}

/// Reads seconds with an optional fraction, also before 1970.
fn time(text: &[u8]) -> Result<(i64, u32), Error> {
    let (sign, text) = match text.strip_prefix(b"-") {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let mut parts = text.splitn(2, |b| *b == b'.');
    let whole = decimal(parts.next().unwrap_or_default())?;
    let fraction = parts.next().unwrap_or_default();
    let digits: Vec<u8> = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9).collect();
    let nanoseconds = u32::try_from(decimal(&digits)?).expect("nine digits fit");
    let seconds = i64::try_from(whole).map_err(|_| Error::malformed("a time is too far away"))? * sign;
    match (sign, nanoseconds) {
        (-1, 1..) => Ok((seconds - 1, 1_000_000_000 - nanoseconds)),
        _ => Ok((seconds, nanoseconds)),
    }
}
