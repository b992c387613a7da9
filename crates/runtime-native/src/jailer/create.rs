//! Makes one sandbox, in a process of its own that afterwards stays as its monitor.
//!
//! Order: write down, then do. The plan is on disk before the first effect, the id range before it is used, PID 1
//! before it may run. Whatever fails is undone here; whatever is cut off is undone by a destroy of the same id.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use lifecycle::runtime::Receipt;
use lifecycle::spec::{Network, SandboxId};
use rustix::fs::{FlockOperation, flock};
use rustix::net::SendFlags;
use rustix::process::{Pid, WaitOptions, getpid, waitpid};
use rustix::thread::{Uid, set_thread_res_uid};

use super::seat::Seat;
use super::status::StatusReader;
use super::{Jail, Mode, birth, destroy, receipt, session, warm, watch};
use crate::cgroup::Group;
use crate::disk::{self, Disk, Size};
use crate::error::{Context, Failure, Kind, Result};
use crate::idrange::{self, Slot};
use crate::init::{self, Birth, ByPath, FallbackDisk};
use crate::snapshot;
use crate::state::{self, Monitor, Process, State};
use crate::sys::{self, Cloned};
use crate::volumes;
use crate::wire::{self, Kernel, Plan, Reply};

/// Namespaces of every sandbox but the cgroup one, which PID 1 enters once it is in its groups.
const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWNET;
/// Connections that may wait for execd to accept them.
const LISTEN_BACKLOG: i32 = 1024;
/// What a create brings with it.
pub struct Order<'a> {
    /// What to make.
    pub plan: Plan,
    /// execd's boot configuration; without one the sandbox waits to be claimed ([`warm`]).
    pub boot: Option<OwnedFd>,
    /// Its other end closes when the engine that asked dies.
    pub lease: Option<OwnedFd>,
    /// A prepared disk of the right size, if there was one.
    pub disk: Option<Disk>,
    /// Where a disk can be returned to.
    pub home: BorrowedFd<'a>,
    /// The groups that this process sits in and that become the sandbox's.
    pub seat: Option<Seat>,
}

/// A running sandbox as its monitor holds it.
pub struct Live<'a> {
    /// Which one.
    pub id: SandboxId,
    /// PID 1.
    pub init: OwnedFd,
    /// Where execd reports.
    pub status: StatusReader,
    /// Output of the main process.
    pub console: OwnedFd,
    /// The top directory of the disk.
    pub disk: Option<OwnedFd>,
    /// The disk itself, if it can be used again, and where it is returned to.
    pub spare: Option<(Disk, BorrowedFd<'a>)>,
    /// The lease.
    pub lease: Option<OwnedFd>,
    /// Grace at the end of the lease.
    pub grace: Duration,
    /// On which kernel its programs run.
    pub kernel: Kernel,
    /// Limits, for the words of the exit record.
    pub limits: wire::PlanLimits,
    /// Namespaces that are kept open for its isolated sessions, which look for them here by way of /proc.
    pub _namespaces: Vec<OwnedFd>,
    /// Locked as long as this process writes in the sandbox's directory; a destroy waits for it.
    pub watching: Option<File>,
}

/// Makes the sandbox, answers on `reply`, and stays until its end.
pub fn run(jail: &Jail, mut order: Order<'_>, reply: OwnedFd) {
    let id = order.plan.id.clone();
    let answer = |reply: &OwnedFd, message: &Reply| {
        // A server that is gone asks again after its restart; the sandbox is found then.
        let _ = wire::send(reply.as_fd(), message, &[], SendFlags::empty());
    };
    let lock = match claim(jail, &order.plan, order.seat.as_ref()) {
        Ok(Claim::Ours(lock)) => lock,
        other => {
            if let Some(seat) = &order.seat {
                seat.give_up(jail);
            }
            let message = match other {
                Ok(Claim::Exists(receipt)) => Reply::Created { receipt },
                Ok(Claim::Ours(_)) => return,
                Err(failure) => Reply::Failed(failure),
            };
            return answer(&reply, &message);
        }
    };
    let seat = order.seat.take();
    let made = crate::policy::check(&order.plan, &jail.paths)
        .and_then(|()| crate::policy::check_kernel(&order.plan, jail.kernel()))
        .and_then(|()| volumes::check(&order.plan, &jail.host_paths))
        .and_then(|()| make(jail, order, seat.as_ref(), &reply));
    match made {
        Ok(Made { live, receipt, helper }) => {
            answer(&reply, &Reply::Created { receipt: Box::new(receipt) });
            drop((lock, reply));
            if let Some(helper) = helper {
                // It ends by itself.
                let _ = waitpid(Some(helper), WaitOptions::empty());
            }
            watch::until_end(jail, live);
        }
        Err(failure) => {
            if let Some(seat) = &seat {
                seat.give_up(jail);
            }
            if let Err(leftover) = destroy::remove_locked(jail, &id, Duration::ZERO) {
                eprintln!("osb jailer: undo create of {id}: {leftover}");
            }
            answer(&reply, &Reply::Failed(failure));
        }
    }
}

/// What came of a create.
struct Made<'a> {
    live: Live<'a>,
    receipt: Receipt,
    /// A process to be waited for after the answer.
    helper: Option<Pid>,
}

enum Claim {
    /// We make it, and hold the lock meanwhile.
    Ours(File),
    /// It was made before by the same request.
    Exists(Box<Receipt>),
}

/// Makes the sandbox's directory. Done by the jailer itself before it forks, so that a destroy that comes after this
/// create always finds it, however the two children are scheduled.
pub fn announce(jail: &Jail, id: &SandboxId) -> Result<()> {
    match fs::create_dir(jail.paths.sandbox(id)) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(error).op("make the sandbox's directory")
        }
        _ => Ok(()),
    }
}

/// Locks the sandbox and writes the plan and ourselves down.
///
/// The same create may be at work twice, when the server that asked was killed and asked again. Only what the
/// directory holds once it is locked says who comes first.
fn claim(jail: &Jail, plan: &Plan, seat: Option<&Seat>) -> Result<Claim> {
    let destroyed = || Failure::new(Kind::NotFound, format!("sandbox {} was deleted while it was made", plan.id));
    let directory = jail.paths.sandbox(&plan.id);
    let lock = File::create(directory.join(state::LOCK)).map_err(|_| destroyed())?;
    flock(&lock, FlockOperation::LockExclusive).op("lock the sandbox")?;
    if lock.metadata().op("look at the sandbox's lock")?.nlink() == 0 {
        return Err(destroyed());
    }
    if was_claimed(&directory)? {
        let known = state::load::<State>(&directory, state::STATE)?;
        if let Some((known, receipt)) = known.and_then(|known| Some((known.init, known.receipt?))) {
            return match known.open() {
                Some(_) => Ok(Claim::Exists(Box::new(receipt))),
                None => Err(Failure::internal(format!("sandbox {} has ended already; delete it", plan.id))),
            };
        }
        // An earlier attempt was cut off on the way: away with it, and from the start again. The directory and its
        // lock stay, so that a destroy that waits for them ends what is made now.
        destroy::start_over_locked(jail, &plan.id)?;
    }
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o711)).op("open the sandbox's directory")?;
    // Before ourselves: whoever kills us by that record finds the groups in which we sit.
    if let Some(seat) = seat {
        seat.give(&directory)?;
    }
    let monitor = Process::of(getpid()).ok_or_else(|| Failure::internal("read /proc/self/stat"))?;
    state::store(&directory, state::MONITOR, &Monitor { monitor, boot_id: jail.boot_id.clone() })?;
    state::store(&directory, state::PLAN, plan)?;
    Ok(Claim::Ours(lock))
}

/// Whether a sandbox's directory holds more than its lock.
fn was_claimed(directory: &std::path::Path) -> Result<bool> {
    for entry in fs::read_dir(directory).op("list the sandbox's directory")? {
        if entry.op("list the sandbox's directory")?.file_name() != state::LOCK {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Pipes between monitor and sandbox.
struct Pipes {
    control: (OwnedFd, OwnedFd),
    errors: (OwnedFd, OwnedFd),
    status: (OwnedFd, OwnedFd),
    console: (OwnedFd, OwnedFd),
    boot: (OwnedFd, OwnedFd),
}

impl Pipes {
    fn new() -> Result<Self> {
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).op("make a pipe");
        // Open for both on the sandbox's side: a main process that writes while no monitor reads waits for the next
        // monitor instead of dying of SIGPIPE.
        let (output, input) = pipe()?;
        let both = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&input));
        let input = rustix::fs::open(path, both, rustix::fs::Mode::empty()).op("open the console for both")?;
        let console = (output, input);
        Ok(Self {
            control: wire::pair().op("make a socket pair")?,
            errors: pipe()?,
            status: pipe()?,
            console,
            boot: pipe()?,
        })
    }
}

fn make<'a>(jail: &Jail, order: Order<'a>, seat: Option<&Seat>, reply: &OwnedFd) -> Result<Made<'a>> {
    let started = Instant::now();
    let mut deadline = started + Duration::from_millis(order.plan.start_deadline_ms);
    let plan = &order.plan;
    let slot = match jail.mode {
        Mode::Root => {
            Some(idrange::claim(&jail.paths.id_slots(), &jail.paths.sandbox(&plan.id), jail.slot_hint, &jail.foreign)?)
        }
        Mode::User => None,
    };
    let group = jail.group(&plan.id);
    if let Some(group) = &group {
        group.create()?;
        group.limit(&jail.by_group(&plan.limits))?;
    }
    let listener = listen(jail, &jail.paths.socket(&plan.id))?;
    let disk = disk(jail, order.disk, plan)?;
    let fallback_disk = fallback_disk(jail, plan);
    if let FallbackDisk::Directory(path) = &fallback_disk {
        fs::create_dir(path).op("make the disk directory")?;
    }
    let mut made = volumes::make_missing(plan, &jail.host_paths)?;
    // There from the start, so that whoever is told of the sandbox can read its console.
    File::create(jail.paths.sandbox(&plan.id).join(state::CONSOLE)).op("make the console log")?;
    let pipes = Pipes::new()?;
    let watching = File::create(jail.paths.sandbox(&plan.id).join(state::WATCHING)).op("make the monitor's lock")?;
    flock(&watching, FlockOperation::NonBlockingLockExclusive).op("lock the monitor's lock")?;

    // A worker with a seat is in the version 1 groups already; without one the first process is moved into all of them.
    let unified = group.as_ref().filter(|_| seat.is_some()).map(Group::open).transpose()?.flatten();
    let unified = unified.as_ref().map(AsFd::as_fd);
    let cloned =
        with_identity(slot, || sys::clone_into(NAMESPACES as u64, unified))?.op("clone into new namespaces")?;
    let (pid, init) = match cloned {
        Cloned::Parent(pid, init) => (pid, init),
        Cloned::Child => init::run(Birth {
            control: pipes.control.1,
            errors: pipes.errors.1,
            listener,
            boot: pipes.boot.0,
            status: pipes.status.1,
            console: pipes.console.1,
            execd: jail.execd.as_fd(),
            plan,
            filter: &jail.filter,
            cgroups: jail.cgroups.as_ref(),
            fallback_disk,
            by_path: by_path(jail, plan),
            paths: &jail.paths,
            host_paths: &jail.host_paths,
            by_process: jail.by_process(&plan.limits),
            ids: jail.ids(),
            within: deadline.saturating_duration_since(Instant::now()),
        }),
    };
    drop((listener, pipes.boot.0, pipes.control.1, pipes.errors.1, pipes.status.1, pipes.console.1));

    let process = Process::of(pid).ok_or_else(|| Failure::internal("the sandbox's first process ended at once"))?;
    let mut known = State { init: process, slot: slot.map(|slot| slot.0), receipt: None };
    state::store(&jail.paths.sandbox(&plan.id), state::STATE, &known)?;
    map_ids(jail, pid, slot)?;
    if let (Some(group), None) = (&group, seat) {
        group.add(pid)?;
    }
    let copy = disk.as_ref().and_then(Disk::copy);
    let mount = copy.as_ref().or(disk.as_ref().map(|disk| &disk.mount));
    birth::send_go(jail, pid, plan, mount, pipes.control.0.as_fd())?;
    if let (Some(cgroups), Some(_)) = (&jail.cgroups, seat) {
        // Beside the first process, which builds its root meanwhile.
        cgroups.leave()?;
    }
    let namespaces = session::to_keep(jail, pid)?;
    let disk_root = disk.as_ref().map(|disk| disk::open_root(&disk.mount)).transpose().op("open the disk")?;
    let limits = receipt::Limits::read(jail, plan, group.as_ref(), disk_root.as_ref());
    let mut sockets = birth::take_sockets(plan, pipes.control.0.as_fd(), pipes.errors.0.as_fd(), deadline)?;
    let is_steered = !sockets.is_empty();
    if order.boot.is_some() {
        // The asker has them served while execd starts.
        hand_over(reply, std::mem::take(&mut sockets));
    }
    birth::await_exec(pipes.errors.0.as_fd(), deadline).map_err(|failure| match plan.kernel {
        Kernel::Host => failure,
        Kernel::Gvisor => birth::with_console(failure, &pipes.console.0),
    })?;

    if !is_steered && plan.network != Network::None {
        return Err(Failure::internal("the sandbox's first process made no network"));
    }

    // execd reads its configuration first, so nothing of the user's runs before the kernel's word is taken.
    let way_out = if is_steered { "egress" } else { "none" };
    let mut receipt = receipt::read(jail, plan, pid, slot, limits, way_out)?;
    if let (Some(_), Some(disk)) = (&plan.authority, &disk_root) {
        snapshot::note_platform_files(disk.as_fd(), &jail.paths.sandbox(&plan.id))?;
    }
    let (boot, plan, helper) = match order.boot {
        Some(boot) => (boot, order.plan.clone(), None),
        None => {
            let waiting = warm::Waiting {
                plan,
                pid,
                init: init.as_fd(),
                namespaces: &namespaces,
                group: group.as_ref(),
                disk: disk_root.as_ref(),
                receipt,
                socket: reply,
            };
            let claimed = waiting.until_claimed(jail)?;
            hand_over(reply, std::mem::take(&mut sockets));
            (deadline, receipt) = (claimed.deadline, claimed.receipt);
            (claimed.boot, claimed.plan, claimed.helper)
        }
    };
    let plan = &plan;
    birth::boot_execd(boot, plan, pipes.control.0.as_fd(), pipes.boot.1, deadline)?;
    let mut status = StatusReader::new(pipes.status.0);
    let console = pipes.console.0;
    birth::await_execd(&mut status, init.as_fd(), deadline)
        .map_err(|failure| birth::with_console(failure, &console))?;

    known.receipt = Some(receipt.clone());
    state::store(&jail.paths.sandbox(&plan.id), state::STATE, &known)?;
    made.keep();
    let grace = Duration::from_millis(plan.grace_ms);
    let live = Live {
        id: plan.id.clone(),
        init,
        status,
        console,
        disk: disk_root,
        spare: disk.filter(|_| copy.is_some()).map(|disk| (disk, order.home)),
        lease: order.lease,
        grace,
        kernel: plan.kernel,
        limits: plan.limits.clone(),
        _namespaces: namespaces,
        watching: Some(watching),
    };
    Ok(Made { live, receipt, helper })
}

/// Gives the sockets of a steered network, if there are any, to the asker alone: a copy here would keep them open when all others
/// are closed. Who wants them anew waits for the lock.
fn hand_over(reply: &OwnedFd, sockets: Vec<OwnedFd>) {
    if !sockets.is_empty() {
        let fds: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
        // A server that is gone asks again after its restart; the sandbox is found then.
        let _ = wire::send(reply.as_fd(), &Reply::Steered, &fds, SendFlags::empty());
    }
}

/// Runs with the sandbox's host id as effective id, so that the kernel charges the namespaces to it and not to root.
fn with_identity<T>(slot: Option<Slot>, action: impl FnOnce() -> T) -> Result<T> {
    let Some(slot) = slot else { return Ok(action()) };
    let keep = None::<Uid>;
    set_thread_res_uid(keep, Uid::from_raw(slot.range().first), keep).op("take on the sandbox's id")?;
    // Files are still root's to open: the version 2 group to clone into is one.
    sys::set_file_system_uid(Uid::ROOT);
    let result = action();
    // In the child this would be refused later and is not needed: it takes its identity inside. Only the parent,
    // whose real and saved ids are still root's, returns to root; for the child the call succeeds or fails alike.
    let back = set_thread_res_uid(keep, Uid::ROOT, keep);
    if getpid() != Pid::INIT {
        back.op("return to root")?;
    }
    Ok(result)
}

/// Binds the socket of an execd, for the server alone.
pub(super) fn listen(jail: &Jail, path: &std::path::Path) -> Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
            .op("make execd's socket")?;
    let (name, _directory) = crate::paths::socket_name(path).op("name execd's socket")?;
    bind(&socket, &SocketAddrUnix::new(&name).op("name execd's socket")?).op("bind execd's socket")?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).op("protect execd's socket")?;
    jail.give_to_server(path)?;
    listen(&socket, LISTEN_BACKLOG).op("listen on execd's socket")?;
    Ok(socket)
}

fn disk(jail: &Jail, ready: Option<Disk>, plan: &Plan) -> Result<Option<Disk>> {
    if !jail.disk_images {
        return Ok(None);
    }
    let size = Size::of(plan.limits.disk_bytes, plan.limits.disk_inodes);
    match ready {
        Some(disk) if disk.size == size => Ok(Some(disk)),
        _ => disk::make(&jail.paths.disks(), size).map(Some),
    }
}

fn fallback_disk(jail: &Jail, plan: &Plan) -> FallbackDisk {
    if jail.mode == Mode::User && plan.limits.disk_bytes.is_none() && plan.limits.disk_inodes.is_none() {
        return FallbackDisk::Directory(jail.paths.sandbox(&plan.id).join("disk"));
    }
    FallbackDisk::Memory(Size::of(plan.limits.disk_bytes, plan.limits.disk_inodes))
}

fn by_path(jail: &Jail, plan: &Plan) -> Option<ByPath> {
    (jail.mode == Mode::User).then(|| ByPath {
        layers: plan.layers.iter().map(|layer| jail.paths.layer(layer)).collect(),
        programs: birth::programs(plan),
    })
}

fn map_ids(jail: &Jail, pid: Pid, slot: Option<Slot>) -> Result<()> {
    match slot {
        Some(slot) => {
            let range = slot.range();
            let map = format!("0 {} {}", range.first, range.count);
            fs::write(format!("/proc/{}/uid_map", pid.as_raw_nonzero()), &map).op("write uid_map")?;
            fs::write(format!("/proc/{}/gid_map", pid.as_raw_nonzero()), &map).op("write gid_map")
        }
        None => jail.user_ids.map(pid),
    }
}
