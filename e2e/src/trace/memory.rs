//! What lies behind the arguments of a stopped thread: its memory, and the files of its descriptors.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

/// Longest path of the kernel.
const PATH_BYTES: usize = 4096;
/// Memory is read page by page: the page behind a text may be none.
const PAGE_BYTES: u64 = 4096;

/// Up to `limit` bytes at an address, fewer where the memory ends.
pub(super) fn bytes(thread: i32, address: u64, limit: usize) -> Vec<u8> {
    let Ok(memory) = File::open(format!("/proc/{thread}/mem")) else { return Vec::new() };
    let mut found = Vec::new();
    while found.len() < limit {
        let at = address + found.len() as u64;
        let page_left = (PAGE_BYTES - at % PAGE_BYTES) as usize;
        let mut piece = vec![0; page_left.min(limit - found.len())];
        match memory.read_at(&mut piece, at) {
            Ok(read) if read > 0 => found.extend_from_slice(&piece[..read]),
            _ => break,
        }
    }
    found
}

/// The text at an address up to its NUL.
pub(super) fn text(thread: i32, address: u64) -> String {
    let mut found = Vec::new();
    while found.len() < PATH_BYTES {
        let piece = bytes(thread, address + found.len() as u64, 256);
        let end = piece.iter().position(|byte| *byte == 0);
        found.extend_from_slice(&piece[..end.unwrap_or(piece.len())]);
        if end.is_some() || piece.is_empty() {
            break;
        }
    }
    String::from_utf8_lossy(&found).into_owned()
}

/// The path of a descriptor's file, as the kernel names it.
pub(super) fn file(thread: i32, descriptor: i32) -> Option<String> {
    let path = fs::read_link(format!("/proc/{thread}/fd/{descriptor}")).ok()?;
    Some(path.to_string_lossy().trim_end_matches(" (deleted)").to_owned())
}

/// A path as a thread means it: from its working directory or from one of its descriptors.
pub(super) fn resolve(thread: i32, directory: Option<i32>, path: &str) -> Option<String> {
    const OWN: &str = "/proc/self/fd/";
    if let Some(rest) = path.strip_prefix(OWN) {
        let (number, rest) = rest.split_once('/').unwrap_or((rest, ""));
        return joined(&file(thread, number.parse().ok()?)?, rest);
    }
    if path.starts_with('/') {
        return Some(path.to_owned());
    }
    let base = match directory {
        Some(descriptor) if descriptor != nix::libc::AT_FDCWD => file(thread, descriptor)?,
        _ => fs::read_link(format!("/proc/{thread}/cwd")).ok()?.to_string_lossy().into_owned(),
    };
    joined(&base, path)
}

fn joined(base: &str, rest: &str) -> Option<String> {
    let path = if rest.is_empty() { PathBuf::from(base) } else { PathBuf::from(base).join(rest) };
    Some(path.to_string_lossy().into_owned())
}
