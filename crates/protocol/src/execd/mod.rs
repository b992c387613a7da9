//! Types of the execd API (the daemon inside a sandbox).

pub mod boot;
pub mod code;
pub mod command;
pub mod files;
pub mod header;
pub mod metrics;
pub mod stream;
pub mod watch;
