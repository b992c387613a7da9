//! Types of the execd API (the daemon inside a sandbox).

pub mod activity;
pub mod boot;
pub mod code;
pub mod command;
pub mod context;
pub mod files;
pub mod hardening;
pub mod header;
pub mod hook;
pub mod isolated;
pub mod metrics;
pub mod output;
pub mod pty;
pub mod session;
pub mod stream;
pub mod watch;
