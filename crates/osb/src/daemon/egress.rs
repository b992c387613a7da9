//! `osb egress-proxy`: the process through which everything leaves sandboxes. Started by the server, never by people.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{ExitCode, Stdio};

use egress::{Boot, Memory};
use tokio::process::{Child, Command};

use super::data_dir::Identity;
use crate::failure::Failure;

/// A running egress process and the way to ask it.
pub struct Egress {
    /// The process.
    pub child: Child,
    /// Its control socket; whoever asks gets a duplicate. It ends when nobody holds one any more.
    pub socket: OwnedFd,
    /// Where it says something once it serves; nothing ever comes if it was gone at once.
    pub greeting: Option<OwnedFd>,
}

impl Egress {
    /// Starts it with an id of its own, where the caller can give it one, and with what the one before has left in
    /// `memory`. Nothing secret is in its arguments, and its environment is empty.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(identity: Identity, memory: &Memory) -> Result<Self, Failure> {
        let failed = |what: &str, error: std::io::Error| Failure::new("START_FAILED", format!("{what}: {error}"));
        let (ours, theirs) = egress::pair().map_err(|error| failed("make the egress process's socket", error))?;
        let program = std::env::current_exe().map_err(|error| failed("find this program", error))?;
        let child = Command::new(program)
            .arg("egress-proxy")
            .env_clear()
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(|error| failed("start the egress process", error))?;
        let run_as = match identity {
            Identity::Same => None,
            Identity::Own { id } => Some(id),
        };
        // If it is gone already, its end is seen by waiting for it.
        let _ = egress::boot(ours.as_fd(), &Boot { run_as }, Some(memory));
        let greeting = egress::greet(ours.as_fd()).ok();
        Ok(Self { child, socket: ours, greeting })
    }
}

/// Where egress processes keep their secrets, sealed. Its maker holds it for as long as it starts them. The keys of
/// authorities follow from `secret`: with the same one they are the same for a sandbox that outlives the memory.
///
/// # Errors
/// It cannot be made.
pub fn memory(secret: [u8; 32]) -> Result<Memory, Failure> {
    let memory = Memory::new().map(|memory| memory.for_authorities(secret));
    memory.map_err(|error| Failure::new("START_FAILED", format!("make the memory of secrets: {error}")))
}

/// Runs the egress process on the control socket that is its standard input. Called before any thread exists.
pub fn run() -> ExitCode {
    let control = std::io::stdin().as_fd().try_clone_to_owned();
    let null = std::fs::File::open("/dev/null").and_then(|null| Ok(rustix::stdio::dup2_stdin(&null)?));
    match (control, null) {
        (Ok(control), Ok(())) => {
            telemetry::init(telemetry::Level::Info);
            egress::run(control)
        }
        _ => {
            eprintln!("osb egress-proxy: it is started by `osb server`, not by hand");
            ExitCode::FAILURE
        }
    }
}
