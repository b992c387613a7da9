//! Starting a terminal's shell: on a terminal of its own, or on three pipes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{self, fchmod, fchown};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Uid};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;

use super::ring::Stream;
use crate::command::{NO_SHELL, find_shell, make_plan};
use crate::daemon::Daemon;
use crate::error::system_text;
use crate::identity::Accounts;
use crate::spawn::{Extra, Identity, Plan, Stdio, spawn_with, watch};

/// Kind of the terminal, for programs in it, where the sandbox does not say.
const DEFAULT_TERM: &str = "xterm-256color";
/// Size of a terminal whose client did not tell one, as published.
pub const DEFAULT_SIZE: Size = Size { cols: 80, rows: 24 };

/// A descriptor that the event loop watches.
pub type Watched = Rc<AsyncFd<OwnedFd>>;

/// How a shell is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A terminal.
    Pty,
    /// Three pipes: standard error comes apart.
    Pipe,
}

/// Columns and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub cols: u16,
    pub rows: u16,
}

/// A shell that was just started.
pub struct Shell {
    /// The shell itself.
    pub process: crate::reaper::Process,
    /// Where its input goes.
    pub input: Watched,
    /// Where its output comes from.
    pub outputs: Vec<(Stream, Watched)>,
    /// The terminal's own side; none in pipe mode.
    pub master: Option<Watched>,
    /// The shell's side, kept open while it runs: without it a moment in which no program has the terminal open
    /// would look like the end.
    pub slave: Option<OwnedFd>,
}

impl Mode {
    /// As frames name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pty => "pty",
            Self::Pipe => "pipe",
        }
    }
}

/// Tells a terminal its size; programs in it get SIGWINCH.
pub fn resize(master: &Watched, size: Size) {
    let size = Winsize { ws_col: size.cols, ws_row: size.rows, ws_xpixel: 0, ws_ypixel: 0 };
    let _ = tcsetwinsize(master.get_ref(), size); // its programs may be gone
}

/// Starts a shell, or `command` in one.
///
/// # Errors
/// Why it cannot be, for people.
pub fn start(
    daemon: &Daemon,
    command: Option<&str>,
    cwd: &str,
    mode: Mode,
    size: Size,
    tag: u64,
) -> Result<Shell, String> {
    let (plan, identity) = plan(daemon, command, cwd, mode)?;
    match mode {
        Mode::Pty => on_terminal(daemon, &plan, identity.as_ref(), size, tag),
        Mode::Pipe => on_pipes(daemon, &plan, identity.as_ref(), tag),
    }
}

fn plan(daemon: &Daemon, command: Option<&str>, cwd: &str, mode: Mode) -> Result<(Plan, Option<Identity>), String> {
    let mut env = daemon.env_with_file();
    if mode == Mode::Pty {
        env.entry("TERM".into()).or_insert_with(|| DEFAULT_TERM.into());
    }
    let (shell, path) = find_shell(&env, cwd).ok_or(NO_SHELL)?;
    let mut argv = vec![shell.to_owned()];
    if shell == "bash" {
        argv.extend(["--norc".to_owned(), "--noprofile".to_owned()]);
    }
    argv.extend(command.into_iter().flat_map(|command| ["-c".to_owned(), command.to_owned()]));
    let identity = daemon.user().map(|user| Accounts::load().identity(user.uid, Some(user.gid)));
    let plan = make_plan(argv, Some(path), env, cwd, identity.clone()).map_err(|error| error.message)?;
    Ok((plan, identity))
}

fn on_terminal(
    daemon: &Daemon,
    plan: &Plan,
    identity: Option<&Identity>,
    size: Size,
    tag: u64,
) -> Result<Shell, String> {
    let failed = |error: io::Error| format!("open a terminal: {}", system_text(&error));
    let (master, slave) = open(identity).map_err(failed)?;
    let master = Rc::new(watch(master).map_err(failed)?);
    resize(&master, size);
    let stdio = Stdio { fds: [Some(slave.as_fd()); 3] };
    let extra = Extra { tag: Some(tag), terminal: true, ..Extra::default() };
    let pid = spawn_with(plan, &stdio, extra).map_err(|error| error.to_string())?;
    Ok(Shell {
        process: daemon.reaper.register(pid),
        input: Rc::clone(&master),
        outputs: vec![(Stream::Out, Rc::clone(&master))],
        master: Some(master),
        slave: Some(slave),
    })
}

fn open(identity: Option<&Identity>) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    let _ = grantpt(&master); // devpts has done it
    unlockpt(&master)?;
    let slave = match ioctl_tiocgptpeer(&master, flags) {
        // gVisor knows it by name only.
        Err(Errno::NOTTY | Errno::INVAL) => by_name(&master)?,
        other => other?,
    };
    if let Some(identity) = identity {
        let uid = Uid::from_raw(identity.uid);
        // So that its user can open it by name. A refusal leaves the open descriptors, which work.
        let _ = fchown(&slave, Some(uid), None::<Gid>);
        let _ = fchmod(&slave, fs::Mode::RUSR | fs::Mode::WUSR | fs::Mode::WGRP);
    }
    ioctl_fionbio(&master, true)?;
    Ok((master, slave))
}

/// Opens the shell's side of a terminal by its path.
fn by_name(master: &OwnedFd) -> io::Result<OwnedFd> {
    let path = ptsname(master, Vec::new())?;
    let flags = fs::OFlags::RDWR | fs::OFlags::NOCTTY | fs::OFlags::CLOEXEC;
    Ok(fs::open(path, flags, fs::Mode::empty())?)
}

fn on_pipes(daemon: &Daemon, plan: &Plan, identity: Option<&Identity>, tag: u64) -> Result<Shell, String> {
    let failed = |error: io::Error| format!("make pipes for the shell: {}", system_text(&error));
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()));
    let ours = |fd: OwnedFd| -> io::Result<Watched> {
        ioctl_fionbio(&fd, true)?;
        Ok(Rc::new(watch(fd)?))
    };
    let ((stdin, input), (out, stdout), (err, stderr)) = (pipe()?, pipe()?, pipe()?);
    let (input, out, err) = (ours(input), ours(out), ours(err));
    let (input, out, err) = (input.map_err(failed)?, out.map_err(failed)?, err.map_err(failed)?);
    for end in identity.iter().flat_map(|_| [&stdin, &stdout, &stderr]) {
        let _ = fchown(end, identity.map(|identity| Uid::from_raw(identity.uid)), None::<Gid>); // as for a terminal
    }
    let stdio = Stdio { fds: [Some(stdin.as_fd()), Some(stdout.as_fd()), Some(stderr.as_fd())] };
    let extra = Extra { tag: Some(tag), ..Extra::default() };
    let pid = spawn_with(plan, &stdio, extra).map_err(|error| error.to_string())?;
    Ok(Shell {
        process: daemon.reaper.register(pid),
        input,
        outputs: vec![(Stream::Out, out), (Stream::Err, err)],
        master: None,
        slave: None,
    })
}
