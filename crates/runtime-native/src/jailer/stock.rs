//! Disks of the default size, ready before they are needed: returned by ended sandboxes or made by forked helpers.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::Jail;
use crate::disk::{self, Disk, Record, Size};
use crate::error::{Context, Result};
use crate::sys::{self, Forked};
use crate::wire::{self, PlanLimits};

/// Helpers at work at the same time: more would only compete for the same disk.
const HELPERS: usize = 2;
/// How long a monitor waits for the stock's word about the disk it returned.
const RETURN_DEADLINE: Duration = Duration::from_secs(1);
/// Failures in a row after which no more disks are made ahead; creates then make their own and report why they fail.
const FAILURES: u32 = 8;

/// The stock.
pub struct Stock {
    target: usize,
    ready: VecDeque<Disk>,
    /// Whether it was full once and has not been low since.
    filled: bool,
    helpers: Vec<OwnedFd>,
    failures: u32,
    pids: Vec<Pid>,
    /// Where disks come back.
    returns: OwnedFd,
    /// The other end, for monitors.
    home: OwnedFd,
}

impl Stock {
    /// Keeps so many disks ready.
    pub fn new(target: usize) -> Result<Self> {
        let (returns, home) = wire::pair().op("make a socket pair")?;
        let (ready, helpers, pids) = (VecDeque::new(), Vec::new(), Vec::new());
        Ok(Self { target, ready, filled: false, helpers, failures: 0, pids, returns, home })
    }

    /// Where disks come back.
    pub fn returns(&self) -> BorrowedFd<'_> {
        self.returns.as_fd()
    }

    /// Where a monitor gives its disk back, see [`give_back`].
    pub fn home(&self) -> BorrowedFd<'_> {
        self.home.as_fd()
    }

    /// A ready disk, if these limits ask for the default size.
    pub fn take(&mut self, limits: &PlanLimits) -> Option<Disk> {
        let wanted = Size::of(limits.disk_bytes, limits.disk_inodes);
        if wanted == Size::of(None, None) { self.ready.pop_front() } else { None }
    }

    /// Sockets on which disks arrive.
    pub fn incoming(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.helpers.iter().map(AsFd::as_fd)
    }

    /// Starts helpers if the stock is low, until it is full. In between, disks come back by themselves.
    pub fn refill(&mut self, jail: &Jail) {
        if self.ready.len() >= self.target {
            self.filled = true;
        } else if self.ready.len() + self.helpers.len() < self.target.div_ceil(2) {
            self.filled = false;
        }
        while !self.filled
            && self.failures < FAILURES
            && self.helpers.len() < HELPERS
            && self.ready.len() + self.helpers.len() < self.target
        {
            let Ok((ours, theirs)) = wire::pair() else { return };
            match sys::fork() {
                Ok(Forked::Parent(pid)) => {
                    self.helpers.push(ours);
                    self.pids.push(pid);
                }
                Ok(Forked::Child) => {
                    sys::close_all_except(&[0, 1, 2, theirs.as_raw_fd()]);
                    std::process::exit(deliver(jail, &theirs));
                }
                Err(_) => return,
            }
        }
    }

    /// Whether the ended child was a helper.
    pub fn ended(&mut self, pid: Pid) -> bool {
        let before = self.pids.len();
        self.pids.retain(|known| *known != pid);
        self.pids.len() < before
    }

    /// Takes in what helpers have delivered.
    pub fn collect(&mut self) {
        let mut buffer = Vec::new();
        let (ready, failures) = (&mut self.ready, &mut self.failures);
        self.helpers.retain(|helper| match wire::receive_bytes(helper.as_fd(), &mut buffer, RecvFlags::DONTWAIT) {
            Ok(Some((text, fds))) => {
                if let (Ok(state), Some(mount)) = (serde_json::from_slice(text), fds.into_iter().next()) {
                    ready.push_back(Disk { mount, size: Size::of(None, None), state });
                }
                *failures = 0;
                false
            }
            Err(rustix::io::Errno::AGAIN) => true,
            Ok(None) | Err(_) => {
                *failures += 1;
                false
            }
        });
    }
}

impl Stock {
    /// Takes in the disks that monitors have returned, as many as there is room for.
    pub fn take_back(&mut self) {
        let mut buffer = Vec::new();
        while let Ok(Some((text, fds))) = wire::receive_bytes(self.returns.as_fd(), &mut buffer, RecvFlags::DONTWAIT) {
            let mut fds = fds.into_iter();
            let (Ok(state), Some(mount), Some(_word)) = (serde_json::from_slice(text), fds.next(), fds.next()) else {
                continue;
            };
            if self.ready.len() + self.helpers.len() < self.target {
                self.ready.push_back(Disk { mount, size: Size::of(None, None), state });
            }
            // Otherwise it is closed here before the monitor has its word, so that the last close, which takes long,
            // is the monitor's.
        }
    }

    /// Gives all disks back at the end, side by side, because each takes the kernel a tenth of a second.
    pub fn dissolve(&mut self) {
        let disks: Vec<Disk> = self.ready.drain(..).collect();
        for disk in &disks {
            if let Ok(root) = disk::open_root(&disk.mount) {
                // Nobody will read it again.
                let _ = sys::shutdown_filesystem(root.as_fd());
            }
        }
        let mut helpers = Vec::new();
        for disk in &disks {
            match sys::fork() {
                Ok(Forked::Parent(pid)) => helpers.push(pid),
                Ok(Forked::Child) => {
                    sys::close_all_except(&[disk.mount.as_raw_fd()]);
                    std::process::exit(0);
                }
                // Closed below, one after the other.
                Err(_) => break,
            }
        }
        drop(disks);
        for pid in helpers {
            // Its end is all that matters.
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

/// Returns an emptied disk of the default size to the stock and waits until it is taken or refused.
pub fn give_back(home: BorrowedFd<'_>, disk: &Disk, state: Record) {
    if disk.size != Size::of(None, None) {
        return;
    }
    let Ok((word, ours)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else { return };
    // The jailer of this sandbox may be gone; then the disk goes with its monitor.
    if wire::send(home, &state, &[disk.mount.as_fd(), ours.as_fd()], SendFlags::DONTWAIT).is_err() {
        return;
    }
    drop(ours);
    let timeout = Timespec { tv_sec: RETURN_DEADLINE.as_secs() as i64, tv_nsec: 0 };
    let _ = poll(&mut [PollFd::new(&word, PollFlags::empty())], Some(&timeout));
}

fn deliver(jail: &Jail, to: &OwnedFd) -> i32 {
    let made = disk::make(&jail.paths.disks(), Size::of(None, None));
    match made {
        Ok(disk) => wire::send(to.as_fd(), &disk.state, &[disk.mount.as_fd()], SendFlags::empty()).map_or(1, |()| 0),
        Err(failure) => {
            eprintln!("osb jailer: make a disk ahead: {failure}");
            1
        }
    }
}
