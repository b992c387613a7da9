//! What a monitor and a first process say to each other from its clone until its execd is ready.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use lifecycle::spec::Network;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Pid;

use super::status::StatusReader;
use super::{Jail, Mode};
use crate::error::{Context, Failure, Kind, Result};
use crate::init::{Go, Steered};
use crate::network;
use crate::rootfs;
use crate::sys::{self, MountChange};
use crate::volumes;
use crate::wire::{self, Kernel, Plan};

/// Most bytes of a boot configuration: twenty times the largest environment that a create request can carry.
const BOOT_BYTES: u64 = 4 << 20;
/// Most bytes of a failure report from PID 1, which is not yet hostile but bounded like everything.
const REPORT_BYTES: usize = 64 << 10;

/// Makes the detached mounts in the host's namespace and lets PID 1 go on.
pub(super) fn send_go(
    jail: &Jail,
    pid: Pid,
    plan: &Plan,
    disk: Option<&OwnedFd>,
    control: BorrowedFd<'_>,
) -> Result<()> {
    if jail.mode == Mode::User {
        let go = Go { layers: 0, programs: Vec::new(), gvisor: false, volumes: 0, disk: false };
        return wire::send(control, &go, &[], SendFlags::empty()).op("let the sandbox go on");
    }
    let namespace = File::open(format!("/proc/{}/ns/user", pid.as_raw_nonzero())).op("open the user namespace")?;
    let mut mounts = Vec::new();
    for layer in &plan.layers {
        let tree = rootfs::clone_tree(rustix::fs::CWD, &jail.paths.layer(layer)).op(format!("open layer {layer}"))?;
        rootfs::seal_layer(&tree, Some(namespace.as_fd())).op(format!("map the ids of layer {layer}"))?;
        mounts.push(tree);
    }
    let programs = programs(plan);
    for path in &programs {
        // Never id-mapped: that would make the sandbox's root the owner of the machine's files.
        let tree = rootfs::clone_tree(rustix::fs::CWD, path).op(format!("open {}", path.display()))?;
        rootfs::seal_layer(&tree, None).op(format!("bind {}", path.display()))?;
        mounts.push(tree);
    }
    let runsc = jail.config.runsc.as_ref().filter(|_| plan.kernel == Kernel::Gvisor);
    if let Some(runsc) = runsc {
        for path in [&runsc.path, &jail.paths.program()] {
            let tree = rootfs::clone_tree(rustix::fs::CWD, path).op(format!("open {}", path.display()))?;
            rootfs::seal_layer(&tree, None).op(format!("bind {}", path.display()))?;
            mounts.push(tree);
        }
    }
    let volumes = volumes::open_all(plan, &jail.paths, &jail.host_paths, namespace.as_fd())?;
    mounts.extend(volumes);
    if let Some(disk) = disk {
        let change = MountChange { set: sys::ATTR_NOSUID | sys::ATTR_NODEV, id_map: Some(namespace.as_fd()) };
        sys::set_mount_attributes(disk.as_fd(), change).op("map the ids of the disk")?;
    }
    let mut fds: Vec<BorrowedFd<'_>> = mounts.iter().map(AsFd::as_fd).collect();
    fds.extend(disk.map(AsFd::as_fd));
    let go = Go {
        layers: plan.layers.len(),
        programs,
        gvisor: runsc.is_some(),
        volumes: plan.volumes.len(),
        disk: disk.is_some(),
    };
    wire::send(control, &go, &fds, SendFlags::empty()).op("hand the mounts to the sandbox")
}

/// The sockets of a steered network, once the kernel has said that it has all of that; none for another, and none when
/// the first process reports an error or ends before, which [`await_exec`] tells.
pub(super) fn take_sockets(
    plan: &Plan,
    control: BorrowedFd<'_>,
    errors: BorrowedFd<'_>,
    deadline: Instant,
) -> Result<Vec<OwnedFd>> {
    if plan.network == Network::None {
        return Ok(Vec::new());
    }
    let mut fds = [(control, PollFlags::IN), (errors, PollFlags::IN)].map(|(fd, on)| PollFd::from_borrowed_fd(fd, on));
    wait(&mut fds, deadline)?;
    if fds[0].revents().is_empty() {
        return Ok(Vec::new());
    }
    let missing = || Failure::internal("the kernel has less of the sandbox's network than was asked for");
    let mut buffer = Vec::new();
    let received = wire::receive_bytes(control, &mut buffer, RecvFlags::DONTWAIT).op("take the sandbox's sockets")?;
    let (word, sockets) = received.ok_or_else(missing)?;
    let word: Steered = serde_json::from_slice(word).map_err(|_| missing())?;
    match word.rules && word.port && network::are_ours(&sockets)? {
        true => Ok(sockets),
        false => Err(missing()),
    }
}

/// Waits until the error pipe closes, which happens when execd starts.
pub(crate) fn await_exec(errors: BorrowedFd<'_>, deadline: Instant) -> Result<()> {
    let mut report = Vec::new();
    loop {
        wait(&mut [PollFd::from_borrowed_fd(errors, PollFlags::IN)], deadline)?;
        let mut buffer = [0u8; 4096];
        match rustix::io::read(errors, &mut buffer).op("read the sandbox's report")? {
            0 if report.is_empty() => return Ok(()),
            0 => break,
            count => report.extend_from_slice(&buffer[..count]),
        }
        if report.len() > REPORT_BYTES {
            break;
        }
    }
    let failure = serde_json::from_slice(&report).unwrap_or_else(|_| Failure::internal("its first process failed"));
    Err(Failure::during(failure, "set up the sandbox"))
}

/// Hands execd its configuration, with the image's user filled in.
pub(super) fn boot_execd(
    boot: OwnedFd,
    plan: &Plan,
    control: BorrowedFd<'_>,
    to: OwnedFd,
    deadline: Instant,
) -> Result<()> {
    use std::io::{Read, Seek};
    let mut text = Vec::new();
    let mut boot = File::from(boot);
    boot.rewind().op("rewind the boot configuration")?;
    boot.take(BOOT_BYTES).read_to_end(&mut text).op("read the boot configuration")?;
    if plan.user.is_some() {
        let mut buffer = Vec::new();
        let received = wire::receive_bytes(control, &mut buffer, RecvFlags::DONTWAIT).op("learn the image's user")?;
        let identity = received.and_then(|(identity, _)| serde_json::from_slice(identity).ok());
        let identity = identity.ok_or_else(|| Failure::internal("the sandbox did not say who the image's user is"))?;
        text = crate::user::fill_in(&text, identity)?;
    }
    rustix::io::ioctl_fionbio(&to, true).op("write the boot configuration")?;
    let mut rest = text.as_slice();
    while !rest.is_empty() {
        match rustix::io::write(&to, rest) {
            Ok(count) => rest = &rest[count..],
            Err(Errno::AGAIN) => wait(&mut [PollFd::new(&to, PollFlags::OUT)], deadline)?,
            Err(errno) => return Err(Failure::errno("write the boot configuration", errno)),
        }
    }
    Ok(())
}

/// Waits until execd has said that it is ready, by which time it has also started the main process.
pub(super) fn await_execd(status: &mut StatusReader, init: BorrowedFd<'_>, deadline: Instant) -> Result<()> {
    while !status.ready() {
        let ended = {
            let mut fds = vec![PollFd::from_borrowed_fd(init, PollFlags::IN)];
            if status.is_open() {
                fds.push(PollFd::from_borrowed_fd(status.as_fd(), PollFlags::IN));
            }
            wait(&mut fds, deadline)?;
            !fds[0].revents().is_empty()
        };
        status.read();
        if let Some(why) = status.entrypoint_failure() {
            return Err(Failure::new(Kind::Entrypoint, why));
        }
        if ended && !status.ready() {
            return Err(Failure::internal("execd ended before it was ready"));
        }
    }
    Ok(())
}

pub(crate) fn wait(fds: &mut [PollFd<'_>], deadline: Instant) -> Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match poll(fds, Some(&timeout)) {
        Ok(0) => Err(Failure::internal("execd did not answer in time; the machine may be overloaded")),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(Failure::errno("wait for execd", errno)),
    }
}

/// Adds the last words of the main process to a failure.
pub(super) fn with_console(mut failure: Failure, console: &OwnedFd) -> Failure {
    let _ = rustix::io::ioctl_fionbio(console, true);
    let mut buffer = [0u8; 1024];
    if let Ok(count) = rustix::io::read(console, &mut buffer)
        && count > 0
    {
        let words = String::from_utf8_lossy(&buffer[..count]);
        failure.message = format!("{} (output: {})", failure.message, words.trim());
    }
    failure
}

/// The machine's own programs, as far as they are directories and not links. The plan cannot name others.
pub(super) fn programs(plan: &Plan) -> Vec<PathBuf> {
    if !plan.host_programs {
        return Vec::new();
    }
    let is_directory = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    HOST_PROGRAMS.iter().map(PathBuf::from).filter(is_directory).collect()
}

/// What the `host` image shows of the machine.
const HOST_PROGRAMS: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
