//! Ends a sandbox and removes everything of it, from whatever state it is in.
//!
//! Each step looks at what is there, so the whole can be cut off anywhere and started again. The id range is freed
//! last, when no process can be left that uses it.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use lifecycle::spec::SandboxId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Signal, getpid, pidfd_send_signal};

use super::Jail;
use crate::cgroup::{Freeze, Group};
use crate::error::{Context, Failure, Result};
use crate::idrange::{self, Slot};
use crate::state::{self, Monitor, State};

/// How long killed processes may take to be gone: thousands of them on a loaded machine need a while.
const KILL_DEADLINE: Duration = Duration::from_secs(30);
/// How often the kill is repeated within that time, for processes that were being forked into the group.
const KILL_INTERVAL: Duration = Duration::from_secs(1);
/// How long a monitor may take to write the exit record and end.
const MONITOR_DEADLINE: Duration = Duration::from_secs(5);
/// How often its lock is tried in that time, beside its own end: the record takes less than this.
const MONITOR_INTERVAL: Duration = Duration::from_millis(1);
/// How often a directory is emptied again because a file came in between: one exit record writes two.
const REMOVE_ATTEMPTS: usize = 8;
/// How long a thaw before the TERM may take; if longer the sandbox is killed frozen.
const THAW_DEADLINE: Duration = Duration::from_secs(1);

/// Ends and removes the sandbox; unknown ids succeed.
pub fn remove(jail: &Jail, id: &SandboxId, grace: Duration) -> Result<()> {
    let _lock = loop {
        let (monitor, _) = monitor(jail, id)?;
        let lock = lock(&jail.paths.sandbox(id), monitor.as_ref())?;
        // Whoever had it before us may have removed it, and a create may have made the directory anew.
        let is_there = |lock: &File| lock.metadata().map(|about| about.nlink() > 0).op("look at the sandbox's lock");
        match lock {
            Some(file) if is_there(&file)? => break file,
            Some(_) => {} // each round needs another holder who has finished
            // So that a create that comes now waits for us.
            None => super::create::announce(jail, id)?,
        }
    };
    remove_locked(jail, id, grace)
}

/// The same for a caller that holds the sandbox's lock, or is its monitor.
pub fn remove_locked(jail: &Jail, id: &SandboxId, grace: Duration) -> Result<()> {
    clear(jail, id, grace, |directory| remove_tree(jail, directory))
}

/// Ends the sandbox and removes everything but its directory and the lock in it, which the caller holds.
pub fn start_over_locked(jail: &Jail, id: &SandboxId) -> Result<()> {
    clear(jail, id, Duration::ZERO, |directory| {
        for entry in fs::read_dir(directory).op("list the sandbox's directory")? {
            let entry = entry.op("list the sandbox's directory")?;
            if entry.file_name() == state::LOCK {
                continue;
            }
            match entry.file_type().op("look into the sandbox's directory")?.is_dir() {
                true => remove_tree(jail, &entry.path())?,
                false => remove_file(&entry.path())?,
            }
        }
        Ok(())
    })
}

fn clear(jail: &Jail, id: &SandboxId, grace: Duration, remove: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let directory = jail.paths.sandbox(id);
    let (monitor, same_boot) = monitor(jail, id)?;
    let known = state::load::<State>(&directory, state::STATE)?;
    let init = known.as_ref().filter(|_| same_boot).and_then(|known| known.init.open());
    let group = jail.group(id);

    if let Some(init) = &init {
        ask_to_end(init, group.as_ref(), grace);
    }
    kill(init.as_ref(), group.as_ref())?;
    if let Some(monitor) = &monitor {
        dismiss(monitor, &directory);
    }
    if let Some(group) = &group {
        group.remove()?;
    }
    // In this order: whoever records the exit meanwhile sees the directory gone and takes its copy back.
    remove(&directory)?;
    remove_file(&jail.paths.exits().join(id.as_str()))?;
    let slot = known.and_then(|known| known.slot).map(Slot);
    match jail.mode {
        super::Mode::Root => idrange::release(&jail.paths.id_slots(), &directory, slot),
        super::Mode::User => Ok(()),
    }
}

/// The sandbox's monitor, unless it is gone or is this process; and whether it belongs to this boot.
fn monitor(jail: &Jail, id: &SandboxId) -> Result<(Option<OwnedFd>, bool)> {
    let ours = getpid().as_raw_nonzero().get();
    let known = state::load::<Monitor>(&jail.paths.sandbox(id), state::MONITOR)?;
    let same_boot = known.as_ref().is_none_or(|known| known.boot_id == jail.boot_id);
    let other = known.filter(|known| same_boot && known.monitor.pid != ours);
    Ok((other.and_then(|known| known.monitor.open()), same_boot))
}

/// Takes the sandbox's lock. A create that holds it is cut off: its monitor is killed.
fn lock(directory: &Path, monitor: Option<&OwnedFd>) -> Result<Option<File>> {
    let file = match File::create(directory.join(state::LOCK)) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).op("open the sandbox's lock"),
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if let Some(monitor) = monitor {
            // Gone already is what we want.
            let _ = pidfd_send_signal(monitor, Signal::KILL);
        }
        flock(&file, FlockOperation::LockExclusive).op("lock the sandbox")?;
    }
    Ok(Some(file))
}

fn ask_to_end(init: &OwnedFd, group: Option<&Group>, grace: Duration) {
    if grace.is_zero() {
        return;
    }
    if let Some(group) = group.filter(|group| group.is_frozen()) {
        // A frozen process cannot hear; if it cannot be thawed it is killed as it is.
        let _ = group.freeze(Freeze::Thawed, Instant::now() + THAW_DEADLINE);
    }
    let _ = pidfd_send_signal(init, Signal::TERM);
    ends_within(init, grace);
}

fn kill(init: Option<&OwnedFd>, group: Option<&Group>) -> Result<()> {
    let deadline = Instant::now() + KILL_DEADLINE;
    if let Some(group) = group {
        group.lift_cpu();
        loop {
            group.kill()?;
            let round = (Instant::now() + KILL_INTERVAL).min(deadline);
            if group.wait_empty(round)? {
                break;
            }
            if Instant::now() >= deadline {
                return Err(Failure::internal("processes of the sandbox do not end although they were killed"));
            }
        }
    }
    let Some(init) = init else { return Ok(()) };
    let _ = pidfd_send_signal(init, Signal::KILL);
    if ends_within(init, deadline.saturating_duration_since(Instant::now())) {
        return Ok(());
    }
    Err(Failure::internal("the sandbox's first process does not end although it was killed"))
}

/// Lets the monitor finish its record. What it does after that concerns nobody: it gives the disk back.
fn dismiss(monitor: &OwnedFd, directory: &Path) {
    // It blocks this signal until it has nothing to do but wait for its lease.
    let _ = pidfd_send_signal(monitor, Signal::TERM);
    let Ok(watching) = File::open(directory.join(state::WATCHING)) else { return };
    let deadline = Instant::now() + MONITOR_DEADLINE;
    while flock(&watching, FlockOperation::NonBlockingLockShared).is_err() {
        if ends_within(monitor, MONITOR_INTERVAL) {
            return;
        }
        if Instant::now() > deadline {
            let _ = pidfd_send_signal(monitor, Signal::KILL);
            ends_within(monitor, MONITOR_DEADLINE);
            return;
        }
    }
}

fn ends_within(process: &OwnedFd, time: Duration) -> bool {
    let deadline = Instant::now() + time;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(_) if left.is_zero() => return false,
            Err(_) => {}
        }
    }
}

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.op(format!("remove {}", path.display())),
    }
}

fn remove_tree(jail: &Jail, directory: &Path) -> Result<()> {
    let mut removed = fs::remove_dir_all(directory);
    for _ in 0..REMOVE_ATTEMPTS {
        match &removed {
            // The jailer records the exit of a sandbox whose monitor was killed; its file came in between.
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => removed = fs::remove_dir_all(directory),
            _ => break,
        }
    }
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        // Files of other ids of an ordinary user's range can only be removed as their namespace's root.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => jail.user_ids.remove_tree(directory),
        other => other.op(format!("remove {}", directory.display())),
    }
}
