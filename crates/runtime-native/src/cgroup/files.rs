//! Reading and writing the files of a group.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::error::{Context, Result};

/// How long a removed group may stay busy after its last process is gone.
const REMOVE_DEADLINE: Duration = Duration::from_secs(2);

pub(super) fn processes(group: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter_map(Pid::from_raw).collect()
}

pub(super) fn make(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other.op(format!("make cgroup {}", path.display())),
    }
}

pub(super) fn remove(path: &Path) -> Result<()> {
    let started = Instant::now();
    loop {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            // The kernel finishes the last task's exit a moment after it reports the group empty.
            Err(error) if error.kind() == ErrorKind::ResourceBusy && started.elapsed() < REMOVE_DEADLINE => {
                std::thread::yield_now();
            }
            other => return other.op(format!("remove cgroup {}", path.display())),
        }
    }
}

pub(super) fn write(path: &Path, value: &str) -> Result<()> {
    let written = fs::File::options().write(true).open(path).and_then(|mut file| file.write_all(value.as_bytes()));
    written.op(format!("write {value} to {}", path.display()))
}

pub(super) fn write_if_there(path: &Path, value: &str) -> Result<()> {
    if path.exists() { write(path, value) } else { Ok(()) }
}

pub(super) fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Version 1 says "unlimited" with a number near the largest.
pub(super) fn bounded(value: Option<u64>) -> Option<u64> {
    value.filter(|bytes| *bytes < i64::MAX as u64 / 2)
}

pub(super) fn keyed(path: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.split_once(' ').filter(|(name, _)| *name == key)?.1.trim().parse().ok())
}
