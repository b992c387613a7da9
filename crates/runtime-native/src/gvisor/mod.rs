//! gVisor: a sandbox's programs run on a kernel in user space, `runsc`, and not on the machine's.
//!
//! What stands around is the same as for any other sandbox: the same namespaces, ids, cgroups, disk and network, of which
//! `runsc` is the only tenant. The first process is ours and stays ([`keeper`]); its root holds nothing but what `runsc`
//! needs ([`cell`]); what `runsc` is to run stands in a bundle ([`bundle`]). Nothing of it lies outside the sandbox's
//! namespaces, so the end of that first process is the end of all of it. See `docs/adr/0016-gvisor.md`.

mod bundle;
mod cell;
mod keeper;
mod sentry;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lifecycle::runtime::Isolation;
use serde::{Deserialize, Serialize};

use crate::cgroup::Counters;
use crate::error::{Failure, Kind, Result};
use crate::sys::ChildEnd;

pub(crate) use cell::{Cell, Parts, ROOT_PLACE as ROOT, volume_place};
pub(crate) use keeper::{Keeper, run};
pub(crate) use sentry::{KEPT, Sentry};

/// How this isolation is named in settings, capabilities and receipts.
pub const NAME: &str = "gvisor";
/// How `runsc` catches system calls: what every version of it can do on every machine.
const PLATFORM: &str = "ptrace";
/// Where programs of the system lie, in the order in which they are looked for.
const DIRECTORIES: &[&str] = &["/usr/local/bin", "/usr/bin", "/usr/local/sbin", "/usr/sbin", "/bin", "/sbin"];
/// Fewest processes that a limit may allow: `runsc` itself has some sixty threads, one more for each program and core.
pub const MIN_PIDS: u64 = 128;
/// Least memory that a limit may allow: `runsc` itself takes 20 MiB, and more with every program.
pub const MIN_MEMORY_BYTES: u64 = 128 << 20;

/// Exit code of `runsc` when the kernel in user space was killed.
const KILLED: i32 = 128 + libc::SIGKILL;

/// What execd, the main process's parent, told of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// How it ended.
    End,
    /// Nothing, and somebody listened.
    Nothing,
    /// Nobody listened.
    Unheard,
}

/// What the end of a sandbox's first process says of its main process, which ran on gVisor: nothing, where the kernel in
/// user space went before execd could tell an end. If memory had run out, that kernel was killed for it.
pub(crate) fn main_end(end: ChildEnd, told: Told, counters: Counters) -> ChildEnd {
    let was_lost = match told {
        Told::End => false,
        Told::Nothing => true,
        Told::Unheard => end.code == Some(KILLED) && counters.oom_kills > 0,
    };
    if !was_lost {
        return end;
    }
    ChildEnd { code: None, signal: (counters.oom_kills > 0).then_some(libc::SIGKILL) }
}

/// The `runsc` of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runsc {
    /// The program.
    pub path: PathBuf,
    /// What it calls its version.
    pub version: String,
}

impl Runsc {
    /// Finds it and asks for its version.
    ///
    /// # Errors
    /// [`Kind::Unsupported`], with what to do, where it is missing, does not run, or may not be used by this user.
    pub fn find() -> Result<Self> {
        let candidates = DIRECTORIES.iter().map(|directory| Path::new(directory).join("runsc"));
        let Some(path) = candidates.into_iter().find(|path| path.is_file()) else {
            return Err(Failure::new(
                Kind::Unsupported,
                "there is no runsc on this machine: apt-get install -y runsc, or see https://gvisor.dev/docs/user_guide/install/",
            ));
        };
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::new(Kind::Unsupported, "gVisor sandboxes need a server that runs as root"));
        }
        let unusable =
            |why: String| Failure::new(Kind::Unsupported, format!("run {} --version: {why}", path.display()));
        let output = Command::new(&path).arg("--version").env_clear().stdin(Stdio::null()).output();
        let output = output.map_err(|error| unusable(error.to_string()))?;
        if !output.status.success() {
            return Err(unusable(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().find_map(|line| line.strip_prefix("runsc version "));
        let version = version.ok_or_else(|| unusable("it does not say which version it is".to_owned()))?;
        Ok(Self { version: version.trim().to_owned(), path })
    }

    /// What capabilities and receipts say of it.
    pub fn isolation(&self) -> Isolation {
        Isolation { kind: NAME.to_owned(), platform: Some(PLATFORM.to_owned()), version: Some(self.version.clone()) }
    }
}
