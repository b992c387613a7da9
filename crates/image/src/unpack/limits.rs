//! Bounds of what one layer may make.

use std::io::{self, Read};

use super::UnpackError;

/// Bounds of one layer. Each protects the host's disk or memory from an archive that is small when packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of file content, counting the holes of sparse files, which a copy would fill.
    pub total_bytes: u64,
    /// Entries; each costs an inode. Ten million empty files fit in a few megabytes.
    pub entries: u64,
    /// Bytes of the unpacked archive itself, so that endless padding ends.
    pub stream_bytes: u64,
    /// What reading is bounded by. Each level of depth costs a descriptor when the tree is removed.
    pub archive: archive::Limits,
}

impl Default for Limits {
    /// 40 GiB and 2,000,000 entries: four times the largest images in use (CUDA with frameworks).
    fn default() -> Self {
        Self { total_bytes: 40 << 30, entries: 2_000_000, stream_bytes: 48 << 30, archive: archive::Limits::default() }
    }
}

/// Fails instead of reading past a number of bytes.
pub(crate) struct Bounded<R> {
    inner: R,
    left: u64,
    limit: u64,
}

impl<R> Bounded<R> {
    pub(crate) fn new(inner: R, limit: u64) -> Self {
        Self { inner, left: limit, limit }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            // At the limit exactly, the end of the stream is still fine.
            return match self.inner.read(&mut [0])? {
                0 => Ok(0),
                _ => Err(io::Error::new(io::ErrorKind::FileTooLarge, OverLimit(self.limit))),
            };
        }
        let want = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.inner.read(&mut buffer[..want])?;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Carries "over the limit" through `io::Read`.
#[derive(Debug, thiserror::Error)]
#[error("stream is over its limit of {0} bytes")]
struct OverLimit(u64);

/// The bound that a stream went over, when that is why a read failed.
pub(super) fn passed(error: &io::Error) -> Option<u64> {
    error.get_ref()?.downcast_ref().map(|OverLimit(limit)| *limit)
}

/// Refuses when `value` is over `limit`.
pub(super) fn check(what: &'static str, value: u64, limit: u64) -> Result<(), UnpackError> {
    if value > limit { Err(UnpackError::Limit { what: what.to_owned(), limit }) } else { Ok(()) }
}
