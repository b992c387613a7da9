//! A thin writer for cgroups, version 1, version 2, and both at once.
//!
//! On a hybrid machine limits live in the version 1 hierarchies and each sandbox has a version 2 group beside them,
//! because only version 2 can kill and freeze a group as a whole and says when it is empty.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

use crate::error::{Context, Failure, Result};
use crate::wire::PlanLimits;

#[cfg(test)]
mod tests;

/// Scheduling period in microseconds: the kernel's default, named because the quota is computed from it.
const CPU_PERIOD_US: u64 = 100_000;
/// The hierarchies that a sandbox has a group in, version 1. `cpuacct` has no limit but serves metrics.
const V1_CONTROLLERS: &[&str] = &["cpu", "cpuacct", "memory", "pids"];
/// The controllers that a version 2 group must have to carry limits.
const V2_CONTROLLERS: &[&str] = &["cpu", "memory", "pids"];
/// How long a removed group may stay busy after its last process is gone.
const REMOVE_DEADLINE: Duration = Duration::from_secs(2);

/// Where this machine mounts its cgroups.
#[derive(Clone, Debug, Default)]
pub struct Hierarchies {
    /// Version 1: controller to mount point.
    pub v1: BTreeMap<String, PathBuf>,
    /// Version 2 mount point.
    pub v2: Option<PathBuf>,
    /// Whether the version 2 tree carries the limits.
    pub v2_limits: bool,
    /// The groups in which this process was when it looked, one in each hierarchy of use to us.
    pub own: Vec<PathBuf>,
}

impl Hierarchies {
    /// Reads this process's mount table.
    pub fn discover() -> Result<Self> {
        let table = fs::read_to_string("/proc/self/mountinfo").op("read mountinfo")?;
        let mut found = Self::parse(&table);
        if let Some(root) = &found.v2 {
            let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            let has = |name: &&str| controllers.split_whitespace().any(|word| word == *name);
            found.v2_limits = V2_CONTROLLERS.iter().all(has);
        }
        found.own = found.groups_of(&fs::read_to_string("/proc/self/cgroup").op("read /proc/self/cgroup")?);
        Ok(found)
    }

    /// The groups of a `/proc/<pid>/cgroup`, as directories.
    fn groups_of(&self, table: &str) -> Vec<PathBuf> {
        let mut groups = Vec::new();
        for line in table.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let mount_point = match controllers {
                "" => self.v2.as_ref(),
                some => some.split(',').find_map(|name| self.v1.get(name)),
            };
            groups.extend(mount_point.map(|mount_point| mount_point.join(path.trim_start_matches('/'))));
        }
        groups
    }

    /// Moves the calling process back to the groups in which it was when it looked.
    pub fn leave(&self) -> Result<()> {
        self.own.iter().try_for_each(|path| write(&path.join("cgroup.procs"), "0"))
    }

    fn parse(table: &str) -> Self {
        let mut found = Self::default();
        for line in table.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let Some(mount_point) = left.split(' ').nth(4) else { continue };
            let mut fields = right.split(' ');
            let (kind, options) = (fields.next().unwrap_or(""), fields.nth(1).unwrap_or(""));
            match kind {
                "cgroup2" => found.v2 = Some(mount_point.into()),
                "cgroup" => {
                    for option in
                        options.split(',').filter(|option| V1_CONTROLLERS.contains(option) || *option == "freezer")
                    {
                        found.v1.insert(option.to_owned(), mount_point.into());
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// `cgroup v1`, `cgroup v2`, or `None` if this controller is nowhere.
    pub fn means(&self, controller: &str) -> Option<&'static str> {
        if self.v1.contains_key(controller) {
            Some("cgroup v1")
        } else if self.v2_limits && V2_CONTROLLERS.contains(&controller) {
            Some("cgroup v2")
        } else {
            None
        }
    }

    /// Whether groups can be frozen.
    pub fn can_freeze(&self) -> bool {
        self.v2.is_some() || self.v1.contains_key("freezer")
    }

    /// The group of that name beneath `parent`.
    pub fn group(&self, parent: &str, name: &str) -> Group {
        let mut v1: Vec<(String, PathBuf)> = Vec::new();
        for (controller, mount_point) in &self.v1 {
            let path = mount_point.join(parent).join(name);
            let wanted = controller != "freezer" || self.v2.is_none();
            // Some machines mount two controllers together.
            if wanted && !v1.iter().any(|(_, known)| *known == path) {
                v1.push((controller.clone(), path));
            }
        }
        let at = |controller: &str| self.v1.get(controller).map(|mount_point| mount_point.join(parent).join(name));
        Group {
            cpu: at("cpu"),
            memory: at("memory"),
            pids: at("pids"),
            freezer: at("freezer").filter(|_| self.v2.is_none()),
            v1: v1.into_iter().map(|(_, path)| path).collect(),
            v2: self.v2.as_ref().map(|mount_point| mount_point.join(parent).join(name)),
            v2_limits: self.v2_limits,
        }
    }

    /// Makes the group that bounds all sandboxes together, and passes controllers down to it.
    pub fn prepare_parent(&self, parent: &str, limits: &PlanLimits) -> Result<()> {
        if let (Some(root), true) = (&self.v2, self.v2_limits) {
            let all = V2_CONTROLLERS.iter().map(|name| format!("+{name}")).collect::<Vec<_>>().join(" ");
            write(&root.join("cgroup.subtree_control"), &all)?;
            make(&root.join(parent))?;
            write(&root.join(parent).join("cgroup.subtree_control"), &all)?;
        }
        let group = self.group(parent, "");
        group.create()?;
        group.limit(limits)
    }

    /// Removes the parent group in every hierarchy where nothing is in it.
    pub fn release_parent(&self, parent: &str) {
        for root in self.v1.values().chain(self.v2.as_ref()) {
            // A group with children is busy and stays; one that is not there needs nothing.
            let _ = fs::remove_dir(root.join(parent));
        }
    }

    /// Names of the groups beneath `parent`, in any hierarchy.
    pub fn children(&self, parent: &str) -> Vec<String> {
        let roots = self.v1.values().chain(self.v2.as_ref());
        let mut names: Vec<String> = roots
            .filter_map(|root| fs::read_dir(root.join(parent)).ok())
            .flatten()
            .filter_map(|entry| entry.ok())
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// One sandbox's groups in all hierarchies. Holds names only; nothing need exist.
#[derive(Clone, Debug)]
pub struct Group {
    cpu: Option<PathBuf>,
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
    freezer: Option<PathBuf>,
    v1: Vec<PathBuf>,
    v2: Option<PathBuf>,
    v2_limits: bool,
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
            match (&self.cpu, self.limits_v2()) {
                (Some(cpu), _) => {
                    write(&cpu.join("cpu.cfs_period_us"), &CPU_PERIOD_US.to_string())?;
                    write(&cpu.join("cpu.cfs_quota_us"), &quota_us.to_string())?;
                }
                (None, Some(v2)) => write(&v2.join("cpu.max"), &format!("{quota_us} {CPU_PERIOD_US}"))?,
                (None, None) => return Err(unenforceable("cpu")),
            }
        }
        if let Some(bytes) = limits.memory_bytes {
            match (&self.memory, self.limits_v2()) {
                (Some(memory), _) => {
                    write(&memory.join("memory.limit_in_bytes"), &bytes.to_string())?;
                    write_if_there(&memory.join("memory.memsw.limit_in_bytes"), &bytes.to_string())?;
                    write_if_there(&memory.join("memory.swappiness"), "0")?;
                }
                (None, Some(v2)) => {
                    write(&v2.join("memory.max"), &bytes.to_string())?;
                    write_if_there(&v2.join("memory.swap.max"), "0")?;
                }
                (None, None) => return Err(unenforceable("memory")),
            }
        }
        if let Some(count) = limits.pids {
            match (&self.pids, self.limits_v2()) {
                (Some(pids), _) => write(&pids.join("pids.max"), &count.to_string())?,
                (None, Some(v2)) => write(&v2.join("pids.max"), &count.to_string())?,
                (None, None) => return Err(unenforceable("pids")),
            }
        }
        Ok(())
    }

    fn limits_v2(&self) -> Option<&PathBuf> {
        self.v2.as_ref().filter(|_| self.v2_limits)
    }

    /// Moves a process into the groups.
    pub fn add(&self, pid: Pid) -> Result<()> {
        let text = pid.as_raw_nonzero().to_string();
        self.all().try_for_each(|path| write(&path.join("cgroup.procs"), &text))
    }

    /// Takes the cpu limit away, so that a throttled group can be killed quickly.
    pub fn lift_cpu(&self) {
        // Best effort: killing works without it, only slower.
        if let Some(cpu) = &self.cpu {
            let _ = fs::write(cpu.join("cpu.cfs_quota_us"), "-1");
        } else if let Some(v2) = self.limits_v2() {
            let _ = fs::write(v2.join("cpu.max"), "max");
        }
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
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
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
        let v2 = self.limits_v2();
        let memory = self.memory.as_ref().map(|path| path.join("memory.oom_control"));
        let memory = memory.or_else(|| v2.map(|path| path.join("memory.events")));
        let pids = self.pids.as_ref().or(v2).map(|path| path.join("pids.events"));
        Counters {
            oom_kills: memory.and_then(|path| keyed(&path, "oom_kill")).unwrap_or(0),
            pids_refused: pids.and_then(|path| keyed(&path, "max")).unwrap_or(0),
        }
    }

    /// The limits in force, read back: cpu in thousandths, memory, swap beyond memory, pids.
    pub fn applied(&self) -> Applied {
        let v2 = self.limits_v2();
        let cpu_millis = match (&self.cpu, v2) {
            (Some(cpu), _) => {
                let quota = read_number(&cpu.join("cpu.cfs_quota_us"));
                let period = read_number(&cpu.join("cpu.cfs_period_us"));
                quota.zip(period).map(|(quota, period)| quota * 1000 / period.max(1))
            }
            (None, Some(v2)) => fs::read_to_string(v2.join("cpu.max")).ok().and_then(|text| {
                let (quota, period) = text.trim().split_once(' ')?;
                Some(quota.parse::<u64>().ok()? * 1000 / period.parse::<u64>().ok()?.max(1))
            }),
            (None, None) => None,
        };
        let (memory_bytes, swap_bytes) = match (&self.memory, v2) {
            (Some(memory), _) => {
                let limit = bounded(read_number(&memory.join("memory.limit_in_bytes")));
                let both = bounded(read_number(&memory.join("memory.memsw.limit_in_bytes")));
                (limit, limit.zip(both).map(|(limit, both)| both.saturating_sub(limit)))
            }
            (None, Some(v2)) => (read_number(&v2.join("memory.max")), read_number(&v2.join("memory.swap.max"))),
            (None, None) => (None, None),
        };
        let pids = self.pids.as_ref().or(v2).and_then(|path| read_number(&path.join("pids.max")));
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
        crate::error::Kind::Unsupported,
        format!("no cgroup hierarchy of this machine carries the {limit} limit; mount cgroup2 or delegate a group"),
    )
}

fn processes(group: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter_map(Pid::from_raw).collect()
}

fn make(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other.op(format!("make cgroup {}", path.display())),
    }
}

fn remove(path: &Path) -> Result<()> {
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

fn write(path: &Path, value: &str) -> Result<()> {
    let written = fs::File::options().write(true).open(path).and_then(|mut file| file.write_all(value.as_bytes()));
    written.op(format!("write {value} to {}", path.display()))
}

fn write_if_there(path: &Path, value: &str) -> Result<()> {
    if path.exists() { write(path, value) } else { Ok(()) }
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Version 1 says "unlimited" with a number near the largest.
fn bounded(value: Option<u64>) -> Option<u64> {
    value.filter(|bytes| *bytes < i64::MAX as u64 / 2)
}

fn keyed(path: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.split_once(' ').filter(|(name, _)| *name == key)?.1.trim().parse().ok())
}
