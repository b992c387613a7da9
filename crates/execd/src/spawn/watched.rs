//! Descriptors that the event loop watches.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Watches a descriptor that does not block, for reading and writing.
///
/// # Errors
/// When the event loop refuses it.
pub fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor is open, stays the same, and is closed only with the value that owns it.
    unsafe { AsyncFd::register(fd) }.map_err(|error| error.into_parts().1)
}
