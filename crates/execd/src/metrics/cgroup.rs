//! What the sandbox's own cgroup says, v2 or v1, wherever its file system is mounted.

use std::fs;
use std::path::PathBuf;

/// A v1 group without a limit shows a number about this large.
const NO_LIMIT: f64 = 1e18;

/// Processors' worth of quota; `None` without one.
pub fn cpu_limit() -> Option<f64> {
    if let Some(max) = read("", "cpu.max") {
        let mut words = max.split_ascii_whitespace();
        let quota: f64 = words.next()?.parse().ok()?; // "max" is no number: no quota
        let period: f64 = words.next()?.parse().ok()?;
        return (period > 0.0).then(|| quota / period);
    }
    let quota = number("cpu", "cpu.cfs_quota_us").filter(|quota| *quota > 0.0)?;
    let period = number("cpu", "cpu.cfs_period_us").filter(|period| *period > 0.0)?;
    Some(quota / period)
}

/// Processor seconds used by the group; the root group's are the machine's.
pub fn cpu_seconds() -> Option<f64> {
    if let Some(stat) = read("", "cpu.stat")
        && let Some(usec) = field(&stat, "usage_usec")
    {
        return Some(usec / 1e6);
    }
    number("cpuacct", "cpuacct.usage").map(|nanoseconds| nanoseconds / 1e9)
}

/// Limit and use in bytes; the use leaves out cache that can be dropped at once.
pub fn memory() -> Option<(f64, f64)> {
    if let Some(max) = read("", "memory.max") {
        let limit = max.trim().parse().ok()?;
        let current = number("", "memory.current")?;
        let inactive = read("", "memory.stat").and_then(|stat| field(&stat, "inactive_file")).unwrap_or(0.0);
        return Some((limit, (current - inactive).max(0.0)));
    }
    let limit = number("memory", "memory.limit_in_bytes").filter(|limit| *limit < NO_LIMIT)?;
    let usage = number("memory", "memory.usage_in_bytes")?;
    let inactive = read("memory", "memory.stat").and_then(|stat| field(&stat, "total_inactive_file")).unwrap_or(0.0);
    Some((limit, (usage - inactive).max(0.0)))
}

fn number(controller: &str, file: &str) -> Option<f64> {
    read(controller, file)?.trim().parse().ok()
}

fn field(stat: &str, name: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Reads a file of the group for a controller; the empty name is v2.
fn read(controller: &str, file: &str) -> Option<String> {
    places(controller, file).find_map(|path| fs::read_to_string(path).ok())
}

/// Where a file of the group for a controller lies; the empty name is v2.
pub fn place(controller: &str, file: &str) -> Option<PathBuf> {
    places(controller, file).find(|path| path.exists())
}

fn places(controller: &str, file: &str) -> impl Iterator<Item = PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then(|| path.trim_start_matches('/').to_owned())
    });
    // With a cgroup namespace the path is "/"; without one the group may or may not be visible by its path.
    let mounts: &[&str] = match controller {
        "" => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
        "cpu" => &["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"],
        "cpuacct" => &["/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/cpu,cpuacct"],
        "pids" => &["/sys/fs/cgroup/pids"],
        _ => &["/sys/fs/cgroup/memory"],
    };
    let file = file.to_owned();
    let places = group.into_iter().flat_map(move |path| {
        mounts.iter().flat_map(move |mount| [PathBuf::from(mount).join(&path), PathBuf::from(mount)])
    });
    places.map(move |place| place.join(&file))
}
