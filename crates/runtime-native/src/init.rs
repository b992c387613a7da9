//! What the first process of a sandbox does between its birth and the start of execd.
//!
//! It runs in all new namespaces, at first without any id; its monitor tells it to go on once the id maps and the
//! cgroups are in place and hands it the detached mounts. Whatever fails is written to the error pipe, which closes
//! by itself when execd starts.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use lifecycle::spec::Network;
use rustix::fs::{Mode, OFlags};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, Gid, Uid, remove_capability_from_bounding_set,
    set_capabilities, set_capabilities_secure_bits, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

use crate::cgroup::Hierarchies;
use crate::disk;
use crate::error::{Context, Failure, Result};
use crate::gvisor::{self, Cell, Keeper, Parts};
use crate::network;
use crate::paths::Paths;
use crate::rootfs::{self, Shape, Sources, Writable};
use crate::sys;
use crate::volumes;
use crate::volumes::host::HostPaths;
use crate::volumes::inside::Arriving;
use crate::wire::{self, Kernel, Plan, PlanLimits};

/// Capabilities that execd keeps inside its user namespace: those that running commands as other users of the
/// sandbox and managing its files need. Binding low ports needs none, see [`FIRST_UNPRIVILEGED_PORT`].
pub const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SYS_CHROOT);
/// Everyone may bind ports from here on; [`network::PORT`] is kept for the platform's own sockets, so that no process of
/// the sandbox can take their place.
pub(crate) const FIRST_UNPRIVILEGED_PORT: &str = "2";
const PORT_SETTING: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
/// Soft and hard limit of open files asked for; the host's own hard limit may be lower.
pub(crate) const OPEN_FILES: u64 = 65_536;
/// Per-user counters that a sandbox could use to make namespaces of its own.
const NAMESPACE_SYSCTLS: &[&str] = &["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];

/// What the monitor sends when the ids and cgroups are in place. The detached mounts travel beside it: layers,
/// programs, the parts of gVisor, volumes, disk.
#[derive(Debug, Serialize, Deserialize)]
pub struct Go {
    /// Number of layers among the descriptors.
    pub layers: usize,
    /// Places of the programs among the descriptors.
    pub programs: Vec<PathBuf>,
    /// Whether gVisor and execd, to be run by it, are among the descriptors.
    #[serde(default)]
    pub gvisor: bool,
    /// Number of volumes among the descriptors.
    #[serde(default)]
    pub volumes: usize,
    /// Whether the disk is the last descriptor.
    pub disk: bool,
}

/// Descriptors and facts that the first process is born with.
pub struct Birth<'a> {
    /// Where [`Go`] arrives.
    pub control: OwnedFd,
    /// Where failures go.
    pub errors: OwnedFd,
    /// The socket that execd will serve.
    pub listener: OwnedFd,
    /// Where execd's boot configuration will come from.
    pub boot: OwnedFd,
    /// Where execd reports.
    pub status: OwnedFd,
    /// Where the main process writes.
    pub console: OwnedFd,
    /// The program.
    pub execd: BorrowedFd<'a>,
    /// What to build.
    pub plan: &'a Plan,
    /// The system-call filter.
    pub filter: &'a [libc::sock_filter],
    /// What to show beneath /sys/fs/cgroup.
    pub cgroups: Option<&'a Hierarchies>,
    /// Where writes go when no disk comes with [`Go`].
    pub fallback_disk: FallbackDisk,
    /// Layers and programs to bind by path, for ordinary users, who cannot pass mounts in.
    pub by_path: Option<ByPath>,
    /// Where named volumes lie, for ordinary users.
    pub paths: &'a Paths,
    /// What may be mounted of the machine.
    pub host_paths: &'a HostPaths,
    /// The limits that no cgroup enforces and that each process therefore gets.
    pub by_process: PlanLimits,
    /// Whether other ids than root's are mapped.
    pub ids: Ids,
    /// How long execd may take to run.
    pub within: Duration,
}

/// Where writes go when there is no disk image.
#[derive(Clone, Debug)]
pub enum FallbackDisk {
    /// Memory with these bounds.
    Memory(disk::Size),
    /// A directory without a limit.
    Directory(PathBuf),
}

/// Which ids exist in the sandbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ids {
    /// A whole range.
    Range,
    /// Only root, who is the user.
    Single,
}

/// Paths for ordinary users.
#[derive(Clone, Debug)]
pub struct ByPath {
    /// Layers, lowest first.
    pub layers: Vec<PathBuf>,
    /// Programs of the machine.
    pub programs: Vec<PathBuf>,
}

/// Becomes execd, or reports why not and ends.
pub fn run(birth: Birth<'_>) -> ! {
    // Above all numbers that are closed or overwritten on the way.
    let errors = lift(birth.errors.as_fd());
    let failure = match &errors {
        Ok(errors) => match become_execd(birth, errors) {
            Ok(never) => match never {},
            Err(failure) => failure,
        },
        Err(failure) => failure.clone(),
    };
    if let (Ok(errors), Ok(text)) = (errors, serde_json::to_vec(&failure)) {
        // The monitor also sees the end of this process.
        let _ = rustix::io::write(&errors, &text);
    }
    std::process::exit(1)
}

fn become_execd(birth: Birth<'_>, errors: &OwnedFd) -> Result<std::convert::Infallible> {
    let mut keep: Vec<i32> =
        [&birth.control, errors, &birth.errors, &birth.listener, &birth.boot, &birth.status, &birth.console]
            .map(|fd| fd.as_raw_fd())
            .to_vec();
    keep.push(birth.execd.as_raw_fd());
    sys::close_all_except(&keep);
    if birth.plan.kernel == Kernel::Gvisor {
        // It stays as it is, so nothing else may come to have the numbers of the standard streams.
        sys::install_descriptors(&[birth.console.as_fd(); 3]).op("arrange descriptors")?;
    }

    // While the monitor prepares the rest. What came of it is told only to a monitor that listens.
    let sockets = match &birth.plan.network {
        Network::None => Ok(None),
        Network::Steered { reachable } => network::set_up(reachable).map(Some),
    };
    let mut buffer = Vec::new();
    let received =
        wire::receive_bytes(birth.control.as_fd(), &mut buffer, RecvFlags::empty()).op("wait for the monitor")?;
    let Some((text, fds)) = received else {
        // The monitor died; nobody waits for us.
        std::process::exit(1);
    };
    let go: Go =
        serde_json::from_slice(text).map_err(|error| Failure::internal(format!("read the monitor's word: {error}")))?;
    take_identity(birth.ids)?;
    sys::unshare_cgroup_namespace().op("enter a cgroup namespace")?;
    let (sources, parts) = sources(go, fds, &birth)?;
    rustix::system::sethostname(birth.plan.id.as_str().as_bytes()).op("set the host name")?;
    let sockets = sockets.map_err(|failure| failure.during("make the sandbox's network"))?;
    if sockets.is_none() {
        sys::bring_loopback_up().op("bring the loopback interface up")?;
    }
    network_settings();
    if let Some(sockets) = sockets {
        hand_over(&sockets, birth.control.as_fd())?;
    }
    let namespace_limits = open_namespace_limits();
    let shm_bytes = birth.plan.limits.memory_bytes.map_or(DEFAULT_SHM_BYTES, |bytes| (bytes / 2).max(4096));
    let shape = Shape {
        hostname: birth.plan.id.as_str(),
        working_dir: birth.plan.working_dir.as_deref(),
        shm_bytes,
        cgroups: birth.cgroups,
        resolver: match &birth.plan.network {
            Network::None => None,
            Network::Steered { .. } => Some(network::RESOLVER),
        },
        authority: birth.plan.authority.as_ref(),
        restored: birth.plan.restored,
    };
    if let Some(parts) = parts {
        let cell = Cell::enter(sources, parts, &shape)?;
        tell_user(&birth, &cell.root)?;
        return Err(gvisor::run(Keeper {
            listener: birth.listener,
            boot: birth.boot,
            status: birth.status,
            console: birth.console,
            filter: birth.filter,
            namespace_limits,
            within: birth.within,
        }));
    }
    rootfs::enter(sources, &shape)?;
    for limit in namespace_limits {
        // The filter and the missing capabilities stand before this last wall.
        let _ = rustix::io::write(&limit, b"0");
    }
    tell_user(&birth, &rootfs::open_directory(rustix::fs::CWD, "/".as_ref()).op("open the root")?)?;

    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).op("open /dev/null")?;
    let (status, console) = (birth.status.as_fd(), birth.console.as_fd());
    let standard = [null.as_fd(), console, console, birth.listener.as_fd(), birth.boot.as_fd(), status];
    let program = Program { execd: birth.execd, by_process: &birth.by_process, filter: birth.filter };
    let failure = program.start(&standard, errors);
    // Their numbers were overwritten or closed just now; dropping them would close a stranger's.
    std::mem::forget((null, birth.control, birth.errors, birth.listener, birth.boot, birth.status, birth.console));
    Err(failure)
}

/// Tells the monitor who the image's user is, if it has one.
fn tell_user(birth: &Birth<'_>, root: &OwnedFd) -> Result<()> {
    let Some(user) = &birth.plan.user else { return Ok(()) };
    let identity = crate::user::look_up(user, root)?;
    wire::send(birth.control.as_fd(), &identity, &[], SendFlags::empty()).op("tell who the image's user is")
}

/// What a process becomes once everything around it is built.
pub(crate) struct Program<'a> {
    /// The program.
    pub execd: BorrowedFd<'a>,
    /// The limits that no cgroup enforces.
    pub by_process: &'a PlanLimits,
    /// The system-call filter.
    pub filter: &'a [libc::sock_filter],
}

impl Program<'_> {
    /// Gives everything up that the program does not need, and becomes it with these descriptors from 0 on. Returns only
    /// on failure, and then every owner of a descriptor but `errors` must be forgotten.
    pub fn start(&self, standard: &[BorrowedFd<'_>], errors: &OwnedFd) -> Failure {
        match self.try_start(standard, errors) {
            Ok(never) => match never {},
            Err(failure) => failure,
        }
    }

    fn try_start(&self, standard: &[BorrowedFd<'_>], errors: &OwnedFd) -> Result<std::convert::Infallible> {
        let execd = lift(self.execd)?;
        sys::install_descriptors(standard).op("arrange descriptors")?;
        let mut keep: Vec<i32> = (0..standard.len() as i32).collect();
        keep.extend([execd.as_raw_fd(), errors.as_raw_fd()]);
        sys::close_all_except(&keep);
        limit_resources(self.by_process)?;
        sys::reset_signals().op("reset signals")?;
        drop_privileges()?;
        sys::install_filter(self.filter).op("install the system-call filter")?;
        Err(Failure::errno("start execd", sys::exec_descriptor(execd.as_fd(), c"execd")))
    }
}

/// Size of /dev/shm where memory has no limit: the same as Docker's.
pub(crate) const DEFAULT_SHM_BYTES: u64 = 64 << 20;
/// Above the descriptors that execd expects.
const LIFTED_FROM: i32 = 128;

pub(crate) fn lift(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, LIFTED_FROM).op("arrange descriptors")
}

pub(crate) fn take_identity(ids: Ids) -> Result<()> {
    let (uid, gid) = (Uid::ROOT, Gid::ROOT);
    if ids == Ids::Range {
        set_thread_groups(&[]).op("drop supplementary groups")?;
    }
    set_thread_res_gid(gid, gid, gid).op("become the sandbox's root group")?;
    set_thread_res_uid(uid, uid, uid).op("become the sandbox's root")
}

fn sources(go: Go, fds: Vec<OwnedFd>, birth: &Birth<'_>) -> Result<(Sources, Option<Parts>)> {
    if let Some(paths) = &birth.by_path {
        let bind = |path: &PathBuf| -> Result<OwnedFd> {
            let tree = rootfs::clone_tree(rustix::fs::CWD, path).op(format!("open {}", path.display()))?;
            rootfs::seal_layer(&tree, None).op(format!("bind {}", path.display()))?;
            Ok(tree)
        };
        let layers = paths.layers.iter().map(bind).collect::<Result<_>>()?;
        let program = |path: &PathBuf| Ok((relative(path), bind(path)?));
        let programs = paths.programs.iter().map(program).collect::<Result<_>>()?;
        let volumes = volumes::open_here(birth.plan, birth.paths, birth.host_paths)?;
        return Ok((Sources { layers, programs, volumes, disk: fallback(birth) }, None));
    }
    let other = || Failure::internal("the monitor sent another number of mounts than it said");
    let parts = if go.gvisor { 2 } else { 0 };
    if fds.len() != go.layers + go.programs.len() + parts + go.volumes + usize::from(go.disk)
        || go.volumes != birth.plan.volumes.len()
    {
        return Err(other());
    }
    let mut fds = fds.into_iter();
    let layers = fds.by_ref().take(go.layers).collect();
    let programs = fds.by_ref().take(go.programs.len());
    let programs = go.programs.iter().map(|path| relative(path)).zip(programs).collect();
    let parts = match go.gvisor {
        true => Some(Parts { runsc: fds.next().ok_or_else(other)?, execd: fds.next().ok_or_else(other)? }),
        false => None,
    };
    let arriving = birth.plan.volumes.iter().cloned().zip(fds.by_ref().take(go.volumes));
    let volumes = arriving.map(|(volume, mount)| Arriving { volume, mount }).collect();
    let disk = fds.next().map_or_else(|| fallback(birth), Writable::Disk);
    Ok((Sources { layers, programs, volumes, disk }, parts))
}

fn fallback(birth: &Birth<'_>) -> Writable {
    match &birth.fallback_disk {
        FallbackDisk::Memory(size) => Writable::Memory(*size),
        FallbackDisk::Directory(path) => Writable::Directory(path.clone()),
    }
}

fn relative(path: &std::path::Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

/// Opens the counters of namespaces inside the sandbox's user namespace. They are set to zero only after the root is
/// built, because detached mounts count as mount namespaces; by then /proc/sys is read-only.
pub(crate) fn open_namespace_limits() -> Vec<OwnedFd> {
    let open = |name: &&str| {
        let path = format!("/proc/sys/user/max_{name}_namespaces");
        rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    };
    NAMESPACE_SYSCTLS.iter().filter_map(open).collect()
}

/// Settings of the sandbox's own network. A kernel without one of them serves programs a little less.
pub(crate) fn network_settings() {
    let _ = std::fs::write(PORT_SETTING, FIRST_UNPRIVILEGED_PORT);
    // Only groups that exist inside can be named; an ordinary user's sandbox may have one.
    let ping = |groups: &str| std::fs::write("/proc/sys/net/ipv4/ping_group_range", groups);
    let _ = ping("0 65535").or_else(|_| ping("0 0"));
}

/// What the first process says of a steered network, as the kernel told it. The sockets travel beside it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Steered {
    /// Whether the rules are in the kernel.
    pub rules: bool,
    /// Whether the port of the sockets is out of everybody's reach.
    pub port: bool,
}

/// Reads the network back and hands its sockets to the monitor.
fn hand_over(sockets: &[OwnedFd], control: BorrowedFd<'_>) -> Result<()> {
    let port = std::fs::read_to_string(PORT_SETTING).op("read back the first port that may be bound")?;
    let word = Steered { rules: network::is_steered()?, port: port.trim() == FIRST_UNPRIVILEGED_PORT };
    let fds: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
    wire::send(control, &word, &fds, SendFlags::empty()).op("hand over the sandbox's sockets")
}

fn limit_resources(limits: &PlanLimits) -> Result<()> {
    let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
    let files = hard.map_or(OPEN_FILES, |hard| hard.min(OPEN_FILES));
    setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum: Some(files) }).op("limit open files")?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).op("forbid core files")?;
    if let Some(bytes) = limits.memory_bytes {
        setrlimit(Resource::Data, Rlimit { current: Some(bytes), maximum: Some(bytes) }).op("limit memory")?;
    }
    if let Some(count) = limits.pids {
        setrlimit(Resource::Nproc, Rlimit { current: Some(count), maximum: Some(count) }).op("limit processes")?;
    }
    if let Some(millis) = limits.cpu_millis {
        bind_to_cores(usize::try_from(millis / 1000).unwrap_or(usize::MAX))?;
    }
    Ok(())
}

/// Binds the process to so many of the cores it may use, starting at one that depends on its place in time, so that
/// sandboxes do not all crowd on the first.
fn bind_to_cores(count: usize) -> Result<()> {
    let allowed = rustix::thread::sched_getaffinity(None).op("read the allowed cores")?;
    let cores: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let start = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_nsec as usize / 1000;
    let mut chosen = rustix::thread::CpuSet::new();
    for step in 0..count.min(cores.len()) {
        chosen.set(cores[(start + step) % cores.len()]);
    }
    rustix::thread::sched_setaffinity(None, &chosen).op("bind to cores")
}

pub(crate) fn drop_privileges() -> Result<()> {
    let bits = CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    set_capabilities_secure_bits(bits).op("lock the ambient capabilities")?;
    limit_capabilities(KEPT)?;
    rustix::thread::set_no_new_privs(true).op("set no_new_privs")?;
    let sets = CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).op("drop capabilities")?;
    Ok(())
}

/// Keeps programs that this process starts from having others than these capabilities.
pub(crate) fn limit_capabilities(most: CapabilitySet) -> Result<()> {
    for number in 0..64u32 {
        let bit = CapabilitySet::from_bits_retain(1 << number);
        if most.contains(bit) {
            continue;
        }
        match remove_capability_from_bounding_set(bit) {
            // The kernel knows no capability of that number, nor any above.
            Err(rustix::io::Errno::INVAL) => break,
            other => other.op("drop a capability")?,
        }
    }
    Ok(())
}
