//! Starting processes: the one module of execd that may be `unsafe`.
//!
//! Owns `clone`, what happens between it and `exec`, inherited descriptors, looking at dead children without
//! reaping them, and giving free heap back. It knows nothing of commands or HTTP. A child shares execd's memory and stops the
//! calling thread until it has exec'd or failed (`CLONE_VM | CLONE_VFORK`): no page table is copied, and
//! an error comes back through that memory. The child allocates nothing, takes no lock and logs nothing.
//!
//! What a child gets: its own process group (or session, with a terminal), default signal handlers, an empty signal
//! mask, the three standard descriptors and at most one more, a higher OOM score than execd, and its identity set last.

#![allow(unsafe_code, reason = "clone, exec, inherited descriptors and the heap's trim have no safe interface")]

mod child;
mod inherited;
mod memory;
mod watched;

pub use inherited::{inherited, peek_exited, raise_open_file_limit};
pub use memory::{release_code, release_free_memory, share_one_heap};
pub use watched::watch;

use std::ffi::{CString, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::process::Pid;

/// Bytes of stack for a child between `clone` and `exec`: a few frames of libc wrappers.
const CHILD_STACK_BYTES: usize = 64 * 1024;

/// User, group and supplementary groups to switch to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Everything a child needs, prepared before `clone`.
pub struct Plan {
    /// Paths to try in turn, as a search along `PATH` would.
    pub programs: Vec<CString>,
    /// Arguments, the program's name first.
    pub argv: Vec<CString>,
    /// `NAME=value` entries.
    pub env: Vec<CString>,
    /// Working directory, entered with the child's identity.
    pub cwd: CString,
    /// Identity to switch to; `None` keeps execd's own.
    pub identity: Option<Identity>,
}

/// Standard descriptors of a child; `None` keeps execd's own.
pub struct Stdio<'a> {
    /// Descriptors for 0, 1 and 2.
    pub fds: [Option<BorrowedFd<'a>>; 3],
}

/// What only some children get.
#[derive(Clone, Copy, Default)]
pub struct Extra<'a> {
    /// Descriptor that the child finds as its number 3; it must not be below 3 here.
    pub descriptor: Option<BorrowedFd<'a>>,
    /// A number that all its descendants inherit, by which they are found again wherever they went: see
    /// [`crate::tree`]. It is kept as a limit that means nothing (realtime processor time, in microseconds).
    pub tag: Option<u64>,
    /// Whether it leads a session of its own, whose controlling terminal is its descriptor 0.
    pub terminal: bool,
}

/// The step at which a child failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Step {
    /// Making the process itself.
    Clone = 0,
    /// Leading a process group.
    Group,
    /// Setting the supplementary groups.
    Groups,
    /// Switching to the group id.
    Gid,
    /// Switching to the user id.
    Uid,
    /// Entering the working directory.
    Cwd,
    /// Placing the standard descriptors.
    Stdio,
    /// Running the program.
    Exec,
}

/// A child that could not be started.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.text())]
pub struct Error {
    step: Step,
    errno: Errno,
    subject: String,
}

impl Error {
    /// Whether the identity could not be taken on.
    pub fn is_about_identity(&self) -> bool {
        matches!(self.step, Step::Groups | Step::Gid | Step::Uid)
    }

    /// Whether there is no such program.
    pub fn is_about_a_missing_program(&self) -> bool {
        matches!(self.step, Step::Exec) && self.errno == Errno::NOENT
    }

    fn text(&self) -> String {
        let system = crate::error::system_text(&io::Error::from(self.errno));
        let subject = &self.subject;
        let missing = |capability: &str| match self.errno {
            Errno::PERM => format!(" (the sandbox lacks {capability})"),
            Errno::INVAL => " (the sandbox's user namespace has no such id)".into(),
            _ => String::new(),
        };
        match self.step {
            Step::Clone if self.errno == Errno::AGAIN => {
                format!("fork: {system} (the sandbox is at its limit of processes)")
            }
            Step::Clone => format!("fork: {system}"),
            Step::Group => format!("lead a process group: {system}"),
            Step::Groups => format!("set the groups of {subject}: {system}{}", missing("CAP_SETGID")),
            Step::Gid => format!("switch to the group of {subject}: {system}{}", missing("CAP_SETGID")),
            Step::Uid => format!("switch to {subject}: {system}{}", missing("CAP_SETUID")),
            Step::Cwd => format!("chdir {subject}: {system}"),
            Step::Stdio => format!("place the standard streams: {system}"),
            Step::Exec => format!("exec {subject}: {system}"),
        }
    }
}

/// Starts `plan` and returns once its program runs.
///
/// The caller registers the pid before it yields to the event loop, so that the reaper knows it.
///
/// # Errors
/// The step that failed with the system's words; no process is left then.
pub fn spawn(plan: &Plan, stdio: &Stdio<'_>) -> Result<Pid, Error> {
    spawn_with(plan, stdio, Extra::default())
}

/// As [`spawn`], with what only some children get.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_with(plan: &Plan, stdio: &Stdio<'_>, extra: Extra<'_>) -> Result<Pid, Error> {
    let argv = pointers(&plan.argv);
    let env = pointers(&plan.env);
    let programs = pointers(&plan.programs);
    let mut context = child::Context {
        programs: programs.as_ptr(),
        argv: argv.as_ptr(),
        env: env.as_ptr(),
        cwd: plan.cwd.as_ptr(),
        identity: plan.identity.as_ref().map(|identity| child::RawIdentity {
            uid: identity.uid,
            gid: identity.gid,
            groups: identity.groups.as_ptr(),
            group_count: identity.groups.len(),
        }),
        stdio: stdio.fds.each_ref().map(|fd| fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)),
        extra: extra.descriptor.as_ref().map_or(-1, AsRawFd::as_raw_fd),
        tag: extra.tag.map(|tag| libc::rlimit { rlim_cur: tag, rlim_max: tag }),
        terminal: extra.terminal,
        open_files: inherited::open_file_limit(),
        failed_step: 0,
        failed_errno: 0,
    };
    let mut stack = vec![0u8; CHILD_STACK_BYTES];
    let top = stack.as_mut_ptr_range().end;
    let top = top.wrapping_sub(top as usize % 16);
    let pid = with_signals_blocked(|| {
        // SAFETY: `context` and `stack` outlive the child's use of them, because CLONE_VFORK holds this
        // thread until the child has exec'd or exited; `child::main` keeps the rules of its module.
        unsafe {
            libc::clone(
                child::main,
                top.cast::<c_void>(),
                libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
                (&raw mut context).cast::<c_void>(),
            )
        }
    });
    let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 0) else {
        let errno = Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::AGAIN);
        return Err(Error { step: Step::Clone, errno, subject: String::new() });
    };
    // SAFETY: the child wrote this field before it exited and nobody writes it any more; the volatile
    // read keeps the compiler from assuming that it is still 0.
    let errno = unsafe { ptr::read_volatile(&raw const context.failed_errno) };
    if errno == 0 {
        return Ok(pid);
    }
    // The child has exited already; it was never registered, so it is reaped here.
    let wait = || rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    let _ = rustix::io::retry_on_intr(wait);
    let step = child::step_of(context.failed_step);
    let subject = match step {
        Step::Cwd => format!("{:?}", plan.cwd),
        Step::Exec => plan.argv.first().map_or_else(String::new, |program| format!("{program:?}")),
        _ => plan.identity.as_ref().map_or_else(String::new, |id| format!("uid {} gid {}", id.uid, id.gid)),
    };
    Err(Error { step, errno: Errno::from_raw_os_error(errno), subject })
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

/// A handler must not run in the child while it shares our memory, so no signal is delivered meanwhile.
fn with_signals_blocked(action: impl FnOnce() -> libc::pid_t) -> libc::pid_t {
    // SAFETY: an all-zero signal set is a valid value for `sigfillset` and `pthread_sigmask` to fill.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are live locals.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: as above; blocking signals cannot fail with these arguments.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let result = action();
    let errno = Errno::from_io_error(&io::Error::last_os_error());
    // SAFETY: `before` was filled by the first call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    if let Some(errno) = errno {
        // SAFETY: the location is this thread's own errno.
        unsafe { *libc::__errno_location() = errno.raw_os_error() };
    }
    result
}
