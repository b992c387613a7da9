//! Memory that execd holds and does not need.

use std::fs::File;
use std::io::{BufRead, BufReader};

/// Has one heap for all threads: worker threads make buffers that the event loop frees, and a heap for each thread
/// would hold on to them. Before the first thread.
pub fn share_one_heap() {
    // SAFETY: no other thread runs yet, and a limit on arenas changes nothing about memory that is in use.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Gives free heap pages back to the system; costs little when there are none.
pub fn release_free_memory() {
    // SAFETY: glibc's trim takes the arenas' own locks and touches free pages only.
    unsafe { libc::malloc_trim(0) };
}

/// Lets go of the program's code: the kernel maps sixteen pages for each that is touched, so that after a start
/// nearly all of it is mapped and counted, needed or not. What is needed again is found in the page cache.
pub fn release_code() {
    let here = release_code as *const () as usize;
    let Some((from, until)) = code_around(here) else { return };
    // SAFETY: the range is one mapping of a file, private and executable and not writable, so its pages hold what
    // the file holds and are read from there again when they are next executed.
    unsafe { libc::madvise(from as *mut libc::c_void, until - from, libc::MADV_DONTNEED) };
}

/// The executable mapping around an address; `None` where there is no `/proc`, or the mapping can be written to.
fn code_around(address: usize) -> Option<(usize, usize)> {
    let maps = BufReader::new(File::open("/proc/self/maps").ok()?);
    maps.lines().map_while(Result::ok).find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, until) = range.split_once('-')?;
        let (from, until) = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(until, 16).ok()?);
        ((from..until).contains(&address) && rest.starts_with("r-xp")).then_some((from, until))
    })
}
