//! `osb server`: the small process that starts the jailer and the API process and restarts whichever dies.
//!
//! Owns the listening socket, the lock of the data directory and both children; holds no request and parses no
//! network input. Children get one socket as standard input; everything else comes over it.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use runtime_native::jailer::JailerConfig;
use runtime_native::wire;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::api::{Boot, FromApi, ToApi};
use super::data_dir::{DataDir, Identity, Published};
use super::{embedded, jailer};
use crate::failure::Failure;

/// A child that lives shorter than this counts as a failed start.
const SHORT_LIFE: Duration = Duration::from_secs(5);
/// So many failed starts in a row end the server: something is wrong that a restart does not mend.
const MAX_FAILED_STARTS: u32 = 5;
/// Pause before a restart after a failed start, times the number of failures: spares the machine.
const RESTART_PAUSE: Duration = Duration::from_millis(200);
/// How long the API process has beyond its own graceful time before it is killed.
const STOP_MARGIN: Duration = Duration::from_secs(5);

/// What the supervisor needs to know.
pub struct Setup<'a> {
    /// The data directory, locked.
    pub data: DataDir,
    /// Where to listen.
    pub address: SocketAddr,
    /// Arguments with which the API process finds the same configuration.
    pub api_arguments: Vec<std::ffi::OsString>,
    /// The API key.
    pub api_key: String,
    /// The configuration in force.
    pub config: server::Config,
    /// How long the API process lets streams finish after a stop.
    pub graceful: Duration,
    /// Called once the server answers, with its address.
    pub ready: &'a dyn Fn(&Published),
}

/// Runs until a signal stops it.
///
/// # Errors
/// When the address is taken, or a child cannot be kept alive.
pub fn run(setup: Setup<'_>) -> Result<ExitCode, Failure> {
    let listener = TcpListener::bind(setup.address).map_err(|error| {
        Failure::new("LISTEN_FAILED", format!("listen on {}: {error}", setup.address))
            .hint("another program may use the port: choose one with --port, or 0 for any free one")
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new("START_FAILED", format!("start the event loop: {error}")))?;
    runtime.block_on(supervise(setup, listener))
}

async fn supervise(setup: Setup<'_>, listener: TcpListener) -> Result<ExitCode, Failure> {
    let address = listener.local_addr().map_err(|error| internal("read the listening address", error))?;
    let identity = Identity::of_api();
    let published = Published { url: format!("http://{address}"), pid: std::process::id() };
    let mut stop = Stop::new()?;
    let mut jailer = Jailer::start(setup.data.root(), identity)?;
    let mut api = Api::start(&setup, identity, &listener, &jailer)?;
    let (root, config) = (setup.data.root().to_owned(), setup.config.clone());
    tokio::spawn(async move { embedded::sweep(&root, &config).await });
    let mut failed_starts = 0;
    let mut announced = false;

    loop {
        let Api { child, control, .. } = &mut api;
        tokio::select! {
            () = stop.requested() => break,
            status = jailer.child.wait() => {
                tracing::warn!(status = %describe(status), "jailer ended, starting another");
                pause_if_short(jailer.started, &mut failed_starts, "jailer").await?;
                jailer = Jailer::start(setup.data.root(), identity)?;
                api.control.send(&ToApi::Jailer, &[jailer.socket.as_fd()])?;
            }
            status = child.wait() => {
                tracing::warn!(status = %describe(status), "api process ended, starting another");
                pause_if_short(api.started, &mut failed_starts, "API process").await?;
                api = Api::start(&setup, identity, &listener, &jailer)?;
            }
            message = control.receive() => match message {
                Some(FromApi::Ready) => {
                    failed_starts = 0;
                    if !announced {
                        announced = true;
                        setup.data.publish(&published)?;
                        (setup.ready)(&published);
                    }
                }
                Some(FromApi::Failed { message }) => {
                    return Err(Failure::new("START_FAILED", message));
                }
                // Its end is seen by `wait`.
                None => tokio::time::sleep(RESTART_PAUSE).await,
            },
        }
    }

    setup.data.unpublish();
    api.stop(setup.graceful + STOP_MARGIN).await;
    jailer.stop().await;
    Ok(ExitCode::SUCCESS)
}

/// INT and TERM.
struct Stop {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Stop {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| internal("listen for signals", error));
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    async fn requested(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

struct Jailer {
    child: Child,
    /// The server's end; kept, so that a restarted API process finds the same jailer.
    socket: OwnedFd,
    started: Instant,
}

impl Jailer {
    fn start(root: &Path, identity: Identity) -> Result<Self, Failure> {
        let (ours, theirs) = wire::pair().map_err(|errno| internal("make the jailer's socket", errno.into()))?;
        let child = jailer::command(root, identity, JailerConfig::DISK_STOCK)?
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(|error| internal("start the jailer", error))?;
        Ok(Self { child, socket: ours, started: Instant::now() })
    }

    async fn stop(mut self) {
        // Its end of the socket closes with ours; it then ends by itself.
        drop(self.socket);
        if tokio::time::timeout(STOP_MARGIN, self.child.wait()).await.is_err() {
            tracing::warn!("jailer did not end by itself, killing it");
            // Only fails when it has just ended.
            let _ = self.child.kill().await;
        }
    }
}

struct Api {
    child: Child,
    control: Control,
    started: Instant,
}

impl Api {
    fn start(setup: &Setup<'_>, identity: Identity, listener: &TcpListener, jailer: &Jailer) -> Result<Self, Failure> {
        let (ours, theirs) = wire::pair().map_err(|errno| internal("make the control socket", errno.into()))?;
        let program = std::env::current_exe().map_err(|error| internal("find this program", error))?;
        let child = Command::new(program)
            .arg("api-server")
            .args(&setup.api_arguments)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::inherit())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| internal("start the API process", error))?;
        let boot = Boot {
            api_key: setup.api_key.clone(),
            secret: setup.data.secret()?,
            data_dir: setup.data.root().to_owned(),
            run_as: match identity {
                Identity::Same => None,
                Identity::Own { id } => Some(id),
            },
        };
        let fds = [listener.as_fd(), jailer.socket.as_fd(), setup.data.lock().as_fd()];
        wire::send(ours.as_fd(), &ToApi::Boot(boot), &fds, SendFlags::empty())
            .map_err(|errno| internal("hand over to the API process", errno.into()))?;
        let control = runtime_native::sys::watched(ours).map_err(|error| internal("watch the API process", error))?;
        Ok(Self { child, control: Control(control), started: Instant::now() })
    }

    async fn stop(mut self, within: Duration) {
        if let Some(pid) = self.child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
            // Only fails when it has just ended.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(within, self.child.wait()).await.is_err() {
            tracing::warn!("api process did not end in time, killing it");
            // Only fails when it has just ended.
            let _ = self.child.kill().await;
        }
    }
}

/// The socket on which the supervisor and the API process speak.
struct Control(AsyncFd<OwnedFd>);

impl Control {
    fn send(&self, message: &ToApi, fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        match wire::send(self.0.get_ref().as_fd(), message, fds, SendFlags::DONTWAIT) {
            // It is just being replaced; its successor gets the newest jailer in its first message.
            Ok(()) | Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Ok(()),
            Err(errno) => Err(internal("hand a jailer to the API process", errno.into())),
        }
    }

    /// The next message; `None` when the process is gone or speaks nonsense.
    async fn receive(&self) -> Option<FromApi> {
        loop {
            let mut ready = self.0.readable().await.ok()?;
            let mut buffer = Vec::new();
            match wire::receive_bytes(self.0.get_ref().as_fd(), &mut buffer, RecvFlags::DONTWAIT) {
                Ok(Some((bytes, _))) => return serde_json::from_slice(bytes).ok(),
                Ok(None) => return None,
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(_) => return None,
            }
        }
    }
}

async fn pause_if_short(started: Instant, failed_starts: &mut u32, who: &str) -> Result<(), Failure> {
    if started.elapsed() >= SHORT_LIFE {
        *failed_starts = 0;
        return Ok(());
    }
    *failed_starts += 1;
    if *failed_starts > MAX_FAILED_STARTS {
        return Err(Failure::new(
            "START_FAILED",
            format!("the {who} ended {failed_starts} times right after its start"),
        )
        .hint("the log above says why"));
    }
    if *failed_starts > 1 {
        tokio::time::sleep(RESTART_PAUSE * (*failed_starts - 1)).await;
    }
    Ok(())
}

fn describe(status: std::io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}

fn internal(operation: &str, error: std::io::Error) -> Failure {
    Failure::new("START_FAILED", format!("{operation}: {error}"))
}
