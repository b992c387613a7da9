//! What is written, handed on in pieces: for packing into something that takes whole buffers.

use std::io::{self, Write};

/// Bytes of a piece: large enough that handing it on costs little beside filling it.
pub const PIECE_BYTES: usize = 256 * 1024;

/// Collects what is written and hands it on in pieces of about [`PIECE_BYTES`]; a flush hands on the rest.
pub struct Pieces<F> {
    hand_on: F,
    piece: Vec<u8>,
}

impl<F: FnMut(Vec<u8>) -> io::Result<()>> Pieces<F> {
    /// `hand_on` may block; its error is that of the write.
    pub fn new(hand_on: F) -> Self {
        Self { hand_on, piece: Vec::with_capacity(PIECE_BYTES) }
    }
}

impl<F: FnMut(Vec<u8>) -> io::Result<()>> Write for Pieces<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        (self.hand_on)(std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES)))
    }
}
