//! Types of the execd API (the daemon inside a sandbox).
pub mod boot;
