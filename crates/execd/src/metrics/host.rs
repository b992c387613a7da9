//! What `/proc` says about the whole machine.

use std::fs;

/// `/proc/stat` counts in hundredths of a second on every Linux that we run on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processors that this process may run on.
pub fn cpu_count() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64)
}

/// Busy seconds of all processors since the machine's start.
pub fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .unwrap_or("")
        .split_ascii_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; guest time is part of user already.
    let busy: f64 = [0, 1, 2, 5, 6, 7].into_iter().filter_map(|index| fields.get(index)).sum();
    busy / TICKS_PER_SECOND
}

/// Total bytes, and those that are neither free nor cache.
pub fn memory() -> (f64, f64) {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0.0)
    };
    let total = kib("MemTotal");
    let used = total - kib("MemFree") - kib("Buffers") - kib("Cached") - kib("SReclaimable");
    (total * 1024.0, used.max(0.0) * 1024.0)
}
