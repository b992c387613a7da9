//! What lies between HTTP and a socket: bytes that were read already, a count, and how the socket is closed.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::flow::Flow;
use crate::relay;

/// The sandbox's side of a connection: what it said first is read again, and what moves is counted for its flow.
pub struct Inside {
    first: Bytes,
    stream: TcpStream,
    flow: Arc<Flow>,
}

impl Inside {
    /// Reads `first` before what comes from the socket.
    pub fn new(first: Bytes, stream: TcpStream, flow: Arc<Flow>) -> Self {
        Self { first, stream, flow }
    }
}

impl AsyncRead for Inside {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if self.first.is_empty() {
            ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        } else {
            let n = self.first.len().min(buf.remaining());
            buf.put_slice(&self.first[..n]);
            self.first.advance(n);
        }
        self.flow.count_sent(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Inside {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.flow.count_received(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs))?;
        self.flow.count_received(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Holds a socket open that others own and drop, so that how it is closed is decided once it is known how all ended: as a
/// reset, unless [`Closing::in_order`] is called.
pub struct Closing(OwnedFd);

impl Closing {
    /// Of a socket whose close is a reset.
    ///
    /// # Errors
    /// When there is no room for a descriptor.
    pub fn of(stream: &TcpStream) -> io::Result<Self> {
        stream.as_fd().try_clone_to_owned().map(Self)
    }

    /// What was written still arrives.
    pub fn in_order(self) {
        relay::close_in_order(&self.0);
    }
}
