//! System calls by number, as far as they have effects, and where a traced thread keeps their arguments.

use nix::libc;
use nix::sys::ptrace;
use nix::unistd::Pid;

/// A call with effects. Calls that do the same in two ways are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// A name appears or changes: the arguments that are (directory, path), or (no directory, path).
    Name { name: &'static str, directory: Option<usize>, path: usize },
    /// `open` with flags in the given argument; an effect if it may make the file.
    Open { directory: Option<usize>, path: usize, flags: usize },
    /// Bytes are written to a file: descriptor first, text second.
    Write { name: &'static str },
    /// Something is done to the file of the first descriptor.
    File { name: &'static str },
    /// A socket gets a name.
    Bind,
    /// A child, unless it is a thread.
    Clone,
    /// Mounts and signals, whatever they are about.
    Other { name: &'static str },
}

/// Number and arguments of the call that a thread is about to make.
pub(super) struct Made {
    pub(super) call: Call,
    pub(super) arguments: [u64; 6],
}

impl Made {
    /// Reads the registers of a thread that has stopped at the entry of a call; `None` if the call has no effect.
    pub(super) fn by(thread: Pid) -> nix::Result<Option<Self>> {
        let registers = ptrace::getregs(thread)?;
        let (number, arguments) = entry(&registers);
        Ok(call(number).map(|call| Self { call, arguments }))
    }
}

/// Whether the call that a thread has just returned from succeeded.
pub(super) fn succeeded(thread: Pid) -> nix::Result<bool> {
    let registers = ptrace::getregs(thread)?;
    Ok(result(&registers) >= 0)
}

#[cfg(target_arch = "x86_64")]
fn entry(registers: &libc::user_regs_struct) -> (i64, [u64; 6]) {
    let r = registers;
    (r.orig_rax.cast_signed(), [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9])
}

#[cfg(target_arch = "x86_64")]
fn result(registers: &libc::user_regs_struct) -> i64 {
    registers.rax.cast_signed()
}

#[cfg(target_arch = "aarch64")]
fn entry(registers: &libc::user_regs_struct) -> (i64, [u64; 6]) {
    let r = &registers.regs;
    (r[8].cast_signed(), [r[0], r[1], r[2], r[3], r[4], r[5]])
}

#[cfg(target_arch = "aarch64")]
fn result(registers: &libc::user_regs_struct) -> i64 {
    registers.regs[0].cast_signed()
}

fn call(number: i64) -> Option<Call> {
    let name = |name, directory, path| Some(Call::Name { name, directory, path });
    match number {
        libc::SYS_renameat | libc::SYS_renameat2 => name("rename", Some(2), 3),
        libc::SYS_linkat => name("link", Some(2), 3),
        libc::SYS_symlinkat => name("symlink", Some(1), 2),
        libc::SYS_unlinkat => name("unlink", Some(0), 1),
        libc::SYS_mkdirat => name("mkdir", Some(0), 1),
        libc::SYS_fchmodat => name("chmod", Some(0), 1),
        libc::SYS_fchownat => name("chown", Some(0), 1),
        libc::SYS_openat => Some(Call::Open { directory: Some(0), path: 1, flags: 2 }),
        libc::SYS_write => Some(Call::Write { name: "write" }),
        libc::SYS_pwrite64 => Some(Call::Write { name: "pwrite" }),
        libc::SYS_ftruncate => Some(Call::File { name: "truncate" }),
        libc::SYS_fsync | libc::SYS_fdatasync => Some(Call::File { name: "sync" }),
        libc::SYS_ioctl => Some(Call::File { name: "ioctl" }),
        libc::SYS_bind => Some(Call::Bind),
        libc::SYS_clone => Some(Call::Clone),
        libc::SYS_clone3 => Some(Call::Other { name: "clone" }),
        libc::SYS_mount => Some(Call::Other { name: "mount" }),
        libc::SYS_umount2 => Some(Call::Other { name: "umount" }),
        libc::SYS_fsmount => Some(Call::Other { name: "fsmount" }),
        libc::SYS_move_mount => Some(Call::Other { name: "move_mount" }),
        libc::SYS_open_tree => Some(Call::Other { name: "open_tree" }),
        libc::SYS_mount_setattr => Some(Call::Other { name: "mount_setattr" }),
        libc::SYS_pivot_root => Some(Call::Other { name: "pivot_root" }),
        libc::SYS_kill => Some(Call::Other { name: "kill" }),
        libc::SYS_pidfd_send_signal => Some(Call::Other { name: "kill" }),
        _ => older(number),
    }
}

/// Calls that newer machines no longer have.
#[cfg(target_arch = "x86_64")]
fn older(number: i64) -> Option<Call> {
    let name = |name, path| Some(Call::Name { name, directory: None, path });
    match number {
        libc::SYS_rename => name("rename", 1),
        libc::SYS_link => name("link", 1),
        libc::SYS_symlink => name("symlink", 1),
        libc::SYS_unlink => name("unlink", 0),
        libc::SYS_rmdir => name("unlink", 0),
        libc::SYS_mkdir => name("mkdir", 0),
        libc::SYS_chmod => name("chmod", 0),
        libc::SYS_chown => name("chown", 0),
        libc::SYS_open => Some(Call::Open { directory: None, path: 0, flags: 1 }),
        libc::SYS_fork | libc::SYS_vfork => Some(Call::Other { name: "clone" }),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn older(_: i64) -> Option<Call> {
    None
}
