//! What execd itself was given at its start, and which of its children have died.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::process::Pid;

static OPEN_FILES: OnceLock<(u64, u64)> = OnceLock::new();

/// Takes over an inherited descriptor and hides it from children; `None` when it is not open.
///
/// Called once for each number, before anything else may have opened it.
pub fn inherited(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: asks about a number; a closed one is answered with an error.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return None;
    }
    // SAFETY: the descriptor is open and, by this function's rule, nobody else in this program owns it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Raises execd's own limit of open descriptors to the hard one; children get the old one back.
pub fn raise_open_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let unlimited = |limit: Option<u64>| limit.unwrap_or(libc::RLIM_INFINITY);
    let _ = OPEN_FILES.set((unlimited(before.current), unlimited(before.maximum)));
    // A refusal leaves a lower limit, which shows as an error of the call that meets it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
}

pub(super) fn open_file_limit() -> Option<libc::rlimit> {
    OPEN_FILES.get().map(|&(soft, hard)| libc::rlimit { rlim_cur: soft, rlim_max: hard })
}

/// The pid of some child that has ended and is not yet reaped; it stays so.
pub fn peek_exited() -> Option<Pid> {
    // SAFETY: all zero is a valid `siginfo_t`, and says "no child" where `waitid` finds none.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is live and writable.
    if unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options) } != 0 {
        return None;
    }
    // SAFETY: `waitid` fills the SIGCHLD form, or leaves the zeroes.
    Pid::from_raw(unsafe { info.si_pid() })
}
