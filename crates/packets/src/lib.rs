//! JSON in one packet, with descriptors beside it: how the processes of a server talk to each other.
//!
//! Owns the sending and receiving over `SOCK_SEQPACKET` pairs, which have no path to connect to, and the bounds of a packet;
//! knows no message. Blocking or not is a flag of each call.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;

#[cfg(test)]
mod tests;

/// Longest packet in bytes: a list of ten thousand ids fits, and the kernel's default socket buffer holds it.
pub const PACKET_BYTES: usize = 192 * 1024;
/// Most descriptors in one packet: the detached mounts of a sandbox (layers, binds, disk) are the largest group.
pub const PACKET_FDS: usize = 200;
/// Send buffer asked for on sockets of this protocol: two packets with the kernel's own overhead.
pub const SOCKET_BUFFER_BYTES: usize = 1024 * 1024;

/// Sends one packet.
///
/// # Errors
/// `MSGSIZE` for one that is too long or has too many descriptors, `PIPE` when the other side is gone, `AGAIN` where
/// `flags` say not to wait.
pub fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    send_bytes(socket, &bytes, fds, flags)
}

/// Sends one packet whose bytes are ready.
///
/// # Errors
/// As [`send`].
pub fn send_bytes(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> Result<(), Errno> {
    if bytes.len() > PACKET_BYTES || fds.len() > PACKET_FDS {
        return Err(Errno::MSGSIZE);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags | SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// The bytes of a packet and the descriptors that travelled beside them.
pub type Packet<'b> = (&'b [u8], Vec<OwnedFd>);

/// Receives one packet into `buffer`; `Ok(None)` means that the other side is gone.
///
/// # Errors
/// `MSGSIZE` for one that is too long or whose descriptors did not all arrive, `AGAIN` where `flags` say not to wait.
pub fn receive_bytes<'b>(
    socket: BorrowedFd<'_>,
    buffer: &'b mut Vec<u8>,
    flags: RecvFlags,
) -> Result<Option<Packet<'b>>, Errno> {
    let Some(length) = next_length(socket, flags)? else { return Ok(None) };
    // Not the most a packet may have: to zero so much costs a new process more than the rest of the call.
    buffer.clear();
    buffer.resize(length.clamp(1, PACKET_BYTES), 0);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(buffer)],
            &mut ancillary,
            flags | RecvFlags::CMSG_CLOEXEC,
        ) {
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
    Ok(Some((&buffer[..received.bytes], fds)))
}

/// Length of the packet that comes next; `None` means that the other side is gone.
fn next_length(socket: BorrowedFd<'_>, flags: RecvFlags) -> Result<Option<usize>, Errno> {
    loop {
        let nothing: &mut [u8] = &mut [];
        match rustix::net::recv(socket, nothing, flags | RecvFlags::PEEK | RecvFlags::TRUNC) {
            Ok((_, length)) => return Ok(Some(length)),
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
}

/// Makes a connected pair of packet sockets.
///
/// # Errors
/// When there is no room for descriptors.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for socket in [&ours, &theirs] {
        // Best effort: the default holds a packet as well.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
    }
    Ok((ours, theirs))
}
