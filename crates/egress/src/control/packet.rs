//! Packets on a socket that a tokio runtime waits for, and the first one, before there is a runtime.

use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use packets::receive_bytes;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{RecvFlags, SendFlags};
use serde::Serialize;
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::sealed::Secret;

/// The bytes of a packet and the descriptors beside it.
pub type Packet = (Vec<u8>, Vec<OwnedFd>);

/// Makes a connected pair of packet sockets.
///
/// # Errors
/// When there is no room for descriptors.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(packets::pair()?)
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
        self.0
            .async_io(Interest::WRITABLE, || Ok(packets::send_bytes(self.0.as_fd(), &bytes, fds, SendFlags::DONTWAIT)?))
            .await
    }

    /// The next packet; `None` when the other side is gone.
    pub async fn receive(&self) -> io::Result<Option<Packet>> {
        self.0.async_io(Interest::READABLE, || receive(self.0.as_fd(), RecvFlags::DONTWAIT)).await
    }

    /// Waits until the other side is gone. What it says meanwhile is not heard.
    pub async fn gone(&self) {
        while let Ok(Some(_)) = self.receive().await {}
    }
}

/// Sends a packet without a runtime.
pub fn send_now(socket: BorrowedFd<'_>, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    Ok(packets::send(socket, message, fds, SendFlags::DONTWAIT)?)
}

/// As [`send_now`], for a message with a secret: leaves no copy of it in this process.
pub fn send_secret_now(socket: BorrowedFd<'_>, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut bytes = Secret::default();
    serde_json::to_writer(&mut bytes, message)?;
    Ok(packets::send_bytes(socket, bytes.bytes(), fds, SendFlags::DONTWAIT)?)
}

/// A memory file that nobody changes any more.
pub fn memory_file(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut writer = std::fs::File::from(file);
    writer.write_all(bytes)?;
    let file = OwnedFd::from(writer);
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    Ok(file)
}

/// Waits for a packet before there is a runtime.
pub fn receive_blocking(socket: BorrowedFd<'_>) -> io::Result<Option<Packet>> {
    receive(socket, RecvFlags::empty())
}

fn receive(socket: BorrowedFd<'_>, flags: RecvFlags) -> io::Result<Option<Packet>> {
    let mut buffer = Vec::new();
    let Some((bytes, fds)) = receive_bytes(socket, &mut buffer, flags)? else { return Ok(None) };
    let length = bytes.len();
    buffer.truncate(length);
    Ok(Some((buffer, fds)))
}
