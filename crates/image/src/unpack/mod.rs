//! Layers from archives: the only code that parses and applies tars written by strangers.
//!
//! [`unpack_layer`] is synchronous and runs inside a confined child: it needs no network, no path
//! outside the directory descriptor it is given, and constant memory. [`Unpack`] is how the store
//! reaches whoever runs it.
//!
//! What becomes of hostile entries:
//! - Absolute names, `..`, names through symbolic links, hard links that leave the layer, devices
//!   outside `dev/`, and anything over a limit: the layer is refused.
//! - Devices beneath `dev/` (root file systems made by `mmdebstrap` have them): left out and
//!   counted, since a sandbox has its own `/dev`.
//! - Set-user-id bits and file capabilities: kept as data. Layers lie in a directory that only its
//!   owner may enter, and sandboxes mount them nosuid.
//! - `trusted.*`, `user.overlay.*` and other attributes that steer a file system: dropped, counted.
//! - Targets of symbolic links are data; nothing here follows them.

mod apply;
mod error;
mod limits;
mod metadata;
mod overlay;
mod parent;
#[cfg(test)]
mod tests;
pub(crate) mod tree;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::BorrowedFd;
use std::pin::Pin;

use serde::{Deserialize, Serialize};

pub(crate) use archive::{Archive, Entry, Kind};
pub use error::UnpackError;
pub(crate) use limits::Bounded;
pub use limits::Limits;

use crate::LayerId;
use crate::digest::HashingReader;

/// A boxed future that may be sent between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How a blob is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// A bare tar.
    None,
    /// One or more gzip members.
    Gzip,
    /// One or more zstd frames.
    Zstd,
}

/// Bytes that tell compressions apart.
pub(crate) const MAGIC_BYTES: usize = 4;
/// Largest window of a zstd frame, as a power of two: 128 MiB, zstd's own bound without `--long`.
const ZSTD_WINDOW_LOG: u32 = 27;
/// Bytes read from the blob at a time.
const READ_BYTES: usize = 128 * 1024;

impl Compression {
    /// What the first bytes of a blob say; media types are wrong often enough not to be trusted.
    pub fn detect(first_bytes: &[u8]) -> Self {
        match first_bytes {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // Skippable frames, which zstd tools put before the data.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::None,
        }
    }

    pub(crate) fn reader<'a>(self, input: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
        let input = BufReader::with_capacity(READ_BYTES, input);
        Ok(match self {
            Self::None => Box::new(input),
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
            Self::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(input)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                Box::new(decoder)
            }
        })
    }
}

/// Whose files the layer's files become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// As the archive says, ids 0 to 65535: for root, and in a user namespace that maps them.
    Keep,
    /// All of the calling user: where ids cannot be given away.
    Current,
}

/// What came of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LayerStats {
    /// Entries of the archive that were applied.
    pub entries: u64,
    /// Bytes of file content, holes of sparse files included.
    pub bytes: u64,
    /// Extended attributes that were left out.
    pub dropped_attributes: u64,
    /// Device nodes beneath `dev/` that were left out.
    pub dropped_devices: u64,
    /// Entries whose owner is above 65535 and became 65534, `nobody`.
    pub remapped_owners: u64,
}

/// Who really unpacks, and whose directory holds the layers.
///
/// Every method may be called any number of times at once, also for one layer.
pub trait Unpack: Send + Sync {
    /// Unpacks a blob, from its beginning, as `layer`; refuses it unless it hashes to that id.
    ///
    /// Success means that the layer is durable. A layer that is there already is a success too, but
    /// only after the blob was verified: success proves that the caller has the content.
    fn unpack<'a>(
        &'a self,
        blob: File,
        layer: &'a LayerId,
        compression: Compression,
    ) -> BoxFuture<'a, Result<LayerStats, UnpackError>>;

    /// Whether the layer is there, whole.
    fn has<'a>(&'a self, layer: &'a LayerId) -> BoxFuture<'a, Result<bool, UnpackError>>;

    /// Removes the layer; one that is not there is a success.
    fn remove<'a>(&'a self, layer: &'a LayerId) -> BoxFuture<'a, Result<(), UnpackError>>;
}

/// Unpacks one layer archive into an empty directory and verifies its diff id.
///
/// Writes only beneath `root`. On an error the directory holds a part of the layer; the caller
/// throws it away (see [`crate::layers::Draft`]).
///
/// # Errors
/// The archive is refused, damaged, over a limit or not `expected`, or the disk is full.
pub fn unpack_layer(
    input: impl Read,
    compression: Compression,
    root: BorrowedFd<'_>,
    expected: &LayerId,
    ownership: Ownership,
    limits: &Limits,
) -> Result<LayerStats, UnpackError> {
    let decoded = compression.reader(input).map_err(UnpackError::read)?;
    let mut hashed = HashingReader::new(limits::Bounded::new(decoded, limits.stream_bytes));
    let stats = {
        let mut archive = Archive::new(&mut hashed, limits.archive);
        let mut layer = apply::Layer::new(root, ownership, limits);
        while let Some(entry) = archive.next_entry()? {
            layer.apply(entry, &mut archive)?;
        }
        archive.drain()?;
        layer.finish()?
    };
    let found = hashed.finish();
    if found.layer_id() == expected {
        Ok(stats)
    } else {
        Err(UnpackError::DiffId { expected: expected.clone(), found: found.layer_id().clone() })
    }
}
