//! What runs between `clone` and `exec`, in memory shared with execd: system calls only.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use super::Step;

/// Signals that Linux has; numbers that libc keeps for itself are refused and ignored.
const LAST_SIGNAL: c_int = 64;
/// Number of a child's one further descriptor; those above it, or from it on where there is none, are private.
const EXTRA_FD: c_int = 3;
/// A child's badness for the OOM killer: above execd's 0, so that the hog dies and not the daemon.
const OOM_SCORE: &[u8] = b"500";
/// Exit code of a child that failed before its program; nobody sees it.
const FAILED: c_int = 127;

/// The prepared arguments, and the place where the child leaves its error.
pub struct Context {
    pub programs: *const *const c_char,
    pub argv: *const *const c_char,
    pub env: *const *const c_char,
    pub cwd: *const c_char,
    pub identity: Option<RawIdentity>,
    pub stdio: [c_int; 3],
    /// Placed as [`EXTRA_FD`]; negative for none.
    pub extra: c_int,
    pub tag: Option<libc::rlimit>,
    /// Leads a session whose terminal is descriptor 0.
    pub terminal: bool,
    pub open_files: Option<libc::rlimit>,
    pub failed_step: c_int,
    pub failed_errno: c_int,
}

pub struct RawIdentity {
    pub uid: u32,
    pub gid: u32,
    pub groups: *const u32,
    pub group_count: usize,
}

/// Reads back the step that a child left.
pub fn step_of(raw: c_int) -> Step {
    use Step::{Clone, Cwd, Exec, Gid, Group, Groups, Stdio, Uid};
    [Clone, Group, Groups, Gid, Uid, Cwd, Stdio, Exec].into_iter().find(|step| *step as c_int == raw).unwrap_or(Exec)
}

/// Entry of the child.
pub extern "C" fn main(context: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes its live `Context` and is suspended while this runs.
    let context = unsafe { &mut *context.cast::<Context>() };
    let (step, errno) = run(context);
    // SAFETY: plain fields of a live struct; volatile because the reader sits behind a system call.
    unsafe { ptr::write_volatile(&raw mut context.failed_step, step as c_int) };
    // SAFETY: as above.
    unsafe { ptr::write_volatile(&raw mut context.failed_errno, errno) };
    // SAFETY: ends only this process and runs no exit handler of execd.
    unsafe { libc::_exit(FAILED) }
}

/// Returns only when something failed.
fn run(context: &Context) -> (Step, c_int) {
    reset_signals();
    let led = if context.terminal {
        // SAFETY: changes this process alone; a session leads its group too.
        unsafe { libc::setsid() }
    } else {
        // SAFETY: changes this process alone.
        unsafe { libc::setpgid(0, 0) }
    };
    if led < 0 {
        return (Step::Group, errno());
    }
    raise_oom_score();
    if let Some(limit) = &context.open_files {
        // SAFETY: `limit` is live; a refusal leaves the child with execd's limit, which is harmless.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) };
    }
    if let Some(tag) = &context.tag {
        // SAFETY: `tag` is live; a refusal (a lower limit is in force) leaves the child without its tag.
        unsafe { libc::setrlimit(libc::RLIMIT_RTTIME, tag) };
    }
    if let Some(identity) = &context.identity
        && let Err(failure) = switch_identity(identity)
    {
        return failure;
    }
    // SAFETY: `cwd` is a live C string.
    if unsafe { libc::chdir(context.cwd) } != 0 {
        return (Step::Cwd, errno());
    }
    for (target, source) in context.stdio.iter().enumerate() {
        // SAFETY: both are descriptor numbers; sources are above 2, so no target overwrites a later source.
        if *source >= 0 && unsafe { libc::dup2(*source, target as c_int) } < 0 {
            return (Step::Stdio, errno());
        }
    }
    // SAFETY: takes a number; the session was made above and has no terminal yet.
    if context.terminal && unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } != 0 {
        return (Step::Stdio, errno());
    }
    let first_private = if context.extra < 0 { EXTRA_FD } else { EXTRA_FD + 1 };
    if context.extra >= 0 && !place_extra(context.extra) {
        return (Step::Stdio, errno());
    }
    // Everything of ours is close-on-exec already; this holds also for what a library forgot.
    // SAFETY: marks descriptors of this process's own table.
    unsafe { libc::syscall(libc::SYS_close_range, first_private, c_int::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    unblock_signals();
    (Step::Exec, exec(context))
}

/// A descriptor that is at its place already is merely made inheritable: `dup2` would leave it as it is.
fn place_extra(source: c_int) -> bool {
    if source == EXTRA_FD {
        // SAFETY: changes a flag in this process's own table.
        return unsafe { libc::fcntl(source, libc::F_SETFD, 0) } == 0;
    }
    // SAFETY: both are descriptor numbers; the standard ones are placed already, so no source is lost.
    unsafe { libc::dup2(source, EXTRA_FD) >= 0 }
}

/// The raw calls: libc's wrappers would try to switch every thread of execd.
fn switch_identity(identity: &RawIdentity) -> Result<(), (Step, c_int)> {
    // SAFETY: pointer and count describe a live slice.
    if unsafe { libc::syscall(libc::SYS_setgroups, identity.group_count, identity.groups) } != 0 {
        return Err((Step::Groups, errno()));
    }
    // SAFETY: changes this process's credentials alone.
    if unsafe { libc::syscall(libc::SYS_setresgid, identity.gid, identity.gid, identity.gid) } != 0 {
        return Err((Step::Gid, errno()));
    }
    // SAFETY: as above.
    if unsafe { libc::syscall(libc::SYS_setresuid, identity.uid, identity.uid, identity.uid) } != 0 {
        return Err((Step::Uid, errno()));
    }
    Ok(())
}

/// Tries the candidates as a shell would: a missing one is passed over, a forbidden one is remembered.
fn exec(context: &Context) -> c_int {
    let mut result = libc::ENOENT;
    let mut candidate = context.programs;
    loop {
        // SAFETY: the array ends with a null pointer, at which this loop stops.
        let program = unsafe { *candidate };
        if program.is_null() {
            return result;
        }
        // SAFETY: all three are null-terminated and live.
        unsafe { libc::execve(program, context.argv, context.env) };
        match errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => result = libc::EACCES,
            other => return other,
        }
        candidate = candidate.wrapping_add(1);
    }
}

fn reset_signals() {
    // SAFETY: all zero is a valid `sigaction`: the default handler, no flags, an empty mask.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: `default` is live; handlers are not shared with execd (no CLONE_SIGHAND).
        unsafe { libc::sigaction(signal, &raw const default, ptr::null_mut()) };
    }
}

fn unblock_signals() {
    // SAFETY: all zero is the empty set.
    let none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `none` is live.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut()) };
}

/// Best effort: without `/proc` the child keeps execd's score.
fn raise_oom_score() {
    // SAFETY: the path is a C string literal.
    let fd = unsafe { libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return;
    }
    // SAFETY: pointer and length describe a constant.
    unsafe { libc::write(fd, OOM_SCORE.as_ptr().cast::<c_void>(), OOM_SCORE.len()) };
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
}

fn errno() -> c_int {
    // SAFETY: the location is valid in every thread; the suspended parent does not read it meanwhile.
    unsafe { *libc::__errno_location() }
}
