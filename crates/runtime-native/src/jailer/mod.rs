//! The jailer: one single-threaded process that forks a child for each request.
//!
//! It owns what needs privilege and nothing else: no secret, no network, no text of a user beyond a plan. It reads
//! requests only from the packet socket it was born with; each request brings the socket on which the child that
//! does the work answers. It never waits for anything but events, so a stuck child holds up nobody.
//!
//! Children of a create stay as monitors (see [`watch`]). The jailer is the subreaper of all of them: when a monitor
//! is killed, its sandbox's PID 1 becomes the jailer's child and its exit is still recorded.

mod adopt;
pub(crate) mod birth;
pub(crate) mod create;
mod destroy;
mod inspect;
mod layers;
mod limits;
mod mounts;
mod network;
mod perform;
mod receipt;
pub(crate) use mounts::ids as volume_ids;
pub(crate) use receipt::mode as mode_name;
mod seat;
mod session;
pub(crate) mod snapshot;
mod status;
mod stock;
mod userids;
mod warm;
pub(crate) mod watch;

use std::collections::HashSet;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use lifecycle::spec::SandboxId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::cgroup::{Group, Hierarchies};
use crate::disk::Disk;
use crate::error::{Context, Failure, Kind, Result};
use crate::gvisor::Runsc;
use crate::idrange::Foreign;
use crate::init::Ids;
use crate::paths::Paths;
use crate::sys::{self, Forked};
use crate::volumes::{self, host::HostPaths};
use crate::wire::{self, Kernel, Plan, Reply, Request};
use crate::{probe, seccomp};

/// What the supervisor tells the jailer at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JailerConfig {
    /// The data directory.
    pub data_dir: PathBuf,
    /// Who may connect to execd's sockets and read exit records, when that is not the jailer's own user.
    pub server: Option<ServerIds>,
    /// Disks kept ready.
    pub disk_stock: usize,
    /// The program on which every sandbox runs; without one they run on the machine's own kernel.
    #[serde(default)]
    pub runsc: Option<Runsc>,
    /// What volumes may show of the machine.
    #[serde(default)]
    pub host_paths: HostPaths,
}

impl JailerConfig {
    /// Disks kept ready by default: a burst of creates finds them while the next are made.
    pub const DISK_STOCK: usize = 8;
    /// Workers that wait in cgroups of their own: as many creates in a row find one while the next are seated.
    pub const SEATED: usize = 3;

    /// A jailer for this data directory, with defaults.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            server: None,
            disk_stock: Self::DISK_STOCK,
            runsc: None,
            host_paths: HostPaths::default(),
        }
    }
}

/// The server's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerIds {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// With whose rights the jailer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Root: everything can be enforced.
    Root,
    /// An ordinary user.
    User,
}

/// Everything a child of the jailer needs to know, fixed at the start.
pub(crate) struct Jail {
    pub config: JailerConfig,
    pub paths: Paths,
    pub mode: Mode,
    pub cgroups: Option<Hierarchies>,
    /// Why version 2 groups cannot carry limits, where they are there but not ours to use.
    pub undelegated: Option<Failure>,
    pub cgroup_parent: String,
    pub disk_images: bool,
    pub execd: OwnedFd,
    pub filter: Vec<libc::sock_filter>,
    pub foreign: Foreign,
    pub boot_id: String,
    pub user_ids: userids::UserIds,
    /// Where to look for a free id range first.
    pub slot_hint: u32,
    /// What volumes may show of the machine: never the data directory.
    pub host_paths: HostPaths,
}

impl Jail {
    fn new(config: JailerConfig, execd: &[u8]) -> Result<Self> {
        let paths = Paths::new(&config.data_dir);
        let mode = if rustix::process::geteuid().is_root() { Mode::Root } else { Mode::User };
        prepare_directories(&paths, &config)?;
        if config.runsc.is_some() {
            show_program(&paths, execd)?;
        }
        let cgroup_parent = paths.cgroup();
        let (cgroups, undelegated) = limits::cgroups(mode, &cgroup_parent)?;
        let disk_images = mode == Mode::Root && probe::disk_images().is_ok();
        let mut host_paths = config.host_paths.clone();
        host_paths.hidden.push(config.data_dir.clone());
        let user_ids = userids::UserIds::discover(mode);
        volumes::named::sweep(&paths, |path| user_ids.remove_tree(path))?;
        crate::network::prepare();
        Ok(Self {
            paths,
            mode,
            cgroups,
            undelegated,
            cgroup_parent,
            disk_images,
            execd: seal_program(execd)?,
            filter: seccomp::program(),
            foreign: Foreign::read(),
            boot_id: crate::state::boot_id(),
            user_ids,
            host_paths,
            slot_hint: rustix::process::getpid().as_raw_nonzero().get().unsigned_abs(),
            config,
        })
    }

    /// The sandbox's cgroups, where this machine gives us any.
    pub fn group(&self, id: &SandboxId) -> Option<Group> {
        let seat = crate::state::load::<String>(&self.paths.sandbox(id), crate::state::GROUP).ok().flatten();
        let name = seat.as_deref().filter(|name| seat::is_seat(name)).unwrap_or(id.as_str());
        self.cgroups.as_ref().map(|found| found.group(&self.cgroup_parent, name))
    }

    /// Removes the group that bounds all sandboxes, if none is left. The next jailer makes it again.
    pub fn release_parent(&self) {
        if let Some(found) = &self.cgroups {
            found.release_parent(&self.cgroup_parent);
        }
    }

    /// Which ids exist inside.
    pub fn ids(&self) -> Ids {
        match self.mode {
            Mode::Root => Ids::Range,
            Mode::User => self.user_ids.ids(),
        }
    }

    /// On which kernel sandboxes run.
    pub fn kernel(&self) -> Kernel {
        if self.config.runsc.is_some() { Kernel::Gvisor } else { Kernel::Host }
    }

    /// What receipts and capabilities say of that.
    pub fn isolation(&self) -> lifecycle::runtime::Isolation {
        self.config.runsc.as_ref().map(Runsc::isolation).unwrap_or_default()
    }

    /// Makes the server the owner of a file.
    pub fn give_to_server(&self, path: &Path) -> Result<()> {
        match self.config.server {
            Some(server) => std::os::unix::fs::chown(path, Some(server.uid), Some(server.gid))
                .op(format!("give {} to the server", path.display())),
            None => Ok(()),
        }
    }
}

/// Serves requests until the other end of `socket` closes. The process must have started no thread.
pub fn main(socket: OwnedFd, config: JailerConfig, execd: impl AsRef<[u8]>) -> ! {
    // A session of its own: a Ctrl-C at the terminal is for the command line, which ends sandboxes in order.
    let _ = rustix::process::setsid();
    // What is made for sandboxes has the mode that is asked for, whoever starts us.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let code = match Jailer::new(socket, config, execd) {
        Ok(mut jailer) => jailer.serve(),
        Err(failure) => {
            eprintln!("osb jailer: start: {failure}");
            1
        }
    };
    std::process::exit(code)
}

struct Jailer {
    jail: Jail,
    socket: OwnedFd,
    signals: sys::ChildSignals,
    stock: stock::Stock,
    seats: seat::Seats,
    /// Workers and monitors; any other child is the orphan of a killed monitor.
    children: HashSet<Pid>,
    /// Monitors that an earlier jailer made.
    foreign: Vec<adopt::Foreign>,
}

impl Jailer {
    fn new(socket: OwnedFd, config: JailerConfig, execd: impl AsRef<[u8]>) -> Result<Self> {
        let signals = sys::block_child_signal().op("watch children")?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).op("become the subreaper")?;
        let jail = Jail::new(config, execd.as_ref())?;
        // Memory that the jailer does not hold need not be copied by any fork.
        drop(execd);
        if let Some(cgroups) = &jail.cgroups {
            seat::sweep(&jail, cgroups)?;
        }
        if jail.mode == Mode::Root {
            // An ordinary user can trace his own processes anyway, and must stay dumpable to write id maps.
            rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).op("hide memory")?;
        }
        let stock = stock::Stock::new(if jail.disk_images { jail.config.disk_stock } else { 0 })?;
        let ours = [socket.as_fd(), signals.as_fd(), jail.execd.as_fd(), stock.returns(), stock.home()];
        sys::close_all_except(&[vec![0, 1, 2], ours.map(|fd| fd.as_raw_fd()).to_vec()].concat());
        let seats = seat::Seats::new(&jail);
        Ok(Self { jail, socket, signals, stock, seats, children: HashSet::new(), foreign: Vec::new() })
    }

    fn serve(&mut self) -> i32 {
        let mut buffer = Vec::new();
        self.find_sandboxes();
        loop {
            // A create that has just begun goes first, as long as the next one will find a worker, too.
            let rest = self.seats.rest();
            if rest.is_none() {
                self.stock.refill(&self.jail);
                self.seat_workers();
            }
            let timeout = rest.map(|rest| Timespec { tv_sec: 0, tv_nsec: rest.subsec_nanos().into() });
            let (request, child, returned, disk, orphaned) = {
                let mut fds = vec![PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
                fds.push(PollFd::from_borrowed_fd(self.stock.returns(), PollFlags::IN));
                fds.extend(self.stock.incoming().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
                let monitors = fds.len();
                fds.extend(self.foreign.iter().map(|foreign| PollFd::new(&foreign.process, PollFlags::IN)));
                if poll(&mut fds, timeout.as_ref()).is_err() {
                    continue;
                }
                let hit = |at: usize| !fds[at].revents().is_empty();
                let orphaned: Vec<bool> = (monitors..fds.len()).map(hit).collect();
                (hit(0), hit(1), hit(2), (3..monitors).any(hit), orphaned)
            };
            if returned {
                self.stock.take_back();
            }
            if disk {
                self.stock.collect();
            }
            if orphaned.contains(&true) {
                self.adopt_foreign(&orphaned);
            }
            if child {
                self.reap();
            }
            if request {
                match wire::receive_bytes(self.socket.as_fd(), &mut buffer, RecvFlags::DONTWAIT) {
                    Ok(None) => {
                        self.seats.dismiss();
                        self.stock.dissolve();
                        self.jail.release_parent();
                        return 0;
                    }
                    Ok(Some((text, fds))) => self.accept(text.to_vec(), fds),
                    Err(rustix::io::Errno::AGAIN) => {}
                    Err(errno) => eprintln!("osb jailer: receive a request: {errno}"),
                }
            }
        }
    }

    /// Forks the child that does the work.
    fn accept(&mut self, text: Vec<u8>, mut fds: Vec<OwnedFd>) {
        if fds.is_empty() {
            eprintln!("osb jailer: a request came without a reply socket");
            return;
        }
        let reply = fds.remove(0);
        let request: Request = match serde_json::from_slice(&text) {
            Ok(request) => request,
            Err(error) => return refuse(&reply, Failure::new(Kind::Refused, format!("read a request: {error}"))),
        };
        if let Request::Prepare(plan) = &request
            && let Err(failure) = warm::check(plan)
        {
            return refuse(&reply, failure);
        }
        let disk = match &request {
            Request::Create(plan) | Request::Prepare(plan) => self.stock.take(&plan.limits),
            _ => None,
        };
        if let Request::Create(plan) | Request::Prepare(plan) = &request
            && let Err(failure) = create::announce(&self.jail, &plan.id)
        {
            return refuse(&reply, failure);
        }
        self.jail.slot_hint = self.jail.slot_hint.wrapping_add(1);
        let complete = |plan: &Plan| fds.len() == 1 + usize::from(plan.leased);
        let (request, reply, fds, disk) = match request {
            Request::Create(plan) if complete(&plan) => {
                match self.hand_over(Box::new(seat::Handed { plan: *plan, reply, fds, disk })) {
                    Ok(()) => return,
                    Err(back) => (Request::Create(Box::new(back.plan)), back.reply, back.fds, back.disk),
                }
            }
            Request::Prepare(plan) => {
                // It comes with nothing but its reply socket.
                match self.hand_over(Box::new(seat::Handed { plan: *plan, reply, fds: Vec::new(), disk })) {
                    Ok(()) => return,
                    Err(back) => (Request::Prepare(Box::new(back.plan)), back.reply, back.fds, back.disk),
                }
            }
            other => (other, reply, fds, disk),
        };
        match sys::fork() {
            Ok(Forked::Parent(pid)) => {
                self.children.insert(pid);
            }
            Ok(Forked::Child) => self.work(request, reply, fds, disk),
            Err(errno) => refuse(&reply, Failure::errno("fork a worker", errno)),
        }
    }

    /// Does one request's work in its own process.
    fn work(&self, request: Request, reply: OwnedFd, fds: Vec<OwnedFd>, disk: Option<Disk>) -> ! {
        let home = self.stock.home();
        let mut keep = vec![0, 1, 2, reply.as_raw_fd(), self.jail.execd.as_raw_fd(), home.as_raw_fd()];
        keep.extend(fds.iter().map(AsRawFd::as_raw_fd));
        keep.extend(disk.iter().map(|disk| disk.mount.as_raw_fd()));
        sys::close_all_except(&keep);
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            perform::perform(&self.jail, request, reply, fds, perform::Disks { ready: disk, home })
        }));
        std::process::exit(if done.is_ok() { 0 } else { 101 })
    }

    /// Looks at what an earlier jailer left: living monitors are watched, dead ones replaced.
    fn find_sandboxes(&mut self) {
        match adopt::find(&self.jail) {
            Ok(found) => {
                for found in found {
                    match found {
                        adopt::Found::Monitored(foreign) => self.foreign.push(foreign),
                        adopt::Found::Abandoned(id) => self.adopt(&id),
                    }
                }
            }
            Err(failure) => eprintln!("osb jailer: find the sandboxes: {failure}"),
        }
    }

    /// Replaces those of the earlier monitors that have ended, unless they ended in order.
    fn adopt_foreign(&mut self, ended: &[bool]) {
        let all = std::mem::take(&mut self.foreign);
        for (foreign, ended) in all.into_iter().zip(ended) {
            if *ended {
                self.adopt(&foreign.id);
            } else {
                self.foreign.push(foreign);
            }
        }
    }

    /// Replaces a child that ended out of order, if it was a monitor.
    fn adopt_after(&mut self, pid: Pid) {
        match adopt::abandoned_by(&self.jail, pid) {
            Ok(Some(id)) => self.adopt(&id),
            Ok(None) => {}
            Err(failure) => eprintln!("osb jailer: look for an abandoned sandbox: {failure}"),
        }
    }

    fn adopt(&mut self, id: &SandboxId) {
        match sys::fork() {
            Ok(Forked::Parent(pid)) => {
                self.children.insert(pid);
            }
            Ok(Forked::Child) => {
                sys::close_all_except(&[0, 1, 2, self.jail.execd.as_raw_fd()]);
                adopt::run(&self.jail, id);
                std::process::exit(0)
            }
            Err(errno) => eprintln!("osb jailer: fork a monitor: {errno}"),
        }
    }

    /// Removes what is left of a session that ended by itself, in a process of its own.
    fn clear_session(&mut self, sandbox: &SandboxId, session: &lifecycle::isolated::SessionId) {
        match sys::fork() {
            Ok(Forked::Parent(pid)) => {
                self.children.insert(pid);
            }
            Ok(Forked::Child) => {
                sys::close_all_except(&[0, 1, 2]);
                if let Err(failure) = session::end(&self.jail, sandbox, session) {
                    eprintln!("osb jailer: remove session {session}: {failure}");
                }
                std::process::exit(0)
            }
            Err(errno) => eprintln!("osb jailer: fork to remove a session: {errno}"),
        }
    }

    /// Waits for ended children; records the exit of a sandbox whose monitor was killed.
    fn reap(&mut self) {
        self.signals.drain();
        while let Some((pid, end)) = sys::wait_any_ended() {
            if self.stock.ended(pid) {
                continue;
            }
            let seat = self.seats.ended(pid);
            if self.children.remove(&pid) {
                if end.code != Some(0) {
                    if let Some(name) = seat {
                        self.clear_seat(name);
                    }
                    self.adopt_after(pid);
                }
                continue;
            }
            if let Some((sandbox, session)) = session::of_init(&self.jail, pid) {
                self.clear_session(&sandbox, &session);
            }
            // Also then: an old session may have had the number that is a sandbox's now.
            if let Err(failure) = inspect::record_orphan(&self.jail, pid, end) {
                eprintln!("osb jailer: record the exit of process {}: {failure}", pid.as_raw_nonzero());
            }
        }
    }
}

fn refuse(reply: &OwnedFd, failure: Failure) {
    // The asker may be gone.
    let _ = wire::send(reply.as_fd(), &Reply::Failed(failure), &[], SendFlags::empty());
}

fn prepare_directories(paths: &Paths, config: &JailerConfig) -> Result<()> {
    let make = |path: &Path, mode: u32| -> Result<()> {
        if !path.is_dir() {
            fs::create_dir_all(path).op(format!("make {}", path.display()))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).op(format!("open {}", path.display()))
    };
    if !paths.root().is_dir() {
        make(paths.root(), 0o711)?;
    }
    make(&paths.layers(), 0o700)?;
    make(&paths.sandboxes(), 0o711)?;
    if rustix::process::geteuid().is_root() {
        make(&paths.id_slots(), 0o700)?;
    }
    make(&paths.disks(), 0o700)?;
    make(&paths.volumes(), 0o700)?;
    make(&paths.snapshots(), 0o700)?;
    make(&paths.exits(), 0o750)?;
    if let Some(server) = config.server {
        let ours = Some(rustix::process::geteuid().as_raw());
        std::os::unix::fs::chown(paths.exits(), ours, Some(server.gid)).op("open the exits to the server")?;
    }
    sweep(paths)
}

/// Removes what a killed predecessor may have left half made.
fn sweep(paths: &Paths) -> Result<()> {
    layers::sweep(&paths.layers())?;
    for entry in fs::read_dir(paths.disks()).op("list disks")? {
        let entry = entry.op("list disks")?;
        if entry.file_name().to_string_lossy().starts_with("new-") {
            // Another attempt follows at the next start.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Puts the program into a file that can be mounted, for sandboxes whose kernel opens it by name. The file of an earlier
/// jailer stays as it is for whoever has it.
fn show_program(paths: &Paths, program: &[u8]) -> Result<()> {
    let path = paths.program();
    let temporary = path.with_extension("new");
    fs::write(&temporary, program).op("write execd")?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o555)).op("write execd")?;
    fs::rename(&temporary, &path).op("write execd")
}

/// Puts the program into sealed memory that the sandbox's root can execute but neither read, write nor trace.
fn seal_program(program: &[u8]) -> Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("execd", flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create("execd", flags))
        .op("make memory for execd")?;
    let mut rest = program;
    while !rest.is_empty() {
        let written = rustix::io::write(&memory, rest).op("copy execd into memory")?;
        rest = &rest[written..];
    }
    rustix::fs::fchmod(&memory, Mode::from_raw_mode(0o111)).op("protect execd")?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&memory, seals).op("seal execd")?;
    // A writable descriptor of a program that runs is refused by exec; an ordinary user may not even re-open it.
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).op("re-open execd")
}
