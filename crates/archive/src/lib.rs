//! Directory trees as tar streams: reading, writing, packing and extracting, all in constant memory.
//!
//! Archives come from strangers. What an entry's name may be is decided in [`path`], and [`extract`] reaches
//! every file through a directory descriptor without following a link, so that whatever an archive says,
//! nothing outside the directory is touched. Compression, layers of images and who may call are not its
//! business.

mod beneath;
mod error;
mod extract;
mod links;
mod pack;
pub mod path;
mod pieces;
mod read;
mod write;

pub use beneath::open_directory;
pub use error::{Error, shown};
pub use extract::{Extraction, Made, extract};
pub use links::{Links, leads_inside};
pub use pack::{Packing, pack, survey};
pub use pieces::{PIECE_BYTES, Pieces};
pub use read::{Archive, Entry, Kind, Piece};
pub use write::{Head, Writer};

/// Bytes of a header, and the unit to which data is padded.
pub const BLOCK_BYTES: usize = 512;

/// One header.
pub type Block = [u8; BLOCK_BYTES];

/// Bounds of what is read. Each protects memory, or a limit of the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one path or link target. The kernel's own limit.
    pub path_bytes: usize,
    /// Directories in one path.
    pub depth: usize,
    /// Bytes of the extended headers of one entry, held in memory.
    pub header_bytes: u64,
    /// Pieces of one sparse file, held in memory at 16 bytes each.
    pub sparse_pieces: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { path_bytes: 4095, depth: 256, header_bytes: 1 << 20, sparse_pieces: 1 << 16 }
    }
}

/// What becomes of fifos, sockets and devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// They are an error, which names them.
    Refuse,
    /// They are left out, and named to whoever asks.
    LeaveOut,
}
