//! The duties of PID 1: the main process, its signals, and the end.

use std::fs::File;
use std::future::pending;
use std::io::{self, Write};
use std::os::unix::fs::chown;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use protocol::execd::boot::StatusLine;
use rustix::process::{Pid, Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::command::make_plan;
use crate::daemon::Daemon;
use crate::error::system_text;
use crate::identity::Accounts;
use crate::procfs;
use crate::reaper::{Exit, Process};
use crate::spawn::{Stdio, spawn};

/// Exit code when the main process could not be started, as a shell would say it.
const NOT_STARTED: u8 = 127;
/// After KILL to everything, how long the main process may take to be gone.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// Signals that are passed on to the main process's group and mean nothing to execd.
const FORWARDED: [Signal; 4] = [Signal::HUP, Signal::USR1, Signal::USR2, Signal::WINCH];

/// The entrypoint with which clients ask for a sandbox that only waits.
const IDLE: [&str; 3] = ["tail", "-f", "/dev/null"];

/// What a sandbox lives as long as.
enum Main {
    Process(Process),
    /// [`IDLE`] in an image that has no `tail`: execd waits in its place.
    Idle,
}

impl Main {
    async fn wait(&self) -> Exit {
        match self {
            Self::Process(process) => process.wait().await,
            Self::Idle => pending().await,
        }
    }

    fn signal(&self, signal: Signal) {
        if let Self::Process(process) = self {
            process.signal_group(signal);
        }
    }

    fn pid(&self) -> Option<Pid> {
        match self {
            Self::Process(process) => Some(process.pid()),
            Self::Idle => None,
        }
    }
}

/// Where the runtime learns what becomes of the sandbox.
pub struct Status(pub Option<File>);

impl Status {
    /// Tells it; a runtime that has gone away is no reason to stop.
    pub fn tell(&mut self, line: &StatusLine) {
        if let Some(file) = &mut self.0 {
            let _ = file.write_all(format!("{line}\n").as_bytes());
        }
    }
}

/// Starts the main process, passes signals on to it, and returns execd's exit code when it has ended.
pub async fn run(daemon: &Rc<Daemon>, entrypoint: Vec<String>, grace: Duration, mut status: Status) -> u8 {
    // Registered before the main process starts, so that no signal meets execd unprepared.
    let signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => {
            return not_started(&mut status, format!("listen for signals: {}", system_text(&error)));
        }
    };
    let main = match start(daemon, entrypoint) {
        Ok(main) => main,
        Err(why) => return not_started(&mut status, why),
    };
    status.tell(&StatusLine::Ready);
    let exit = supervise(daemon, &main, signals, grace).await;
    match exit {
        Some(Exit::Code(code)) => {
            status.tell(&StatusLine::Exited(code));
            u8::try_from(code).unwrap_or(u8::MAX)
        }
        Some(Exit::Signal { number, .. }) => {
            status.tell(&StatusLine::Signaled(number));
            u8::try_from(128 + number).unwrap_or(u8::MAX)
        }
        None => u8::MAX, // it could not even be killed: nothing is claimed about its end
    }
}

fn not_started(status: &mut Status, why: String) -> u8 {
    eprintln!("execd: cannot start the main process: {why}");
    status.tell(&StatusLine::EntrypointFailed(why));
    NOT_STARTED
}

fn start(daemon: &Daemon, entrypoint: Vec<String>) -> Result<Main, String> {
    if entrypoint.first().is_none_or(String::is_empty) {
        return Err("the entrypoint is empty".into());
    }
    let identity = daemon.user().map(|user| Accounts::load().identity(user.uid, Some(user.gid)));
    make_cwd(daemon)?;
    let idle = entrypoint == IDLE;
    let plan = make_plan(entrypoint, None, daemon.paths().env.clone(), daemon.cwd(), identity)
        .map_err(|error| error.message)?;
    let null = std::os::fd::AsFd::as_fd(daemon.null());
    match spawn(&plan, &Stdio { fds: [Some(null), None, None] }) {
        Ok(pid) => Ok(Main::Process(daemon.reaper.register(pid))),
        Err(error) if idle && error.is_about_a_missing_program() => Ok(Main::Idle),
        Err(error) => Err(error.to_string()),
    }
}

/// Makes the working directory of a sandbox whose image does not have it.
///
/// # Errors
/// It cannot be made.
pub fn make_cwd(daemon: &Daemon) -> Result<(), String> {
    let cwd = daemon.cwd();
    if !Path::new(cwd).exists() {
        std::fs::create_dir_all(cwd)
            .map_err(|error| format!("make the working directory {cwd}: {}", system_text(&error)))?;
        if let Some(user) = daemon.user() {
            let _ = chown(cwd, Some(user.uid), Some(user.gid)); // else it is merely not writable for the user
        }
    }
    Ok(())
}

async fn supervise(daemon: &Daemon, main: &Main, mut signals: Signals, grace: Duration) -> Option<Exit> {
    loop {
        let next = tokio::select! {
            exit = main.wait() => return Some(exit),
            next = signals.next() => next,
        };
        match next {
            Received::Forward(signal) => main.signal(signal),
            Received::End => break,
        }
    }
    daemon.commands.shutting_down();
    main.signal(Signal::TERM);
    signal_others(main.pid(), Signal::TERM);
    if let Main::Idle = main {
        // As `tail` would have ended.
        return Some(Exit::Signal { number: Signal::TERM.as_raw(), dumped: false });
    }
    if let Ok(exit) = timeout(grace, main.wait()).await {
        return Some(exit);
    }
    main.signal(Signal::KILL);
    signal_others(main.pid(), Signal::KILL);
    timeout(KILL_WAIT, main.wait()).await.ok()
}

/// Signals every process outside the main process's group: as PID 1 all that there are, otherwise nobody,
/// since the others are not ours.
fn signal_others(main: Option<Pid>, signal: Signal) {
    if getpid() != Pid::INIT {
        return;
    }
    let main = main.map(|pid| pid.as_raw_nonzero().get());
    let others = procfs::running().into_iter().flatten();
    for other in others.filter(|other| other.pid != Pid::INIT && Some(other.group) != main) {
        let _ = kill_process(other.pid, signal); // it may have ended meanwhile
    }
}

/// Ends stand-alone execd: TERM to every command's group, a grace, KILL.
pub async fn end_commands(daemon: &Daemon, grace: Duration) {
    daemon.commands.shutting_down();
    daemon.contexts.shut_down();
    let leaders = daemon.reaper.leaders();
    let signal_all = |signal| {
        for leader in daemon.reaper.leaders() {
            let _ = rustix::process::kill_process_group(leader, signal); // a leader in the table is not reaped yet
        }
    };
    if leaders.is_empty() {
        return;
    }
    signal_all(Signal::TERM);
    let all_gone = async {
        let Ok(mut died) = signal(SignalKind::child()) else {
            return pending().await;
        };
        while !daemon.reaper.leaders().is_empty() {
            died.recv().await;
            daemon.reaper.sweep();
        }
    };
    let _ = timeout(grace, all_gone).await; // those that are left are killed next
    signal_all(Signal::KILL);
}

/// Waits for the request to end.
///
/// # Errors
/// When signals cannot be watched.
pub async fn asked_to_end() -> io::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Ok(())
}

enum Received {
    End,
    Forward(Signal),
}

struct Signals {
    ends: [tokio::signal::unix::Signal; 2],
    forwarded: [tokio::signal::unix::Signal; 4],
}

impl Signals {
    fn listen() -> io::Result<Self> {
        let forward = |signal_: Signal| signal(SignalKind::from_raw(signal_.as_raw()));
        let [hup, usr1, usr2, winch] = FORWARDED;
        Ok(Self {
            ends: [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?],
            forwarded: [forward(hup)?, forward(usr1)?, forward(usr2)?, forward(winch)?],
        })
    }

    async fn next(&mut self) -> Received {
        let [term, int] = &mut self.ends;
        let [hup, usr1, usr2, winch] = &mut self.forwarded;
        let index = tokio::select! {
            _ = term.recv() => return Received::End,
            _ = int.recv() => return Received::End,
            _ = hup.recv() => 0,
            _ = usr1.recv() => 1,
            _ = usr2.recv() => 2,
            _ = winch.recv() => 3,
        };
        Received::Forward(FORWARDED[index])
    }
}
