//! The process that is the kernel of a gVisor sandbox, as the host's kernel sees it.

use std::fs;

use rustix::process::Pid;
use rustix::thread::CapabilitySet;

use crate::error::{Context, Failure, Result};
use crate::init;

/// What the kernel in user space may do: what its programs may, and tracing them.
pub(crate) const KEPT: CapabilitySet = init::KEPT.union(CapabilitySet::SYS_PTRACE);
/// What `runsc` needs beside [`init::KEPT`] while it builds its own roots, and for the process that opens files.
pub(super) const NEEDED: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP);
/// How the process is called by `runsc`.
const TITLE: &[u8] = b"runsc-sandbox";

/// What was found out about it.
pub(crate) struct Sentry {
    /// Its number.
    pub pid: Pid,
}

impl Sentry {
    /// Finds the one below a sandbox's first process, when execd runs in it.
    pub fn below(first: Pid) -> Result<Self> {
        for runsc in children(first)? {
            for pid in children(runsc)? {
                let title = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
                if title.split(|byte| *byte == 0).next() == Some(TITLE) {
                    return Ok(Self { pid });
                }
            }
        }
        Err(Failure::internal("the kernel knows no process of gVisor in the sandbox"))
    }
}

fn children(pid: Pid) -> Result<Vec<Pid>> {
    // By every thread: `runsc` starts processes from any of its own.
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let mut found = Vec::new();
    for task in fs::read_dir(&tasks).op("look for gVisor's processes")? {
        let path = task.op("look for gVisor's processes")?.path().join("children");
        let text = fs::read_to_string(path).unwrap_or_default(); // a thread may have ended
        found.extend(text.split_whitespace().filter_map(|word| word.parse().ok()).filter_map(Pid::from_raw));
    }
    Ok(found)
}
