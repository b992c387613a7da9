//! What is written down about a sandbox, and how a process is recognised again after a crash.
//!
//! Files are replaced as a whole by rename. They survive any killed process; a reboot ends every sandbox anyway, so
//! nothing is flushed to the disk.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use lifecycle::runtime::{Exit, Receipt};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::{Context, Failure, Result};

/// A process that cannot be confused with a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Clock ticks from boot to its start.
    pub start: u64,
}

impl Process {
    /// The identity of a living process.
    pub fn of(pid: Pid) -> Option<Self> {
        Some(Self { pid: pid.as_raw_nonzero().get(), start: start_of(pid)? })
    }

    /// A descriptor of the process, if it is still the same one. A process that ended and was not yet waited for
    /// counts as alive here; its descriptor is readable at once.
    pub fn open(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(self.pid)?;
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Compared after opening, so that a number reused in between is noticed.
        (start_of(pid)? == self.start).then_some(fd)
    }
}

fn start_of(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name in parentheses may hold anything; fields are counted after its end.
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// `monitor.json`: written before the first effect of a create.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Monitor {
    /// The process that makes the sandbox and waits for its end.
    pub monitor: Process,
    /// The boot it belongs to.
    pub boot_id: String,
}

/// `state.json`: written before the sandbox's first process may do anything.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// PID 1 of the sandbox.
    pub init: Process,
    /// Its claimed id slot; `None` for ordinary users.
    pub slot: Option<u32>,
    /// What the kernel applied; absent until the create has succeeded.
    pub receipt: Option<Receipt>,
}

/// `exit.json`: the exit of record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// How the sandbox ended.
    pub exit: Exit,
    /// Seconds since 1970.
    pub at: u64,
}

/// This boot of the machine.
pub fn boot_id() -> String {
    // Without procfs nothing else here works either; the empty text equals itself.
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Replaces a file as a whole.
pub fn store(directory: &Path, name: &str, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(value).map_err(|error| Failure::internal(format!("encode {name}: {error}")))?;
    let temporary = directory.join(format!(".{name}.new"));
    let written = fs::File::create(&temporary).and_then(|mut file| file.write_all(&text));
    written.op(format!("write {name}"))?;
    fs::rename(&temporary, directory.join(name)).op(format!("write {name}"))
}

/// Reads a file back; `None` when it does not exist or was not meant for us.
pub fn load<T: DeserializeOwned>(directory: &Path, name: &str) -> Result<Option<T>> {
    match fs::read(directory.join(name)) {
        Ok(text) => Ok(serde_json::from_slice(&text).ok()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error).op(format!("read {name}")),
    }
}

/// Name of [`Monitor`]'s file.
pub const MONITOR: &str = "monitor.json";
/// Name of the plan's file.
pub const PLAN: &str = "plan.json";
/// Name of [`State`]'s file.
pub const STATE: &str = "state.json";
/// Name of [`ExitRecord`]'s file.
pub const EXIT: &str = "exit.json";
/// Name of the file with the name of the sandbox's cgroups, where that is not its id.
pub const GROUP: &str = "group";
/// Name of the file that serialises create and destroy.
pub const LOCK: &str = "lock";
/// Name of the file that a monitor keeps locked while it writes in the directory.
pub const WATCHING: &str = "watching";
/// Name of the lock by which changes of the sandbox's network come one after the other.
pub const NETWORK: &str = "network.lock";
/// Name of the console log.
pub const CONSOLE: &str = "console.log";
/// Name of the older half of the console log.
pub const CONSOLE_OLD: &str = "console.log.1";
