//! Asking the jailer, from the server: one packet out, one packet back on a socket of the request's own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::error::{Failure, Result};
use crate::wire::{self, Reply, Request};

/// How often a request that a dying jailer lost is sent again.
const MAX_ATTEMPTS: u32 = 4;

/// The connection to the jailer; survives the jailer's replacement. Cheap to share behind an `Arc`.
pub struct JailerClient {
    socket: watch::Sender<Arc<AsyncFd<OwnedFd>>>,
}

/// The jailer or its worker went away before it answered.
struct Lost;

impl JailerClient {
    /// A client on this socket. Needs a running tokio runtime.
    ///
    /// # Errors
    /// When the socket cannot be watched.
    pub fn new(socket: OwnedFd) -> Result<Self> {
        Ok(Self { socket: watch::Sender::new(watched(socket)?) })
    }

    /// Goes on with another jailer's socket; requests that wait for one wake up.
    ///
    /// # Errors
    /// When the socket cannot be watched; the old one stays then.
    pub fn replace(&self, socket: OwnedFd) -> Result<()> {
        self.socket.send_replace(watched(socket)?);
        Ok(())
    }

    /// Sends a request with its descriptors and waits for the answer. A request that was lost with a jailer is sent
    /// again: every request may be repeated.
    ///
    /// # Errors
    /// What the jailer says, or that it did not answer within `deadline`.
    pub async fn ask(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        deadline: Duration,
    ) -> Result<(Reply, Option<OwnedFd>)> {
        let until = Instant::now() + deadline;
        for _ in 0..MAX_ATTEMPTS {
            let mut jailers = self.socket.subscribe();
            let socket = jailers.borrow_and_update().clone();
            match timeout_at(until, attempt(&socket, request, fds)).await {
                Ok(Ok(Ok((Reply::Failed(failure), _)))) => return Err(failure),
                Ok(Ok(Ok(answer))) => return Ok(answer),
                Ok(Ok(Err(Lost))) => {
                    // Either only the worker died and the jailer is as it was, or another one comes soon.
                    if !alive(&socket) && timeout_at(until, jailers.changed()).await.is_err() {
                        return Err(Failure::internal("the jailer is gone and no other one came"));
                    }
                }
                Ok(Err(failure)) => return Err(failure),
                Err(_) => {
                    let message = format!("the jailer did not answer within {} s", deadline.as_secs());
                    return Err(Failure::internal(message));
                }
            }
        }
        Err(Failure::internal(format!("the jailer's worker ended without an answer, {MAX_ATTEMPTS} times")))
    }
}

fn watched(socket: OwnedFd) -> Result<Arc<AsyncFd<OwnedFd>>> {
    let watched = crate::sys::watched(socket);
    watched.map(Arc::new).map_err(|error| Failure::internal(format!("watch the jailer's socket: {error}")))
}

/// Whether the other end is still there: the jailer never sends on the request socket, so only its end is readable.
fn alive(socket: &AsyncFd<OwnedFd>) -> bool {
    let mut buffer = [0u8; 1];
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    matches!(rustix::net::recv(socket.get_ref(), &mut buffer, flags), Err(Errno::AGAIN))
}

async fn attempt(
    socket: &AsyncFd<OwnedFd>,
    request: &Request,
    fds: &[BorrowedFd<'_>],
) -> Result<std::result::Result<(Reply, Option<OwnedFd>), Lost>> {
    let (ours, theirs) = wire::pair().map_err(|errno| Failure::errno("make a reply socket", errno))?;
    let mut all = vec![theirs.as_fd()];
    all.extend_from_slice(fds);
    loop {
        match wire::send(socket.get_ref().as_fd(), request, &all, SendFlags::DONTWAIT) {
            Ok(()) => break,
            Err(Errno::AGAIN) => {
                let ready = socket.writable().await;
                ready.map_err(|error| Failure::internal(format!("watch the jailer's socket: {error}")))?.clear_ready();
            }
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Ok(Err(Lost)),
            Err(errno) => return Err(Failure::errno("send to the jailer", errno)),
        }
    }
    drop(all);
    drop(theirs);
    let reply = crate::sys::watched(ours).map_err(|error| Failure::internal(format!("watch a reply socket: {error}")))?;
    let mut buffer = Vec::new();
    loop {
        let mut ready = reply.readable().await.map_err(|error| Failure::internal(format!("watch a reply socket: {error}")))?;
        match wire::receive_bytes(reply.get_ref().as_fd(), &mut buffer, RecvFlags::DONTWAIT) {
            Ok(Some((text, mut fds))) => {
                let answer = serde_json::from_slice(text);
                let answer = answer.map_err(|error| Failure::internal(format!("read the jailer's answer: {error}")))?;
                return Ok(Ok((answer, fds.pop())));
            }
            Ok(None) => return Ok(Err(Lost)),
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(errno) => return Err(Failure::errno("receive from the jailer", errno)),
        }
    }
}
