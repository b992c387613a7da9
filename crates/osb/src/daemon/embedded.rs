//! A server inside this process, for `osb run` where none runs: rows in memory, sandboxes that end with it.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::time::Duration;

use lifecycle::runtime::Runtime;
use runtime_native::volumes::host::HostPaths;
use runtime_native::wire;
use secrecy::SecretString;
use server::config::Sources;
use server::{Config, Database, Options};
use tokio::process::Child;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::data_dir::{self, Identity};
use super::egress::{self, Egress};
use super::{api, jailer};
use crate::engine::{Engine, Guard};
use crate::failure::Failure;
use crate::server_cmd::with_causes;

/// Disks made beforehand: an engine of one command makes one sandbox.
const DISK_STOCK: usize = 1;
/// How long the jailer and the egress process have to end by themselves.
const CHILD_END: Duration = Duration::from_secs(5);

struct Embedded {
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<(), server::Error>>,
    jailer: Child,
    /// The jailer ends when nobody holds its socket any more.
    jailer_socket: OwnedFd,
    egress: Child,
    /// The sandboxes' lease: it ends when this is closed, also by the kernel.
    _lease: std::io::PipeWriter,
    /// Its own directory, removed in order.
    part: PathBuf,
    _lock: File,
}

impl Guard for Embedded {
    fn stop(mut self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            // Its receiver is gone when the server has ended by itself.
            let _ = self.stop.send(());
            if let Err(error) = self.server.await {
                tracing::warn!(error = %error, "embedded server failed");
            }
            end(&mut self.egress, "egress process").await;
            // Last: where it has a cgroup delegated, it gives that back when nobody of ours is in it any more.
            drop(self.jailer_socket);
            end(&mut self.jailer, "jailer").await;
            if let Err(error) = std::fs::remove_dir_all(&self.part) {
                tracing::warn!(path = %self.part.display(), error = %error, "engine directory stays, the next engine removes it");
            }
        })
    }
}

/// Waits for a child that ends by itself.
async fn end(child: &mut Child, name: &str) {
    if tokio::time::timeout(CHILD_END, child.wait()).await.is_err() {
        tracing::warn!("{name} did not end by itself, killing it");
        // Only fails when it has just ended.
        let _ = child.kill().await;
    }
}

/// Starts a server on an ephemeral loopback port. Images are shared with the server of the same data directory.
///
/// `host_paths` are what its sandboxes may mount of this machine: who starts it owns them, and nothing else is allowed.
///
/// # Errors
/// When the machine cannot run sandboxes, with what is missing.
pub async fn start(host_paths: Vec<String>) -> Result<Engine, Failure> {
    let root = data_dir::locate()?;
    let (mut config, _) =
        server::config::load(&Sources::default()).map_err(|error| Failure::new("CONFIG", with_causes(&error)))?;
    config.storage.allowed_host_paths = host_paths;
    let (part, lock) = data_dir::make_embedded(&root)?;
    let (ours, theirs) = wire::pair().map_err(|errno| failed("make the jailer's socket", errno.into()))?;
    let runsc = jailer::runsc(&config)?;
    let jailer =
        jailer::command(&part, Identity::Same, DISK_STOCK, runsc.as_ref(), jailer::host_paths(&config, &root))?
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(|error| failed("start the jailer", error))?;
    let jailer_socket = ours.try_clone().map_err(|error| failed("keep the jailer's socket", error))?;
    let Egress { child: egress, socket, .. } =
        Egress::start(Identity::of_egress(), &egress::memory(data_dir::random())?)?;
    let way_out = api::egress_control(socket)?;
    // Nobody restarts it here: the sandboxes of a command whose egress process died reach nothing more.
    let (_, restarts) = watch::channel(0);
    let (lease, writer) = std::io::pipe().map_err(|error| failed("make the lease", error))?;
    let (runtime, images) = api::runtime(&config, &part, api::client(ours)?, Some(lease.into())).await?;

    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .map_err(|error| failed("listen on loopback", error))?;
    let address = listener.local_addr().map_err(|error| failed("read the listening address", error))?;
    let listener = api::listen(listener)?;
    let key = data_dir::random_key();
    let options = Options {
        config,
        api_key: SecretString::from(key.clone()),
        secret: data_dir::random(),
        database: Database::Memory,
        leased: true,
        egress: Some(server::Egress { control: way_out, restarts }),
    };
    let (stop, stopped) = oneshot::channel();
    let swept = options.config.clone();
    tokio::spawn(async move { sweep(&root, &swept).await });
    let server = tokio::spawn(async move {
        let stop = async move {
            // Either a stop or the end of the guard, which means the same.
            let _ = stopped.await;
        };
        server::serve(options, runtime, Some(images), listener, stop).await
    });
    let guard = Box::new(Embedded { stop, server, jailer, jailer_socket, egress, _lease: writer, part, _lock: lock });
    Ok(Engine { url: format!("http://{address}"), key, guard })
}

/// Removes what engines left behind that were killed: their sandboxes end with them, a monitor that was killed too
/// leaves its own.
pub async fn sweep(root: &Path, config: &Config) {
    let stale = data_dir::stale_engines(root).unwrap_or_else(|error| {
        tracing::warn!(error = %error, "engines cannot be listed");
        Vec::new()
    });
    for (part, _lock) in stale {
        if let Err(failure) = remove_engine(&part, config).await {
            tracing::warn!(path = %part.display(), error = %failure, "a killed engine's directory stays");
        }
    }
}

async fn remove_engine(part: &Path, config: &Config) -> Result<(), Failure> {
    // The shared images are left alone: files that this process made there would belong to the wrong user.
    let _ = std::fs::remove_file(part.join("images"));
    let (ours, theirs) = wire::pair().map_err(|errno| failed("make the jailer's socket", errno.into()))?;
    let mut jailer = jailer::command(part, Identity::Same, 0, None, HostPaths::default())?
        .stdin(Stdio::from(theirs))
        .spawn()
        .map_err(|error| failed("start the jailer", error))?;
    let (runtime, images) = api::runtime(config, part, api::client(ours)?, None).await?;
    let error = |error: lifecycle::runtime::RuntimeError| Failure::new("ENGINE_FAILED", error.message);
    for id in runtime.list().await.map_err(error)? {
        runtime.destroy(&id, Duration::ZERO).await.map_err(error)?;
    }
    // The jailer ends when nobody holds the other end of its socket.
    drop((runtime, images));
    jailer.wait().await.map_err(|error| failed("wait for the jailer", error))?;
    std::fs::remove_dir_all(part).map_err(|error| failed("remove the engine's directory", error))
}

fn failed(operation: &str, error: std::io::Error) -> Failure {
    Failure::new("ENGINE_FAILED", format!("{operation}: {error}"))
}
