//! Waits for the end of one sandbox, as the parent of its PID 1, and writes the exit of record before anything else.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lifecycle::runtime::Exit;
use protocol::execd::boot::StatusLine;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use super::create::Live;
use super::status::StatusReader;
use super::{Jail, destroy, stock};
use crate::cgroup::Counters;
use crate::error::{Context, Failure, Result};
use crate::gvisor::{self, Told};
use crate::state::{self, ExitRecord};
use crate::sys::{self, ChildEnd};
use crate::wire::{Kernel, PlanLimits};

/// Bytes of console output kept in each of the two halves of the log.
pub const CONSOLE_HALF_BYTES: u64 = 512 << 10;
/// Bytes read from the console at once.
const CONSOLE_READ_BYTES: usize = 64 << 10;
/// Console bytes taken per [`CONSOLE_TICK`]: a flood slows its writer, not the machine.
const CONSOLE_TICK_BYTES: usize = 1 << 20;
/// The time that [`CONSOLE_TICK_BYTES`] is counted over.
const CONSOLE_TICK: Duration = Duration::from_millis(100);
/// How long the parent of an ended PID 1 may take to wait for it.
const REAP_DEADLINE: Duration = Duration::from_secs(2);
/// How long the groups of an ended sandbox may take to be empty: its PID 1 is gone, so the kernel kills the rest.
const EMPTY_DEADLINE: Duration = Duration::from_secs(30);

/// Stays until PID 1 has ended and the exit is recorded; with a lease, also until everything is removed.
pub fn until_end(jail: &Jail, mut live: Live<'_>) {
    // A destroy asks us to end; the record comes first.
    let _ = sys::block_termination();
    let mut console = Console::open(jail, &live);
    // Non-blocking reads let one poll serve all descriptors.
    let _ = rustix::io::ioctl_fionbio(&live.console, true);
    let mut kill_at: Option<Instant> = None;
    let mut leased = live.lease.is_some();
    loop {
        let (ended, lease_over) = wait(&mut live, &mut console, kill_at);
        if ended {
            break;
        }
        if lease_over {
            leased = true;
            live.lease = None;
            // Either call may find the process gone, which the next round notices.
            let _ = pidfd_send_signal(&live.init, Signal::TERM);
            kill_at = Some(Instant::now() + live.grace);
        }
        if kill_at.is_some_and(|at| at <= Instant::now()) {
            kill_at = None;
            let _ = pidfd_send_signal(&live.init, Signal::KILL);
        }
    }
    if let Err(failure) = record(jail, &mut live, &mut console) {
        eprintln!("osb monitor: record the exit of {}: {failure}", live.id);
    }
    let wound_up = wind_up(jail, &live);
    if let Err(failure) = &wound_up {
        eprintln!("osb monitor: clean up after {}: {failure}", live.id);
        live.spare = None;
    }
    drop(live.watching.take());
    give_up_disk(&mut live);
    if !leased {
        return;
    }
    if let Some(lease) = &live.lease {
        // The record is written: a destroy may now end this process, which otherwise waits for its engine to go.
        let _ = sys::reset_signals();
        while poll(&mut [PollFd::new(lease, PollFlags::empty())], None).is_err() {}
        let _ = sys::block_termination();
    }
    if let Err(failure) = destroy::remove_locked(jail, &live.id, Duration::ZERO) {
        eprintln!("osb monitor: remove {}: {failure}", live.id);
    }
    // The engine that held the lease and its jailer are gone, or remove it themselves.
    jail.release_parent();
}

/// One round of waiting: whether PID 1 has ended, and whether the lease is over.
fn wait(live: &mut Live<'_>, console: &mut Console, kill_at: Option<Instant>) -> (bool, bool) {
    let now = Instant::now();
    let mut fds = vec![PollFd::new(&live.init, PollFlags::IN)];
    let lease_at = live.lease.as_ref().map(|lease| {
        fds.push(PollFd::new(lease, PollFlags::empty()));
        fds.len() - 1
    });
    let status_at = live.status.is_open().then(|| {
        fds.push(PollFd::new(&live.status, PollFlags::IN));
        fds.len() - 1
    });
    let wake = [kill_at, console.resumes_at(now)].into_iter().flatten().min();
    let console_at = (console.is_open && console.resumes_at(now).is_none()).then(|| {
        fds.push(PollFd::new(&live.console, PollFlags::IN));
        fds.len() - 1
    });
    let timeout = wake.map(|at| {
        let left = at.saturating_duration_since(now);
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
    });
    if poll(&mut fds, timeout.as_ref()).is_err() {
        return (false, false);
    }
    let hit = |at: Option<usize>| at.is_some_and(|at| !fds[at].revents().is_empty());
    let (ended, lease_over) = (hit(Some(0)), hit(lease_at));
    let (status, output) = (hit(status_at), hit(console_at));
    drop(fds);
    if status {
        live.status.read();
    }
    if output {
        console.read(&live.console);
    }
    (ended, lease_over)
}

/// Learns how PID 1 ended and writes it down.
fn record(jail: &Jail, live: &mut Live<'_>, console: &mut Console) -> Result<()> {
    let end = match waitid(WaitId::PidFd(live.init.as_fd()), WaitIdOptions::EXITED) {
        Ok(Some(status)) => ChildEnd { code: status.exit_status(), signal: status.terminating_signal() },
        Ok(None) => return Err(Failure::internal("the sandbox's PID 1 has not ended")),
        // We took the sandbox over and are not its parent.
        Err(Errno::CHILD) => end_of_strangers_child(&live.init),
        Err(errno) => return Err(Failure::errno("wait for the sandbox's PID 1", errno)),
    };
    let counters = jail.group(&live.id).map(|group| group.counters()).unwrap_or_default();
    let disk = live.disk.as_ref().map_or(Disk::HasRoom, Disk::of);
    while live.status.is_open() {
        live.status.read();
    }
    if let Some(why) = live.status.entrypoint_failure() {
        console.append(format!("osb: {why}\n").as_bytes());
    }
    if jail.paths.sandbox(&live.id).join(state::EXIT).exists() {
        // The jailer, which waited for it in our place, has recorded it.
        console.drain(&live.console);
        return Ok(());
    }
    let end = match live.kernel {
        Kernel::Host => end,
        Kernel::Gvisor => gvisor::main_end(end, told(&live.status), counters),
    };
    let exit = judge(end, live.status.end(), counters, disk, &live.limits);
    write(jail, &live.id, exit)?;
    console.drain(&live.console);
    Ok(())
}

fn told(status: &StatusReader) -> Told {
    match status.end() {
        Some(_) => Told::End,
        None if status.heard() => Told::Nothing,
        None => Told::Unheard,
    }
}

/// Asks the kernel how a process ended that its parent waits for, which may come a moment after its end.
fn end_of_strangers_child(process: &OwnedFd) -> ChildEnd {
    let timeout = Timespec { tv_sec: REAP_DEADLINE.as_secs() as i64, tv_nsec: 0 };
    // Without interest in any event, what is reported is the hang-up that follows the wait.
    let _ = poll(&mut [PollFd::new(process, PollFlags::empty())], Some(&timeout));
    sys::end_of(process.as_fd()).unwrap_or(ChildEnd { code: None, signal: None })
}

/// Writes the exit record and its copy in the directory that the server watches.
pub fn write(jail: &Jail, id: &lifecycle::spec::SandboxId, exit: Exit) -> Result<()> {
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    state::store(&jail.paths.sandbox(id), state::EXIT, &ExitRecord { exit, at })?;
    announce(jail, id)
}

/// Makes the copy of an exit record. May be repeated: whoever wrote the record may have been killed before this.
pub fn announce(jail: &Jail, id: &lifecycle::spec::SandboxId) -> Result<()> {
    let directory = jail.paths.sandbox(id);
    let copy = jail.paths.exits().join(id.as_str());
    match fs::hard_link(directory.join(state::EXIT), &copy) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        other => other.op("announce the exit")?,
    }
    if !directory.exists() {
        // A destroy came in between and is past the copy.
        let _ = fs::remove_file(&copy);
        return Ok(());
    }
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o640)).op("announce the exit")?;
    jail.give_to_server(&copy)
}

/// Ends what is left of the groups; they and every name stay until the destroy.
fn wind_up(jail: &Jail, live: &Live<'_>) -> Result<()> {
    let Some(group) = jail.group(&live.id) else { return Ok(()) };
    group.kill()?;
    if group.wait_empty(Instant::now() + EMPTY_DEADLINE)? {
        return Ok(());
    }
    Err(Failure::internal("its cgroup is not empty although PID 1 is gone"))
}

/// Empties the disk and returns it, or gives it up: that takes the kernel a tenth of a second, so it comes when nobody
/// waits for us.
fn give_up_disk(live: &mut Live<'_>) {
    let root = live.disk.take();
    if let Some((disk, home)) = live.spare.take()
        && let Some(state) = disk.emptied()
    {
        drop(root);
        return stock::give_back(home, &disk, state);
    }
    if let Some(root) = root {
        // Without this the last close would also write all dirty pages of a disk that nobody will read again.
        let _ = sys::shutdown_filesystem(root.as_fd());
    }
}

/// A disk with less than this left counts as full: ext4 refuses a write as a whole, and `write` comes in pieces of up
/// to this size.
const FULL_BYTES: u64 = 1 << 20;

/// Whether a disk had room at the end of its sandbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disk {
    /// Bytes and inodes were left, or nobody knows.
    HasRoom,
    /// Bytes or inodes were used up.
    Full,
}

impl Disk {
    fn of(disk: &OwnedFd) -> Self {
        match rustix::fs::fstatfs(disk) {
            Ok(stat) if stat.f_bavail * (stat.f_bsize as u64) < FULL_BYTES || stat.f_ffree == 0 => Self::Full,
            _ => Self::HasRoom,
        }
    }
}

/// The exit of record: the kernel's word about PID 1, refined by execd's report where the two agree.
pub fn judge(end: ChildEnd, said: Option<&StatusLine>, counters: Counters, disk: Disk, limits: &PlanLimits) -> Exit {
    let ChildEnd { code, signal } = end;
    let signal = match (code, said) {
        (Some(code), Some(StatusLine::Signaled(signal))) if code == 128 + signal => Some(*signal),
        _ => signal,
    };
    if signal == Some(libc::SIGKILL) && counters.oom_kills > 0 {
        let limit = limits
            .memory_bytes
            .map_or("the machine's memory".to_owned(), |bytes| format!("the limit of {bytes} bytes"));
        return Exit::Oom { detail: format!("memory reached {limit} and the kernel ended the main process") };
    }
    let failed = signal.is_some() || code != Some(0);
    let code_or_none = if signal.is_some() { None } else { code };
    if failed && counters.pids_refused > 0 {
        let limit = limits.pids.map_or("all sandboxes' limit".to_owned(), |count| format!("the limit of {count}"));
        let detail = format!("{} forks were refused at {limit} processes", counters.pids_refused);
        return Exit::Pids { code: code_or_none, detail };
    }
    if failed && disk == Disk::Full {
        let limit =
            limits.disk_bytes.map_or("its default size".to_owned(), |bytes| format!("the limit of {bytes} bytes"));
        return Exit::Disk { code: code_or_none, detail: format!("the disk was full at {limit}") };
    }
    match (signal, code) {
        (Some(signal), _) => Exit::Signaled { signal },
        (None, Some(code)) => Exit::Exited { code },
        (None, None) => Exit::Unknown {
            detail: "the process that waits for its end was killed before it could record it".to_owned(),
        },
    }
}

/// The console log: two halves, the older of which goes when the newer is full.
struct Console {
    path: PathBuf,
    old: PathBuf,
    file: Option<File>,
    length: u64,
    is_open: bool,
    tick: Instant,
    tick_bytes: usize,
}

impl Console {
    fn open(jail: &Jail, live: &Live<'_>) -> Self {
        let directory = jail.paths.sandbox(&live.id);
        let mut console = Self {
            path: directory.join(state::CONSOLE),
            old: directory.join(state::CONSOLE_OLD),
            file: None,
            length: 0,
            is_open: true,
            tick: Instant::now(),
            tick_bytes: 0,
        };
        console.start_half();
        console
    }

    fn start_half(&mut self) {
        // A console that cannot be written is read and dropped: it must not stop the main process.
        self.file = File::create(&self.path).ok();
        self.length = 0;
        let _ = fs::set_permissions(&self.path, fs::Permissions::from_mode(0o600));
    }

    /// When reading may go on, if it has to wait.
    fn resumes_at(&self, now: Instant) -> Option<Instant> {
        let next = self.tick + CONSOLE_TICK;
        (self.tick_bytes >= CONSOLE_TICK_BYTES && now < next).then_some(next)
    }

    fn read(&mut self, pipe: &OwnedFd) -> usize {
        let now = Instant::now();
        if now >= self.tick + CONSOLE_TICK {
            (self.tick, self.tick_bytes) = (now, 0);
        }
        let mut buffer = [0u8; CONSOLE_READ_BYTES];
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => self.is_open = false,
            Ok(count) => {
                self.tick_bytes += count;
                self.append(&buffer[..count]);
                return count;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.is_open = false,
        }
        0
    }

    /// Takes what a dead sandbox left in the pipe, which is bounded by the pipe's size.
    fn drain(&mut self, pipe: &OwnedFd) {
        while self.is_open && self.read(pipe) > 0 {}
    }

    fn append(&mut self, bytes: &[u8]) {
        if self.length + bytes.len() as u64 > CONSOLE_HALF_BYTES {
            let _ = fs::rename(&self.path, &self.old);
            self.start_half();
        }
        if let Some(file) = &mut self.file {
            let at_end = file.seek(std::io::SeekFrom::End(0)).and_then(|_| file.write_all(bytes));
            if at_end.is_err() {
                self.file = None;
            }
        }
        self.length += bytes.len() as u64;
    }
}
