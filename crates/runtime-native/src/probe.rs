//! What this machine can do, established from the kernel and not from version numbers.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use lifecycle::runtime::{Capabilities, VolumeMeans};
use rustix::process::{Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};

use crate::error::{Context, Failure, Kind, Result};
use crate::init::Ids;
use crate::jailer::{Jail, Mode, birth};
use crate::sys::{self, Cloned};

/// How long the trial of a network may take; the machine may be overloaded.
const TRIAL_DEADLINE: Duration = Duration::from_secs(10);

/// The jailer's answer to a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// What the runtime can do, as the API tells it.
    pub capabilities: Capabilities,
    /// What can be done about isolated sessions.
    pub sessions: lifecycle::isolated::Means,
    /// The kernel's release.
    pub kernel: String,
    /// Why disk images cannot be used, if they cannot.
    pub disk_images: Option<String>,
    /// Why a sandbox cannot have a network, if it cannot.
    pub network: Option<String>,
}

/// Looks at everything. Makes no sandbox.
pub(crate) fn probe(jail: &Jail) -> Probe {
    let mut limits: BTreeMap<String, String> = BTreeMap::new();
    for name in ["cpu", "memory", "pids"] {
        limits.insert(name.to_owned(), jail.means(name).unwrap_or("none").to_owned());
    }
    for name in ["disk", "inodes"] {
        limits.insert(name.to_owned(), if jail.disk_images { "ext4 image" } else { "tmpfs" }.to_owned());
    }
    let network = network();
    let capabilities = Capabilities {
        runtime: "native".to_owned(),
        arch: if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }.to_owned(),
        mode: crate::jailer::mode_name(jail.mode).to_owned(),
        isolation: jail.isolation(),
        pause: jail.cgroups.as_ref().is_some_and(|found| found.can_freeze()),
        snapshots: crate::jailer::snapshot::means(jail).is_ok(),
        fractional_cpu: limits.get("cpu").is_some_and(|means| means.starts_with("cgroup")),
        limits,
        network: if network.is_ok() { "egress" } else { "none" }.to_owned(),
        volumes: volumes(jail),
        weaker: weaker(jail),
    };
    let uname = rustix::system::uname();
    Probe {
        capabilities,
        sessions: sessions(jail),
        kernel: uname.release().to_string_lossy().into_owned(),
        disk_images: disk_images().err().map(|failure| failure.message),
        network: network.err().map(|failure| failure.message),
    }
}

/// What can be had of volumes.
fn volumes(jail: &Jail) -> VolumeMeans {
    VolumeMeans {
        named: true,
        size_limit: if jail.disk_images { "ext4 image" } else { "none" }.to_owned(),
        ids: crate::jailer::volume_ids(jail.mode).to_owned(),
    }
}

/// What can be done about isolated sessions. Whether an overlay can stand on a sandbox's own is seen at the first one.
fn sessions(jail: &Jail) -> lifecycle::isolated::Means {
    lifecycle::isolated::Means { other_ids: jail.ids() == Ids::Range, weaker: weaker(jail) }
}

/// What is weaker here than on a machine that can do everything, one sentence each.
pub(crate) fn weaker(jail: &Jail) -> Vec<String> {
    let mut weaker = Vec::new();
    if let Some(why) = &jail.undelegated {
        weaker.push(format!("No control group can be used for limits: {why}."));
    }
    if jail.mode == Mode::User {
        weaker.push("Sandboxes share the user's ids; namespaces keep them apart, ids do not.".to_owned());
        let by_group = |name: &str| jail.means(name).is_some_and(|means| means.starts_with("cgroup"));
        if !by_group("memory") {
            weaker.push("Memory is limited for each process, not for the sandbox as a whole.".to_owned());
        }
        if !by_group("pids") {
            weaker.push("Processes are limited for each user id, not for the sandbox as a whole.".to_owned());
        }
        if !by_group("cpu") {
            weaker.push("The cpu limit is a number of whole cores to run on.".to_owned());
        }
        weaker.push("A disk without a limit writes to the user's own file system.".to_owned());
        weaker.push("The sandbox's root can read the memory of its execd.".to_owned());
        weaker
            .push("Inotify instances and other per-user counters are shared with the user's own programs.".to_owned());
        if jail.cgroups.is_none() {
            weaker.push("Sandboxes cannot be paused: that needs a control group of their own.".to_owned());
        }
        weaker.push("No snapshots of sandboxes can be taken: that needs a server of root's.".to_owned());
        if jail.user_ids.ids() == Ids::Single {
            weaker.push("Only root exists inside: install uidmap and add the user to /etc/subuid for more.".to_owned());
        }
        return weaker;
    }
    if let Some(cgroups) = &jail.cgroups {
        if cgroups.means("memory") == Some("cgroup v1") {
            weaker.push("Write-back to the disk is not charged to the sandbox (cgroup v1).".to_owned());
        }
        for name in ["cpu", "memory", "pids"].iter().filter(|name| cgroups.means(name).is_none()) {
            weaker.push(format!("No cgroup hierarchy of this machine limits {name}."));
        }
    } else {
        weaker.push("This machine mounts no cgroups: cpu, memory and processes are not limited.".to_owned());
    }
    if jail.config.runsc.is_some() {
        weaker.push("There are no isolated sessions on gVisor, and no snapshots.".to_owned());
        weaker.push("The limits of memory and processes include what gVisor itself uses.".to_owned());
        weaker.push("Programs find no control groups beneath /sys/fs/cgroup.".to_owned());
    }
    if !jail.disk_images {
        weaker.push("Disks are memory, because disk images cannot be made here.".to_owned());
    }
    weaker
}

/// Whether what wants to leave a sandbox can be steered: tried out in namespaces that end with their only process. Called
/// while there is one thread only: the child goes on in a copy of this process.
///
/// # Errors
/// What is missing.
pub fn network() -> Result<()> {
    let (report, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).op("make a pipe")?;
    match sys::clone_namespaces((libc::CLONE_NEWUSER | libc::CLONE_NEWNET) as u64).op("make a network namespace")? {
        Cloned::Parent(pid, _) => {
            drop(writer);
            let tried = birth::await_exec(report.as_fd(), Instant::now() + TRIAL_DEADLINE);
            if tried.is_err() {
                let _ = kill_process(pid, Signal::KILL); // not reaped yet, so the number is its own
            }
            let _ = waitpid(Some(pid), WaitOptions::empty());
            tried
        }
        Cloned::Child => {
            if let Err(failure) = crate::network::set_up(&[]) {
                // Nothing to be done if nobody reads it.
                let _ = rustix::io::write(&writer, &serde_json::to_vec(&failure).unwrap_or_default());
            }
            std::process::exit(0)
        }
    }
}

/// Whether disk images can be made, or why not.
pub(crate) fn disk_images() -> Result<()> {
    let missing = |what: &str| Err(Failure::new(Kind::Unsupported, what.to_owned()));
    if fs::File::options().read(true).write(true).open("/dev/loop-control").is_err() {
        return missing("/dev/loop-control cannot be opened; load the loop module");
    }
    let directories = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
    if !directories.iter().any(|directory| Path::new(directory).join("mkfs.ext4").exists()) {
        return missing("mkfs.ext4 is missing; install e2fsprogs");
    }
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known.lines().any(|line| line.trim() == "ext4") {
        return missing("this kernel has no ext4");
    }
    Ok(())
}
