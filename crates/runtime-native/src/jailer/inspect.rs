//! Says what is, freezes and thaws, and records exits that no monitor could record.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use lifecycle::runtime::Exit;
use lifecycle::spec::SandboxId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Pid;

use super::Jail;
use super::seat;
use super::watch::{self, Disk};
use crate::cgroup::Freeze;
use crate::error::{Context, Failure, Kind, Result};
use crate::gvisor::{self, Told};
use crate::idrange;
use crate::state::{self, ExitRecord, Monitor, State};
use crate::sys::ChildEnd;
use crate::wire::{Kernel, Plan, Seen};

/// How long a freeze may take: a process deep in the kernel holds it up.
const FREEZE_DEADLINE: Duration = Duration::from_secs(10);
/// How long a monitor may take between the end of PID 1 and the exit record.
const RECORD_DEADLINE: Duration = Duration::from_secs(5);
/// How often the record is looked for in that time, beside the monitor's own end.
const RECORD_INTERVAL: Duration = Duration::from_millis(5);
/// Most console bytes in one answer: all that is kept.
const MAX_CONSOLE_BYTES: u64 = 2 * watch::CONSOLE_HALF_BYTES;

/// What the kernel and the records say of the sandbox.
pub fn inspect(jail: &Jail, id: &SandboxId) -> Result<Seen> {
    let directory = jail.paths.sandbox(id);
    if !directory.is_dir() {
        let left = jail.group(id).is_some_and(|group| group.exists());
        return Ok(if left { unknown("only its cgroup is left") } else { Seen::Absent });
    }
    let ended = || -> Result<Option<Seen>> {
        let record = state::load::<ExitRecord>(&directory, state::EXIT)?;
        Ok(record.map(|record| Seen::Ended { exit: record.exit }))
    };
    if let Some(seen) = ended()? {
        return Ok(seen);
    }
    let Some(monitor) = state::load::<Monitor>(&directory, state::MONITOR)? else {
        return Ok(unknown("its creation was cut off at the start"));
    };
    if monitor.boot_id != jail.boot_id {
        return Ok(unknown("the machine was restarted"));
    }
    let monitor = monitor.monitor.open().filter(|process| !has_ended(process));
    if monitor.is_some() {
        // A create that is still at work holds this until it has succeeded or cleaned up.
        let lock = File::create(directory.join(state::LOCK)).op("open the sandbox's lock");
        if let Ok(lock) = lock {
            flock(&lock, FlockOperation::LockShared).op("lock the sandbox")?;
        }
    }
    let Some(known) = state::load::<State>(&directory, state::STATE)? else {
        return Ok(if directory.is_dir() { unknown("its creation was cut off") } else { Seen::Absent });
    };
    let init = known.init.open();
    // An ended process that still has a number is about to be waited for by its monitor or by the jailer.
    let about_to_be_recorded = monitor.is_some() || init.as_ref().is_some_and(has_ended);
    let init = init.filter(|process| !has_ended(process));
    if init.is_some() && known.receipt.is_none() {
        return Ok(unknown("its creation was cut off"));
    }
    if init.is_some() {
        let frozen = jail.group(id).is_some_and(|group| group.is_frozen());
        return Ok(if frozen { Seen::Paused } else { Seen::Running });
    }
    if about_to_be_recorded {
        let deadline = Instant::now() + RECORD_DEADLINE;
        while Instant::now() < deadline {
            if let Some(seen) = ended()? {
                return Ok(seen);
            }
            let mut fds: Vec<PollFd<'_>> = monitor.iter().map(|process| PollFd::new(process, PollFlags::IN)).collect();
            let timeout = Timespec { tv_sec: 0, tv_nsec: RECORD_INTERVAL.subsec_nanos().into() };
            if poll(&mut fds, Some(&timeout)).is_ok_and(|count| count > 0) {
                break;
            }
        }
    }
    Ok(ended()?.unwrap_or_else(|| unknown("the process that waits for its end was killed before it could record it")))
}

fn unknown(why: &str) -> Seen {
    Seen::Ended { exit: Exit::Unknown { detail: why.to_owned() } }
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)).is_ok_and(|count| count > 0)
}

/// Every sandbox of which a directory, an id range, an exit record or a cgroup exists.
pub fn list(jail: &Jail) -> Result<Vec<SandboxId>> {
    let mut ids = BTreeSet::new();
    for directory in [jail.paths.sandboxes(), jail.paths.exits()] {
        for entry in fs::read_dir(&directory).op(format!("list {}", directory.display()))? {
            let name = entry.op("list sandboxes")?.file_name();
            ids.extend(name.to_str().and_then(SandboxId::parse));
        }
    }
    if jail.mode == super::Mode::Root {
        let claimed = idrange::claimed(&jail.paths.id_slots(), &jail.paths.sandboxes())?;
        ids.extend(claimed.into_iter().map(|(_, owner)| owner));
    }
    if let Some(cgroups) = &jail.cgroups {
        let names = cgroups.children(&jail.cgroup_parent);
        ids.extend(names.iter().filter(|name| !seat::is_seat(name)).filter_map(|name| SandboxId::parse(name)));
    }
    Ok(ids.into_iter().collect())
}

/// Freezes every process.
pub fn pause(jail: &Jail, id: &SandboxId) -> Result<()> {
    set_frozen(jail, id, Freeze::Frozen)
}

/// Thaws every process.
pub fn resume(jail: &Jail, id: &SandboxId) -> Result<()> {
    set_frozen(jail, id, Freeze::Thawed)
}

fn set_frozen(jail: &Jail, id: &SandboxId, state: Freeze) -> Result<()> {
    let Some(group) = jail.group(id) else {
        return Err(Failure::new(Kind::Unsupported, "pausing needs a cgroup, which an ordinary user has not got here"));
    };
    if !matches!(inspect(jail, id)?, Seen::Running | Seen::Paused) {
        return Err(Failure::new(Kind::NotFound, format!("sandbox {id} does not run")));
    }
    if group.freeze(state, Instant::now() + FREEZE_DEADLINE)? {
        return Ok(());
    }
    // Nothing is silent: a half-frozen sandbox goes back to running before the failure is told.
    if state == Freeze::Frozen {
        let _ = group.freeze(Freeze::Thawed, Instant::now() + FREEZE_DEADLINE);
    }
    Err(Failure::internal(format!("sandbox {id} did not reach the state {state:?} in {} s", FREEZE_DEADLINE.as_secs())))
}

/// The end of the console log, as a memory file.
pub fn console(jail: &Jail, id: &SandboxId, max_bytes: u64) -> Result<OwnedFd> {
    let directory = jail.paths.sandbox(id);
    let max_bytes = max_bytes.min(MAX_CONSOLE_BYTES);
    let mut text = Vec::new();
    for name in [state::CONSOLE, state::CONSOLE_OLD] {
        let missing = max_bytes - text.len() as u64;
        let mut older = Vec::new();
        if let Ok(mut file) = File::open(directory.join(name)) {
            let length = file.seek(SeekFrom::End(0)).op("read the console log")?;
            file.seek(SeekFrom::Start(length.saturating_sub(missing))).op("read the console log")?;
            file.take(missing).read_to_end(&mut older).op("read the console log")?;
        }
        older.append(&mut text);
        text = older;
    }
    crate::user::memory_file("console", &text)
}

/// Records the exit of a PID 1 whose monitor was killed; other ended children need nothing.
pub fn record_orphan(jail: &Jail, pid: Pid, end: ChildEnd) -> Result<()> {
    let pid = pid.as_raw_nonzero().get();
    for entry in fs::read_dir(jail.paths.sandboxes()).op("list sandboxes")? {
        let entry = entry.op("list sandboxes")?;
        let Some(id) = entry.file_name().to_str().and_then(SandboxId::parse) else { continue };
        let Some(known) = state::load::<State>(&entry.path(), state::STATE)? else { continue };
        if known.init.pid != pid || entry.path().join(state::EXIT).exists() {
            continue;
        }
        let plan = state::load::<Plan>(&entry.path(), state::PLAN)?;
        let kernel = plan.as_ref().map(|plan| plan.kernel).unwrap_or_default();
        let limits = plan.map(|plan| plan.limits).unwrap_or_default();
        let counters = jail.group(&id).map(|group| group.counters()).unwrap_or_default();
        let end = match kernel {
            Kernel::Host => end,
            Kernel::Gvisor => gvisor::main_end(end, Told::Unheard, counters),
        };
        return watch::write(jail, &id, watch::judge(end, None, counters, Disk::HasRoom, &limits));
    }
    Ok(())
}
