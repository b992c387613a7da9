//! The API process: takes its sockets and secrets over standard input, becomes somebody without rights, serves.

use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use runtime_native::{Client, NativeRuntime, Settings, wire};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::thread::{Gid, Uid};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use server::{Config, Database, Options};
use tokio::sync::watch;

use crate::cli::Global;
use crate::failure::Failure;
use crate::server_cmd::{self, ServerArgs, with_causes};

/// What the supervisor tells the API process. Crosses an inherited socket only.
#[derive(Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum ToApi {
    /// The first message. Descriptors: listener, jailer, egress process, lock of the data directory.
    Boot(Boot),
    /// Another jailer took over. Descriptor: the socket to it.
    Jailer,
    /// Another egress process took over. Descriptor: the socket to it.
    Egress,
}

/// What the API process says back.
#[derive(Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum FromApi {
    /// It answers requests.
    Ready,
    /// It cannot start, and a restart would not help.
    Failed {
        /// Why.
        message: String,
    },
}

/// Everything of the first message.
#[derive(Serialize, Deserialize)]
pub struct Boot {
    /// The API key.
    pub api_key: String,
    /// The secret from which tokens are derived.
    pub secret: [u8; 32],
    /// The data directory.
    pub data_dir: PathBuf,
    /// User and group id to become; `None` stays who it is.
    pub run_as: Option<u32>,
}

/// Runs the API process. Called before any thread exists; ends when the supervisor does.
pub fn run(args: &ServerArgs, global: &Global) -> ExitCode {
    let control = match std::io::stdin().as_fd().try_clone_to_owned() {
        Ok(control) => control,
        Err(error) => {
            eprintln!("osb api-server: {error}; it is started by `osb server`, not by hand");
            return ExitCode::FAILURE;
        }
    };
    match start(args, global, control.as_fd()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let message = FromApi::Failed { message: failure.message.clone() };
            if wire::send(control.as_fd(), &message, &[], SendFlags::empty()).is_err() {
                eprintln!("osb api-server: {failure}; it is started by `osb server`, not by hand");
            }
            ExitCode::FAILURE
        }
    }
}

fn start(args: &ServerArgs, global: &Global, control: std::os::fd::BorrowedFd<'_>) -> Result<(), Failure> {
    let mut buffer = Vec::new();
    let received =
        wire::receive_bytes(control, &mut buffer, RecvFlags::empty()).map_err(|errno| lost("receive", errno))?;
    let (bytes, fds) = received.ok_or_else(|| lost("receive", Errno::PIPE))?;
    let Ok(ToApi::Boot(boot)) = serde_json::from_slice(bytes) else {
        return Err(lost("read the first message", Errno::PROTO));
    };
    let Ok([listener, jailer, egress, lock]) = <[OwnedFd; 4]>::try_from(fds) else {
        return Err(lost("take the descriptors of the first message", Errno::PROTO));
    };
    // The file may be readable for root only, so it is read before rights are given up.
    let (config, _) = server_cmd::load(args, global)?;
    if let Some(id) = boot.run_as {
        become_nobody(id).map_err(|errno| Failure::new("START_FAILED", format!("become user {id}: {errno}")))?;
    }
    raise_open_files();
    telemetry::init(config.log.level.parse().unwrap_or(telemetry::Level::Info));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new("START_FAILED", format!("start the event loop: {error}")))?;
    // Held by this process too: a successor waits until both are gone.
    let _lock = lock;
    let control = control.try_clone_to_owned().map_err(|error| Failure::new("START_FAILED", error.to_string()))?;
    runtime.block_on(serve(config, boot, TcpListener::from(listener), Processes { jailer, egress }, control))
}

/// Takes all the descriptors that it may have: four sockets of each sandbox are kept, and most machines allow a process
/// 1,024 unless it asks.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::Nofile).maximum;
    // Up to its own upper limit nobody is refused.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
}

/// Gives up every right for good: no groups, an id of its own, no capability, nothing to gain by exec.
fn become_nobody(id: u32) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    rustix::thread::set_no_new_privs(true)
}

/// The sockets to the processes that the API process asks.
struct Processes {
    jailer: OwnedFd,
    egress: OwnedFd,
}

async fn serve(
    config: Config,
    boot: Boot,
    listener: TcpListener,
    processes: Processes,
    control: OwnedFd,
) -> Result<(), Failure> {
    let jailer = client(processes.jailer)?;
    let way_out = egress_control(processes.egress)?;
    let (restarted, restarts) = watch::channel(0);
    let ready = control.try_clone().map_err(|error| Failure::new("START_FAILED", error.to_string()))?;
    let mut stop = Box::pin(stopped(control, jailer.clone(), way_out.clone(), restarted));
    let (runtime, images) = tokio::select! {
        connected = runtime(&config, &boot.data_dir, jailer, None) => connected?,
        // Also takes in the successor of a jailer that died before it had answered.
        () = &mut stop => return Ok(()),
    };
    let options = Options {
        database: Database::File(config.store.path.clone().unwrap_or_else(|| boot.data_dir.join("server/osb.db"))),
        config,
        api_key: SecretString::from(boot.api_key),
        secret: boot.secret,
        leased: false,
        egress: Some(server::Egress { control: way_out, restarts }),
    };
    let listener = listen(listener)?;
    wire::send(ready.as_fd(), &FromApi::Ready, &[], SendFlags::empty())
        .map_err(|errno| lost("say that it is ready", errno))?;
    drop(ready);
    server::serve(options, runtime, Some(images), listener, stop)
        .await
        .map_err(|error| Failure::new("START_FAILED", with_causes(&error)))
}

/// Asks the jailer over this socket, until it is given another.
///
/// # Errors
/// When the socket cannot be watched.
pub fn client(jailer: OwnedFd) -> Result<Client, Failure> {
    Client::new(jailer).map_err(|failure| Failure::new("START_FAILED", failure.message))
}

/// Asks the egress process over this socket, until it is given another.
///
/// # Errors
/// When the socket cannot be watched.
pub fn egress_control(socket: OwnedFd) -> Result<egress::Control, Failure> {
    let control = egress::Control::new(socket);
    control.map_err(|error| Failure::new("START_FAILED", format!("watch the egress process: {error}")))
}

/// The native runtime and the image store that it draws from.
///
/// # Errors
/// When the jailer does not answer, or the store cannot be opened.
pub async fn runtime(
    config: &Config,
    data_dir: &Path,
    jailer: Client,
    lease: Option<OwnedFd>,
) -> Result<(Arc<NativeRuntime>, image::Store), Failure> {
    let settings = Settings {
        data_dir: data_dir.to_owned(),
        images_dir: data_dir.join("images"),
        plain_http_hosts: config.images.plain_http_hosts.clone(),
        grace: config.native.grace,
        lease,
    };
    let runtime = NativeRuntime::connect(jailer, settings).await;
    let runtime = runtime
        .map_err(|failure| Failure::new("START_FAILED", failure.message).hint("`osb doctor` shows what is missing"))?;
    let images = runtime.images().clone();
    Ok((Arc::new(runtime), images))
}

/// Makes the supervisor's listener ours.
pub fn listen(listener: TcpListener) -> Result<tokio::net::TcpListener, Failure> {
    listener
        .set_nonblocking(true)
        .and_then(|()| tokio::net::TcpListener::from_std(listener))
        .map_err(|error| Failure::new("START_FAILED", format!("watch the listening socket: {error}")))
}

/// Waits for TERM, or for the end of the supervisor; takes new jailers and egress processes in meanwhile.
async fn stopped(control: OwnedFd, jailer: Client, way_out: egress::Control, restarted: watch::Sender<u64>) {
    let Ok(control) = runtime_native::sys::watched(control) else { return };
    let Ok(mut terminate) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) else { return };
    // At a terminal Ctrl-C reaches every process of the group; the supervisor decides what it means.
    let Ok(mut interrupt) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt()) else { return };
    let mut buffer = Vec::new();
    loop {
        let mut ready = tokio::select! {
            _ = terminate.recv() => return,
            _ = interrupt.recv() => continue,
            ready = control.readable() => match ready {
                Ok(ready) => ready,
                Err(_) => return,
            },
        };
        match wire::receive_bytes(control.get_ref().as_fd(), &mut buffer, RecvFlags::DONTWAIT) {
            Ok(Some((bytes, mut fds))) => {
                let Some(socket) = fds.pop() else { continue };
                match serde_json::from_slice(bytes) {
                    Ok(ToApi::Jailer) => {
                        tracing::info!("another jailer took over");
                        if let Err(error) = jailer.replace(socket) {
                            tracing::error!(%error, "new jailer cannot be used");
                        }
                    }
                    Ok(ToApi::Egress) => {
                        tracing::info!("another egress process took over");
                        if let Err(error) = way_out.replace(socket) {
                            tracing::error!(%error, "new egress process cannot be used");
                        }
                        restarted.send_modify(|count| *count += 1);
                    }
                    _ => {}
                }
            }
            Err(Errno::AGAIN) => ready.clear_ready(),
            Ok(None) | Err(_) => return,
        }
    }
}

fn lost(operation: &str, errno: Errno) -> Failure {
    Failure::new("START_FAILED", format!("{operation}: {errno}"))
}
