//! Metrics of the sandbox.

use serde::{Deserialize, Serialize};

/// Answer of `GET /metrics`, and one line of `GET /metrics/watch`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Processors that the sandbox may use; a quota of half a processor reads 0.5.
    pub cpu_count: f64,
    /// 0-100 of `cpu_count`.
    pub cpu_used_pct: f64,
    /// The sandbox's memory limit, or the machine's memory where it has none.
    pub mem_total_mib: f64,
    /// Memory that the sandbox's own processes and files hold.
    pub mem_used_mib: f64,
    /// Unix milliseconds.
    pub timestamp: i64,
}
