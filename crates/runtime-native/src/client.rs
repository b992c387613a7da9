//! Asks the jailer, from a process without privilege and with many tasks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::error::{Context, Failure, Result};
use crate::wire::{self, Reply, Request};

/// How long a request waits for a new jailer after the old one died: the supervisor starts one at once.
const REPLACEMENT_DEADLINE: Duration = Duration::from_secs(5);
/// How often a request is put again to a new jailer. Requests are idempotent, so this is safe; a jailer that dies of
/// the request itself must not take it for ever.
const ATTEMPTS: u32 = 4;

/// The server's end of the request socket. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    socket: Arc<watch::Sender<Arc<AsyncFd<OwnedFd>>>>,
}

/// Hears of a sandbox's sockets before it is ready. Must not block.
pub(crate) type Steered<'a> = &'a (dyn Fn(Vec<OwnedFd>) + Send + Sync);

/// A reply, the descriptors beside it and the socket on which they came.
pub(crate) type Answer = (Reply, Vec<OwnedFd>, AsyncFd<OwnedFd>);

/// Why an attempt gave no answer.
pub(crate) enum Lost {
    /// The jailer, or whoever worked for it, is gone; another may answer.
    Jailer,
    /// Asking again would not help.
    Failed(Failure),
}

impl Client {
    /// Asks over this socket. Must be called within a tokio runtime.
    pub fn new(socket: OwnedFd) -> Result<Self> {
        let socket = crate::sys::watch(socket).op("watch the jailer's socket")?;
        Ok(Self { socket: Arc::new(watch::Sender::new(Arc::new(socket))) })
    }

    /// Asks over another socket from now on; waiting requests are put again.
    pub fn replace(&self, socket: OwnedFd) -> Result<()> {
        let socket = crate::sys::watch(socket).op("watch the jailer's socket")?;
        self.socket.send_replace(Arc::new(socket));
        Ok(())
    }

    /// Sends a request and waits for its reply. A [`Reply::Failed`] comes back as the error it carries.
    pub async fn ask(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        deadline: Duration,
    ) -> Result<(Reply, Vec<OwnedFd>)> {
        self.ask_hearing(request, fds, deadline, &drop).await
    }

    /// As [`Client::ask`], and gives the descriptors of each [`Reply::Steered`] to `steered` at once. That may happen
    /// more than once when a jailer dies on the way; the last are good.
    pub async fn ask_hearing(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        deadline: Duration,
        steered: Steered<'_>,
    ) -> Result<(Reply, Vec<OwnedFd>)> {
        let (reply, fds, _socket) = self.open(request, fds, deadline, steered).await?;
        Ok((reply, fds))
    }

    /// The same, with the socket on which the reply came, for what is said there after it.
    pub(crate) async fn open(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        deadline: Duration,
        steered: Steered<'_>,
    ) -> Result<Answer> {
        let answered = tokio::time::timeout(deadline, self.ask_until_answered(request, fds, steered)).await;
        let late = || Failure::internal(format!("the jailer did not answer within {} s", deadline.as_secs()));
        match answered.map_err(|_| late())?? {
            (Reply::Failed(failure), ..) => Err(failure),
            answer => Ok(answer),
        }
    }

    async fn ask_until_answered(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        steered: Steered<'_>,
    ) -> Result<Answer> {
        let mut changes = self.socket.subscribe();
        for _ in 0..ATTEMPTS {
            let socket = changes.borrow_and_update().clone();
            match attempt(&socket, request, fds, steered).await {
                Ok(answer) => return Ok(answer),
                Err(Lost::Failed(failure)) => return Err(failure),
                Err(Lost::Jailer) => {}
            }
            // If the same jailer lives, only the child that worked died; it is asked again at once.
            if is_gone(&socket) && tokio::time::timeout(REPLACEMENT_DEADLINE, changes.changed()).await.is_err() {
                break;
            }
        }
        Err(Failure::internal("the jailer died and no other took over; see the server's log"))
    }
}

/// Whether nobody has the other end of a socket any more.
pub(crate) fn is_gone(socket: &AsyncFd<OwnedFd>) -> bool {
    let mut byte = [0u8; 1];
    let received = rustix::net::recv(socket.get_ref(), &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
    !matches!(received, Err(Errno::AGAIN))
}

async fn attempt(
    socket: &AsyncFd<OwnedFd>,
    request: &Request,
    fds: &[BorrowedFd<'_>],
    steered: Steered<'_>,
) -> std::result::Result<Answer, Lost> {
    let failed = |op: &str, errno: Errno| Lost::Failed(Failure::errno(op, errno));
    let (ours, theirs) = wire::pair().map_err(|errno| failed("make a reply socket", errno))?;
    let mut all = vec![theirs.as_fd()];
    all.extend(fds);
    say(socket, request, &all).await?;
    drop(all);
    drop(theirs);
    let reply = crate::sys::watch(ours).map_err(|_| failed("watch a reply socket", Errno::IO))?;
    let (answer, fds) = hear(&reply, steered).await?;
    Ok((answer, fds, reply))
}

/// Sends one packet.
pub(crate) async fn say(
    socket: &AsyncFd<OwnedFd>,
    word: &impl serde::Serialize,
    fds: &[BorrowedFd<'_>],
) -> std::result::Result<(), Lost> {
    let failed = |op: &str, errno: Errno| Lost::Failed(Failure::errno(op, errno));
    let bytes = serde_json::to_vec(word).map_err(|_| failed("encode a request", Errno::INVAL))?;
    if bytes.len() > wire::PACKET_BYTES {
        return Err(failed("send a request", Errno::MSGSIZE));
    }
    loop {
        let mut ready = socket.writable().await.map_err(|_| Lost::Jailer)?;
        match wire::send_bytes(socket.get_ref().as_fd(), &bytes, fds, SendFlags::DONTWAIT) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(Lost::Jailer),
            Err(errno) => return Err(failed("send a request to the jailer", errno)),
        }
    }
}

/// Waits for one reply; the sockets of a [`Reply::Steered`] before it go to `steered`.
pub(crate) async fn hear(
    reply: &AsyncFd<OwnedFd>,
    steered: Steered<'_>,
) -> std::result::Result<(Reply, Vec<OwnedFd>), Lost> {
    let mut buffer = Vec::new();
    loop {
        let mut ready = reply.readable().await.map_err(|_| Lost::Jailer)?;
        match wire::receive_bytes(reply.get_ref().as_fd(), &mut buffer, RecvFlags::DONTWAIT) {
            Ok(Some((text, fds))) => {
                let answer = serde_json::from_slice(text);
                return match answer {
                    Ok(Reply::Steered) => {
                        steered(fds);
                        continue;
                    }
                    Ok(answer) => Ok((answer, fds)),
                    Err(error) => Err(Lost::Failed(Failure::internal(format!("read the jailer's answer: {error}")))),
                };
            }
            Ok(None) => return Err(Lost::Jailer),
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(errno) => return Err(Lost::Failed(Failure::errno("receive the jailer's answer", errno))),
        }
    }
}
