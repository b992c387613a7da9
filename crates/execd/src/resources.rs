//! What of the sandbox's resources ran out, told to the commands that met it.
//!
//! The kernel counts for the sandbox as a whole: a command is told that something ran out while it ran, not
//! that it was the one to blame. Looked at once a second while commands run, and when one has failed.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use protocol::execd::output::Resource;
use rustix::fs::{StatVfs, StatVfsMountFlags, statvfs};
use tokio::sync::Notify;

use crate::command::Command;
use crate::daemon::Daemon;
use crate::metrics::cgroup_file;

/// Between two looks. Counters only grow, so nothing is missed; a disk that is full for less is.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// File systems that are looked at.
const PLACES: [&str; 3] = ["/", "/tmp", "/dev/shm"];

/// The sandbox's own counters, where it can see them.
pub struct Counters {
    oom_kills: Option<PathBuf>,
    refused_forks: Option<PathBuf>,
    seen: Cell<(u64, u64)>,
    started: Notify,
}

impl Counters {
    /// Finds them.
    pub fn find() -> Rc<Self> {
        let counters = Self {
            oom_kills: cgroup_file("", "memory.events").or_else(|| cgroup_file("memory", "memory.oom_control")),
            refused_forks: cgroup_file("", "pids.events").or_else(|| cgroup_file("pids", "pids.events")),
            seen: Cell::new((0, 0)),
            started: Notify::new(),
        };
        counters.seen.set((counters.oom_kills(), counters.refused_forks()));
        Rc::new(counters)
    }

    /// Processes that the kernel ended for memory.
    pub fn oom_kills(&self) -> u64 {
        count(self.oom_kills.as_ref(), "oom_kill")
    }

    fn refused_forks(&self) -> u64 {
        count(self.refused_forks.as_ref(), "max")
    }

    /// Says that a command was started, so that there is somebody to tell.
    pub fn command_started(&self) {
        self.started.notify_one();
    }
}

fn count(path: Option<&PathBuf>, name: &str) -> u64 {
    let text = path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()).unwrap_or(0)
}

/// Looks while commands run, until execd ends.
pub async fn watch(daemon: Rc<Daemon>) {
    loop {
        daemon.counters.started.notified().await;
        while !daemon.commands.running().is_empty() {
            tokio::time::sleep(LOOK_EVERY).await;
            look(&daemon, None);
        }
    }
}

/// Looks now, and tells the running commands and the one that has just ended.
pub fn look(daemon: &Daemon, ended: Option<&Rc<Command>>) {
    let counters = &daemon.counters;
    let (oom_kills, refused_forks) = (counters.oom_kills(), counters.refused_forks());
    let (seen_kills, seen_refused) = counters.seen.replace((oom_kills, refused_forks));
    let full = full_places();
    let told = daemon.commands.running().into_iter().chain(ended.cloned());
    for command in told {
        if oom_kills > seen_kills {
            let ended = oom_kills - seen_kills;
            command
                .ran_out(Resource::Memory, &format!("the kernel ended {ended} process(es) of the sandbox for memory"));
        }
        if refused_forks > seen_refused {
            command.ran_out(Resource::Pids, "the sandbox is at its limit of processes: one could not be started");
        }
        for (resource, place) in &full {
            let detail = place.map_or_else(String::new, |place| format!("the file system of {place} is full"));
            command.lacks(*resource, place.is_some(), &detail);
        }
    }
}

/// The first place without free bytes, and the first without free inodes.
fn full_places() -> [(Resource, Option<&'static str>); 2] {
    // A read-only file system has no free bytes either, and nobody misses them.
    let writable = |found: &StatVfs| !found.f_flag.contains(StatVfsMountFlags::RDONLY);
    let first = |is_full: fn(&StatVfs) -> bool| {
        PLACES.into_iter().find(|place| statvfs(*place).is_ok_and(|found| writable(&found) && is_full(&found)))
    };
    [
        (Resource::Disk, first(|found| found.f_blocks > 0 && found.f_bavail == 0)),
        (Resource::Inodes, first(|found| found.f_files > 0 && found.f_favail == 0)),
    ]
}
