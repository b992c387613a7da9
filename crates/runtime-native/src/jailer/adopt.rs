//! Takes over sandboxes whose monitor was killed: their console is read again and their end is recorded.
//!
//! The new monitor is not the parent of PID 1, so it learns the exit from the kernel's record of the process (Linux
//! 6.15 and later) or from the jailer, which is the subreaper; where neither knows, the exit is `unknown`.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::time::Duration;

use lifecycle::spec::SandboxId;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::process::{Pid, Signal, getpid, pidfd_send_signal};

use super::create::Live;
use super::status::StatusReader;
use super::{Jail, destroy, watch};
use crate::error::{Context, Failure, Result};
use crate::state::{self, Monitor, Process, State};
use crate::sys::ChildEnd;
use crate::wire::Plan;

/// A monitor that is not the jailer's child, since another jailer made it.
pub struct Foreign {
    /// Whose monitor it is.
    pub id: SandboxId,
    /// Readable when it has ended.
    pub process: OwnedFd,
}

/// What is to be done about a sandbox found at the start.
pub enum Found {
    /// Its monitor lives.
    Monitored(Foreign),
    /// Its monitor is dead.
    Abandoned(SandboxId),
}

/// Looks at every sandbox that has not ended, and at those whose end nobody announced.
pub fn find(jail: &Jail) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(jail.paths.sandboxes()).op("list sandboxes")? {
        let entry = entry.op("list sandboxes")?;
        let Some(id) = entry.file_name().to_str().and_then(SandboxId::parse) else { continue };
        if is_done(jail, &entry) {
            continue;
        }
        let Some(known) = state::load::<Monitor>(&entry.path(), state::MONITOR)? else { continue };
        if known.boot_id != jail.boot_id {
            continue;
        }
        found.push(match known.monitor.open() {
            Some(process) => Found::Monitored(Foreign { id, process }),
            None => Found::Abandoned(id),
        });
    }
    Ok(found)
}

/// Whether a sandbox's end is recorded and announced. A monitor may be killed between the two.
fn is_done(jail: &Jail, entry: &fs::DirEntry) -> bool {
    entry.path().join(state::EXIT).exists() && jail.paths.exits().join(entry.file_name()).exists()
}

/// The sandbox whose monitor had this number, if it needs another one.
pub fn abandoned_by(jail: &Jail, pid: Pid) -> Result<Option<SandboxId>> {
    for entry in fs::read_dir(jail.paths.sandboxes()).op("list sandboxes")? {
        let entry = entry.op("list sandboxes")?;
        let known = state::load::<Monitor>(&entry.path(), state::MONITOR)?;
        let ours = known.is_some_and(|known| known.monitor.pid == pid.as_raw_nonzero().get());
        if ours && !is_done(jail, &entry) {
            return Ok(entry.file_name().to_str().and_then(SandboxId::parse));
        }
    }
    Ok(None)
}

/// Becomes the sandbox's monitor, in a process of its own, until its end.
pub fn run(jail: &Jail, id: &SandboxId) {
    match take_over(jail, id) {
        Ok(Some(live)) => watch::until_end(jail, live),
        Ok(None) => {}
        Err(failure) => eprintln!("osb monitor: take over {id}: {failure}"),
    }
}

fn take_over(jail: &Jail, id: &SandboxId) -> Result<Option<Live<'static>>> {
    let directory = jail.paths.sandbox(id);
    let Ok(lock) = File::open(directory.join(state::LOCK)) else { return Ok(None) };
    flock(&lock, FlockOperation::LockExclusive).op("lock the sandbox")?;
    let (Some(plan), Some(known)) =
        (state::load::<Plan>(&directory, state::PLAN)?, state::load::<State>(&directory, state::STATE)?)
    else {
        // Cut off before anything ran: whoever asked asks again or destroys it.
        return Ok(None);
    };
    let Some(init) = known.init.open() else {
        if directory.join(state::EXIT).exists() {
            watch::announce(jail, id)?;
        } else if known.receipt.is_some() {
            // Its monitor had waited for it and was killed before it could write down how it ended.
            let counters = jail.group(id).map(|group| group.counters()).unwrap_or_default();
            let end = ChildEnd { code: None, signal: None };
            watch::write(jail, id, watch::judge(end, None, counters, watch::Disk::HasRoom, &plan.limits))?;
        }
        return Ok(None);
    };
    if known.receipt.is_none() {
        destroy::remove_locked(jail, id, Duration::ZERO)?;
        return Ok(None);
    }
    let monitor = Process::of(getpid()).ok_or_else(|| Failure::internal("read /proc/self/stat"))?;
    state::store(&directory, state::MONITOR, &Monitor { monitor, boot_id: jail.boot_id.clone() })?;
    let watching = File::create(directory.join(state::WATCHING)).op("make the monitor's lock")?;
    flock(&watching, FlockOperation::NonBlockingLockExclusive).op("lock the monitor's lock")?;
    if plan.leased {
        // The lease died with the monitor, so nobody can tell any more whether the engine lives: fail closed.
        let _ = pidfd_send_signal(&init, Signal::KILL);
    }
    Ok(Some(Live {
        id: id.clone(),
        console: reopen_console(known.init.pid)?,
        init,
        status: StatusReader::closed()?,
        disk: None,
        spare: None,
        lease: None,
        grace: Duration::from_millis(plan.grace_ms),
        kernel: plan.kernel,
        limits: plan.limits,
        // They went with the monitor that had them.
        _namespaces: Vec::new(),
        watching: Some(watching),
    }))
}

/// Another read end of the pipe that is PID 1's standard output.
fn reopen_console(init: i32) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let console = rustix::fs::open(format!("/proc/{init}/fd/1"), flags, Mode::empty()).op("open the console again")?;
    let stat = rustix::fs::fstat(&console).op("look at the console")?;
    if stat.st_mode & libc::S_IFMT == libc::S_IFIFO {
        return Ok(console);
    }
    Err(Failure::internal("the standard output of PID 1 is not our pipe"))
}
