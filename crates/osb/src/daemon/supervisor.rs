//! `osb server`: the small process that starts the jailer, the egress process and the API process and restarts whichever
//! dies.
//!
//! Owns the listening socket, the lock of the data directory and the children; holds no request and parses no
//! network input. Children get one socket as standard input; everything else comes over it.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use ::egress::Memory;
use runtime_native::gvisor::Runsc;
use runtime_native::jailer::JailerConfig;
use runtime_native::volumes::host::HostPaths;
use runtime_native::wire;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::api::{Boot, FromApi, ToApi};
use super::data_dir::{DataDir, Identity, Published};
use super::egress::{self, Egress};
use super::{embedded, jailer};
use crate::failure::Failure;

/// So many starts in a row that ended before the child was ready end the server: something is wrong that a restart does
/// not mend. A child that was ready is started again however often it is killed.
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
    let runsc = jailer::runsc(&setup.config)?;
    let host_paths = jailer::host_paths(&setup.config, setup.data.root());
    let mut jailer = Jailer::start(setup.data.root(), identity, runsc.as_ref(), &host_paths)?;
    let memory = egress::memory(setup.data.authority_secret()?)?;
    let mut egress = WayOut::start(&memory)?;
    let mut api = Api::start(&setup, identity, &listener, &jailer, &egress)?;
    let (root, config) = (setup.data.root().to_owned(), setup.config.clone());
    tokio::spawn(async move { embedded::sweep(&root, &config).await });
    let mut failed_starts = 0;
    let mut announced = false;

    loop {
        let Jailer { child: jailer_child, voice: jailer_voice, was_ready: jailer_was_ready, .. } = &mut jailer;
        let WayOut { process: egress_process, voice: egress_voice, was_ready: egress_was_ready } = &mut egress;
        let Api { child, voice, was_ready } = &mut api;
        tokio::select! {
            () = stop.requested() => break,
            status = jailer_child.wait() => {
                tracing::warn!(status = %describe(status), "jailer ended, starting another");
                pause_unless(*jailer_was_ready, &mut failed_starts, "jailer").await?;
                jailer = Jailer::start(setup.data.root(), identity, runsc.as_ref(), &host_paths)?;
                api.voice.send(&ToApi::Jailer, &[jailer.socket.as_fd()])?;
            }
            status = egress_process.child.wait() => {
                tracing::warn!(status = %describe(status), "egress process ended, starting another");
                pause_unless(*egress_was_ready, &mut failed_starts, "egress process").await?;
                egress = WayOut::start(&memory)?;
                api.voice.send(&ToApi::Egress, &[egress.process.socket.as_fd()])?;
            }
            status = child.wait() => {
                tracing::warn!(status = %describe(status), "api process ended, starting another");
                pause_unless(*was_ready, &mut failed_starts, "API process").await?;
                api = Api::start(&setup, identity, &listener, &jailer, &egress)?;
            }
            _answer = jailer_voice.next() => {
                *jailer_was_ready = true;
                failed_starts = 0;
            }
            _answer = egress_voice.next() => {
                *egress_was_ready = true;
                failed_starts = 0;
            }
            message = voice.next() => match serde_json::from_slice(&message) {
                Ok(FromApi::Ready) => {
                    *was_ready = true;
                    failed_starts = 0;
                    if !announced {
                        announced = true;
                        setup.data.publish(&published)?;
                        (setup.ready)(&published);
                    }
                }
                Ok(FromApi::Failed { message }) => return Err(Failure::new("START_FAILED", message)),
                Err(error) => tracing::warn!(%error, "the api process said something that is no message"),
            },
        }
    }

    setup.data.unpublish();
    api.stop(setup.graceful + STOP_MARGIN).await;
    let Egress { mut child, socket, .. } = egress.process;
    // Like the jailer it ends by itself when nobody can ask it any more.
    drop(socket);
    if tokio::time::timeout(STOP_MARGIN, child.wait()).await.is_err() {
        tracing::warn!("egress process did not end by itself, killing it");
        // Only fails when it has just ended.
        let _ = child.kill().await;
    }
    jailer.stop().await;
    Ok(ExitCode::SUCCESS)
}

/// The egress process.
struct WayOut {
    process: Egress,
    /// Where it says that it serves. What it says is not read: it has heard sandboxes and the internet.
    voice: Voice,
    /// Whether it has.
    was_ready: bool,
}

impl WayOut {
    fn start(memory: &Memory) -> Result<Self, Failure> {
        let mut process = Egress::start(Identity::of_egress(), memory)?;
        let voice = process.greeting.take().map_or(Ok(Voice(None)), Voice::new)?;
        Ok(Self { process, voice, was_ready: false })
    }
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
    /// Where it answers its first request.
    voice: Voice,
    /// Whether it has answered.
    was_ready: bool,
}

impl Jailer {
    fn start(root: &Path, identity: Identity, runsc: Option<&Runsc>, host_paths: &HostPaths) -> Result<Self, Failure> {
        let (ours, theirs) = wire::pair().map_err(|errno| internal("make the jailer's socket", errno.into()))?;
        let child = jailer::command(root, identity, JailerConfig::DISK_STOCK, runsc, host_paths.clone())?
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(|error| internal("start the jailer", error))?;
        let (answer, reply) = wire::pair().map_err(|errno| internal("make a reply socket", errno.into()))?;
        // Whatever it answers, it is ready then.
        send(ours.as_fd(), &wire::Request::List, &[reply.as_fd()])?;
        Ok(Self { child, socket: ours, voice: Voice::new(answer)?, was_ready: false })
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
    voice: Voice,
    /// Whether it has answered requests.
    was_ready: bool,
}

impl Api {
    fn start(
        setup: &Setup<'_>,
        identity: Identity,
        listener: &TcpListener,
        jailer: &Jailer,
        egress: &WayOut,
    ) -> Result<Self, Failure> {
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
        let fds = [listener.as_fd(), jailer.socket.as_fd(), egress.process.socket.as_fd(), setup.data.lock().as_fd()];
        send(ours.as_fd(), &ToApi::Boot(boot), &fds)?;
        Ok(Self { child, voice: Voice::new(ours)?, was_ready: false })
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

/// A socket on which a child speaks, until it says no more.
struct Voice(Option<AsyncFd<OwnedFd>>);

impl Voice {
    fn new(socket: OwnedFd) -> Result<Self, Failure> {
        let watched = runtime_native::sys::watched(socket).map_err(|error| internal("watch a child", error))?;
        Ok(Self(Some(watched)))
    }

    fn send(&self, message: &ToApi, fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        match &self.0 {
            Some(socket) => send(socket.get_ref().as_fd(), message, fds),
            // It is just being replaced; its successor gets the newest jailer in its first message.
            None => Ok(()),
        }
    }

    /// The next packet. Waits for ever once none can come: a child's end is seen by waiting for the child.
    async fn next(&mut self) -> Vec<u8> {
        while let Some(socket) = &self.0 {
            match next_packet(socket).await {
                Some(packet) => return packet,
                None => self.0 = None,
            }
        }
        std::future::pending().await
    }
}

async fn next_packet(socket: &AsyncFd<OwnedFd>) -> Option<Vec<u8>> {
    loop {
        let mut ready = socket.readable().await.ok()?;
        let mut buffer = Vec::new();
        match wire::receive_bytes(socket.get_ref().as_fd(), &mut buffer, RecvFlags::DONTWAIT) {
            Ok(Some((bytes, _))) => return Some(bytes.to_vec()),
            Ok(None) => return None,
            Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
            Err(_) => return None,
        }
    }
}

/// Sends to a child, which may just have been killed: its end is seen by waiting for it.
fn send(to: BorrowedFd<'_>, message: &impl serde::Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
    match wire::send(to, message, fds, SendFlags::DONTWAIT) {
        Ok(()) | Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Ok(()),
        Err(errno) => Err(internal("send to a child", errno.into())),
    }
}

/// Pauses after a start that failed, longer each time.
///
/// # Errors
/// Too many failed in a row.
async fn pause_unless(was_ready: bool, failed_starts: &mut u32, who: &str) -> Result<(), Failure> {
    if was_ready {
        return Ok(());
    }
    *failed_starts += 1;
    if *failed_starts > MAX_FAILED_STARTS {
        return Err(Failure::new("START_FAILED", format!("the {who} ended {failed_starts} times before it was ready"))
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
