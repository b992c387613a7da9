//! A jailer in a temporary data directory, and what there is of it on the machine.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lifecycle::runtime::{Listeners, Receipt};
use lifecycle::spec::SandboxId;
use protocol::execd::boot::BootConfig;
use protocol::network::Cidr;
use runtime_native::error::Failure;
use runtime_native::jailer::JailerConfig;
use runtime_native::paths::Paths;
use runtime_native::user::memory_file;
use runtime_native::wire::{self, Kernel, Plan, PlanLimits, Reply, Request, Seen};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};

/// Longest wait for anything in these tests.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// Digest of the layer that every test sandbox stands on.
pub const LAYER: &str = "00000000000000000000000000000000000000000000000000000000000000aa";

static NEXT: AtomicU32 = AtomicU32::new(0);

pub struct Jailer {
    pub paths: Paths,
    socket: OwnedFd,
    process: Child,
    programs: Programs,
    _data: tempfile::TempDir,
}

impl Jailer {
    pub fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub fn start_with(change: impl FnOnce(&mut JailerConfig)) -> Self {
        let data = tempfile::Builder::new().prefix("osb-native-").tempdir_in("/var/tmp").expect("data directory");
        Self::start_in(data, None, change)
    }

    /// As an ordinary user that no account belongs to.
    pub fn start_as_user(uid: u32) -> Self {
        let data = tempfile::Builder::new().prefix("osb-native-").tempdir_in("/var/tmp").expect("data directory");
        std::os::unix::fs::chown(data.path(), Some(uid), Some(uid)).expect("give the data directory away");
        Self::start_in(data, Some(uid), |_| {})
    }

    fn start_in(data: tempfile::TempDir, uid: Option<u32>, change: impl FnOnce(&mut JailerConfig)) -> Self {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(data.path(), fs::Permissions::from_mode(0o711)).expect("open the data directory");
        let paths = Paths::new(data.path());
        make_layer(&paths.layer(LAYER), uid);
        let mut config = JailerConfig::new(data.path());
        change(&mut config);
        let programs = Programs::find(uid);
        let (socket, process) = spawn(&config, uid, &programs);
        Self { paths, socket, process, programs, _data: data }
    }

    /// Kills the jailer and starts another on the same data directory.
    pub fn restart(&mut self) {
        self.process.kill().expect("kill the jailer");
        self.process.wait().expect("reap the jailer");
        (self.socket, self.process) = spawn(&JailerConfig::new(self.paths.root()), None, &self.programs);
    }

    /// The server's end of the request socket, for a runtime on top of this jailer.
    pub fn socket(&self) -> OwnedFd {
        self.socket.try_clone().expect("duplicate the request socket")
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a request and returns the reply socket.
    pub fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> OwnedFd {
        let (ours, theirs) = wire::pair().expect("reply socket");
        let mut all = vec![theirs.as_fd()];
        all.extend(fds);
        wire::send(self.socket.as_fd(), request, &all, SendFlags::empty()).expect("send");
        ours
    }

    fn try_ask(&self, request: &Request) -> Option<Reply> {
        let (ours, theirs) = wire::pair().ok()?;
        wire::send(self.socket.as_fd(), request, &[theirs.as_fd()], SendFlags::DONTWAIT).ok()?;
        drop(theirs);
        let timeout = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
        poll(&mut [PollFd::new(&ours, PollFlags::IN)], Some(&timeout)).ok()?;
        let mut buffer = Vec::new();
        let (text, _) = wire::receive_bytes(ours.as_fd(), &mut buffer, RecvFlags::DONTWAIT).ok()??;
        serde_json::from_slice(text).ok()
    }

    pub fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> (Reply, Vec<OwnedFd>) {
        receive(&self.send(request, fds))
    }

    pub fn create(&self, plan: &Plan, script: &str) -> Result<Receipt, Failure> {
        let boot = boot(plan, script);
        match self.ask(&Request::Create(Box::new(plan.clone())), &[boot.as_fd()]).0 {
            Reply::Created { receipt } => Ok(*receipt),
            Reply::Failed(failure) => Err(failure),
            other => panic!("unexpected reply {other:?}"),
        }
    }

    /// Makes a sandbox with a network; its sockets come beside the receipt.
    pub fn create_steered(&self, plan: &Plan, script: &str) -> Result<(Receipt, Listeners), Failure> {
        let boot = boot(plan, script);
        let answers = self.send(&Request::Create(Box::new(plan.clone())), &[boot.as_fd()]);
        let listeners = match receive(&answers) {
            (Reply::Steered, sockets) => four(sockets),
            (Reply::Failed(failure), _) => return Err(failure),
            other => panic!("unexpected reply {other:?}"),
        };
        match receive(&answers) {
            (Reply::Created { receipt }, _) => Ok((*receipt, listeners)),
            (Reply::Failed(failure), _) => Err(failure),
            other => panic!("unexpected reply {other:?}"),
        }
    }

    /// Makes the sockets of a sandbox anew.
    pub fn listen(&self, id: &SandboxId) -> Result<Listeners, Failure> {
        match self.ask(&Request::Listen { id: id.clone() }, &[]) {
            (Reply::Listening, sockets) => Ok(four(sockets)),
            (Reply::Failed(failure), _) => Err(failure),
            other => panic!("unexpected reply {other:?}"),
        }
    }

    /// Changes where a sandbox may ask for connections.
    pub fn steer(&self, id: &SandboxId, reachable: &[&str]) -> Result<(), Failure> {
        let request = Request::Steer { id: id.clone(), reachable: ranges(reachable) };
        match self.ask(&request, &[]).0 {
            Reply::Done => Ok(()),
            Reply::Failed(failure) => Err(failure),
            other => panic!("unexpected reply {other:?}"),
        }
    }

    /// Asks for the same sandbox several times without waiting in between, as a server does that was killed and
    /// started again; gives where the answers come.
    pub fn create_at_once(&self, plan: &Plan, script: &str, times: usize) -> Vec<OwnedFd> {
        let request = Request::Create(Box::new(plan.clone()));
        (0..times).map(|_| self.send(&request, &[boot(plan, script).as_fd()])).collect()
    }

    pub fn create_leased(&self, plan: &Plan, script: &str, lease: BorrowedFd<'_>) -> Result<Receipt, Failure> {
        let boot = boot(plan, script);
        match self.ask(&Request::Create(Box::new(plan.clone())), &[boot.as_fd(), lease]).0 {
            Reply::Created { receipt } => Ok(*receipt),
            Reply::Failed(failure) => Err(failure),
            other => panic!("unexpected reply {other:?}"),
        }
    }

    pub fn destroy(&self, id: &SandboxId, grace: Duration) {
        let request = Request::Destroy { id: id.clone(), grace_ms: grace.as_millis() as u64 };
        match self.ask(&request, &[]).0 {
            Reply::Done => {}
            other => panic!("destroy: {other:?}"),
        }
    }

    pub fn pause(&self, id: &SandboxId) {
        assert!(matches!(self.ask(&Request::Pause { id: id.clone() }, &[]).0, Reply::Done));
    }

    pub fn resume(&self, id: &SandboxId) {
        assert!(matches!(self.ask(&Request::Resume { id: id.clone() }, &[]).0, Reply::Done));
    }

    /// Waits until the sandbox's directory is gone, which is the last but one step of its removal, and then for it all.
    pub fn wait_absent(&self, id: &SandboxId) {
        let watch = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).expect("inotify");
        rustix::fs::inotify::add_watch(&watch, self.paths.id_slots(), rustix::fs::inotify::WatchFlags::DELETE)
            .expect("watch");
        let deadline = Instant::now() + DEADLINE;
        while self.list().contains(id) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{id} is still there");
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&timeout));
            let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
            let _ = rustix::fs::inotify::Reader::new(&watch, &mut buffer).next();
        }
    }

    pub fn inspect(&self, id: &SandboxId) -> Seen {
        match self.ask(&Request::Inspect { id: id.clone() }, &[]).0 {
            Reply::Observed { observed } => observed,
            other => panic!("inspect: {other:?}"),
        }
    }

    pub fn list(&self) -> Vec<SandboxId> {
        match self.ask(&Request::List, &[]).0 {
            Reply::Listed { ids } => ids,
            other => panic!("list: {other:?}"),
        }
    }

    pub fn console(&self, id: &SandboxId) -> String {
        let (reply, fds) = self.ask(&Request::Console { id: id.clone(), max_bytes: 1 << 20 }, &[]);
        assert!(matches!(reply, Reply::Console), "{reply:?}");
        let mut text = String::new();
        let mut file = fs::File::from(fds.into_iter().next().expect("console memory"));
        std::io::Read::read_to_string(&mut file, &mut text).expect("console text");
        text
    }

    /// Runs a script as the main process of a fresh sandbox to its end; its output and how it was seen to end.
    pub fn run(&self, plan: &Plan, script: &str) -> (String, Seen) {
        self.create(plan, script).unwrap_or_else(|failure| panic!("create: {failure}"));
        let seen = self.wait_end(&plan.id);
        (self.console(&plan.id), seen)
    }

    /// Waits for the announced exit.
    pub fn wait_end(&self, id: &SandboxId) -> Seen {
        let watch = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).expect("inotify");
        rustix::fs::inotify::add_watch(&watch, self.paths.exits(), rustix::fs::inotify::WatchFlags::CREATE)
            .expect("watch");
        let deadline = Instant::now() + DEADLINE;
        loop {
            if self.paths.exits().join(id.as_str()).exists() {
                return self.inspect(id);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{id} did not end");
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&timeout));
            let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
            let mut reader = rustix::fs::inotify::Reader::new(&watch, &mut buffer);
            let _ = reader.next();
        }
    }

    /// Waits until the console of a sandbox contains a text; its writes are the events.
    pub fn wait_console(&self, id: &SandboxId, text: &str) -> String {
        let watch = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).expect("inotify");
        let log = self.paths.sandbox(id).join("console.log");
        rustix::fs::inotify::add_watch(&watch, &log, rustix::fs::inotify::WatchFlags::MODIFY)
            .expect("watch the console");
        let deadline = Instant::now() + DEADLINE;
        loop {
            let console = self.console(id);
            if console.contains(text) {
                return console;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{id} did not print {text}, but {console}");
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&timeout));
            let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
            let mut reader = rustix::fs::inotify::Reader::new(&watch, &mut buffer);
            let _ = reader.next();
        }
    }
}

impl Drop for Jailer {
    /// Ends everything, quietly: a test that fails must not leave its sandboxes to the next one.
    fn drop(&mut self) {
        let ids = match self.try_ask(&Request::List) {
            Some(Reply::Listed { ids }) => ids,
            _ => Vec::new(),
        };
        for id in ids {
            let _ = self.try_ask(&Request::Destroy { id, grace_ms: 0 });
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        remove_parent_groups(&self.paths);
    }
}

/// What is started.
struct Programs {
    jailer: PathBuf,
    stand_in: PathBuf,
    _copies: Option<tempfile::TempDir>,
}

impl Programs {
    /// Copies for another user, who may not enter the home in which the built ones lie. Made by `cp`: see
    /// `e2e::server::copy_program`.
    fn find(uid: Option<u32>) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let built = [env!("CARGO_BIN_EXE_jailer"), env!("CARGO_BIN_EXE_stand-in")].map(PathBuf::from);
        let [jailer, stand_in] = built.clone();
        if uid.is_none() {
            return Self { jailer, stand_in, _copies: None };
        }
        let copies = tempfile::Builder::new().prefix("osb-programs-").tempdir_in("/var/tmp").expect("a directory");
        fs::set_permissions(copies.path(), fs::Permissions::from_mode(0o755)).expect("open the directory");
        let status = Command::new("cp").args(&built).arg(copies.path()).status().expect("start cp");
        assert!(status.success(), "copy the programs");
        let copy = |built: &Path| copies.path().join(built.file_name().expect("a program has a name"));
        Self { jailer: copy(&jailer), stand_in: copy(&stand_in), _copies: Some(copies) }
    }
}

fn spawn(config: &JailerConfig, uid: Option<u32>, programs: &Programs) -> (OwnedFd, Child) {
    use std::os::unix::process::CommandExt;
    let (ours, theirs) = wire::pair().expect("request socket");
    let config = serde_json::to_string(config).expect("configuration");
    // The shell puts the socket on descriptor 3 without unsafe code here.
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).expect("inherit");
    let script = format!("exec 3<&{0}; exec {0}<&-; exec \"$@\"", theirs.as_raw_fd());
    let script = if theirs.as_raw_fd() == 3 { "exec \"$@\"".to_owned() } else { script };
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash"]).arg(&programs.jailer).arg(&config).arg(&programs.stand_in);
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    let process = command.spawn().expect("start the jailer");
    (ours, process)
}

/// Waits for an answer, or for the end of the worker that was to give it.
pub fn answer(socket: &OwnedFd) -> Option<Reply> {
    let timeout = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
    let count = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)).expect("poll");
    assert!(count > 0, "no reply in {DEADLINE:?}");
    let mut buffer = Vec::new();
    let (text, _) = wire::receive_bytes(socket.as_fd(), &mut buffer, RecvFlags::empty()).ok()??;
    Some(serde_json::from_slice(text).expect("valid reply"))
}

pub fn receive(socket: &OwnedFd) -> (Reply, Vec<OwnedFd>) {
    let timeout = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
    let count = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)).expect("poll");
    assert!(count > 0, "no reply in {DEADLINE:?}");
    let mut buffer = Vec::new();
    let (text, fds) =
        wire::receive_bytes(socket.as_fd(), &mut buffer, RecvFlags::empty()).expect("receive").expect("a reply");
    (serde_json::from_slice(text).expect("valid reply"), fds)
}

fn four(sockets: Vec<OwnedFd>) -> Listeners {
    <[OwnedFd; 4]>::try_from(sockets).expect("four sockets").into()
}

pub fn ranges(texts: &[&str]) -> Vec<Cidr> {
    texts.iter().map(|text| text.parse().expect("a range of addresses")).collect()
}

pub fn plan() -> Plan {
    let id = format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    Plan {
        id: SandboxId::parse(&id).expect("valid id"),
        layers: vec![LAYER.to_owned()],
        host_programs: true,
        user: None,
        working_dir: None,
        limits: PlanLimits { memory_bytes: Some(256 << 20), pids: Some(256), ..PlanLimits::default() },
        kernel: Kernel::default(),
        network: lifecycle::spec::Network::None,
        authority: None,
        volumes: Vec::new(),
        image_env: Vec::new(),
        leased: false,
        start_deadline_ms: 20_000,
        grace_ms: 1000,
    }
}

pub fn boot(plan: &Plan, script: &str) -> OwnedFd {
    let env = BTreeMap::from([("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned())]);
    boot_with(plan, &["/bin/sh", "-c", script], env)
}

pub fn boot_with(plan: &Plan, entrypoint: &[&str], env: BTreeMap<String, String>) -> OwnedFd {
    let config = BootConfig {
        sandbox_id: plan.id.to_string(),
        token: None,
        env,
        entrypoint: entrypoint.iter().map(|word| (*word).to_owned()).collect(),
        cwd: None,
        user: None,
        grace_ms: 1000,
        hooks: protocol::hooks::Hooks::default(),
        isolated: None,
    };
    memory_file("boot", &serde_json::to_vec(&config).expect("boot configuration")).expect("memory file")
}

/// A skeleton as the image room makes it, as far as these tests need one.
fn make_layer(root: &Path, uid: Option<u32>) {
    use std::os::unix::fs::PermissionsExt;
    for name in ["usr", "etc", "tmp", "root", "home", "proc", "sys", "dev", "run", "var"] {
        fs::create_dir_all(root.join(name)).expect("skeleton");
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).expect("skeleton");
    for name in ["bin", "sbin", "lib", "lib32", "lib64"] {
        if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
            std::os::unix::fs::symlink(target, root.join(name)).expect("skeleton");
        } else if Path::new("/").join(name).is_dir() {
            fs::create_dir(root.join(name)).expect("skeleton");
        }
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000::/home:/bin/sh\n")
        .expect("skeleton");
    fs::write(root.join("etc/secret"), "only root of the layer may read this\n").expect("skeleton");
    fs::set_permissions(root.join("etc/secret"), fs::Permissions::from_mode(0o600)).expect("skeleton");
    if let Some(uid) = uid {
        let top = root.ancestors().nth(2).expect("layers directory");
        let status = Command::new("chown").arg("-R").arg(format!("{uid}:{uid}")).arg(top).status().expect("chown");
        assert!(status.success());
    }
}

/// What there is of sandboxes on this machine: equal before and after, or something leaked.
#[derive(Debug, PartialEq, Eq)]
pub struct Census {
    groups: Vec<PathBuf>,
    /// Workers that wait in groups of their own.
    seats: usize,
    /// Loop devices beyond the stock.
    loops: usize,
    mounts: usize,
    monitors: usize,
}

impl Census {
    /// Taken once no monitor and no disk beyond the stock is left, so that two counts can be compared.
    pub fn take_when_quiet(jailer: &Jailer) -> Self {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let census = Self::take(jailer);
            let seated = JailerConfig::SEATED;
            if census.loops == 0 && census.seats == seated && census.monitors == seated || Instant::now() > deadline {
                return census;
            }
            // The jailer answers only after it has looked at its helpers.
            jailer.list();
        }
    }

    pub fn take(jailer: &Jailer) -> Self {
        let mut groups = Vec::new();
        for root in group_roots(&jailer.paths) {
            let entries = fs::read_dir(&root).into_iter().flatten().flatten();
            groups.extend(entries.filter(|entry| entry.path().is_dir()).map(|entry| entry.path()));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let mounts = mounts.lines().filter(|line| line.contains(&*jailer.paths.root().to_string_lossy())).count();
        let is_seat = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("seat-"));
        let seats = groups.iter().filter(|path| is_seat(path)).filter_map(|path| path.file_name());
        let seats = seats.collect::<std::collections::HashSet<_>>().len();
        groups.retain(|path| !is_seat(path));
        let loops = loops(&jailer.paths).saturating_sub(JailerConfig::DISK_STOCK);
        Self { groups, seats, loops, mounts, monitors: children_of(jailer.pid()) }
    }
}

/// Loop devices whose image lies in our data directory.
pub fn loops(paths: &Paths) -> usize {
    let devices = fs::read_dir("/sys/block").expect("sysfs").flatten();
    let backing = devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    backing.filter(|file| file.contains(&*paths.root().to_string_lossy())).count()
}

fn children_of(pid: u32) -> usize {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().count()
}

fn group_roots(paths: &Paths) -> Vec<PathBuf> {
    let found = runtime_native::cgroup::Hierarchies::discover().expect("cgroups");
    found.v1.values().chain(found.v2.as_ref()).map(|root| root.join(paths.cgroup())).collect()
}

fn remove_parent_groups(paths: &Paths) {
    for root in group_roots(paths) {
        let _ = fs::remove_dir(root);
    }
}
