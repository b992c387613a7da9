//! Maps of files with holes, in the four forms that tars have.

use super::number;
use super::pax::decimal;
use crate::Block;
use crate::error::Error;

/// A run of stored data and where it belongs in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where in the file, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// Bytes of one piece in GNU's old form: two octal numbers.
const OLD_PIECE_BYTES: usize = 24;

pub(super) fn push(pieces: &mut Vec<Piece>, piece: Piece, limit: usize) -> Result<(), Error> {
    if pieces.len() == limit {
        return Err(Error::Limit { what: "pieces in one sparse file", limit: limit as u64 });
    }
    pieces.push(piece);
    Ok(())
}

/// Reads a run of GNU's old form; tells whether another block of it follows.
pub(super) fn read_old(run: &[u8], continued: u8, pieces: &mut Vec<Piece>, limit: usize) -> Result<bool, Error> {
    for field in run.chunks_exact(OLD_PIECE_BYTES) {
        if field[0] == 0 {
            break;
        }
        let piece = Piece { offset: number(&field[..12])?, len: number(&field[12..])? };
        push(pieces, piece, limit)?;
    }
    Ok(continued != 0)
}

/// Verifies that pieces ascend, do not overlap, lie within the file and use up the stored data.
pub(super) fn check(pieces: &[Piece], size: u64, stored: u64) -> Result<(), Error> {
    let wrong = || Error::malformed("a sparse map does not fit its file");
    let mut end = 0;
    let mut sum: u64 = 0;
    for piece in pieces {
        if piece.offset < end {
            return Err(wrong());
        }
        end = piece.offset.checked_add(piece.len).ok_or_else(wrong)?;
        sum = sum.checked_add(piece.len).ok_or_else(wrong)?;
    }
    if end <= size && sum == stored { Ok(()) } else { Err(wrong()) }
}

/// Longest decimal number of a map, in digits: 2^64 has 20.
const MAX_DIGITS: usize = 20;

/// Reads the decimal lines of the PAX 1.0 form, block by block.
pub(super) struct Lines {
    line: Vec<u8>,
    left: Option<u64>,
    offset: Option<u64>,
    pieces: Vec<Piece>,
    limit: usize,
}

impl Lines {
    pub(super) fn new(limit: usize) -> Self {
        Self { line: Vec::new(), left: None, offset: None, pieces: Vec::new(), limit }
    }

    /// Takes a block; tells whether the map is complete.
    pub(super) fn read(&mut self, block: &Block) -> Result<bool, Error> {
        for byte in block {
            match byte {
                b'\n' => {
                    let value = decimal(&std::mem::take(&mut self.line))?;
                    self.number(value)?;
                    if self.left == Some(0) {
                        return Ok(true);
                    }
                }
                _ if self.line.len() == MAX_DIGITS => {
                    return Err(Error::malformed("a sparse map cannot be read"));
                }
                byte => self.line.push(*byte),
            }
        }
        Ok(false)
    }

    fn number(&mut self, value: u64) -> Result<(), Error> {
        match (self.left, self.offset.take()) {
            (None, _) => self.left = Some(value),
            (Some(_), None) => self.offset = Some(value),
            (Some(left), Some(offset)) => {
                push(&mut self.pieces, Piece { offset, len: value }, self.limit)?;
                self.left = Some(left - 1);
            }
        }
        Ok(())
    }

    pub(super) fn into_pieces(self) -> Vec<Piece> {
        self.pieces
    }
}

const _: () = assert!(size_of::<Piece>() == 16, "the limit of sparse pieces counts 16 bytes each");
