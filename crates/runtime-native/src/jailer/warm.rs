//! A sandbox that is whole but for what makes it somebody's, and its monitor, which waits to be told.
//!
//! Its execd has started and reads its configuration, which nobody has written yet. No token, variable or command of
//! anybody has been in it, so that there is nothing to take back. To everybody else it is a create that is still at work:
//! its state has no receipt, its lock is held, and whatever is cut off is undone as it is for a create. When the asker's end
//! of the socket closes, the monitor removes it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use lifecycle::runtime::Receipt;
use lifecycle::spec::Network;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_string, fspick};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::session::Home;
use super::{Jail, Mode, receipt};
use crate::cgroup::Group;
use crate::error::{Context, Failure, Kind, Result};
use crate::init::{self, shm_bytes};
use crate::network;
use crate::state;
use crate::sys::{self, Forked};
use crate::wire::{self, Claim, Kernel, Plan, Reply};
use crate::{policy, volumes};

/// A sandbox that waits, as its monitor holds it.
pub struct Waiting<'a> {
    /// What it was made by.
    pub plan: &'a Plan,
    /// PID 1.
    pub pid: Pid,
    /// PID 1 as a descriptor.
    pub init: BorrowedFd<'a>,
    /// Its namespaces, where they must be kept open.
    pub namespaces: &'a [OwnedFd],
    /// Its groups.
    pub group: Option<&'a Group>,
    /// The top directory of its disk.
    pub disk: Option<&'a OwnedFd>,
    /// What the kernel applied so far.
    pub receipt: Receipt,
    /// Where the claim comes from.
    pub socket: &'a OwnedFd,
}

/// What a sandbox was claimed to be.
pub struct Claimed {
    /// Its plan from now on, which is on disk.
    pub plan: Plan,
    /// execd's boot configuration.
    pub boot: OwnedFd,
    /// When its execd must have answered.
    pub deadline: Instant,
    /// What the kernel applied.
    pub receipt: Receipt,
    /// A process of ours that ends by itself and is to be waited for when nobody waits for us.
    pub helper: Option<Pid>,
}

impl Waiting<'_> {
    /// Says that it waits, and waits. Everything that was claimed is in force when this returns.
    ///
    /// # Errors
    /// Nobody will claim it any more, it ended, or the claim is for another kind of sandbox.
    pub fn until_claimed(self, jail: &Jail) -> Result<Claimed> {
        let gone = |_| Failure::internal("nobody wants the waiting sandbox any more");
        wire::send(self.socket.as_fd(), &Reply::Prepared, &[], SendFlags::empty()).map_err(gone)?;
        let mut buffer = Vec::new();
        let (text, fds) = loop {
            let mut fds = [PollFd::new(self.socket, PollFlags::IN), PollFd::from_borrowed_fd(self.init, PollFlags::IN)];
            if poll(&mut fds, None).is_err() {
                continue;
            }
            if !fds[1].revents().is_empty() {
                return Err(Failure::internal("the sandbox ended while it waited"));
            }
            match wire::receive_bytes(self.socket.as_fd(), &mut buffer, RecvFlags::DONTWAIT) {
                Ok(Some(packet)) => break packet,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Ok(None) | Err(_) => return Err(Failure::internal("nobody wants the waiting sandbox any more")),
            }
        };
        let Claim { plan } = serde_json::from_slice(text)
            .map_err(|error| Failure::new(Kind::Refused, format!("read a claim: {error}")))?;
        let boot = fds.into_iter().next();
        let boot = boot.ok_or_else(|| Failure::new(Kind::Refused, "a claim came without a boot configuration"))?;
        self.check(jail, &plan)?;
        self.apply(jail, plan, boot)
    }

    /// The jailer's own judgement, as of any plan; and whether what stands can become that.
    fn check(&self, jail: &Jail, plan: &Plan) -> Result<()> {
        policy::check(plan, &jail.paths)?;
        policy::check_kernel(plan, jail.kernel())?;
        volumes::check(plan, &jail.host_paths)?;
        let (before, after) = (&self.plan.limits, &plan.limits);
        let lifted = |before: Option<u64>, after: Option<u64>| before.is_some() && after.is_none();
        let fits = self.plan.can_become(plan)
            && !lifted(before.cpu_millis, after.cpu_millis)
            && !lifted(before.memory_bytes, after.memory_bytes)
            && !lifted(before.pids, after.pids)
            // Set before execd started, and no longer ours to change.
            && jail.by_process(before) == jail.by_process(after)
            && (jail.mode == Mode::Root || before.memory_bytes == after.memory_bytes);
        match fits {
            true => Ok(()),
            false => Err(Failure::new(Kind::Refused, "the waiting sandbox is of another kind than what was claimed")),
        }
    }

    /// Written down first, then in force, then read back.
    fn apply(self, jail: &Jail, plan: Plan, boot: OwnedFd) -> Result<Claimed> {
        let deadline = Instant::now() + Duration::from_millis(plan.start_deadline_ms);
        state::store(&jail.paths.sandbox(&plan.id), state::PLAN, &plan)?;
        if let Some(group) = self.group.filter(|_| plan.limits != self.plan.limits) {
            group.limit(&jail.by_group(&plan.limits))?;
        }
        if plan.limits.memory_bytes != self.plan.limits.memory_bytes {
            resize_shared_memory(self.pid, shm_bytes(&plan.limits))?;
        }
        let helper = match &plan.network {
            Network::Steered { reachable } if plan.network != self.plan.network => {
                let home = Home::of_waiting(plan.clone(), self.pid, self.namespaces)?;
                Some(steer(jail, &home, reachable)?)
            }
            _ => None,
        };
        let limits = receipt::Limits::read(jail, &plan, self.group, self.disk);
        let receipt = receipt::with_limits(self.receipt, limits, &plan)?;
        Ok(Claimed { plan, boot, deadline, receipt, helper })
    }
}

/// Refuses a plan that is somebody's already.
pub fn check(plan: &Plan) -> Result<()> {
    match plan.leased || plan.authority.is_some() || !plan.volumes.is_empty() || plan.kernel != Kernel::Host {
        true => Err(Failure::new(Kind::Refused, "a plan with a lease, an authority, volumes or gVisor cannot wait")),
        false => Ok(()),
    }
}

/// Sets the size of /dev/shm, which goes by the memory that the sandbox may use. Nothing of it has run yet, so that the path is
/// what we made.
fn resize_shared_memory(init: Pid, bytes: u64) -> Result<()> {
    let path = format!("/proc/{}/root/dev/shm", init.as_raw_nonzero());
    let mount =
        fspick(rustix::fs::CWD, path.as_str(), FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_SYMLINK_NOFOLLOW)
            .op("open the sandbox's shared memory")?;
    fsconfig_set_string(&mount, "size", bytes.to_string()).op("set the size of shared memory")?;
    fsconfig_reconfigure(&mount).op("set the size of shared memory")
}

/// Sets the ranges in which connections may be asked for, in a process of its own that joins the sandbox's network. What is
/// closed at its end takes the kernel some tens of milliseconds, so that it is waited for later.
fn steer(jail: &Jail, home: &Home, reachable: &[protocol::network::Cidr]) -> Result<Pid> {
    let (word, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).op("make a pipe")?;
    match sys::fork().op("fork to change the sandbox's network")? {
        Forked::Parent(pid) => {
            drop(ours);
            let mut said = Vec::new();
            let read = File::from(word).read_to_end(&mut said);
            read.op("hear of the sandbox's network")?;
            if said == DONE {
                return Ok(pid);
            }
            // It has nothing else to do.
            let _ = waitpid(Some(pid), WaitOptions::empty());
            Err(Failure::internal(format!("change the sandbox's network: {}", String::from_utf8_lossy(&said))))
        }
        Forked::Child => {
            let mut keep = vec![0, 1, 2, ours.as_raw_fd()];
            keep.extend(home.descriptors());
            sys::close_all_except(&keep);
            let steered = home
                .join_network()
                .and_then(|()| init::take_identity(jail.ids()))
                .and_then(|()| network::steer(reachable));
            let mut ours = File::from(ours);
            // A monitor that is gone wants no answer.
            let _ = match &steered {
                Ok(_) => ours.write_all(DONE),
                Err(failure) => ours.write_all(failure.message.as_bytes()),
            };
            drop(ours);
            std::process::exit(0)
        }
    }
}

/// What the helper says when all went well.
const DONE: &[u8] = b"done";
