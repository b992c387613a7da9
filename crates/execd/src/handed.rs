//! Descriptors that come through a socket at standard input, where no others can be inherited: in a gVisor sandbox.
//!
//! Owns what [`HANDED_FLAG`](protocol::execd::boot::HANDED_FLAG) says. Whoever sits at the other end accepts connections
//! outside and hands them in; nothing inside can do that in its place, because no path and no port leads there.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send};
use rustix::process::{Signal, getpid, kill_process};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use crate::error::system_text;
use crate::spawn;

/// Most descriptors in one packet: configuration and status.
const PACKET_FDS: usize = 2;

/// What the first packet brings.
pub struct Start {
    /// Where connections come from.
    pub socket: OwnedFd,
    /// The boot configuration.
    pub config: OwnedFd,
    /// Where to report.
    pub status: OwnedFd,
}

/// Takes the socket from standard input, which becomes `/dev/null`, and waits for the first packet.
///
/// # Errors
/// Standard input is no such socket, or its other end is gone.
pub fn take() -> Result<Start, String> {
    let failed = |op: &str, error: io::Error| format!("{op}: {}", system_text(&error));
    let socket = io::stdin().as_fd().try_clone_to_owned().map_err(|error| failed("take the socket", error))?;
    File::open("/dev/null")
        .and_then(|null| Ok(rustix::stdio::dup2_stdin(&null)?))
        .map_err(|error| failed("give the socket's number up", error))?;
    send(&socket, b"!", SendFlags::NOSIGNAL).map_err(|error| failed("say that execd runs", error.into()))?;
    let mut fds = receive(socket.as_fd())
        .map_err(|error| failed("receive the first descriptors", error.into()))?
        .ok_or("whoever started execd is gone")?
        .1
        .into_iter();
    match (fds.next(), fds.next()) {
        (Some(config), Some(status)) => Ok(Start { socket, config, status }),
        _ => Err("the first packet came without its two descriptors".into()),
    }
}

/// Connections to serve, one in each packet.
pub struct Connections(AsyncFd<OwnedFd>);

impl Connections {
    /// Watches the socket.
    ///
    /// # Errors
    /// When the event loop refuses it.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        spawn::watch(socket).map(Self)
    }

    /// The next one; `None` once nobody is there to bring any.
    ///
    /// # Errors
    /// It could not be taken in, for want of descriptors for example.
    pub async fn next(&self) -> io::Result<Option<UnixStream>> {
        loop {
            let mut ready = self.0.readable().await?;
            let received = match receive(self.0.get_ref().as_fd()) {
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    continue;
                }
                other => other?,
            };
            let Some((byte, fds)) = received else { return Ok(None) };
            let Some(stream) = fds.into_iter().next().map(StdStream::from) else {
                take_signal(byte);
                continue;
            };
            stream.set_nonblocking(true)?;
            return UnixStream::from_std(stream).map(Some);
        }
    }
}

/// Sends this process a signal, which comes as if from outside.
fn take_signal(number: u8) {
    if let Some(signal) = Signal::from_named_raw(number.into()) {
        let _ = kill_process(getpid(), signal); // our own number is always right
    }
}

/// One packet's byte and descriptors; `None` when the other end is gone.
fn receive(socket: BorrowedFd<'_>) -> Result<Option<(u8, Vec<OwnedFd>)>, Errno> {
    let mut byte = [0u8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    };
    let fds: Vec<OwnedFd> = ancillary.drain().filter_map(rights).flatten().collect();
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE); // the kernel leaves out what finds no number
    }
    Ok((received.bytes > 0).then_some((byte[0], fds)))
}
