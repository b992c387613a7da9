//! The whole tree of a process that execd started: its group, and descendants that left it.
//!
//! Who belongs to it:
//! - members of the process group that the process leads;
//! - every process that carries the tag with which it was started. A tag is a limit that means nothing
//!   (`RLIMIT_RTTIME`, of an absurd number of microseconds): it passes through fork, exec, `setsid`, changed
//!   environments and the loss of parents, so that daemons are found. A process can lose it only by lowering
//!   that limit itself;
//! - children of all these, while their parents live.
//!
//! Without `/proc` only the group is known. A process is signalled by a descriptor that was opened before it was
//! looked at, so that a number that was given to another meanwhile is never hit.

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::time::{Instant, sleep, timeout};

use crate::blocking;
use crate::procfs::{self, Entry};
use crate::reaper::Process;

/// How often the tree is looked at while it ends; its members send no event to us.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// From the first KILL to giving up: only processes stuck in the kernel, or ones that fork faster than they are
/// found, take longer.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// Asks the tree to end, waits for that, and kills what is left; false when even that did not help in time.
pub async fn end(process: &Process, tag: u64, grace: Duration) -> bool {
    let Some(_hold) = process.hold() else { return true };
    let mut outsiders = find(process.pid(), tag).await;
    let signal_all = |outsiders: &[Outsider], signal| {
        process.signal_group(signal);
        outsiders.iter().for_each(|outsider| outsider.signal(signal));
    };
    signal_all(&outsiders, Signal::TERM);
    signal_all(&outsiders, Signal::CONT); // a stopped process sees TERM only when it goes on
    let deadline = Instant::now() + grace;
    while Instant::now() < deadline {
        let ended = process.exit().is_some();
        outsiders.retain(Outsider::lives);
        if ended && outsiders.is_empty() && !process.group_lives() {
            break;
        }
        if ended {
            sleep(LOOK_EVERY).await;
        } else {
            let _ = timeout(LOOK_EVERY, process.wait()).await; // the loop looks again either way
        }
    }
    kill(process, tag).await
}

/// Kills the tree, until nothing of it is found any more; false when that takes too long.
pub async fn kill(process: &Process, tag: u64) -> bool {
    let Some(_hold) = process.hold() else { return true };
    let deadline = Instant::now() + KILL_WAIT;
    loop {
        process.signal_group(Signal::KILL);
        let outsiders = find(process.pid(), tag).await;
        outsiders.iter().for_each(|outsider| outsider.signal(Signal::KILL));
        if timeout(LOOK_EVERY, process.wait()).await.is_ok() && outsiders.is_empty() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
    }
}

/// Kills what carries a tag and what descends from it, until nothing of it is found any more; for trees whose first
/// process has been reaped. False when that takes too long.
pub async fn kill_tagged(tag: u64) -> bool {
    let deadline = Instant::now() + KILL_WAIT;
    loop {
        let found = blocking::run(move || tagged(tag)).await.unwrap_or_default();
        if found.is_empty() {
            return true;
        }
        found.iter().for_each(|member| member.signal(Signal::KILL));
        if Instant::now() >= deadline {
            return false;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// A process of the tree that is not in its group.
struct Outsider(OwnedFd);

impl Outsider {
    fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.0, signal); // it may have ended
    }

    fn lives(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        // Readable means ended; an error tells nothing, and the next look does.
        !matches!(poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(ready) if ready > 0)
    }
}

/// Looks for members outside the group, on a worker thread: it reads a file or two of every process.
async fn find(leader: Pid, tag: u64) -> Vec<Outsider> {
    blocking::run(move || outsiders(leader, tag)).await.unwrap_or_default()
}

fn outsiders(leader: Pid, tag: u64) -> Vec<Outsider> {
    members_outside(Some(leader.as_raw_nonzero().get()), tag)
}

fn tagged(tag: u64) -> Vec<Outsider> {
    members_outside(None, tag)
}

/// Members that are not in the group; all of them where no group is named.
fn members_outside(group: Option<i32>, tag: u64) -> Vec<Outsider> {
    let Some(running) = procfs::running() else { return Vec::new() };
    let running: Vec<Entry> = running.collect();
    let number = |entry: &Entry| entry.pid.as_raw_nonzero().get();
    let is_tagged = |entry: &Entry| tag_of(entry.pid) == Some(tag);
    let mut members: HashSet<i32> =
        running.iter().filter(|entry| Some(entry.group) == group || is_tagged(entry)).map(number).collect();
    loop {
        let children = running.iter().filter(|entry| members.contains(&entry.parent)).map(number);
        let new: Vec<i32> = children.filter(|pid| !members.contains(pid)).collect();
        if new.is_empty() {
            break;
        }
        members.extend(new);
    }
    let outside = running.iter().filter(|entry| Some(entry.group) != group && members.contains(&number(entry)));
    let open = |entry: &Entry| {
        let fd = pidfd_open(entry.pid, PidfdFlags::empty()).ok()?;
        // The descriptor holds whoever has the number now; the second look says that it is still the same one.
        let again = procfs::look_at(entry.pid)?;
        (tag_of(entry.pid) == Some(tag) || again.parent == entry.parent).then_some(Outsider(fd))
    };
    outside.filter_map(open).collect()
}

/// The tag of a process, if it has one.
fn tag_of(pid: Pid) -> Option<u64> {
    let limits = fs::read_to_string(format!("/proc/{}/limits", pid.as_raw_nonzero())).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max realtime timeout"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}
