//! `osb jailer`: the single-threaded process that makes sandboxes. Started by the server, never by people.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use runtime_native::gvisor::Runsc;
use runtime_native::jailer::{JailerConfig, ServerIds};
use runtime_native::volumes::host::HostPaths;
use server::Config;
use server::config::SecureRuntime;
use tokio::process::Command;

use super::data_dir::Identity;
use crate::execd::EXECD;
use crate::failure::Failure;

/// A command that starts a jailer; its standard input must become the request socket. Nothing secret is in its
/// arguments, and its environment is empty but for the search path of the few programs that it runs.
pub fn command(
    data_dir: &Path,
    api: Identity,
    disk_stock: usize,
    runsc: Option<&Runsc>,
    host_paths: HostPaths,
) -> Result<Command, Failure> {
    let program =
        std::env::current_exe().map_err(|error| Failure::new("START_FAILED", format!("find this program: {error}")))?;
    let mut config = JailerConfig::new(data_dir);
    config.disk_stock = disk_stock;
    config.runsc = runsc.cloned();
    config.host_paths = host_paths;
    if let Identity::Own { id } = api {
        config.server = Some(ServerIds { uid: id, gid: id });
    }
    let mut command = Command::new(program);
    command.arg("jailer").arg(serde_json::to_string(&config).expect("paths and numbers serialize"));
    command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    Ok(command)
}

/// What sandboxes may mount of this machine: what the operator allows, and never what belongs to an installation.
pub fn host_paths(config: &Config, root: &Path) -> HostPaths {
    HostPaths { allowed: config.storage.allowed_host_paths.clone(), hidden: vec![root.to_owned()] }
}

/// The gVisor on which sandboxes are to run, if they are to.
///
/// # Errors
/// It is not there or cannot be used, with what to do.
pub fn runsc(config: &Config) -> Result<Option<Runsc>, Failure> {
    match config.secure_runtime {
        SecureRuntime::None => Ok(None),
        SecureRuntime::Gvisor => Runsc::find().map(Some).map_err(|failure| {
            Failure::new("START_FAILED", format!("secure_runtime.type is gvisor: {}", failure.message))
                .hint("`osb doctor` shows what is missing")
        }),
    }
}

/// Runs the jailer on the request socket that is its standard input. Called before any thread exists.
pub fn run(settings: &str) -> ExitCode {
    let socket = take_standard_input();
    let (socket, config) = match (socket, serde_json::from_str::<JailerConfig>(settings)) {
        (Ok(socket), Ok(config)) => (socket, config),
        _ => {
            eprintln!("osb jailer: it is started by `osb server`, not by hand");
            return ExitCode::FAILURE;
        }
    };
    runtime_native::jailer::main(socket, config, EXECD)
}

/// The socket that is standard input, which becomes `/dev/null`: the jailer's children keep standard input, and whoever
/// holds this socket open would hide the jailer's death from the server.
fn take_standard_input() -> std::io::Result<OwnedFd> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(socket)
}
