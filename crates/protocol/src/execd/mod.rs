//! Types of the execd API (the daemon inside a sandbox).

pub mod boot;
pub mod code;
pub mod command;
pub mod files;
pub mod header;
pub mod isolated;
pub mod metrics;
pub mod output;
pub mod session;
pub mod stream;
pub mod watch;
