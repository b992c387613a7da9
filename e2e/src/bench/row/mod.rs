//! The rows: each measures us and the peers of one target.

pub mod alive;
pub mod create;
pub mod egress;
pub mod end;
pub mod exec;
pub mod footprint;
pub mod isolated;
pub mod memory;
pub mod output;
pub mod pause;
pub mod pool;
pub mod proxy;
pub mod snapshot;
pub mod terminal;
pub mod transfer;

use std::time::Instant;

/// Milliseconds since then.
fn millis(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
