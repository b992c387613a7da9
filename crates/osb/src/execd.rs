//! The daemon that lives inside every sandbox, carried in this program.

/// The static executable of execd, built by `build.rs`.
pub static EXECD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/execd"));
