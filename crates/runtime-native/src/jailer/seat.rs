//! Workers that wait in fresh cgroups, so that a create need not wait for the kernel to move a process.
//!
//! Moving the process of another between cgroups makes the kernel wait until every core has passed a quiet point: some
//! milliseconds, tens on a busy machine, in which nobody else can make, remove or mount a group either. So nobody is
//! moved: a worker enters the version 1 groups by itself, as a thread, which needs no such wait, and clones the
//! sandbox's first process from there into the version 2 group; then it leaves them. It has made the groups, which become
//! the sandbox's, before its order comes. Groups are named by seat; which a sandbox has is written in its directory before
//! they are used. A worker whose jailer is gone removes its groups and ends.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, WaitOptions, getpid, waitpid};
use serde::{Deserialize, Serialize};

use super::create::{self, Order};
use super::{Jail, Jailer, JailerConfig};
use crate::cgroup::Hierarchies;
use crate::disk::{Disk, Record, Size};
use crate::error::{Context, Failure, Kind, Result};
use crate::state;
use crate::sys::{self, Forked};
use crate::wire::{self, Plan, PlanLimits};

/// Failures in a row after which no more are seated; creates then make their own groups and say why they fail.
const FAILURES: u32 = 8;
/// Fewest processes that a sandbox must be allowed, since its worker counts as one for a moment.
const LEAST_PIDS: u64 = 16;
/// Least thousandths of a core that a sandbox must be allowed, since its worker shares them for a moment.
const LEAST_CPU_MILLIS: u64 = 250;
/// How long what is left in the groups of a killed worker may take to be gone: it was killed, too.
const CLEAR_DEADLINE: Duration = Duration::from_secs(5);
/// How the groups of seats begin.
const PREFIX: &str = "seat-";

/// How long after a create no new worker is seated, unless the last one is taken: about what a create takes, which would
/// share its cores otherwise.
const REST: Duration = Duration::from_millis(20);

/// The seated workers.
pub struct Seats {
    target: usize,
    /// When a worker was last given a create.
    handed: Instant,
    ready: VecDeque<(Pid, OwnedFd)>,
    /// Names of the groups of every worker that was seated and lives, whatever it became.
    names: HashMap<Pid, String>,
    failures: u32,
    count: u64,
}

/// What a seated worker is told beside its plan. The descriptors: reply, boot configuration, lease if the plan has
/// one, disk if there is a record of one.
#[derive(Serialize, Deserialize)]
struct Errand {
    plan: Plan,
    disk: Option<Record>,
    slot_hint: u32,
}

/// The groups a worker sits in.
pub struct Seat {
    name: String,
}

impl Seats {
    /// Nobody yet. Only where the kernel can kill a group as a whole, which needs version 2.
    pub fn new(jail: &Jail) -> Self {
        let can = jail.cgroups.as_ref().is_some_and(|found| found.v2.is_some() && !found.own.is_empty());
        let target = if can { JailerConfig::SEATED } else { 0 };
        let handed = Instant::now();
        Self { target, handed, ready: VecDeque::new(), names: HashMap::new(), failures: 0, count: 0 }
    }

    /// How long no new worker is seated yet; `None` when it is time.
    pub fn rest(&self) -> Option<Duration> {
        if self.ready.is_empty() {
            return None;
        }
        REST.checked_sub(self.handed.elapsed()).filter(|rest| !rest.is_zero())
    }

    /// Takes note of an ended child; gives the name of its groups if it was seated once.
    pub fn ended(&mut self, pid: Pid) -> Option<String> {
        let before = self.ready.len();
        self.ready.retain(|(known, _)| *known != pid);
        if self.ready.len() < before {
            self.failures += 1;
        }
        self.names.remove(&pid)
    }

    /// Lets all go and waits until their groups are gone.
    pub fn dismiss(&mut self) {
        let pids: Vec<Pid> = self.ready.drain(..).map(|(pid, _)| pid).collect();
        for pid in pids {
            // It has nothing to do but to leave.
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

impl Jailer {
    /// Seats workers until there are enough.
    pub(super) fn seat_workers(&mut self) {
        while self.seats.failures < FAILURES && self.seats.ready.len() < self.seats.target {
            let Ok((ours, theirs)) = wire::pair() else { return };
            self.seats.count += 1;
            let name = format!("{PREFIX}{}-{}", getpid().as_raw_nonzero(), self.seats.count);
            match sys::fork() {
                Ok(Forked::Parent(pid)) => {
                    self.children.insert(pid);
                    self.seats.ready.push_back((pid, ours));
                    self.seats.names.insert(pid, name);
                }
                Ok(Forked::Child) => {
                    let home = self.stock.home();
                    let keep = [0, 1, 2, theirs.as_raw_fd(), self.jail.execd.as_raw_fd(), home.as_raw_fd()];
                    sys::close_all_except(&keep);
                    let worker = std::panic::AssertUnwindSafe(|| wait_seated(&mut self.jail, name, &theirs, home));
                    let done = std::panic::catch_unwind(worker).unwrap_or(Err(Failure::internal("a worker panicked")));
                    if let Err(failure) = &done {
                        eprintln!("osb jailer: seat a worker: {failure}");
                    }
                    std::process::exit(i32::from(done.is_err()))
                }
                Err(_) => return,
            }
        }
    }

    /// Removes the groups of a worker that ended out of order, in a process of its own, unless they are a sandbox's.
    pub(super) fn clear_seat(&mut self, name: String) {
        match sys::fork() {
            Ok(Forked::Parent(pid)) => {
                self.children.insert(pid);
                // If it is killed too, another goes on with what it left.
                self.seats.names.insert(pid, name);
            }
            Ok(Forked::Child) => {
                sys::close_all_except(&[0, 1, 2]);
                if let Err(failure) = clear(&self.jail, &name) {
                    eprintln!("osb jailer: remove the groups of a killed worker: {failure}");
                }
                std::process::exit(0)
            }
            Err(errno) => eprintln!("osb jailer: fork to remove the groups of a killed worker: {errno}"),
        }
    }

    /// Gives a create to a seated worker; gives it back if there is none.
    pub(super) fn hand_over(&mut self, handed: Box<Handed>) -> std::result::Result<(), Box<Handed>> {
        if !fits(&handed.plan.limits) {
            return Err(handed);
        }
        let disk = handed.disk.as_ref().map(|disk| disk.state);
        let errand = Errand { plan: handed.plan.clone(), disk, slot_hint: self.jail.slot_hint };
        while let Some((_, socket)) = self.seats.ready.pop_front() {
            let mut fds = vec![handed.reply.as_fd()];
            fds.extend(handed.fds.iter().map(AsFd::as_fd));
            fds.extend(handed.disk.as_ref().map(|disk| disk.mount.as_fd()));
            // A worker that has ended cannot take it; the next may.
            if wire::send(socket.as_fd(), &errand, &fds, SendFlags::DONTWAIT).is_ok() {
                self.seats.failures = 0;
                self.seats.handed = Instant::now();
                return Ok(());
            }
        }
        Err(handed)
    }
}

/// A create with all that came with it.
pub struct Handed {
    /// What to make.
    pub plan: Plan,
    /// Where the answer goes.
    pub reply: OwnedFd,
    /// Boot configuration, and the lease if there is one.
    pub fds: Vec<OwnedFd>,
    /// A ready disk.
    pub disk: Option<Disk>,
}

fn fits(limits: &PlanLimits) -> bool {
    limits.pids.is_none_or(|count| count >= LEAST_PIDS)
        && limits.cpu_millis.is_none_or(|millis| millis >= LEAST_CPU_MILLIS)
}

fn wait_seated(jail: &mut Jail, name: String, socket: &OwnedFd, home: BorrowedFd<'_>) -> Result<()> {
    let Some(cgroups) = &jail.cgroups else { return Err(Failure::internal("there are no cgroups")) };
    let seat = Seat { name };
    let group = cgroups.group(&jail.cgroup_parent, &seat.name);
    let seated = group.create().and_then(|()| group.enter());
    let mut buffer = Vec::new();
    let errand = match seated {
        Ok(()) => wire::receive_bytes(socket.as_fd(), &mut buffer, RecvFlags::empty()).op("wait for an errand"),
        Err(failure) => Err(failure),
    };
    match errand {
        Ok(Some((text, fds))) => {
            let errand: Errand =
                serde_json::from_slice(text).map_err(|error| Failure::internal(format!("read an errand: {error}")))?;
            jail.slot_hint = errand.slot_hint;
            run(jail, seat, errand, fds, home)
        }
        other => {
            cgroups.leave()?;
            group.remove()?;
            other.map(drop)
        }
    }
}

fn run(jail: &Jail, seat: Seat, errand: Errand, fds: Vec<OwnedFd>, home: BorrowedFd<'_>) -> Result<()> {
    let missing = || Failure::new(Kind::Refused, "a create came without its descriptors");
    let mut fds = VecDeque::from(fds);
    let disk = match errand.disk {
        Some(state) => Some(Disk { mount: fds.pop_back().ok_or_else(missing)?, size: Size::of(None, None), state }),
        None => None,
    };
    let reply = fds.pop_front().ok_or_else(missing)?;
    let boot = fds.pop_front();
    if errand.plan.leased && fds.is_empty() {
        return Err(missing());
    }
    let order = Order { plan: errand.plan, boot, lease: fds.pop_front(), disk, home, seat: Some(seat) };
    create::run(jail, order, reply);
    Ok(())
}

impl Seat {
    /// Writes down that these groups are the sandbox's. Whole or not at all: half a name would be that of all groups.
    pub fn give(&self, directory: &Path) -> Result<()> {
        state::store(directory, state::GROUP, &self.name)
    }

    /// Leaves the groups and removes them, when they became nobody's.
    pub fn give_up(&self, jail: &Jail) {
        let Some(cgroups) = &jail.cgroups else { return };
        if let Err(failure) = cgroups.leave() {
            eprintln!("osb jailer: leave the groups of a seat: {failure}");
        }
        cgroups.group(&jail.cgroup_parent, &self.name).remove_if_empty();
    }
}

/// Whether groups of this name are a seat's, and no sandbox's by its id.
pub fn is_seat(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Removes the groups of seats that an earlier jailer left and no sandbox has. One that is still used stays until the
/// next start.
pub fn sweep(jail: &Jail, cgroups: &Hierarchies) -> Result<()> {
    let given = given(jail)?;
    for name in cgroups.children(&jail.cgroup_parent) {
        if is_seat(&name) && !given.contains(&name) {
            cgroups.group(&jail.cgroup_parent, &name).remove_if_empty();
        }
    }
    Ok(())
}

/// Ends what is in a seat's groups and removes them, unless a sandbox has them.
fn clear(jail: &Jail, name: &str) -> Result<()> {
    let Some(cgroups) = &jail.cgroups else { return Ok(()) };
    if given(jail)?.contains(name) {
        return Ok(());
    }
    let group = cgroups.group(&jail.cgroup_parent, name);
    group.kill()?;
    group.wait_empty(Instant::now() + CLEAR_DEADLINE)?;
    group.remove()
}

/// The seats' groups that sandboxes have.
fn given(jail: &Jail) -> Result<HashSet<String>> {
    let mut given = HashSet::new();
    for entry in fs::read_dir(jail.paths.sandboxes()).op("list sandboxes")? {
        let name = state::load::<String>(&entry.op("list sandboxes")?.path(), state::GROUP)?;
        given.extend(name);
    }
    Ok(given)
}
