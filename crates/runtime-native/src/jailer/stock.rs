//! Disks of the default size, made before they are needed by forked helpers.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Pid;

use super::Jail;
use crate::disk::{self, Disk, Size};
use crate::sys::{self, Forked};
use crate::wire::{self, PlanLimits};

/// Helpers at work at the same time: more would only compete for the same disk.
const HELPERS: usize = 2;
/// Failures in a row after which no more disks are made ahead; creates then make their own and report why they fail.
const FAILURES: u32 = 8;

/// The stock.
pub struct Stock {
    target: usize,
    ready: VecDeque<Disk>,
    helpers: Vec<OwnedFd>,
    failures: u32,
    pids: Vec<Pid>,
}

impl Stock {
    /// Keeps so many disks ready.
    pub fn new(target: usize) -> Self {
        Self { target, ready: VecDeque::new(), helpers: Vec::new(), failures: 0, pids: Vec::new() }
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

    /// Starts helpers as long as disks are missing.
    pub fn refill(&mut self, jail: &Jail) {
        while self.failures < FAILURES
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
            Ok(Some((_, fds))) => {
                ready.extend(fds.into_iter().map(|mount| Disk { mount, size: Size::of(None, None) }));
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

fn deliver(jail: &Jail, to: &OwnedFd) -> i32 {
    let made = disk::make(&jail.paths.disks(), Size::of(None, None));
    match made {
        Ok(disk) => wire::send(to.as_fd(), &"disk", &[disk.mount.as_fd()], SendFlags::empty()).map_or(1, |()| 0),
        Err(failure) => {
            eprintln!("osb jailer: make a disk ahead: {failure}");
            1
        }
    }
}
