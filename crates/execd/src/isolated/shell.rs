//! The shell of a session: one process for all runs, fed by lines on its standard input.
//!
//! Each run's code lies in a file of its own that the shell reads as a script, with an empty standard input. After it the
//! shell says on descriptor 3, which the code does not hold, that it is done and with which status. The shell is
//! interactive, so that SIGINT takes it back to its next line and not to its end; it writes no prompt and keeps no
//! history. Standard output and error are one pipe, which is read only during a run: what a job writes between two runs
//! waits there for the next one.

use std::cell::RefCell;
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::Path;
use std::rc::Rc;

use protocol::execd::isolated::CreateSession;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{Mutex, watch};

use super::{Session, environment};
use crate::command::{self, NO_SHELL};
use crate::daemon::Daemon;
use crate::error::system_text;
use crate::identity::{self, Accounts};
use crate::procfs;
use crate::reaper::{Exit, Process};
use crate::spawn::{Extra, Identity, Plan, Stdio, spawn_with};

/// Where the files of runs lie: memory of the session's own.
const DIRECTORY: &str = "/run/execd";
/// Bytes of the shell's output pipe.
const PIPE_BYTES: usize = 256 * 1024;
/// Longest line of the shell's reports.
const MAX_REPORT_BYTES: usize = 4096;

/// How far the shell has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// It reads its lines.
    pub ready: bool,
    /// The last run that is done, counted from 1.
    pub done: u64,
    /// Its status.
    pub code: i32,
}

/// The shell.
pub struct Shell {
    process: Process,
    /// Where its lines go.
    input: Mutex<Sender>,
    /// What it writes; taken by the run whose turn it is.
    pub output: Mutex<Receiver>,
    reports: RefCell<Option<Receiver>>,
    pub progress: watch::Sender<Progress>,
    identity: Option<Identity>,
}

impl Shell {
    /// Starts it in this directory.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn start(daemon: &Daemon, cwd: &str, asked: &CreateSession) -> Result<Self, String> {
        let failed = |error: io::Error| format!("start the session's shell: {}", system_text(&error));
        std::fs::create_dir_all(DIRECTORY).map_err(failed)?;
        let mut env = environment::of_session(daemon.paths().env.clone(), asked);
        let path_env = daemon.paths().env.clone();
        let (name, program) = command::find_shell(&path_env, "/").ok_or(NO_SHELL)?;
        for prompt in ["PS1", "PS2"] {
            env.insert(prompt.into(), String::new());
        }
        env.insert("PWD".into(), cwd.to_owned());
        let identity = identity(daemon, asked);
        if let Some(identity) = &identity
            && let Some(user) = Accounts::load().user(identity.uid)
            && env.contains_key("HOME")
        {
            env.insert("HOME".into(), user.home);
        }
        let c_string = |text: String| CString::new(text).map_err(|_| "a variable holds a NUL byte".to_owned());
        let mut argv = vec![c_string(name.to_owned())?];
        if name == "bash" {
            argv.extend([c"--noprofile".to_owned(), c"--norc".to_owned(), c"--noediting".to_owned()]);
        }
        argv.push(c"-i".to_owned());
        let env: Result<Vec<CString>, String> =
            env.iter().map(|(name, value)| c_string(format!("{name}={value}"))).collect();
        let plan = Plan {
            programs: vec![c_string(program)?],
            argv,
            env: env?,
            cwd: c_string(cwd.to_owned())?,
            identity: identity.clone(),
        };
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()));
        let (input, to_shell) = pipe()?;
        let (output, writer) = pipe()?;
        let (reports, reporter) = pipe()?;
        let _ = fcntl_setpipe_size(&output, PIPE_BYTES); // beyond the user's allowance the default stays
        if let Some(identity) = &identity {
            // So that /dev/stdout can be opened by the one who writes to it.
            let _ = fchown(&writer, Some(identity.uid), Some(identity.gid));
        }
        let begin = first_line(name);
        // Written before anything awaits: the pipe is empty and has room.
        rustix::io::write(&to_shell, begin.as_bytes()).map_err(|error| failed(error.into()))?;
        let stdio = Stdio { fds: [input.as_fd(), writer.as_fd(), writer.as_fd()].map(Some) };
        let extra = Extra { descriptor: Some(reporter.as_fd()), tag: None };
        let pid = spawn_with(&plan, &stdio, extra).map_err(|error| format!("start the session's shell: {error}"))?;
        let process = daemon.reaper.register(pid);
        Ok(Self {
            process,
            input: Mutex::new(sender(to_shell).map_err(failed)?),
            output: Mutex::new(receiver(output).map_err(failed)?),
            reports: RefCell::new(Some(receiver(reports).map_err(failed)?)),
            progress: watch::Sender::default(),
            identity,
        })
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.process.exit().is_some()
    }

    /// Waits for its end.
    pub async fn ended(&self) -> Exit {
        self.process.wait().await
    }

    /// Gives it a line.
    ///
    /// # Errors
    /// It has ended.
    pub async fn feed(&self, line: &str) -> io::Result<()> {
        self.input.lock().await.write_all(line.as_bytes()).await
    }

    /// Interrupts what it runs.
    pub fn interrupt(&self) {
        self.process.signal_group(Signal::INT);
    }

    /// Kills what it has started, except for what lies below these processes.
    pub fn kill_children(&self, spared: &[i32]) {
        let all: Vec<procfs::Entry> = procfs::running().into_iter().flatten().collect();
        let shell = self.process.pid().as_raw_nonzero().get();
        let parent =
            |pid: i32| all.iter().find(|entry| entry.pid.as_raw_nonzero().get() == pid).map(|entry| entry.parent);
        for entry in &all {
            let mut at = entry.pid.as_raw_nonzero().get();
            let mut is_child = false;
            // A tree is no deeper than there are processes.
            for _ in 0..all.len() {
                if spared.contains(&at) || at == shell {
                    break;
                }
                let Some(next) = parent(at) else { break };
                is_child = next == shell;
                at = next;
            }
            if is_child {
                let _ = rustix::process::kill_process(entry.pid, Signal::KILL); // it may have ended meanwhile
            }
        }
    }

    /// Writes a run's file, for the shell's user alone.
    ///
    /// # Errors
    /// The session's memory for it is full.
    pub fn write_file(&self, name: &str, text: &[u8]) -> io::Result<String> {
        let path = format!("{DIRECTORY}/{name}");
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o400).open(&path)?;
        let written = file.write_all(text).and_then(|()| match &self.identity {
            Some(identity) => fchown(&file, Some(identity.uid), Some(identity.gid)),
            None => Ok(()),
        });
        if written.is_err() {
            remove_file(&path);
        }
        written.map(|()| path)
    }

    /// Who its runs are, where that is not execd itself.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }
}

/// Removes a run's file.
pub fn remove_file(path: &str) {
    let _ = std::fs::remove_file(Path::new(path)); // what is left lies in memory that goes with the session
}

fn identity(daemon: &Daemon, asked: &CreateSession) -> Option<Identity> {
    let accounts = Accounts::load();
    let identity = match (asked.uid, daemon.user()) {
        (Some(uid), _) => Some(accounts.identity(uid, asked.gid)),
        (None, user) => user.map(|user| accounts.identity(user.uid, Some(user.gid))),
    };
    identity.filter(|identity| !identity::is_own(identity))
}

/// Makes the shell quiet and lets it say that it reads.
fn first_line(shell: &str) -> String {
    let quiet = if shell == "bash" { "export -n PS1 PS2; set +H +o history; " } else { "" };
    format!("{quiet}command printf 'ready\\n' >&3\n")
}

fn sender(fd: OwnedFd) -> io::Result<Sender> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Sender::from_owned_fd(fd)
}

fn receiver(fd: OwnedFd) -> io::Result<Receiver> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Receiver::from_owned_fd(fd)
}

/// Reads the shell's reports until it ends.
pub async fn listen(session: Rc<Session>) {
    let Some(mut reports) = session.shell.reports.borrow_mut().take() else { return };
    let mut text = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match reports.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => text.extend_from_slice(&buffer[..count]),
        }
        while let Some(end) = memchr::memchr(b'\n', &text) {
            let line: Vec<u8> = text.drain(..=end).collect();
            heed(&session, &String::from_utf8_lossy(&line));
        }
        if text.len() > MAX_REPORT_BYTES {
            text.clear(); // no report of ours
        }
    }
}

/// One report: `ready`, `done <run> <status>`, `job <run> <pid>` or `end <run> <status>`.
fn heed(session: &Session, line: &str) {
    let mut words = line.split_whitespace();
    let progress = &session.shell.progress;
    match (words.next(), words.next(), words.next().and_then(|word| word.parse::<i32>().ok())) {
        (Some("ready"), None, _) => {
            progress.send_modify(|progress| progress.ready = true);
        }
        (Some("done"), Some(run), Some(code)) => {
            let Ok(run) = run.parse() else { return };
            progress.send_if_modified(|progress| {
                let new = run > progress.done;
                if new {
                    (progress.done, progress.code) = (run, code);
                }
                new
            });
        }
        (Some("job"), Some(run), Some(pid)) => session.runs.started(run, pid),
        (Some("end"), Some(run), Some(code)) => session.runs.ended(run, code),
        _ => {}
    }
}
