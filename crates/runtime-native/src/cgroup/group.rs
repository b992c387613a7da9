//! The groups of one sandbox: limits, freezing, killing, what the kernel counted.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

use super::files::{bounded, keyed, make, processes, read_number, remove, write, write_if_there};
use crate::error::{Context, Failure, Kind, Result};
use crate::wire::PlanLimits;

/// First wait for an event before the file is read again; it doubles. The kernel tells of at most one change of a group
/// in 10 ms (`CGROUP_FILE_NOTIFY_MIN_INTV`), and the one that is waited for often follows another.
const FIRST_LOOK: Duration = Duration::from_micros(250);
/// Longest wait before the file is read again.
const LAST_LOOK: Duration = Duration::from_millis(100);
/// Scheduling period in microseconds: the kernel's default, named because the quota is computed from it.
const CPU_PERIOD_US: u64 = 100_000;

/// One sandbox's groups in all hierarchies. Holds names only; nothing need exist.
#[derive(Clone, Debug)]
pub struct Group {
    pub(super) cpu: Option<Carrier>,
    pub(super) memory: Option<Carrier>,
    pub(super) pids: Option<Carrier>,
    pub(super) freezer: Option<PathBuf>,
    pub(super) v1: Vec<PathBuf>,
    pub(super) v2: Option<PathBuf>,
}

/// The directory that carries one controller's limits, and which version's files are in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// Version 1.
    V1(PathBuf),
    /// Version 2.
    V2(PathBuf),
}

/// What the kernel counted in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Processes ended because memory ran out.
    pub oom_kills: u64,
    /// Forks refused because of the process limit.
    pub pids_refused: u64,
}

impl Group {
    /// Makes the groups; existing ones are fine.
    pub fn create(&self) -> Result<()> {
        self.all().try_for_each(|path| make(path))
    }

    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.v1.iter().chain(self.v2.as_ref())
    }

    /// Writes the limits that are given.
    pub fn limit(&self, limits: &PlanLimits) -> Result<()> {
        if let Some(millis) = limits.cpu_millis {
            let quota_us = millis * CPU_PERIOD_US / 1000;
            match self.cpu.as_ref().ok_or_else(|| unenforceable("cpu"))? {
                Carrier::V1(cpu) => {
                    let period = cpu.join("cpu.cfs_period_us");
                    // The kernel's default; written again it stops every core for a moment.
                    if read_number(&period) != Some(CPU_PERIOD_US) {
                        write(&period, &CPU_PERIOD_US.to_string())?;
                    }
                    write(&cpu.join("cpu.cfs_quota_us"), &quota_us.to_string())?;
                }
                Carrier::V2(cpu) => write(&cpu.join("cpu.max"), &format!("{quota_us} {CPU_PERIOD_US}"))?,
            }
        }
        if let Some(bytes) = limits.memory_bytes {
            match self.memory.as_ref().ok_or_else(|| unenforceable("memory"))? {
                Carrier::V1(memory) => {
                    write(&memory.join("memory.limit_in_bytes"), &bytes.to_string())?;
                    write_if_there(&memory.join("memory.memsw.limit_in_bytes"), &bytes.to_string())?;
                    write_if_there(&memory.join("memory.swappiness"), "0")?;
                }
                Carrier::V2(memory) => {
                    write(&memory.join("memory.max"), &bytes.to_string())?;
                    write_if_there(&memory.join("memory.swap.max"), "0")?;
                }
            }
        }
        if let Some(count) = limits.pids {
            let (Carrier::V1(pids) | Carrier::V2(pids)) = self.pids.as_ref().ok_or_else(|| unenforceable("pids"))?;
            write(&pids.join("pids.max"), &count.to_string())?;
        }
        Ok(())
    }

    /// Moves a process into the groups.
    pub fn add(&self, pid: Pid) -> Result<()> {
        let text = pid.as_raw_nonzero().to_string();
        self.all().try_for_each(|path| write(&path.join("cgroup.procs"), &text))
    }

    /// Moves the calling process, which must have one thread, into the version 1 groups. By thread, because the kernel
    /// then need not wait for every core, as it must before it moves the process of another.
    pub fn enter(&self) -> Result<()> {
        self.v1.iter().try_for_each(|path| write(&path.join("tasks"), "0"))
    }

    /// The version 2 group, opened to clone into.
    pub fn open(&self) -> Result<Option<std::os::fd::OwnedFd>> {
        let Some(v2) = &self.v2 else { return Ok(None) };
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(v2, flags, rustix::fs::Mode::empty()).op("open the sandbox's cgroup").map(Some)
    }

    /// Takes the cpu limit away, so that a throttled group can be killed quickly.
    pub fn lift_cpu(&self) {
        // Best effort: killing works without it, only slower.
        let _ = match &self.cpu {
            Some(Carrier::V1(cpu)) => fs::write(cpu.join("cpu.cfs_quota_us"), "-1"),
            Some(Carrier::V2(cpu)) => fs::write(cpu.join("cpu.max"), "max"),
            None => Ok(()),
        };
    }

    /// Kills every process in the groups, frozen ones too.
    pub fn kill(&self) -> Result<()> {
        if let Some(v2) = &self.v2 {
            match write(&v2.join("cgroup.kill"), "1") {
                Ok(()) => return Ok(()),
                Err(_) if !v2.exists() => return Ok(()),
                // Before Linux 5.14 the file does not exist.
                Err(_) => {}
            }
        }
        let Some(any) = self.v1.first().or(self.v2.as_ref()) else { return Ok(()) };
        for _ in 0..KILL_ROUNDS {
            let pids = processes(any);
            if pids.is_empty() {
                break;
            }
            for pid in pids {
                // Gone already is what we want.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        if let Some(freezer) = &self.freezer {
            // On version 1 a frozen process does not see the signal until it is thawed.
            let _ = fs::write(freezer.join("freezer.state"), "THAWED");
        }
        Ok(())
    }

    /// Waits until no process is left. `false` when the deadline passed first.
    pub fn wait_empty(&self, deadline: Instant) -> Result<bool> {
        let Some(v2) = &self.v2 else {
            return Ok(self.v1.first().is_none_or(|path| processes(path).is_empty()));
        };
        self.wait_event(v2, "populated 0", deadline)
    }

    fn wait_event(&self, v2: &Path, wanted: &str, deadline: Instant) -> Result<bool> {
        let path = v2.join("cgroup.events");
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(error).op(format!("open {}", path.display())),
        };
        let mut buffer = [0u8; 256];
        let mut look = FIRST_LOOK;
        loop {
            let length = match rustix::io::pread(&file, &mut buffer, 0) {
                Ok(length) => length,
                // The group was removed.
                Err(rustix::io::Errno::NODEV) => return Ok(true),
                Err(errno) => return Err(Failure::errno(format!("read {}", path.display()), errno)),
            };
            if String::from_utf8_lossy(&buffer[..length]).lines().any(|line| line == wanted) {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let timeout = look.min(left);
            look = (look * 2).min(LAST_LOOK);
            let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(&file, PollFlags::PRI)], Some(&timeout));
        }
    }

    /// Freezes or thaws every process and waits until it is so.
    pub fn freeze(&self, state: Freeze, deadline: Instant) -> Result<bool> {
        if let Some(v2) = &self.v2 {
            let (value, wanted) = match state {
                Freeze::Frozen => ("1", "frozen 1"),
                Freeze::Thawed => ("0", "frozen 0"),
            };
            write(&v2.join("cgroup.freeze"), value)?;
            return self.wait_event(v2, wanted, deadline);
        }
        let freezer = self.freezer.as_ref().ok_or_else(|| unenforceable("pause"))?;
        let wanted = match state {
            Freeze::Frozen => "FROZEN",
            Freeze::Thawed => "THAWED",
        };
        let path = freezer.join("freezer.state");
        write(&path, wanted)?;
        // The version 1 freezer has no event; reading the state drives it forward.
        while Instant::now() < deadline {
            if fs::read_to_string(&path).op("read freezer.state")?.trim() == wanted {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the groups are frozen, or meant to be.
    pub fn is_frozen(&self) -> bool {
        if let Some(v2) = &self.v2 {
            return read_number(&v2.join("cgroup.freeze")) == Some(1);
        }
        self.freezer.as_ref().is_some_and(|freezer| {
            fs::read_to_string(freezer.join("freezer.state")).is_ok_and(|state| state.trim() != "THAWED")
        })
    }

    /// What the kernel counted since the groups were made.
    pub fn counters(&self) -> Counters {
        let memory = self.memory.as_ref().map(|memory| match memory {
            Carrier::V1(path) => path.join("memory.oom_control"),
            Carrier::V2(path) => path.join("memory.events"),
        });
        let pids = self.pids.as_ref().map(|(Carrier::V1(path) | Carrier::V2(path))| path.join("pids.events"));
        Counters {
            oom_kills: memory.and_then(|path| keyed(&path, "oom_kill")).unwrap_or(0),
            pids_refused: pids.and_then(|path| keyed(&path, "max")).unwrap_or(0),
        }
    }

    /// The limits in force, read back: cpu in thousandths, memory, swap beyond memory, pids.
    pub fn applied(&self) -> Applied {
        let cpu_millis = self.cpu.as_ref().and_then(|cpu| match cpu {
            Carrier::V1(cpu) => {
                let quota = read_number(&cpu.join("cpu.cfs_quota_us"))?;
                Some(quota * 1000 / read_number(&cpu.join("cpu.cfs_period_us"))?.max(1))
            }
            Carrier::V2(cpu) => {
                let text = fs::read_to_string(cpu.join("cpu.max")).ok()?;
                let (quota, period) = text.trim().split_once(' ')?;
                Some(quota.parse::<u64>().ok()? * 1000 / period.parse::<u64>().ok()?.max(1))
            }
        });
        let (memory_bytes, swap_bytes) = match &self.memory {
            Some(Carrier::V1(memory)) => {
                let limit = bounded(read_number(&memory.join("memory.limit_in_bytes")));
                let both = bounded(read_number(&memory.join("memory.memsw.limit_in_bytes")));
                (limit, limit.zip(both).map(|(limit, both)| both.saturating_sub(limit)))
            }
            Some(Carrier::V2(memory)) => {
                (read_number(&memory.join("memory.max")), read_number(&memory.join("memory.swap.max")))
            }
            None => (None, None),
        };
        let pids = self.pids.as_ref();
        let pids = pids.and_then(|(Carrier::V1(path) | Carrier::V2(path))| read_number(&path.join("pids.max")));
        Applied { cpu_millis, memory_bytes, swap_bytes, pids }
    }

    /// Removes the groups; missing ones are fine. All processes must be gone.
    pub fn remove(&self) -> Result<()> {
        self.all().try_for_each(|path| remove(path))
    }

    /// Removes the groups in which nothing is.
    pub fn remove_if_empty(&self) {
        for path in self.all() {
            // A group with processes is busy and stays.
            let _ = fs::remove_dir(path);
        }
    }

    /// Whether any of the groups exists.
    pub fn exists(&self) -> bool {
        self.all().any(|path| path.exists())
    }
}

/// Limits as the kernel states them; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Bytes of swap beside it.
    pub swap_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// The two states of a group that can be frozen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freeze {
    /// Nothing runs.
    Frozen,
    /// Everything runs.
    Thawed,
}

/// Rounds of the loop that stands in for `cgroup.kill`: each sees the forks of the one before.
const KILL_ROUNDS: u32 = 64;

fn unenforceable(limit: &str) -> Failure {
    Failure::new(
        Kind::Unsupported,
        format!("no cgroup hierarchy of this machine carries the {limit} limit; mount cgroup2 or delegate a group"),
    )
}
