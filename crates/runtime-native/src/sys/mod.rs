//! The system calls that no safe library offers: the only module of the control plane with `unsafe`.
//!
//! Each function makes one call (or one inseparable pair) and returns the error number. Everything that has a
//! safe form in `rustix` is called there directly and not wrapped again here.
#![allow(unsafe_code, reason = "the one room for system calls without a safe wrapper")]

mod block;
mod process;

pub use block::{LoopDevice, attach_loop, shutdown_filesystem};
pub use process::{
    ChildEnd, ChildSignals, Cloned, Forked, Signals, block_child_signal, block_termination, clone_into,
    clone_namespaces, close_all_except, end_of, exec_descriptor, fork, inherited, install_descriptors, install_filter,
    join_namespace, reset_signals, set_file_system_uid, unshare_cgroup_namespace, unshare_mount_namespace,
    unshare_network_namespace, wait_any_ended,
};

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// What to change on a detached mount.
#[derive(Clone, Copy, Default)]
pub struct MountChange<'a> {
    /// `MOUNT_ATTR_*` bits to set.
    pub set: u64,
    /// User namespace whose map the mount's ids are shifted by.
    pub id_map: Option<BorrowedFd<'a>>,
}

/// Read-only.
pub const ATTR_RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
/// Set-user-id bits and file capabilities are inert.
pub const ATTR_NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
/// Device nodes cannot be opened.
pub const ATTR_NODEV: u64 = libc::MOUNT_ATTR_NODEV;
/// Nothing can be executed.
pub const ATTR_NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// Changes attributes of the mount that `mount` refers to.
pub fn set_mount_attributes(mount: BorrowedFd<'_>, change: MountChange<'_>) -> Result<(), Errno> {
    change_mount(mount, change, 0)
}

/// The same for all mounts below it, too.
pub fn set_tree_attributes(mount: BorrowedFd<'_>, set: u64) -> Result<(), Errno> {
    change_tree(mount, MountChange { set, id_map: None })
}

/// Changes attributes of a mount and of all mounts below it, or of none.
pub fn change_tree(mount: BorrowedFd<'_>, change: MountChange<'_>) -> Result<(), Errno> {
    change_mount(mount, change, libc::AT_RECURSIVE)
}

fn change_mount(mount: BorrowedFd<'_>, change: MountChange<'_>, flags: i32) -> Result<(), Errno> {
    let attr = libc::mount_attr {
        attr_set: change.set | if change.id_map.is_some() { libc::MOUNT_ATTR_IDMAP } else { 0 },
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: change.id_map.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    // SAFETY: `attr` lives across the call and its size is passed; both descriptors are borrowed, hence open.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    check(rc).map(drop)
}

/// Brings the loopback interface of the calling process's network namespace up.
pub fn bring_loopback_up() -> Result<(), Errno> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: all-zero is a valid `ifreq`: plain integers and bytes.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the kernel reads one `ifreq`, which lives across the call.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) };
    check(rc.into()).map(drop)
}

/// Lets a socket that is bound to one address serve connections to all that are handed over to it.
pub fn set_transparent(socket: &std::os::fd::OwnedFd, is_ipv6: bool) -> Result<(), Errno> {
    let (level, name) = match is_ipv6 {
        true => (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
        false => (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
    };
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads one integer, which lives across the call.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), length) };
    check(rc.into()).map(drop)
}

/// Turns the C convention into a `Result`.
pub(crate) fn check(rc: i64) -> Result<i64, Errno> {
    if rc < 0 {
        let code = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Errno::from_raw_os_error(code));
    }
    Ok(rc)
}

/// Lets an event loop wait for a descriptor.
///
/// # Errors
/// The descriptor cannot be waited for, or no tokio runtime runs.
pub fn watched(fd: std::os::fd::OwnedFd) -> std::io::Result<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>> {
    // SAFETY: an `OwnedFd` always answers with the same descriptor and keeps it open until it is dropped, which
    // `AsyncFd` does only after it has deregistered it.
    unsafe { tokio::io::unix::AsyncFd::register(fd) }.map_err(Into::into)
}

/// Lets a descriptor be awaited. Must be called within a tokio runtime.
pub fn watch(fd: std::os::fd::OwnedFd) -> std::io::Result<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>> {
    // SAFETY: an `OwnedFd` is the only owner of its descriptor and always names the same one until it is dropped,
    // which the `AsyncFd` does after it has been deregistered.
    unsafe { tokio::io::unix::AsyncFd::register(fd) }.map_err(|error| error.into_parts().1)
}
