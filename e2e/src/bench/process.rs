//! What the kernel says of processes: memory, processor time, children.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Bytes in a mebibyte, as a float.
pub const MIB: f64 = (1u64 << 20) as f64;

/// The unit of processor time in /proc: fixed by the kernel's interface on every machine that we run on.
const TICKS_PER_SECOND: f64 = 100.0;

/// One line of /proc/meminfo in bytes.
pub fn meminfo(name: &str) -> Result<u64> {
    kib(&fs::read_to_string("/proc/meminfo")?, name).with_context(|| format!("/proc/meminfo has no {name}"))
}

/// What the kernel keeps for itself and cannot give back, in bytes: unreclaimable slabs, stacks, page tables, per-core
/// data.
pub fn kernel() -> Result<u64> {
    ["SUnreclaim", "KernelStack", "PageTables", "Percpu"].into_iter().map(meminfo).sum()
}

/// The proportional share of memory in bytes.
pub fn pss(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    kib(&text, "Pss").with_context(|| format!("{path} has no Pss"))
}

/// The most memory that the process has had resident since [`forget_peak`], in bytes.
pub fn peak(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    kib(&fs::read_to_string(&path)?, "VmHWM").with_context(|| format!("{path} has no VmHWM"))
}

/// Starts a new record of the peak.
pub fn forget_peak(pid: u32) -> Result<()> {
    let path = format!("/proc/{pid}/clear_refs");
    fs::write(&path, "5").with_context(|| format!("write {path}"))
}

/// Processor time of the process and of its reaped children.
pub fn cpu(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit_once(')').context("a stat line has a name")?.1;
    let ticks: u64 = after.split_whitespace().skip(11).take(4).filter_map(|word| word.parse::<u64>().ok()).sum();
    Ok(Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND))
}

/// Processor time that nobody used, of all cores together.
pub fn idle() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat")?;
    let first = stat.lines().next().context("/proc/stat has a line")?;
    let ticks: u64 = first.split_whitespace().skip(4).take(2).filter_map(|word| word.parse::<u64>().ok()).sum();
    Ok(Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND))
}

/// Every living process: its parent.
pub fn parents() -> Result<BTreeMap<u32, u32>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let parent = stat.rsplit_once(')').and_then(|(_, after)| after.split_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            found.insert(pid, parent);
        }
    }
    Ok(found)
}

/// Everything below a process, itself not included.
pub fn descendants(ancestor: u32) -> Result<Vec<u32>> {
    let parents = parents()?;
    let below = |mut pid: u32| {
        while let Some(parent) = parents.get(&pid) {
            if *parent == ancestor {
                return true;
            }
            pid = *parent;
        }
        false
    };
    Ok(parents.keys().copied().filter(|pid| below(*pid)).collect())
}

/// The words that a process was started with.
pub fn words(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Size of a file in bytes.
pub fn size(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path).with_context(|| format!("look at {}", path.display()))?.len())
}

fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}
