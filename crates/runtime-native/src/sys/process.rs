//! Processes: fork, clone into namespaces, descriptors, the system-call filter, exec.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::process::Pid;

use super::check;

/// Which side of a [`fork`] this is.
pub enum Forked {
    /// The caller, with the new child's pid.
    Parent(Pid),
    /// The new child.
    Child,
}

/// Forks. The caller must be single-threaded, because the child goes on to allocate.
pub fn fork() -> Result<Forked, Errno> {
    // SAFETY: the jailer and its children never start a thread, so no lock of another thread is lost in the child.
    let pid = check(unsafe { libc::fork() }.into())?;
    Ok(match Pid::from_raw(pid as i32) {
        Some(pid) => Forked::Parent(pid),
        None => Forked::Child,
    })
}

/// Which side of a [`clone_namespaces`] this is.
pub enum Cloned {
    /// The caller, with the new child's pid and a descriptor of it.
    Parent(Pid, OwnedFd),
    /// The new child, PID 1 of its namespace.
    Child,
}

/// Clones into new namespaces (`CLONE_NEW*` bits). The caller must be single-threaded.
pub fn clone_namespaces(flags: u64) -> Result<Cloned, Errno> {
    clone_into(flags, None)
}

/// Clones into new namespaces and, where one is given, into a cgroup of version 2; with `CLONE_PARENT` as a child of the
/// caller's parent. The caller must be single-threaded.
pub fn clone_into(flags: u64, group: Option<BorrowedFd<'_>>) -> Result<Cloned, Errno> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: all-zero is a valid `clone_args`.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags | libc::CLONE_PIDFD as u64;
    args.pidfd = (&raw mut pidfd) as u64;
    // A sibling ends with the signal of its cloner, which the kernel demands not to be named again.
    args.exit_signal = if flags & libc::CLONE_PARENT as u64 == 0 { libc::SIGCHLD as u64 } else { 0 };
    if let Some(group) = group {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = group.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM and a stack this is a fork: the child runs on its own copy of this stack. The
    // process is single-threaded, so its heap and locks are consistent in the child.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) })?;
    match Pid::from_raw(pid as i32) {
        // SAFETY: the kernel stored a new descriptor there; nobody else owns it.
        Some(pid) => Ok(Cloned::Parent(pid, unsafe { OwnedFd::from_raw_fd(pidfd) })),
        None => Ok(Cloned::Child),
    }
}

/// `CLONE_INTO_CGROUP` of <linux/sched.h>.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Sets the id by which files are opened, for this thread; changes of the effective id set it as well.
pub fn set_file_system_uid(uid: rustix::process::Uid) {
    // SAFETY: changes the thread's credentials alone; it cannot fail for an id that the thread has.
    unsafe { libc::setfsuid(uid.as_raw()) };
}

/// Moves the calling process, which must have one thread, into the namespace that `namespace` names. A PID namespace
/// takes in only the children that come after.
pub fn join_namespace(namespace: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: changes what the process sees of the system, nothing of its memory or descriptors.
    check(unsafe { libc::setns(namespace.as_raw_fd(), 0) }.into()).map(drop)
}

/// Moves the calling process into a mount namespace of its own.
pub fn unshare_mount_namespace() -> Result<(), Errno> {
    // SAFETY: as above.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }.into()).map(drop)
}

/// Moves the calling process into a new cgroup namespace, rooted at the groups it is in.
pub fn unshare_cgroup_namespace() -> Result<(), Errno> {
    // SAFETY: the flag changes what the process sees of cgroups, nothing of its memory or descriptors.
    check(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }.into()).map(drop)
}

/// Moves the calling process into a network namespace without any interface.
pub fn unshare_network_namespace() -> Result<(), Errno> {
    // SAFETY: the flag changes which network the process sees, nothing of its memory or descriptors.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }.into()).map(drop)
}

/// Takes ownership of a descriptor that this process inherited under a known number.
pub fn inherited(number: RawFd) -> OwnedFd {
    // SAFETY: the caller passes a number that its parent promised; it is taken once, at the start of the process.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Closes every descriptor but these. Owners of closed descriptors must be forgotten by the caller.
pub fn close_all_except(keep: &[RawFd]) {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    keep.sort_unstable();
    keep.dedup();
    let mut from = 0u32;
    for fd in keep {
        if fd > from {
            close_range(from, fd - 1);
        }
        from = fd + 1;
    }
    close_range(from, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    // SAFETY: closes descriptors only; the caller of `close_all_except` has no live owner of them. An error is
    // impossible for first <= last without flags.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}

/// Installs descriptors under the numbers 0, 1, 2, ... without close-on-exec.
pub fn install_descriptors(fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let count = fds.len() as RawFd;
    // First clear of the target numbers, so that no step overwrites a source of a later one.
    let mut lifted = Vec::with_capacity(fds.len());
    for fd in fds {
        // SAFETY: duplicates an open descriptor to a number that was free.
        let raw = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, count) }.into())?;
        lifted.push(raw as RawFd);
    }
    for (number, fd) in lifted.into_iter().enumerate() {
        // SAFETY: overwrites a low number on purpose; the caller keeps no owner of the numbers below `count`.
        check(unsafe { libc::dup3(fd, number as RawFd, 0) }.into())?;
    }
    Ok(())
}

/// Installs a system-call filter for this process and everything it starts. Needs `no_new_privs`.
pub fn install_filter(program: &[libc::sock_filter]) -> Result<(), Errno> {
    let header = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the header and the program live across the call; the kernel copies them.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const header) }).map(drop)
}

/// Executes the program that `fd` refers to, with one argument and an empty environment. Returns only on failure.
pub fn exec_descriptor(fd: BorrowedFd<'_>, name: &CStr) -> Errno {
    let argv = [name.as_ptr(), std::ptr::null()];
    let envp: [*const libc::c_char; 1] = [std::ptr::null()];
    // SAFETY: both arrays are NULL-terminated and live across the call.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_execveat,
            fd.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    check(rc).err().unwrap_or(Errno::IO)
}

/// A descriptor that becomes readable when a child ends.
pub struct ChildSignals(OwnedFd);

/// Blocks SIGCHLD for this process and returns a descriptor that reports it.
pub fn block_child_signal() -> Result<ChildSignals, Errno> {
    // SAFETY: all-zero is a valid signal set, and `sigemptyset` initialises it anyway.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for writes.
    unsafe { libc::sigemptyset(&raw mut set) };
    // SAFETY: `set` is valid; SIGCHLD is a signal.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGCHLD) };
    // SAFETY: changes only this thread's mask; the process has one thread.
    check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) }.into())?;
    // SAFETY: `set` is valid; -1 asks for a new descriptor.
    let fd = check(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) }.into())?;
    // SAFETY: the kernel just returned this descriptor; nobody else owns it.
    Ok(ChildSignals(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
}

impl ChildSignals {
    /// Forgets the signals reported so far.
    pub fn drain(&self) {
        let mut buffer = [0u8; 1024];
        // Stops at the first error, which is EAGAIN when all is read.
        while matches!(rustix::io::read(&self.0, &mut buffer), Ok(n) if n > 0) {}
    }
}

impl std::os::fd::AsFd for ChildSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that becomes readable when one of some signals comes.
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks these signals for this process, which must have one thread, and returns a descriptor that reports them.
    pub fn block(signals: &[libc::c_int]) -> Result<Self, Errno> {
        // SAFETY: all-zero is a valid signal set, and `sigemptyset` initialises it anyway.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is valid for writes.
        unsafe { libc::sigemptyset(&raw mut set) };
        for signal in signals {
            // SAFETY: `set` is valid; a number that is no signal is refused.
            check(unsafe { libc::sigaddset(&raw mut set, *signal) }.into())?;
        }
        // SAFETY: changes only this thread's mask; the process has one thread.
        check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) }.into())?;
        // SAFETY: `set` is valid; -1 asks for a new descriptor.
        let fd = check(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) }.into())?;
        // SAFETY: the kernel just returned this descriptor; nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// The number of one that has come.
    pub fn next(&self) -> Option<libc::c_int> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        let length = rustix::io::read(&self.0, &mut info).ok()?;
        // The number is the first field.
        let number = info.get(..length)?.first_chunk::<4>()?;
        Some(u32::from_ne_bytes(*number).cast_signed())
    }
}

impl std::os::fd::AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Gives the process a fresh session of signals: nothing blocked, SIGPIPE and SIGCHLD by default.
pub fn reset_signals() -> Result<(), Errno> {
    // SAFETY: all-zero is a valid signal set, and `sigemptyset` initialises it anyway.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for writes.
    unsafe { libc::sigemptyset(&raw mut set) };
    // SAFETY: changes only this thread's mask; the process has one thread.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) }.into())?;
    for signal in [libc::SIGPIPE, libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: installs the default action, no handler of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    Ok(())
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildEnd {
    /// Its exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
}

/// Waits for any child that has ended already; `None` when there is none.
pub fn wait_any_ended() -> Option<(Pid, ChildEnd)> {
    let mut status: libc::c_int = 0;
    // SAFETY: `status` is valid for writes.
    let pid = check(unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) }.into()).ok()?;
    let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
    let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
    Some((Pid::from_raw(pid as i32)?, ChildEnd { code, signal }))
}

/// Blocks SIGTERM until [`reset_signals`], when a pending one takes effect.
pub fn block_termination() -> Result<(), Errno> {
    // SAFETY: all-zero is a valid signal set, and `sigemptyset` initialises it anyway.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for writes.
    unsafe { libc::sigemptyset(&raw mut set) };
    // SAFETY: `set` is valid; SIGTERM is a signal.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGTERM) };
    // SAFETY: changes only this thread's mask; the process has one thread.
    check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) }.into()).map(drop)
}

/// `struct pidfd_info` of <linux/pidfd.h>, first version.
#[repr(C)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// `_IOWR(0xFF, 11, struct pidfd_info)` with the size of the first version.
const PIDFD_GET_INFO: u64 = 0xC040_FF0B;
/// Asks for, and reports, the exit code of a process that has been waited for.
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// How a process ended that somebody else waited for; `None` when the kernel does not keep it (before Linux 6.15) or
/// nobody has waited yet.
pub fn end_of(process: BorrowedFd<'_>) -> Option<ChildEnd> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, cgroup: 0, ids: [0; 11], exit_code: 0 };
    // SAFETY: the kernel writes at most the size that is part of the request's number, which is that of `info`.
    check(unsafe { libc::ioctl(process.as_raw_fd(), PIDFD_GET_INFO as _, &raw mut info) }.into()).ok()?;
    if info.mask & PIDFD_INFO_EXIT == 0 {
        return None;
    }
    let status = info.exit_code;
    let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
    let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
    Some(ChildEnd { code, signal })
}
