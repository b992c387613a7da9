//! Counts everything that a sandbox could leave behind on the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::server::{Server, processes_of};

/// What there is of one server at a moment, as counts that must come back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Processes of the server and of its sandboxes.
    pub processes: usize,
    /// Control groups below the server's own.
    pub cgroups: usize,
    /// Mounts in any mount namespace that name the server's data.
    pub mounts: usize,
    /// Namespaces in which the processes counted above live.
    pub namespaces: usize,
    /// Loop devices over files of the server's data.
    pub loop_devices: usize,
    /// Entries of the directories that hold one entry per sandbox.
    pub entries: usize,
    /// Descriptors of the server's processes, without connections of clients, who keep theirs alive for a while, and
    /// those to the database, of which the server opens a bounded number at need.
    pub descriptors: usize,
}

/// Directories of the data directory with something in them per sandbox.
const PER_SANDBOX: [&str; 4] = ["sandboxes", "exits", "ids", "disks"];
/// The kinds of namespaces that a sandbox has of its own.
const NAMESPACES: [&str; 7] = ["mnt", "pid", "ipc", "uts", "net", "cgroup", "user"];

impl Census {
    /// Counts now.
    #[must_use]
    pub fn take(server: &Server) -> Self {
        let data = server.data();
        let groups = groups_of(&data);
        let own = server.processes();
        let clients = connections();
        let descriptors = own.keys().map(|pid| descriptors(*pid, &clients)).sum();
        let members = members(server);
        let mut namespaces = BTreeSet::new();
        let mut mounts = BTreeSet::new();
        for pid in &members {
            for kind in NAMESPACES {
                namespaces.extend(fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok());
            }
        }
        for pid in pids() {
            let text = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
            let ours = text.lines().filter(|line| line.contains(&*data.to_string_lossy()));
            let namespace = fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap_or_default();
            mounts.extend(ours.map(|line| (namespace.clone(), line.to_owned())));
        }
        Self {
            processes: members.len(),
            cgroups: group_directories(&groups),
            mounts: mounts.len(),
            namespaces: namespaces.len(),
            loop_devices: loops_over(&data),
            entries: PER_SANDBOX.iter().map(|name| count(&data.join(name).to_string_lossy())).sum(),
            descriptors,
        }
    }

    /// Whether nothing is there that was not there `before`. Descriptors may be fewer: a process that was started anew
    /// has not opened yet what an older one opened at need. So may be the disks kept ready, each with a descriptor: the
    /// disk of a killed monitor goes with it, and others are made only once few are left.
    #[must_use]
    pub fn within(&self, before: &Self) -> bool {
        let mut allowed = before.clone();
        if self.loop_devices < before.loop_devices {
            allowed.descriptors = before.descriptors.saturating_sub(before.loop_devices - self.loop_devices);
            allowed.loop_devices = self.loop_devices;
        }
        self.descriptors <= allowed.descriptors && Self { descriptors: self.descriptors, ..allowed } == *self
    }
}

/// What the processes counted are and what they have open, in words without numbers that change: the difference of two
/// says what a census found too much.
#[must_use]
pub fn describe(server: &Server) -> BTreeMap<String, usize> {
    let mut words = BTreeMap::new();
    let mut note = |word: String| *words.entry(word).or_default() += 1;
    let own = server.processes();
    for pid in members(server) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or_default().trim().to_owned();
        let waits = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        let Some(role) = own.get(&pid) else {
            note(format!("sandboxed process: {state} {waits}"));
            continue;
        };
        note(format!("{role}: {state} {waits}"));
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            let kind: String = target.to_string_lossy().chars().filter(|one| !one.is_ascii_digit()).collect();
            note(format!("{role} has {kind}"));
        }
    }
    words
}

/// How the names of the database's files begin.
const DATABASE: &str = "/server/osb.db";

/// Descriptors of a process but those that are one of `clients`.
fn descriptors(pid: u32, clients: &BTreeSet<String>) -> usize {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let target = |entry: fs::DirEntry| fs::read_link(entry.path()).unwrap_or_default().to_string_lossy().into_owned();
    let counts = |target: &String| !clients.contains(target) && !target.contains(DATABASE);
    entries.flatten().map(target).filter(counts).count()
}

/// Every open TCP connection of this machine, named as `/proc/<pid>/fd` names it. The server itself dials registries
/// only, so those of its descriptors that are in here belong to clients.
fn connections() -> BTreeSet<String> {
    const ESTABLISHED: &str = "01";
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.get(3) == Some(&ESTABLISHED))
        .filter_map(|row| row.get(9).map(|inode| format!("socket:[{inode}]")))
        .collect()
}

/// The server's processes and all that live in its groups.
pub(crate) fn members(server: &Server) -> BTreeSet<u32> {
    let groups = groups_of(&server.data());
    let mut members: BTreeSet<u32> = server.processes().into_keys().collect();
    for pid in pids() {
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let mut paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        if paths.any(|path| path.split('/').any(|part| groups.contains(part))) {
            members.insert(pid);
        }
    }
    members
}

/// Every process of the machine.
pub fn pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The names of the server's own top groups: those that hold a group of one of
/// its sandboxes, or did so before (they are named after the data directory and
/// stay while the server runs).
fn groups_of(data: &Path) -> BTreeSet<String> {
    let ids: BTreeSet<String> = fs::read_dir(data.join("sandboxes"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let mut found = BTreeSet::new();
    for hierarchy in hierarchies() {
        for top in directories(&hierarchy) {
            let holds_ours = directories(&top).iter().any(|group| ids.contains(&name(group)));
            if holds_ours || marked(&top, data) {
                found.insert(name(&top));
            }
        }
    }
    found
}

/// A server's top group may hold its processes.
fn marked(top: &Path, data: &Path) -> bool {
    if !name(top).starts_with("osb-") {
        return false;
    }
    let program = data.with_file_name("osb");
    let ours = processes_of(&program);
    let mut looked = vec![top.to_owned()];
    looked.extend(directories(top));
    looked.iter().any(|group| {
        let members = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        members.lines().filter_map(|pid| pid.parse().ok()).any(|pid| ours.contains_key(&pid))
    })
}

/// Sandbox groups below the given top groups, over all hierarchies.
fn group_directories(tops: &BTreeSet<String>) -> usize {
    let mut groups = 0;
    for hierarchy in hierarchies() {
        for top in directories(&hierarchy) {
            if tops.contains(&name(&top)) {
                groups += directories(&top).len();
            }
        }
    }
    groups
}

fn hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    let mut all = directories(&root);
    all.push(root);
    all
}

fn loops_over(data: &Path) -> usize {
    let data = data.to_string_lossy();
    directories(Path::new("/sys/block"))
        .iter()
        .filter(|device| {
            let file = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
            file.contains(&*data)
        })
        .count()
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn count(directory: &str) -> usize {
    fs::read_dir(directory).map_or(0, Iterator::count)
}
