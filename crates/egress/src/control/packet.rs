//! Packets with descriptors over `SOCK_SEQPACKET` sockets, blocking and in a tokio runtime.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Longest packet: a packet of events fits with names at their longest, and the kernel's default socket buffer holds it.
const PACKET_BYTES: usize = 192 * 1024;
/// Most descriptors in one packet: a reply socket, four sockets, the names file, the policy.
const PACKET_FDS: usize = 8;
/// Send buffer asked for: a packet with the kernel's own overhead.
const SOCKET_BUFFER_BYTES: usize = 1024 * 1024;

/// The bytes of a packet and the descriptors beside it.
pub type Packet = (Vec<u8>, Vec<OwnedFd>);

/// Makes a connected pair of packet sockets.
///
/// # Errors
/// When there is no room for descriptors.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for socket in [&ours, &theirs] {
        // Best effort: the default holds a packet as well.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
    }
    Ok((ours, theirs))
}

/// A packet socket that can be awaited. It is no stream, but readiness is the same for both, and nothing of a stream is
/// used but that.
#[derive(Debug)]
pub struct Socket(UnixStream);

impl Socket {
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = std::os::unix::net::UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self(UnixStream::from_std(socket)?))
    }

    pub async fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        self.0.async_io(Interest::WRITABLE, || Ok(send_bytes(self.0.as_fd(), &bytes, fds)?)).await
    }

    /// The next packet; `None` when the other side is gone.
    pub async fn receive(&self) -> io::Result<Option<Packet>> {
        self.0.async_io(Interest::READABLE, || Ok(receive_bytes(self.0.as_fd(), RecvFlags::DONTWAIT)?)).await
    }

    /// Waits until the other side is gone. What it says meanwhile is not heard.
    pub async fn gone(&self) {
        while let Ok(Some(_)) = self.receive().await {}
    }
}

/// Sends a packet without a runtime.
pub fn send_now(socket: BorrowedFd<'_>, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    Ok(send_bytes(socket, &serde_json::to_vec(message)?, fds)?)
}

/// Waits for a packet before there is a runtime.
pub fn receive_blocking(socket: BorrowedFd<'_>) -> io::Result<Option<Packet>> {
    Ok(receive_bytes(socket, RecvFlags::empty())?)
}

fn send_bytes(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    if bytes.len() > PACKET_BYTES || fds.len() > PACKET_FDS {
        return Err(Errno::MSGSIZE);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn receive_bytes(socket: BorrowedFd<'_>, flags: RecvFlags) -> Result<Option<Packet>, Errno> {
    let mut buffer = vec![0; PACKET_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let into = &mut [IoSliceMut::new(&mut buffer)];
        match rustix::net::recvmsg(socket, into, &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    };
    let fds: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        })
        .flatten()
        .collect();
    if received.bytes == 0 && fds.is_empty() {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    buffer.truncate(received.bytes);
    Ok(Some((buffer, fds)))
}
