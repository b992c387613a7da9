//! Buffers between pipes and journals: lent for one read, so that idle commands hold none.

use std::cell::RefCell;
use std::sync::Arc;

/// Bytes of a buffer: a part of a command's pipe, so that the command writes on meanwhile.
pub const BYTES: usize = 64 * 1024;
/// Buffers that are kept for the next read.
const MAX_FREE: usize = 4;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of [`BYTES`].
pub fn take() -> Vec<u8> {
    FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; BYTES])
}

/// Gives a buffer back, unless somebody still holds it.
pub fn give(buffer: Arc<Vec<u8>>) {
    let Ok(buffer) = Arc::try_unwrap(buffer) else { return };
    FREE.with_borrow_mut(|free| {
        if free.len() < MAX_FREE {
            free.push(buffer);
        }
    });
}

/// Frees what is kept; the next read makes it again.
pub fn release() {
    FREE.take();
}
