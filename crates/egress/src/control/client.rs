//! The server's side: asks the egress process.

use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::packet::{self, Socket};
use super::{Demands, Events, Failure, Operation, Reply, Request, Settings, Stats, Taping};
use crate::policy::Source;
use crate::sandbox::Listeners;
use crate::sealed::Secret;
use crate::secrets::{Expected, Shown};

/// How long an answer may take, the wait for a new process included. The slowest is a detach, which waits for tasks.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often a request is put again to a new process. Requests are idempotent, so this is safe; a process that dies of
/// the request itself must not take it for ever.
const ATTEMPTS: u32 = 3;
/// Longest description of a vault; all that are made fit.
const SHOWN_BYTES: u64 = 64 * 1024 * 1024;

/// Why a request has no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The egress process says that it cannot be done.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// There is no egress process, or it does not answer in time.
    #[error("the egress process does not answer; see the server's log")]
    Gone,
    /// The request could not be made.
    #[error("ask the egress process")]
    System(#[from] io::Error),
}

/// What some sandboxes are attached with beside the rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside<'a> {
    /// What it should have of credentials, and the authority that its programs trust.
    pub credentials: Option<&'a Expected>,
    /// A recording, and what is done with it.
    pub recording: Option<(Taping, BorrowedFd<'a>)>,
}

impl<'a> Beside<'a> {
    /// Credentials, and no recording.
    pub fn credentials(expected: &'a Expected) -> Self {
        Self { credentials: Some(expected), recording: None }
    }
}

/// Asks the egress process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Control {
    socket: Arc<watch::Sender<Arc<Socket>>>,
}

impl Control {
    /// Asks over this socket. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When it cannot be watched.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: Arc::new(watch::Sender::new(Arc::new(Socket::new(socket)?))) })
    }

    /// Asks another process from now on; requests that wait are put again to it. It knows no sandbox: attach them.
    ///
    /// # Errors
    /// When the socket cannot be watched.
    pub fn replace(&self, socket: OwnedFd) -> io::Result<()> {
        self.socket.send_replace(Arc::new(Socket::new(socket)?));
        Ok(())
    }

    /// Sets resolvers, the range of names, and limits.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn configure(&self, settings: Settings) -> Result<(), ControlError> {
        self.ask(&Request::Configure { settings }, &[]).await.map(|_| ())
    }

    /// Serves a sandbox, in place of whatever is attached by that id. `names` must be open for reading and writing. One
    /// that may have credentials comes with what it should have: what is not there any more is lost, and its hosts closed.
    ///
    /// # Errors
    /// When the policy or a socket is not what it should be, or the recording cannot be used.
    pub async fn attach(
        &self,
        sandbox: &str,
        listeners: &Listeners,
        names: BorrowedFd<'_>,
        revision: u64,
        policy: &Source,
        beside: Beside<'_>,
    ) -> Result<(), ControlError> {
        let policy = json_file("policy", policy)?;
        let expected = beside.credentials.map(|expected| json_file("credentials", expected)).transpose()?;
        let [tcp4, tcp6, udp4, udp6] = listeners.as_fds();
        let mut fds = vec![tcp4, tcp6, udp4, udp6, names, policy.as_fd()];
        fds.extend(expected.as_ref().map(AsFd::as_fd));
        fds.extend(beside.recording.map(|(_, file)| file));
        let taping = beside.recording.map(|(taping, _)| taping);
        self.ask(&Request::Attach { sandbox: sandbox.to_owned(), revision, taping }, &fds).await.map(|_| ())
    }

    /// Puts another policy in force; says how many connections it cut.
    ///
    /// # Errors
    /// When the sandbox is not attached, or a newer policy is in force.
    pub async fn set_policy(&self, sandbox: &str, revision: u64, policy: &Source) -> Result<usize, ControlError> {
        let policy = json_file("policy", policy)?;
        let request = Request::SetPolicy { sandbox: sandbox.to_owned(), revision };
        match self.ask(&request, &[policy.as_fd()]).await? {
            (Reply::PolicySet { cut }, _) => Ok(cut),
            other => Err(unexpected(&other.0)),
        }
    }

    /// Serves a sandbox no more. Its sockets are closed over there when this returns.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn detach(&self, sandbox: &str) -> Result<(), ControlError> {
        self.ask(&Request::Detach { sandbox: sandbox.to_owned() }, &[]).await.map(|_| ())
    }

    /// Takes duplicates of an attached sandbox's sockets: a server that starts again gets back what it has lost.
    ///
    /// # Errors
    /// When the sandbox is not attached.
    pub async fn listeners(&self, sandbox: &str) -> Result<Listeners, ControlError> {
        let (reply, fds) = self.ask(&Request::Listeners { sandbox: sandbox.to_owned() }, &[]).await?;
        match <[OwnedFd; 4]>::try_from(fds) {
            Ok(fds) => Ok(Listeners::from_array(fds)),
            Err(_) => Err(unexpected(&reply)),
        }
    }

    /// PEM of a sandbox's authority, which is made if there is none. To be asked before the sandbox is made.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn authority(&self, sandbox: &str) -> Result<String, ControlError> {
        match self.ask(&Request::Authority { sandbox: sandbox.to_owned() }, &[]).await? {
            (Reply::Authority { certificate_pem }, _) => Ok(certificate_pem),
            other => Err(unexpected(&other.0)),
        }
    }

    /// Fills the vault of an attached sandbox, once for each operation. `body` is the request as it came.
    ///
    /// # Errors
    /// When the sandbox is not attached, or its vault is not filled.
    pub async fn create_vault(
        &self,
        sandbox: &str,
        operation: Operation,
        body: &Secret,
        demands: Demands,
    ) -> Result<Shown, ControlError> {
        self.ask_with(body, &Request::CreateVault { sandbox: sandbox.to_owned(), operation, demands }).await
    }

    /// Changes the vault of an attached sandbox, once for each operation. `body` is the request as it came.
    ///
    /// # Errors
    /// When the sandbox is not attached, or its vault is not changed.
    pub async fn patch_vault(
        &self,
        sandbox: &str,
        operation: Operation,
        body: &Secret,
        demands: Demands,
    ) -> Result<Shown, ControlError> {
        self.ask_with(body, &Request::PatchVault { sandbox: sandbox.to_owned(), operation, demands }).await
    }

    /// Asks for a change of a vault whose values are in `body`, which is overwritten when it has been read.
    async fn ask_with(&self, body: &Secret, request: &Request) -> Result<Shown, ControlError> {
        let body = Overwritten::new(body)?;
        shown(self.ask(request, &[body.0.as_fd()]).await?)
    }

    /// Empties a sandbox's vault, once for each operation.
    ///
    /// # Errors
    /// When there is none.
    pub async fn delete_vault(&self, sandbox: &str, operation: Operation) -> Result<(), ControlError> {
        let request = Request::DeleteVault { sandbox: sandbox.to_owned(), operation };
        self.ask(&request, &[]).await.map(|_| ())
    }

    /// What a sandbox's vault holds, without any value.
    ///
    /// # Errors
    /// When there is none.
    pub async fn vault(&self, sandbox: &str) -> Result<Shown, ControlError> {
        shown(self.ask(&Request::Vault { sandbox: sandbox.to_owned() }, &[]).await?)
    }

    /// Forgets a sandbox's authority and vault.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn forget(&self, sandbox: &str) -> Result<(), ControlError> {
        self.ask(&Request::Forget { sandbox: sandbox.to_owned() }, &[]).await.map(|_| ())
    }

    /// Up to [`super::EVENTS_PER_PACKET`] events of a sandbox after a sequence, oldest first.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn verdicts(&self, sandbox: &str, after: u64) -> Result<Events, ControlError> {
        match self.ask(&Request::Verdicts { sandbox: sandbox.to_owned(), after }, &[]).await? {
            (Reply::Events(events), _) => Ok(events),
            other => Err(unexpected(&other.0)),
        }
    }

    /// What there is.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn stats(&self) -> Result<Stats, ControlError> {
        match self.ask(&Request::Stats, &[]).await? {
            (Reply::Stats(stats), _) => Ok(stats),
            other => Err(unexpected(&other.0)),
        }
    }

    /// Events of one sandbox, or of all, as they happen, until this process or that one ends.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub async fn watch(&self, sandbox: Option<&str>, after: u64) -> Result<Watch, ControlError> {
        let socket = self.socket.borrow().clone();
        let (ours, theirs) = packet::pair()?;
        let request = Request::Watch { sandbox: sandbox.map(str::to_owned), after };
        socket.send(&request, &[theirs.as_fd()]).await.map_err(|_| ControlError::Gone)?;
        Ok(Watch(Socket::new(ours)?))
    }

    async fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>), ControlError> {
        match tokio::time::timeout(DEADLINE, self.ask_until_answered(request, fds)).await {
            Ok(Ok((Reply::Failed(failure), _))) => Err(failure.into()),
            Ok(answer) => answer,
            Err(_) => Err(ControlError::Gone),
        }
    }

    async fn ask_until_answered(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), ControlError> {
        let mut changes = self.socket.subscribe();
        for _ in 0..ATTEMPTS {
            let socket = changes.borrow_and_update().clone();
            if let Some(answer) = attempt(&socket, request, fds).await? {
                return Ok(answer);
            }
            if changes.changed().await.is_err() {
                break;
            }
        }
        Err(ControlError::Gone)
    }
}

/// One question; `None` when the process is gone before it answered.
async fn attempt(
    socket: &Socket,
    request: &Request,
    fds: &[BorrowedFd<'_>],
) -> Result<Option<(Reply, Vec<OwnedFd>)>, ControlError> {
    let (ours, theirs) = packet::pair()?;
    let all: Vec<BorrowedFd<'_>> = [theirs.as_fd()].into_iter().chain(fds.iter().copied()).collect();
    match socket.send(request, &all).await {
        Ok(()) => {}
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    drop(all);
    drop(theirs);
    match Socket::new(ours)?.receive().await? {
        Some((bytes, fds)) => Ok(Some((serde_json::from_slice(&bytes).map_err(io::Error::from)?, fds))),
        None => Ok(None),
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

fn unexpected(reply: &Reply) -> ControlError {
    ControlError::System(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("an answer that fits no question: {reply:?}"),
    ))
}

/// Events as they happen.
#[derive(Debug)]
pub struct Watch(Socket);

impl Watch {
    /// The next events, oldest first; `None` once the egress process is gone.
    pub async fn next(&mut self) -> Option<Events> {
        let (bytes, _) = self.0.receive().await.ok()??;
        match serde_json::from_slice(&bytes) {
            Ok(Reply::Events(events)) => Some(events),
            _ => None,
        }
    }
}

fn json_file(name: &str, value: &impl serde::Serialize) -> io::Result<OwnedFd> {
    packet::memory_file(name, &serde_json::to_vec(value)?)
}

/// A memory file with a secret, which is overwritten when it has been read.
struct Overwritten(std::fs::File, usize);

impl Overwritten {
    fn new(secret: &Secret) -> io::Result<Self> {
        let mut file = std::fs::File::from(rustix::fs::memfd_create("secret", rustix::fs::MemfdFlags::CLOEXEC)?);
        file.write_all(secret.bytes())?;
        Ok(Self(file, secret.bytes().len()))
    }
}

impl Drop for Overwritten {
    fn drop(&mut self) {
        // It only fails for want of memory, of which it takes no more.
        let _ = self.0.write_all_at(&vec![0; self.1], 0);
    }
}

/// What a vault holds, from the memory file beside a reply.
fn shown((reply, fds): (Reply, Vec<OwnedFd>)) -> Result<Shown, ControlError> {
    let [file] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| unexpected(&reply))?;
    let mut text = Vec::new();
    let mut file = std::fs::File::from(file);
    file.rewind()?;
    file.take(SHOWN_BYTES).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text).map_err(io::Error::from)?)
}
