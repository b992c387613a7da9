//! execd: the daemon inside a sandbox.
//!
//! As PID 1 it is handed its socket, configuration and status pipe as descriptors
//! ([`protocol::execd::boot`]); elsewhere it is started with flags. Either way it serves the execd API on
//! one thread, with worker threads for files, and reaps what dies.
//!
//! It is the sandbox's own: its word is never the record of anything outside, and it holds no secret but
//! the token that opens it.

mod activity;
mod blocking;
mod clock;
mod code;
mod command;
mod config;
mod daemon;
mod environment;
mod error;
mod files;
mod handed;
mod hardening;
mod hooks;
mod http;
mod id;
mod identity;
mod init;
mod isolated;
mod metrics;
mod procfs;
mod pty;
mod reaper;
mod resources;
mod session;
mod spawn;
#[cfg(test)]
mod targets;
mod tidy;
mod tree;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use protocol::execd::boot::{
    BootConfig, CONFIG_FD, HANDED_FLAG, IsolatedBoot, LISTENER_FD, OVERLAY_FD, STATUS_FD, StatusLine,
};
use protocol::hooks::Hooks;
use rustix::process::{DumpableBehavior, Pid, getpid, set_dumpable_behavior};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{Config, Listen};
use crate::daemon::{Daemon, Settings};
use crate::environment::Environment;
use crate::error::system_text;
use crate::http::Listener;
use crate::init::Status;

/// Bytes of boot configuration that are read.
const MAX_BOOT_BYTES: u64 = 4 * 1024 * 1024;
/// Mask of new files as PID 1; elsewhere the caller's holds.
const UMASK: u32 = 0o022;
/// Exit code for a start that failed.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    spawn::share_one_heap();
    let outcome = match given() {
        Ok(Some(inherited)) => boot(inherited),
        Ok(None) => file_worker().unwrap_or_else(stand_alone),
        Err(why) => Err(why),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            eprintln!("execd: {why}");
            ExitCode::from(FAILED)
        }
    }
}

struct Inherited {
    door: Door,
    config: OwnedFd,
    status: OwnedFd,
    /// Directories of the overlays of an isolated session, two for each.
    sides: Vec<(OwnedFd, OwnedFd)>,
}

/// Where connections come from.
enum Door {
    /// A unix socket that listens.
    Listener(OwnedFd),
    /// A packet socket on which they are handed over.
    Handed(OwnedFd),
}

impl Door {
    fn open(self) -> io::Result<Listener> {
        match self {
            Self::Listener(listener) => {
                let listener = std::os::unix::net::UnixListener::from(listener);
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener).map(Listener::Unix)
            }
            Self::Handed(socket) => handed::Connections::new(socket).map(Listener::Handed),
        }
    }
}

/// What a runtime gave to PID 1, if this is PID 1 and a runtime started it.
fn given() -> Result<Option<Inherited>, String> {
    if getpid() != Pid::INIT {
        return Ok(None);
    }
    let mut arguments = std::env::args_os().skip(1);
    match (arguments.next(), arguments.next()) {
        (None, _) => Ok(inherited()),
        (Some(flag), None) if flag == HANDED_FLAG => {
            let handed::Start { socket, config, status } = handed::take()?;
            Ok(Some(Inherited { door: Door::Handed(socket), config, status, sides: Vec::new() }))
        }
        _ => Ok(None),
    }
}

fn inherited() -> Option<Inherited> {
    let [listener, config, status] = [LISTENER_FD, CONFIG_FD, STATUS_FD].map(spawn::inherited);
    // Now, while whatever lies above these numbers was given to us.
    let mut sides = Vec::new();
    let mut next = OVERLAY_FD;
    while let (Some(lower), Some(upper)) = (spawn::inherited(next), spawn::inherited(next + 1)) {
        sides.push((lower, upper));
        next += 2;
    }
    Some(Inherited { door: Door::Listener(listener?), config: config?, status: status?, sides })
}

/// PID 1 of a sandbox.
fn boot(inherited: Inherited) -> Result<u8, String> {
    // No process of the sandbox may look into the memory that holds the token.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    rustix::process::umask(rustix::fs::Mode::from(UMASK));
    let mut status = Status(Some(File::from(inherited.status)));
    // Before the configuration, which may be long in coming: then nothing of this is waited for.
    let ready = Loop::start()?;
    let mut boot = read_boot(inherited.config)?;
    let session = boot.isolated.take();
    let settings = Settings {
        token: boot.token,
        sandbox_id: Some(boot.sandbox_id),
        env: boot.env.into_iter().collect(),
        cwd: boot.cwd.filter(|cwd| !cwd.is_empty()).unwrap_or_else(|| "/".into()),
        user: boot.user,
        hooks: boot.hooks,
    };
    if let Some(session) = session {
        return run_session(ready, settings, session, inherited.door, inherited.sides, status);
    }
    ready.run(settings, move |daemon| async move {
        tokio::task::spawn_local(http::serve(Rc::clone(&daemon), inherited.door.open()?));
        if let Some(hook) = &daemon.hooks.pre_start
            && let Err(why) = hooks::pre_start(&daemon, hook).await
        {
            eprintln!("execd: {why}");
            status.tell(&StatusLine::HookFailed(why));
            return Ok(FAILED);
        }
        let probed = Rc::clone(&daemon);
        tokio::task::spawn_local(async move { code::answer_probes(&probed).await });
        hooks::start_periodic(&daemon);
        Ok(init::run(&daemon, boot.entrypoint, Duration::from_millis(boot.grace_ms), status).await)
    })
}

/// The init of an isolated session.
fn run_session(
    ready: Loop,
    settings: Settings,
    boot: IsolatedBoot,
    door: Door,
    sides: Vec<(OwnedFd, OwnedFd)>,
    mut status: Status,
) -> Result<u8, String> {
    ready.run(settings, move |daemon| async move {
        let session = isolated::start(&daemon, boot, sides).map_err(io::Error::other)?;
        let _ = daemon.isolated.set(Rc::clone(&session)); // it was empty
        tokio::task::spawn_local(http::serve(Rc::clone(&daemon), door.open()?));
        status.tell(&StatusLine::Ready);
        isolated::until_end(session).await?;
        Ok(0)
    })
}

fn read_boot(config: OwnedFd) -> Result<BootConfig, String> {
    let mut file = File::from(config);
    let _ = file.rewind(); // a memory file may stand at its end; a pipe cannot be rewound and need not be
    let mut bytes = Vec::new();
    file.take(MAX_BOOT_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("read the boot configuration: {}", system_text(&error)))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| format!("the boot configuration is not what protocol::execd::boot says: {error}"))
}

/// A process that answers one file call; started by execd.
fn file_worker() -> Option<Result<u8, String>> {
    let mut args = std::env::args_os().skip(1).filter_map(|arg| arg.into_string().ok());
    (args.next()? == files::WORKER_FLAG).then_some(())?;
    Some(files::run_worker(args.next()?, own_environment()))
}

/// Variables that are text; others cannot be passed on as JSON or expanded.
fn own_environment() -> Environment {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// A daemon beside other processes, started with flags.
fn stand_alone() -> Result<u8, String> {
    let mut env = own_environment();
    let Config { listen, token, grace, entrypoint, jupyter, start_report } =
        config::parse(std::env::args_os().skip(1), &env)?;
    env.extend(jupyter.into_iter().map(|(name, value)| (name.to_owned(), value)));
    let cwd = std::env::current_dir()
        .ok()
        .and_then(|cwd| cwd.into_os_string().into_string().ok())
        .unwrap_or_else(|| "/".into());
    let hooks = env
        .get(hooks::VARIABLE)
        .filter(|text| !text.is_empty())
        .map_or(Ok(Hooks::default()), |text| hooks::parse(text))?;
    let settings = Settings { token, sandbox_id: None, env, cwd, user: None, hooks };
    if !entrypoint.is_empty() && getpid() != Pid::INIT {
        let own = rustix::process::set_child_subreaper(Some(getpid()));
        own.map_err(|error| format!("become the reaper of orphans: {}", system_text(&error.into())))?;
    }
    Loop::start()?.run(settings, move |daemon| async move {
        tokio::task::spawn_local(http::serve(Rc::clone(&daemon), bind(listen).await?));
        hooks::start(&daemon, start_report.as_deref()).await.map_err(io::Error::other)?;
        hooks::start_periodic(&daemon);
        if !entrypoint.is_empty() {
            return Ok(init::run(&daemon, entrypoint, grace, Status(None)).await);
        }
        init::asked_to_end().await?;
        init::end_commands(&daemon, grace).await;
        Ok(0)
    })
}

async fn bind(listen: Listen) -> io::Result<Listener> {
    let context = |address: String| {
        move |error: io::Error| io::Error::new(error.kind(), format!("listen on {address}: {}", system_text(&error)))
    };
    match listen {
        Listen::Unix(path) => UnixListener::bind(&path).map(Listener::Unix).map_err(context(path)),
        Listen::Tcp(host, port) => {
            let listener = TcpListener::bind((host.as_str(), port)).await.map_err(context(format!("{host}:{port}")))?;
            if port == 0 {
                println!("{}", listener.local_addr()?);
            }
            Ok(Listener::Tcp(listener))
        }
    }
}

/// The event loop and its threads, before they have anything to do.
struct Loop(LocalRuntime);

impl Loop {
    fn start() -> Result<Self, String> {
        spawn::raise_open_file_limit();
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        let runtime = runtime.map_err(|error| format!("start the event loop: {}", system_text(&error)))?;
        blocking::start();
        Ok(Self(runtime))
    }

    /// Runs with everything that lives as long as execd.
    fn run<F>(self, settings: Settings, main: impl FnOnce(Rc<Daemon>) -> F) -> Result<u8, String>
    where
        F: Future<Output = io::Result<u8>>,
    {
        self.0.block_on(async {
            let daemon = Daemon::new(settings);
            let daemon = Rc::new(daemon.map_err(|error| format!("prepare standard input: {}", system_text(&error)))?);
            let died = signal(SignalKind::child());
            let died = died.map_err(|error| format!("watch for dead children: {}", system_text(&error)))?;
            tokio::task::spawn_local(Rc::clone(&daemon.reaper).run(died));
            tokio::task::spawn_local(tidy::run());
            tokio::task::spawn_local(resources::watch(Rc::clone(&daemon)));
            let sweeping = Rc::clone(&daemon);
            tokio::task::spawn_local(async move { sweeping.commands.sweep_hourly().await });
            main(daemon).await.map_err(|error| error.to_string())
        })
    }
}
