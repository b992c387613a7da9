//! Wire types, header names and error codes of the public APIs.
//!
//! Owns what goes over the wire; knows no I/O and no domain rule. A type here is what a client sends or
//! sees, not what the server works with: wire types die in `lifecycle::admit`.

pub mod calendar;
pub mod egress;
pub mod error;
pub mod execd;
pub mod headers;
pub mod hooks;
pub mod lifecycle;
pub mod network;
pub mod pool;
pub mod recording;
pub mod schedule;
pub mod snapshot;
pub mod vault;
