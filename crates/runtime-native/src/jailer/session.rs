//! Makes, ends and lists the isolated sessions of a sandbox.
//!
//! A worker, which sees the host, writes down what it does; a builder, its child, joins the sandbox's namespaces and
//! limits and clones the session's first process there, which mounts what the session has (see [`crate::session_root`])
//! and becomes its execd. (The kernel wants whoever makes a PID namespace to be in the one above it, so the builder's own
//! child clones, and makes the new process the builder's child and not its own.) That process is the init of a PID
//! namespace below the sandbox's: its end ends the session, the sandbox's end ends it. Neither worker nor builder stays; the jailer reaps the session's init and clears up after it.
//!
//! Order: record, socket, then the process, then its number, then "go". Whatever is cut off is removed by an `end` of
//! the same id, or with the sandbox.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use lifecycle::isolated::{MAX_BINDS, MAX_MOUNTS, Record, Seen, SessionId, SessionSpec, is_clean};
use lifecycle::spec::SandboxId;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FlockOperation, Mode as FileMode, OFlags, flock};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, waitpid};

use super::status::StatusReader;
use super::{Jail, Mode, birth, create};
use crate::error::{Context, Failure, Kind, Result};
use crate::session_init::{self, Birth};
use crate::session_root;
use crate::state::{self, Monitor, Process, State};
use crate::sys::{self, Cloned, Forked};
use crate::wire::{self, Kernel, Plan};

/// How long execd may take to be ready; the machine may be overloaded.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// How long the clone into a session's namespaces may take: the sandbox's root sees who clones, and may stop it.
const CLONE_DEADLINE: Duration = Duration::from_secs(5);
/// How long a killed session may take to be gone.
const KILL_DEADLINE: Duration = Duration::from_secs(30);
/// Sessions of one sandbox at once.
const MAX_SESSIONS: usize = 64;
/// What the counters of namespaces are raised to while a session is built: its mounts count for a moment.
const RAISED: &[u8] = b"1024";
/// Namespaces of a session's own.
const NAMESPACES: i32 = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
/// Name of the record's file.
const RECORD: &str = "session.json";
/// Name of the file with the session's first process.
const INIT: &str = "init.json";
/// Name of the lock by which the sessions of one sandbox are made and removed one after the other.
const LOCK: &str = "lock";
/// Namespaces of the sandbox that a builder joins, the user namespace first.
const JOINED: &[&str] = &["user", "mnt", "pid", "net"];

/// What a start brings with it.
pub struct Order {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// What is kept.
    pub record: Record,
    /// What to make.
    pub spec: SessionSpec,
    /// execd's boot configuration.
    pub boot: OwnedFd,
}

/// Makes a session; one that was made by the same request is fine.
pub fn start(jail: &Jail, order: &Order) -> Result<()> {
    check(&order.spec)?;
    let sessions = jail.paths.sessions(&order.sandbox);
    let home = Home::open(jail, &order.sandbox)?;
    if home.plan.kernel != Kernel::Host {
        return Err(Failure::new(Kind::Unsupported, "a gVisor sandbox has no isolated sessions"));
    }
    make_directory(&sessions)?;
    let _lock = lock(&sessions)?;
    let directory = jail.paths.session(&order.sandbox, &order.record.id);
    if directory.exists() {
        if init_of(&directory)?.is_some() {
            return Ok(());
        }
        remove(jail, &order.sandbox, &order.record.id, Some(&home))?;
    }
    if names(&sessions)?.len() >= MAX_SESSIONS {
        let message = format!(
            "the sandbox has {MAX_SESSIONS} isolated sessions already, dead ones too; delete one that is no longer needed"
        );
        return Err(Failure::new(Kind::Invalid, message));
    }
    make_directory(&directory)?;
    let made = state::store(&directory, RECORD, &order.record).and_then(|()| make(jail, order, &home, &directory));
    if made.is_err()
        && let Err(leftover) = remove(jail, &order.sandbox, &order.record.id, Some(&home))
    {
        eprintln!("osb jailer: undo session {}: {leftover}", order.record.id);
    }
    made
}

/// Ends a session and removes everything of it; unknown ones succeed.
pub fn end(jail: &Jail, sandbox: &SandboxId, session: &SessionId) -> Result<()> {
    let sessions = jail.paths.sessions(sandbox);
    if !jail.paths.session(sandbox, session).exists() {
        return Ok(());
    }
    let _lock = lock(&sessions)?;
    // Without a living sandbox there is nothing to enter, and what the session wrote goes with the sandbox.
    let home = match Home::open(jail, sandbox) {
        Ok(home) => Some(home),
        Err(failure) if failure.kind == Kind::NotFound => None,
        Err(failure) if failure.kind == Kind::Unsupported => {
            eprintln!("osb jailer: what session {session} wrote stays until its sandbox ends: {failure}");
            None
        }
        Err(failure) => return Err(failure),
    };
    remove(jail, sandbox, session, home.as_ref())
}

/// The sessions of a sandbox, oldest first.
pub fn list(jail: &Jail, sandbox: &SandboxId) -> Result<Vec<Seen>> {
    let sessions = jail.paths.sessions(sandbox);
    let mut seen = Vec::new();
    for id in names(&sessions)? {
        let directory = jail.paths.session(sandbox, &id);
        if let Some(record) = state::load::<Record>(&directory, RECORD)? {
            seen.push(Seen { record, alive: init_of(&directory)?.is_some() });
        }
    }
    seen.sort_by_key(|one| one.record.created_ms);
    Ok(seen)
}

/// The session whose first process has this number.
pub fn of_init(jail: &Jail, pid: Pid) -> Option<(SandboxId, SessionId)> {
    for entry in fs::read_dir(jail.paths.sandboxes()).ok()?.flatten() {
        let Some(sandbox) = entry.file_name().to_str().and_then(SandboxId::parse) else { continue };
        for id in names(&jail.paths.sessions(&sandbox)).unwrap_or_default() {
            let known = state::load::<Process>(&jail.paths.session(&sandbox, &id), INIT).ok().flatten();
            if known.is_some_and(|known| known.pid == pid.as_raw_nonzero().get()) {
                return Some((sandbox, id));
            }
        }
    }
    None
}

/// A living sandbox, as much of it as a session needs.
pub(super) struct Home {
    /// What it was made from.
    pub plan: Plan,
    /// In the order of [`JOINED`].
    namespaces: Vec<OwnedFd>,
}

impl Home {
    /// Finds it.
    ///
    /// # Errors
    /// [`Kind::NotFound`] if it does not run.
    pub fn open(jail: &Jail, sandbox: &SandboxId) -> Result<Self> {
        let gone = || Failure::new(Kind::NotFound, format!("sandbox {sandbox} does not run"));
        let directory = jail.paths.sandbox(sandbox);
        let plan = state::load::<Plan>(&directory, state::PLAN)?.ok_or_else(gone)?;
        let known = state::load::<State>(&directory, state::STATE)?.filter(|known| known.receipt.is_some());
        let known = known.ok_or_else(gone)?;
        known.init.open().ok_or_else(gone)?;
        let namespaces = match jail.mode {
            Mode::Root => of_process(known.init.pid)?,
            Mode::User => {
                let monitor = state::load::<Monitor>(&directory, state::MONITOR)?.ok_or_else(gone)?.monitor;
                monitor.open().ok_or_else(nobody_keeps)?;
                let kept = kept_by(monitor.pid)?;
                monitor.open().ok_or_else(nobody_keeps)?;
                kept
            }
        };
        // Looked at again after they were opened: a number that was used again is noticed.
        known.init.open().ok_or_else(gone)?;
        Ok(Self { plan, namespaces })
    }

    /// One that waits to be claimed, of which nothing is written down yet. `kept` are its namespaces where its monitor has them.
    pub fn of_waiting(plan: Plan, init: rustix::process::Pid, kept: &[OwnedFd]) -> Result<Self> {
        let namespaces = match kept {
            [] => of_process(init.as_raw_nonzero().get())?,
            kept => kept.iter().map(OwnedFd::try_clone).collect::<std::io::Result<_>>().op("keep the namespaces")?,
        };
        Ok(Self { plan, namespaces })
    }

    /// The numbers of what it has open.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        self.namespaces.iter().map(std::os::fd::AsRawFd::as_raw_fd)
    }

    /// Joins the sandbox's user and network namespaces only.
    pub fn join_network(&self) -> Result<()> {
        for (name, namespace) in JOINED.iter().zip(&self.namespaces) {
            if matches!(*name, "user" | "net") {
                sys::join_namespace(namespace.as_fd()).op(format!("enter the sandbox's {name} namespace"))?;
            }
        }
        Ok(())
    }

    /// Joins the sandbox's user namespace and opens its counters, then joins the rest.
    fn join(&self) -> Result<Vec<OwnedFd>> {
        let mut namespaces = self.namespaces.iter();
        let user = namespaces.next().ok_or_else(|| Failure::internal("the sandbox has no user namespace"))?;
        sys::join_namespace(user.as_fd()).op("enter the sandbox's user namespace")?;
        let counters = crate::init::open_namespace_limits();
        for namespace in namespaces {
            sys::join_namespace(namespace.as_fd()).op("enter a namespace of the sandbox")?;
        }
        Ok(counters)
    }
}

/// The namespaces of a sandbox that its monitor keeps open for its sessions. Only an ordinary user's needs them: execd
/// is unreadable memory, and who may not read a process may not see its namespaces either. They are opened before
/// the process has become execd.
pub fn to_keep(jail: &Jail, init: Pid) -> Result<Vec<OwnedFd>> {
    match jail.mode {
        Mode::Root => Ok(Vec::new()),
        Mode::User => of_process(init.as_raw_nonzero().get()),
    }
}

fn of_process(pid: i32) -> Result<Vec<OwnedFd>> {
    let open = |name: &&str| File::open(format!("/proc/{pid}/ns/{name}")).map(OwnedFd::from);
    JOINED.iter().map(open).collect::<std::io::Result<_>>().op("open the sandbox's namespaces")
}

/// The namespaces that a monitor has open: those of its sandbox and no others.
fn kept_by(monitor: i32) -> Result<Vec<OwnedFd>> {
    let directory = format!("/proc/{monitor}/fd");
    let mut found: Vec<(usize, OwnedFd)> = Vec::new();
    for entry in fs::read_dir(&directory).op("look at the sandbox's monitor")?.flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let target = target.to_string_lossy();
        let Some(at) = JOINED.iter().position(|name| target.starts_with(&format!("{name}:["))) else { continue };
        found.push((at, File::open(entry.path()).op("open a namespace of the sandbox")?.into()));
    }
    found.sort_by_key(|(at, _)| *at);
    if !found.iter().map(|(at, _)| *at).eq(0..JOINED.len()) {
        return Err(nobody_keeps());
    }
    Ok(found.into_iter().map(|(_, fd)| fd).collect())
}

fn nobody_keeps() -> Failure {
    let message = "the process that kept the sandbox's namespaces open was killed; make a new sandbox to have isolated \
                   sessions in it or to change its network";
    Failure::new(Kind::Unsupported, message)
}

/// What the jailer itself demands of a session, whatever the server has checked.
fn check(spec: &SessionSpec) -> Result<()> {
    let paths = spec.mounts.iter().map(|mount| &mount.path);
    let paths = paths.chain(spec.binds.iter().flat_map(|bind| [&bind.source, &bind.dest]));
    let bounded = !spec.mounts.is_empty() && spec.mounts.len() <= MAX_MOUNTS && spec.binds.len() <= MAX_BINDS;
    if !bounded || !paths.into_iter().all(|path| is_clean(path)) {
        return Err(Failure::new(Kind::Refused, "the mounts of a session are not what they must be"));
    }
    Ok(())
}

fn make(jail: &Jail, order: &Order, home: &Home, directory: &Path) -> Result<()> {
    let deadline = Instant::now() + START_DEADLINE;
    let listener = create::listen(jail, &jail.paths.session_socket(&order.sandbox, &order.record.id))?;
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).op("make a pipe");
    let (go, ready) = pipe()?;
    let (errors, errors_writer) = pipe()?;
    let (status, status_writer) = pipe()?;
    let (born, born_writer) = wire::pair().op("make a socket")?;
    let boot = order.boot.try_clone().op("keep the boot configuration")?;
    let builder = match sys::fork().op("fork a builder")? {
        Forked::Parent(builder) => builder,
        Forked::Child => {
            let ours = Builder { jail, order, home, born: born_writer };
            ours.run(Pipes { go, errors: errors_writer, status: status_writer, listener, boot })
        }
    };
    drop((go, errors_writer, status_writer, born_writer, listener, boot));
    let mut buffer = Vec::new();
    let received = wire::receive_bytes(born.as_fd(), &mut buffer, RecvFlags::empty()).op("wait for the session")?;
    let init = received.and_then(|(_, fds)| fds.into_iter().next());
    let _ = waitpid(Some(builder), WaitOptions::empty());
    let Some(init) = init else {
        birth::await_exec(errors.as_fd(), deadline)?;
        return Err(Failure::internal("the process that makes the session ended"));
    };
    let process = number_of(&init).and_then(Process::of);
    let process = process.ok_or_else(|| Failure::internal("the session's first process ended at once"))?;
    state::store(directory, INIT, &process)?;
    rustix::io::write(&ready, b"1").op("let the session go on")?;
    birth::await_exec(errors.as_fd(), deadline)?;
    await_ready(StatusReader::new(status), &init, deadline)
}

fn await_ready(mut status: StatusReader, init: &OwnedFd, deadline: Instant) -> Result<()> {
    while !status.ready() {
        birth::wait(
            &mut [PollFd::from_borrowed_fd(status.as_fd(), PollFlags::IN), PollFd::new(init, PollFlags::IN)],
            deadline,
        )?;
        status.read();
        if !status.is_open() && !status.ready() {
            return Err(Failure::internal("the session's execd ended before it was ready"));
        }
    }
    Ok(())
}

/// The number of the process that a descriptor stands for, as this process counts.
fn number_of(process: &OwnedFd) -> Option<Pid> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?;
    let number = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    // It is -1 once the process was reaped.
    Pid::from_raw(number.trim().parse().ok().filter(|number| *number > 0)?)
}

/// Ends of pipes that the session's first process needs.
struct Pipes {
    go: OwnedFd,
    errors: OwnedFd,
    status: OwnedFd,
    listener: OwnedFd,
    boot: OwnedFd,
}

/// The process that enters the sandbox.
struct Builder<'a> {
    jail: &'a Jail,
    order: &'a Order,
    home: &'a Home,
    /// Where the session's first process goes, as a descriptor.
    born: OwnedFd,
}

impl Builder<'_> {
    fn run(self, pipes: Pipes) -> ! {
        let errors = pipes.errors.try_clone();
        if let Err(failure) = self.build(pipes)
            && let (Ok(errors), Ok(text)) = (errors, serde_json::to_vec(&failure))
        {
            // The worker also sees that no number came.
            let _ = rustix::io::write(&errors, &text);
        }
        std::process::exit(0)
    }

    fn build(self, pipes: Pipes) -> Result<()> {
        let group = self.jail.group(&self.order.sandbox);
        let unified = group.as_ref().map(crate::cgroup::Group::open).transpose()?.flatten();
        if let Some(group) = &group {
            group.enter()?;
        }
        let counters = self.home.join()?;
        session_init::set_counters(&counters, RAISED)?;
        match sys::fork().op("fork into the sandbox") {
            Ok(Forked::Parent(cloner)) => {
                let process = pidfd_open(cloner, PidfdFlags::empty()).op("watch the process that clones")?;
                let ended = birth::wait(&mut [PollFd::new(&process, PollFlags::IN)], Instant::now() + CLONE_DEADLINE);
                if ended.is_err() {
                    let _ = pidfd_send_signal(&process, Signal::KILL); // it may have ended meanwhile
                    session_init::set_counters(&counters, b"0")?;
                }
                let _ = waitpid(Some(cloner), WaitOptions::empty());
                ended.map_err(|_| Failure::internal("the process that clones the session's first process was stopped"))
            }
            Ok(Forked::Child) => self.clone_init(pipes, counters, unified),
            Err(failure) => session_init::set_counters(&counters, b"0").and(Err(failure)),
        }
    }

    /// Runs in the sandbox's PID namespace.
    fn clone_init(self, pipes: Pipes, counters: Vec<OwnedFd>, unified: Option<OwnedFd>) -> Result<()> {
        let network = if self.order.spec.own_network { libc::CLONE_NEWNET } else { 0 };
        let cloned =
            sys::clone_into((NAMESPACES | network | libc::CLONE_PARENT) as u64, unified.as_ref().map(AsFd::as_fd));
        match cloned {
            Ok(Cloned::Parent(_, init)) => {
                let fds = [init.as_fd()];
                wire::send(self.born.as_fd(), &(), &fds, SendFlags::empty()).op("hand over the session's first process")
            }
            Ok(Cloned::Child) => {
                let birth = Birth {
                    go: pipes.go,
                    errors: pipes.errors,
                    listener: pipes.listener,
                    boot: pipes.boot,
                    status: pipes.status,
                    counters,
                    execd: self.jail.execd.as_fd(),
                    id: &self.order.record.id,
                    spec: &self.order.spec,
                    limits: &self.home.plan.limits,
                    by_process: self.jail.by_process(&self.home.plan.limits),
                    filter: &self.jail.filter,
                    ids: self.jail.ids(),
                };
                sys::close_all_except(&session_init::keep(&birth));
                session_init::run(birth)
            }
            Err(errno) => {
                session_init::set_counters(&counters, b"0")?;
                Err(Failure::errno("clone into a session's namespaces", errno))
            }
        }
    }
}

/// Kills a session's first process, which ends all others, and removes its traces.
fn remove(jail: &Jail, sandbox: &SandboxId, session: &SessionId, home: Option<&Home>) -> Result<()> {
    let directory = jail.paths.session(sandbox, session);
    if let Some(init) = init_of(&directory)? {
        let _ = pidfd_send_signal(&init, Signal::KILL);
        let deadline = Instant::now() + KILL_DEADLINE;
        birth::wait(&mut [PollFd::new(&init, PollFlags::IN)], deadline)
            .map_err(|_| Failure::internal("processes of the session do not end although they were killed"))?;
    }
    if let Some(home) = home {
        remove_written(jail, home, session)?;
    }
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.op("remove the session's directory"),
    }
}

/// Removes what the session wrote, in a process that enters the sandbox for it.
fn remove_written(jail: &Jail, home: &Home, session: &SessionId) -> Result<()> {
    let (report, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).op("make a pipe")?;
    match sys::fork().op("fork a remover")? {
        Forked::Parent(remover) => {
            drop(writer);
            let removed = birth::await_exec(report.as_fd(), Instant::now() + KILL_DEADLINE);
            if removed.is_err() {
                let _ = kill_process(remover, Signal::KILL); // not reaped yet, so the number is its own
            }
            let ended = waitpid(Some(remover), WaitOptions::empty()).op("wait for the remover")?;
            removed?;
            match ended.is_some_and(|(_, status)| status.exit_status() == Some(0)) {
                true => Ok(()),
                false => Err(Failure::internal("the process that removes what the session wrote was killed")),
            }
        }
        Forked::Child => {
            let removed = home.join().and_then(|counters| {
                session_init::set_counters(&counters, RAISED)?;
                let unshared = sys::unshare_mount_namespace().op("leave the sandbox's mounts");
                session_init::set_counters(&counters, b"0")?;
                unshared?;
                crate::init::take_identity(jail.ids())?;
                session_root::remove(session)
            });
            if let Err(failure) = removed {
                // Nothing to be done if nobody reads it.
                let _ = rustix::io::write(&writer, &serde_json::to_vec(&failure).unwrap_or_default());
            }
            std::process::exit(0)
        }
    }
}

/// A session's first process, if it lives.
fn init_of(directory: &Path) -> Result<Option<OwnedFd>> {
    let known = state::load::<Process>(directory, INIT)?;
    let init = known.and_then(|known| known.open());
    let now = Instant::now();
    // One that ended and was not waited for is readable at once.
    Ok(init.filter(|init| birth::wait(&mut [PollFd::new(init, PollFlags::IN)], now).is_err()))
}

fn names(sessions: &Path) -> Result<Vec<SessionId>> {
    match fs::read_dir(sessions) {
        Ok(entries) => {
            Ok(entries.flatten().filter_map(|entry| SessionId::parse(entry.file_name().to_str()?)).collect())
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(error) => Err(error).op("list the sessions"),
    }
}

fn make_directory(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o711)).op("open a session's directory"),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error).op("make a session's directory"),
    }
}

fn lock(sessions: &Path) -> Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(sessions.join(LOCK), flags, FileMode::from_raw_mode(0o600)).op("open the sessions' lock")?;
    flock(&file, FlockOperation::LockExclusive).op("lock the sessions")?;
    Ok(file)
}
