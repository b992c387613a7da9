//! What the first process of an isolated session does between its birth and the start of its execd.
//!
//! It is born in the sandbox's user namespace with every capability there, in new mount, PID, IPC and UTS namespaces,
//! outside the sandbox's system-call filter. It builds its mounts, sets the counters of namespaces back to none, gives
//! up what a sandbox's execd gives up, and becomes execd.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use lifecycle::isolated::{SessionId, SessionSpec};
use rustix::fs::{Mode, OFlags};

use crate::error::{Context, Failure, Result};
use crate::init::{self, Ids, Program};
use crate::session_root::{self, Shape};
use crate::sys;
use crate::wire::PlanLimits;

/// Host name of every session (published).
const HOST_NAME: &[u8] = b"sandbox";
/// Bytes of a workspace in memory where memory has no limit.
const EPHEMERAL_BYTES: u64 = 1 << 30;

/// Descriptors and facts that the first process is born with.
pub struct Birth<'a> {
    /// Readable when its number is written down and it may go on.
    pub go: OwnedFd,
    /// Where failures go.
    pub errors: OwnedFd,
    /// The socket that execd will serve.
    pub listener: OwnedFd,
    /// execd's boot configuration.
    pub boot: OwnedFd,
    /// Where execd reports.
    pub status: OwnedFd,
    /// The counters of namespaces in the sandbox, raised for the time of the building.
    pub counters: Vec<OwnedFd>,
    /// The program.
    pub execd: BorrowedFd<'a>,
    /// The session.
    pub id: &'a SessionId,
    /// What to build.
    pub spec: &'a SessionSpec,
    /// The sandbox's limits.
    pub limits: &'a PlanLimits,
    /// Those of them that no cgroup enforces.
    pub by_process: PlanLimits,
    /// The system-call filter.
    pub filter: &'a [libc::sock_filter],
    /// Whether other ids than root's are mapped.
    pub ids: Ids,
}

/// Sets the counters of namespaces in the sandbox.
pub fn set_counters(counters: &[OwnedFd], text: &[u8]) -> Result<()> {
    counters.iter().try_for_each(|counter| {
        rustix::io::pwrite(counter, text, 0).map(drop).op("set a counter of the sandbox's namespaces")
    })
}

/// Becomes execd, or reports why not and ends.
pub fn run(birth: Birth<'_>) -> ! {
    let errors = init::lift(birth.errors.as_fd());
    let failure = match &errors {
        Ok(errors) => become_execd(birth, errors),
        Err(failure) => failure.clone(),
    };
    if let (Ok(errors), Ok(text)) = (errors, serde_json::to_vec(&failure)) {
        // The worker also sees the end of this process.
        let _ = rustix::io::write(&errors, &text);
    }
    std::process::exit(1)
}

fn become_execd(birth: Birth<'_>, errors: &OwnedFd) -> Failure {
    let built = build(&birth);
    // In any case: nothing but a builder may ever make a namespace in the sandbox.
    let lowered = set_counters(&birth.counters, b"0");
    let (sides, nothing) = match built.and_then(|built| lowered.map(|()| built)) {
        Ok(built) => built,
        Err(failure) => return failure,
    };
    let null = [nothing.as_fd(); 3];
    let mut standard = [&null[..], &[birth.listener.as_fd(), birth.boot.as_fd(), birth.status.as_fd()]].concat();
    for both in &sides {
        standard.extend([both.lower.as_fd(), both.upper.as_fd()]);
    }
    let program = Program { execd: birth.execd, by_process: &birth.by_process, filter: birth.filter };
    let failure = program.start(&standard, errors);
    // Their numbers were overwritten or closed; dropping them would close a stranger's.
    std::mem::forget((sides, nothing, birth));
    failure
}

fn build(birth: &Birth<'_>) -> Result<(Vec<session_root::Sides>, OwnedFd)> {
    let mut byte = [0u8; 1];
    if rustix::io::read(&birth.go, &mut byte).op("wait for the worker")? == 0 {
        // The worker died; nobody waits for us.
        return Err(Failure::internal("the process that makes the session ended"));
    }
    init::take_identity(birth.ids)?;
    // Rooted at the sandbox's groups, which it was born in.
    sys::unshare_cgroup_namespace().op("enter a cgroup namespace")?;
    rustix::system::sethostname(HOST_NAME).op("set the host name")?;
    let shm_bytes = birth.limits.memory_bytes.map_or(init::DEFAULT_SHM_BYTES, |bytes| (bytes / 2).max(4096));
    let ephemeral_bytes = birth.limits.memory_bytes.map_or(EPHEMERAL_BYTES, |bytes| (bytes / 2).max(4096));
    let shape = Shape { id: birth.id, spec: birth.spec, shm_bytes, ephemeral_bytes };
    let sides = session_root::enter(&shape)?;
    if birth.spec.own_network {
        sys::bring_loopback_up().op("bring the loopback interface up")?;
        init::network_settings();
    }
    session_root::protect()?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).op("open /dev/null")?;
    Ok((sides, null))
}

/// Descriptors that a builder keeps.
pub fn keep(birth: &Birth<'_>) -> Vec<i32> {
    let mut keep: Vec<i32> = [&birth.go, &birth.errors, &birth.listener, &birth.boot, &birth.status]
        .into_iter()
        .chain(&birth.counters)
        .map(|fd| fd.as_raw_fd())
        .collect();
    keep.push(birth.execd.as_raw_fd());
    keep
}
