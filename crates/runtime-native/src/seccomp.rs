//! The system-call filter of every sandbox: an allow-list for the native ABI, built once.
//!
//! What is on no list answers ENOSYS, so that programs written for newer kernels fall back. What is refused on
//! purpose answers EPERM. Programs for other ABIs (i386, x32) are killed or get ENOSYS.

use std::collections::BTreeMap;

use libc::sock_filter;

#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
const NATIVE_ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const NATIVE_ARCH: u32 = 0xC000_00B7;
/// First number of the x32 ABI, which reports itself as x86-64.
#[cfg(target_arch = "x86_64")]
const FOREIGN_FROM: u32 = 0x4000_0000;

/// Namespace bits of `clone` and `unshare`.
const NAMESPACE_FLAGS: u32 = 0x7E02_0080;
const RET_ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const RET_KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

const fn errno(code: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | code as u32
}

/// What happens to one system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// A fixed answer.
    Return(u32),
    /// Allowed unless the low half of this argument has any of these bits.
    WithoutBits { argument: u32, bits: u32 },
    /// Allowed if the low half of this argument is one of these values, otherwise this answer.
    OneOf { argument: u32, values: &'static [u32], otherwise: u32 },
    /// Refused if the low half of this argument is one of these values.
    NoneOf { argument: u32, values: &'static [u32] },
    /// Allowed for unix, IPv4 and IPv6, and for the netlink family of interfaces and routes.
    Socket,
}

/// Families that a sandbox may use freely: unix, IPv4, IPv6.
const FAMILIES: &[u32] = &[libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32];
/// Plain, Linux 32-bit, no-randomise and the query.
const PERSONALITIES: &[u32] = &[0, 0x8, 0x4_0000, 0x2_0000, 0x2_0008, 0xFFFF_FFFF];
/// Pushing input into a terminal (TIOCSTI, TIOCLINUX): old ways out of a shared terminal.
const TERMINAL_INJECTION: &[u32] = &[0x5412, 0x541C];

/// Builds the filter.
pub fn program() -> Vec<sock_filter> {
    let mut verdicts: BTreeMap<u32, Verdict> = BTreeMap::new();
    let mut add = |calls: &[i64], verdict: Verdict| {
        for call in calls {
            verdicts.insert(*call as u32, verdict);
        }
    };
    add(ALLOWED, Verdict::Return(RET_ALLOW));
    #[cfg(target_arch = "x86_64")]
    add(ALLOWED_LEGACY, Verdict::Return(RET_ALLOW));
    add(REFUSED, Verdict::Return(errno(libc::EPERM)));
    add(&[libc::SYS_clone3], Verdict::Return(errno(libc::ENOSYS)));
    // A sandbox must not flush the whole machine's disks.
    add(&[libc::SYS_sync], Verdict::Return(errno(0)));
    add(&[libc::SYS_clone], Verdict::WithoutBits { argument: 0, bits: NAMESPACE_FLAGS });
    add(&[libc::SYS_socket], Verdict::Socket);
    add(
        &[libc::SYS_socketpair],
        Verdict::OneOf { argument: 0, values: FAMILIES, otherwise: errno(libc::EAFNOSUPPORT) },
    );
    add(&[libc::SYS_personality], Verdict::OneOf { argument: 0, values: PERSONALITIES, otherwise: errno(libc::EPERM) });
    add(&[libc::SYS_ioctl], Verdict::NoneOf { argument: 1, values: TERMINAL_INJECTION });
    assemble(&verdicts)
}

/// One comparison for each run of neighbouring numbers with the same verdict.
fn assemble(verdicts: &BTreeMap<u32, Verdict>) -> Vec<sock_filter> {
    let unknown = Verdict::Return(errno(libc::ENOSYS));
    let mut runs: Vec<(u32, Verdict)> = vec![(0, unknown)];
    let mut next_free = 0;
    for (number, verdict) in verdicts {
        if *number > next_free && runs.last().is_some_and(|run| run.1 != unknown) {
            runs.push((next_free, unknown));
        }
        if runs.last().is_some_and(|run| run.1 != *verdict) {
            runs.push((*number, *verdict));
        }
        next_free = number + 1;
    }
    runs.push((next_free, unknown));

    let mut code = vec![load(4), jump(libc::BPF_JEQ, NATIVE_ARCH, 1, 0), ret(RET_KILL), load(0)];
    #[cfg(target_arch = "x86_64")]
    code.extend([jump(libc::BPF_JGE, FOREIGN_FROM, 0, 1), ret(errno(libc::ENOSYS))]);
    for window in runs.windows(2) {
        let body = body(window[0].1);
        let length = u8::try_from(body.len()).expect("a verdict's body is a dozen instructions");
        code.push(jump(libc::BPF_JGE, window[1].0, length, 0));
        code.extend(body);
    }
    code.push(ret(errno(libc::ENOSYS)));
    code
}

fn body(verdict: Verdict) -> Vec<sock_filter> {
    let argument_at = |argument: u32| load(16 + 8 * argument);
    match verdict {
        Verdict::Return(value) => vec![ret(value)],
        Verdict::WithoutBits { argument, bits } => {
            vec![argument_at(argument), jump(libc::BPF_JSET, bits, 0, 1), ret(errno(libc::EPERM)), ret(RET_ALLOW)]
        }
        Verdict::OneOf { argument, values, otherwise } => select(argument_at(argument), values, RET_ALLOW, otherwise),
        Verdict::Socket => {
            let mut code = vec![argument_at(0), jump(libc::BPF_JEQ, libc::AF_NETLINK as u32, 0, 4), argument_at(2)];
            code.extend([jump(libc::BPF_JEQ, libc::NETLINK_ROUTE as u32, 0, 1), ret(RET_ALLOW)]);
            code.push(ret(errno(libc::EPROTONOSUPPORT)));
            code.extend(select(argument_at(0), FAMILIES, RET_ALLOW, errno(libc::EAFNOSUPPORT)));
            code
        }
        Verdict::NoneOf { argument, values } => select(argument_at(argument), values, errno(libc::EPERM), RET_ALLOW),
    }
}

fn select(load: sock_filter, values: &[u32], hit: u32, miss: u32) -> Vec<sock_filter> {
    let mut code = vec![load];
    for value in values {
        code.extend([jump(libc::BPF_JEQ, *value, 0, 1), ret(hit)]);
    }
    code.push(ret(miss));
    code
}

fn load(offset: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

fn jump(condition: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | condition | libc::BPF_K) as u16, jt, jf, k }
}

fn ret(k: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k }
}

/// Refused on purpose: new privileges, kernel surface, other processes' machines.
const REFUSED: &[i64] = &[
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    libc::SYS_vhangup,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_move_pages,
    libc::SYS_mbind,
    libc::SYS_migrate_pages,
    libc::SYS_kcmp,
    libc::SYS_process_madvise,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_pidfd_getfd,
];

/// Harmless or needed by ordinary programs, on every architecture.
const ALLOWED: &[i64] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_brk,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_chdir,
    libc::SYS_chroot,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_connect,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchdir,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_flock,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_get_mempolicy,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getitimer,
    libc::SYS_getpeername,
    libc::SYS_getpgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpriority,
    libc::SYS_getrandom,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getrlimit,
    libc::SYS_getrusage,
    libc::SYS_getsid,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_getxattr,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_io_cancel,
    libc::SYS_io_destroy,
    libc::SYS_io_getevents,
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_ioprio_get,
    libc::SYS_ioprio_set,
    libc::SYS_kill,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self,
    libc::SYS_lgetxattr,
    libc::SYS_linkat,
    libc::SYS_listen,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_lremovexattr,
    libc::SYS_lseek,
    libc::SYS_lsetxattr,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_mincore,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mlockall,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mq_getsetattr,
    libc::SYS_mq_notify,
    libc::SYS_mq_open,
    libc::SYS_mq_timedreceive,
    libc::SYS_mq_timedsend,
    libc::SYS_mq_unlink,
    libc::SYS_mremap,
    libc::SYS_msgctl,
    libc::SYS_msgget,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_msync,
    libc::SYS_munlock,
    libc::SYS_munlockall,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pipe2,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_prlimit64,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pselect6,
    libc::SYS_ptrace,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readahead,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_remap_file_pages,
    libc::SYS_removexattr,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getattr,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_rr_get_interval,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_yield,
    libc::SYS_seccomp,
    libc::SYS_semctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_sendfile,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_set_mempolicy,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_setitimer,
    libc::SYS_setpgid,
    libc::SYS_setpriority,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_setrlimit,
    libc::SYS_setsid,
    libc::SYS_setsockopt,
    libc::SYS_setuid,
    libc::SYS_setxattr,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_shmdt,
    libc::SYS_shmget,
    libc::SYS_shutdown,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    libc::SYS_splice,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_symlinkat,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_sysinfo,
    libc::SYS_tee,
    libc::SYS_tgkill,
    libc::SYS_timer_create,
    libc::SYS_timer_delete,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_gettime,
    libc::SYS_timer_settime,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    libc::SYS_times,
    libc::SYS_tkill,
    libc::SYS_truncate,
    libc::SYS_umask,
    libc::SYS_uname,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_vmsplice,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_write,
    libc::SYS_writev,
    // futex_wake, futex_wait and futex_requeue have one number everywhere.
    454,
    455,
    456,
];

/// Older forms that only x86-64 has.
#[cfg(target_arch = "x86_64")]
const ALLOWED_LEGACY: &[i64] = &[
    libc::SYS_access,
    libc::SYS_alarm,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_creat,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_fork,
    libc::SYS_futimesat,
    libc::SYS_getdents,
    libc::SYS_getpgrp,
    libc::SYS_inotify_init,
    libc::SYS_lchown,
    libc::SYS_link,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_open,
    libc::SYS_pause,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_signalfd,
    libc::SYS_stat,
    libc::SYS_symlink,
    libc::SYS_time,
    libc::SYS_unlink,
    libc::SYS_ustat,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_vfork,
    libc::SYS_sysfs,
    libc::SYS_get_thread_area,
    libc::SYS_set_thread_area,
];
