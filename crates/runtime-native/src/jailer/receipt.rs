//! Reads back from the kernel what was really applied to a sandbox, and refuses one that got less than it asked for.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;

use lifecycle::runtime::{AppliedLimit, IdRange, Receipt};
use rustix::process::Pid;

use super::{Jail, Mode, mounts};
use crate::cgroup::Group;
use crate::disk::Size;
use crate::error::{Context, Failure, Result};
use crate::gvisor::{self, Sentry};
use crate::idrange::Slot;
use crate::init::KEPT;
use crate::probe;
use crate::wire::{Kernel, Plan};

/// Namespaces that every sandbox has of its own: name in /proc and name in the receipt.
const NAMESPACES: &[(&str, &str)] = &[
    ("user", "user"),
    ("mnt", "mount"),
    ("pid", "pid"),
    ("ipc", "ipc"),
    ("uts", "uts"),
    ("net", "net"),
    ("cgroup", "cgroup"),
];
/// Names of capabilities by number.
const CAPABILITIES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];
/// Rounding that the kernel's page size brings into a memory limit.
const PAGE_BYTES: u64 = 4096;

/// The limits, read back from the kernel. They are the monitor's own doing and stand before the sandbox's first process
/// runs; read while that builds its root, they cost a create nothing.
pub struct Limits(BTreeMap<String, AppliedLimit>);

impl Limits {
    /// Reads them.
    pub fn read(jail: &Jail, plan: &Plan, group: Option<&Group>, disk: Option<&OwnedFd>) -> Self {
        Self(limits(jail, plan, group, disk))
    }
}

/// Reads everything else back and compares it with the plan.
pub fn read(jail: &Jail, plan: &Plan, pid: Pid, slot: Option<Slot>, limits: Limits, way_out: &str) -> Result<Receipt> {
    let process = format!("/proc/{}", pid.as_raw_nonzero());
    let confined = match plan.kernel {
        Kernel::Host => pid,
        Kernel::Gvisor => Sentry::below(pid)?.pid,
    };
    let status = fs::read_to_string(format!("/proc/{}/status", confined.as_raw_nonzero()));
    let status = status.op("read back the sandbox's status")?;
    let field =
        |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim_start_matches(':').trim()));
    let effective = field("CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    let effective = effective.ok_or_else(|| Failure::internal("read back CapEff"))?;
    let namespaces = own_namespaces(jail, &process)?;
    let root = root_mount(&process, plan.kernel)?;

    let receipt = Receipt {
        mode: mode(jail.mode).to_owned(),
        id_range: read_range(&process),
        namespaces,
        limits: limits.0,
        isolation: jail.isolation(),
        rootfs: if jail.mode == Mode::Root { "overlay (id-mapped)" } else { "overlay" }.to_owned(),
        seccomp: field("Seccomp") == Some("2"),
        no_new_privs: field("NoNewPrivs") == Some("1"),
        capabilities: names(effective),
        network: way_out.to_owned(),
        mounts: mounts::read(jail.mode, plan, &process)?,
        weaker: probe::weaker(jail),
    };
    compare(&receipt, plan, slot, effective, &root)?;
    Ok(receipt)
}

/// The same receipt with other limits, which must be what the plan asks for.
pub fn with_limits(receipt: Receipt, limits: Limits, plan: &Plan) -> Result<Receipt> {
    let receipt = Receipt { limits: limits.0, ..receipt };
    compare_limits(&receipt, plan)?;
    Ok(receipt)
}

/// `root` or `user`.
pub fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Root => "root",
        Mode::User => "user",
    }
}

fn own_namespaces(jail: &Jail, process: &str) -> Result<Vec<String>> {
    let mut own = Vec::new();
    for (file, name) in NAMESPACES {
        let theirs = fs::read_link(format!("{process}/ns/{file}"));
        let ours = fs::read_link(format!("/proc/self/ns/{file}")).op("read our own namespaces")?;
        match theirs {
            Ok(theirs) if theirs != ours => own.push((*name).to_owned()),
            Ok(_) => {}
            // execd is unreadable memory, so an ordinary user may not look into its process.
            Err(_) if jail.mode == Mode::User => own.push((*name).to_owned()),
            Err(error) => return Err(error).op("read back the sandbox's namespaces"),
        }
    }
    Ok(own)
}

fn root_mount(process: &str, kernel: Kernel) -> Result<String> {
    let place = match kernel {
        Kernel::Host => "/",
        Kernel::Gvisor => gvisor::ROOT,
    };
    let table = fs::read_to_string(format!("{process}/mountinfo")).op("read back the sandbox's mounts")?;
    let root = table.lines().find(|line| line.split(' ').nth(4) == Some(place));
    root.map(str::to_owned).ok_or_else(|| Failure::internal("the sandbox has no root mount"))
}

fn read_range(process: &str) -> Option<IdRange> {
    let map = fs::read_to_string(format!("{process}/uid_map")).ok()?;
    let mut numbers = map.lines().next()?.split_whitespace().skip(1).filter_map(|word| word.parse().ok());
    Some(IdRange { first: numbers.next()?, count: numbers.next()? })
}

fn names(effective: u64) -> Vec<String> {
    let name = |bit: u32| CAPABILITIES.get(bit as usize).map_or(format!("CAP_{bit}"), |name| format!("CAP_{name}"));
    (0..64).filter(|bit| effective & (1 << bit) != 0).map(name).collect()
}

fn limits(jail: &Jail, plan: &Plan, group: Option<&Group>, disk: Option<&OwnedFd>) -> BTreeMap<String, AppliedLimit> {
    let mut limits = BTreeMap::new();
    let mut add = |name: &str, value: Option<u64>, by: &str| {
        limits.insert(name.to_owned(), AppliedLimit { value, by: by.to_owned() });
    };
    let applied = group.map(Group::applied).unwrap_or_default();
    let given = jail.by_process(&plan.limits);
    for (name, applied, given) in [
        ("cpu", applied.cpu_millis, given.cpu_millis),
        ("memory", applied.memory_bytes, given.memory_bytes),
        ("pids", applied.pids, given.pids),
    ] {
        match jail.means(name) {
            Some(means) if means.starts_with("cgroup") => add(name, applied, means),
            // Nothing holds without a number.
            means => add(name, given, means.filter(|_| given.is_some()).unwrap_or("none")),
        }
    }
    if group.is_some() {
        add("swap", applied.swap_bytes, applied.swap_bytes.and(jail.means("memory")).unwrap_or("none"));
    }
    let asked = Size::of(plan.limits.disk_bytes, plan.limits.disk_inodes);
    match disk.map(rustix::fs::fstatfs) {
        Some(Ok(stat)) => {
            add("disk", Some(stat.f_blocks * stat.f_bsize as u64), "ext4 image");
            add("inodes", Some(stat.f_files), "ext4 image");
        }
        _ if jail.mode == Mode::User && plan.limits.disk_bytes.is_none() && plan.limits.disk_inodes.is_none() => {
            add("disk", None, "none");
            add("inodes", None, "none");
        }
        _ => {
            add("disk", Some(asked.bytes), "tmpfs");
            add("inodes", Some(asked.inodes), "tmpfs");
        }
    }
    limits
}

fn less(what: &str) -> Failure {
    Failure::internal(format!("the kernel applied less than was asked: {what}"))
}

/// Fails when the kernel applied less than the plan asked for.
fn compare(receipt: &Receipt, plan: &Plan, slot: Option<Slot>, effective: u64, root: &str) -> Result<()> {
    let less = |what: String| Err(less(&what));
    if !receipt.seccomp || !receipt.no_new_privs {
        return less("no system-call filter or no no_new_privs".to_owned());
    }
    let kept = match plan.kernel {
        Kernel::Host => KEPT,
        Kernel::Gvisor => gvisor::KEPT,
    };
    if effective & !kept.bits() != 0 {
        return less(format!("capabilities {}", names(effective & !kept.bits()).join(" ")));
    }
    if receipt.namespaces.len() != NAMESPACES.len() {
        return less(format!("only the namespaces {}", receipt.namespaces.join(" ")));
    }
    if let Some(slot) = slot
        && receipt.id_range != Some(slot.range())
    {
        return less("another id range".to_owned());
    }
    let options = root.split(' ').nth(5).unwrap_or("");
    if !root.contains(" - overlay ")
        || !["nosuid", "nodev"].iter().all(|flag| options.split(',').any(|word| word == *flag))
    {
        return less(format!("a root file system with {options}"));
    }
    compare_limits(receipt, plan)
}

fn compare_limits(receipt: &Receipt, plan: &Plan) -> Result<()> {
    let rows = [
        ("cpu", plan.limits.cpu_millis, 0),
        ("memory", plan.limits.memory_bytes, PAGE_BYTES),
        ("pids", plan.limits.pids, 0),
        ("disk", plan.limits.disk_bytes, 0),
        // ext4 rounds inodes up to whole blocks in each of its groups.
        ("inodes", plan.limits.disk_inodes, plan.limits.disk_inodes.unwrap_or(0) / 8 + 4096),
    ];
    for (name, asked, slack) in rows {
        let Some(asked) = asked else { continue };
        let applied = receipt.limits.get(name).and_then(|limit| limit.value);
        if applied.is_none_or(|applied| applied > asked + slack) {
            return Err(less(&format!("{name} is {applied:?} where {asked} was asked")));
        }
    }
    Ok(())
}
