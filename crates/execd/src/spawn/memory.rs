//! The heap's unused part.

/// Gives free heap pages back to the system; costs little when there are none.
pub fn release_free_memory() {
    // SAFETY: glibc's trim takes the arenas' own locks and touches free pages only.
    unsafe { libc::malloc_trim(0) };
}
