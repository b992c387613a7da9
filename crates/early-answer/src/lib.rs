//! A connection on which an answer is still heard after the peer has stopped listening.
//!
//! A server may answer before it has read the whole request (a body that is too large, a bad header, a lack of rights)
//! and close. Whoever is still sending then meets a broken pipe, and an HTTP client or a relay that gives up on that
//! loses the answer, which lies in its own receive buffer. [`Hearing`] turns such a failure to write into a wait: the
//! reader gets what there is, then the end, and that end closes the connection for both directions.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose writes wait, once the peer reads no more, until all that it said has been read.
///
/// Whoever uses it must read all the time, as HTTP clients and relays do: reading is what finds the end. Only then do
/// writes fail.
#[derive(Debug)]
pub struct Hearing<S> {
    stream: S,
    /// Whether the peer reads no more.
    is_deaf: bool,
    /// Whether all that the peer said was read.
    is_heard: bool,
    /// Who waits to write.
    writer: Option<Waker>,
}

impl<S> Hearing<S> {
    /// Wraps a connection to a server.
    pub fn new(stream: S) -> Self {
        Self { stream, is_deaf: false, is_heard: false, writer: None }
    }
}

impl<S: Unpin> Hearing<S> {
    /// Writes, unless that is known to fail.
    fn write<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if !self.is_deaf {
            match write(Pin::new(&mut self.stream), cx) {
                Poll::Ready(Err(error)) if is_gone(&error) => self.is_deaf = true,
                outcome => return outcome,
            }
        }
        if self.is_heard {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Whether a write failed because the peer reads no more.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl<S: AsyncRead + Unpin> AsyncRead for Hearing<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let outcome = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        if outcome.is_err() || (buf.filled().len() == before && buf.remaining() > 0) {
            self.is_heard = true;
            if let Some(writer) = self.writer.take() {
                writer.wake();
            }
        }
        Poll::Ready(outcome)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Hearing<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(cx, |stream, cx| stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_deaf {
            // There is nobody to tell.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    use super::*;

    /// Sends without end beside reading, as a relay does; what was read before the end, and whether the end was found.
    async fn heard<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> Vec<u8> {
        let (mut reader, mut writer) = tokio::io::split(Hearing::new(stream));
        let mut answer = Vec::new();
        let read = async {
            // How it ends (in order or by a reset) does not matter here.
            let _ = reader.read_to_end(&mut answer).await;
        };
        let write = async {
            let block = vec![b'x'; 64 * 1024];
            loop {
                writer.write_all(&block).await.expect("a peer that has gone is no error");
            }
        };
        tokio::select! {
            () = read => {}
            () = write => {}
        }
        answer
    }

    /// A server that answers after the beginning of a request, and closes.
    fn answer_early<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(mut stream: S, answer: &'static [u8]) {
        tokio::spawn(async move {
            let mut first = [0; 10];
            stream.read_exact(&mut first).await.expect("a beginning");
            stream.write_all(answer).await.expect("an answer");
        });
    }

    #[tokio::test]
    async fn an_answer_before_the_end_of_the_request_is_heard_on_a_unix_socket() {
        for _ in 0..100 {
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            answer_early(theirs, b"HTTP/1.1 413 Too Large\r\n\r\n");
            assert_eq!(heard(ours).await, b"HTTP/1.1 413 Too Large\r\n\r\n");
        }
    }

    #[tokio::test]
    async fn an_answer_before_the_end_of_the_request_is_heard_over_tcp() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        for _ in 0..100 {
            let ours = TcpStream::connect(address).await.expect("connects");
            let (theirs, _) = listener.accept().await.expect("accepts");
            answer_early(theirs, b"HTTP/1.1 413 Too Large\r\n\r\n");
            assert_eq!(heard(ours).await, b"HTTP/1.1 413 Too Large\r\n\r\n");
        }
    }

    #[tokio::test]
    async fn a_relay_passes_the_answer_on_and_ends() {
        let (client, relay) = UnixStream::pair().expect("a pair");
        let (upstream, server) = UnixStream::pair().expect("a pair");
        answer_early(server, b"too much");
        let relaying = tokio::spawn(async move {
            let (mut relay, mut upstream) = (relay, Hearing::new(upstream));
            let _ = tokio::io::copy_bidirectional(&mut relay, &mut upstream).await;
        });
        let (mut reader, mut writer) = client.into_split();
        let sending = tokio::spawn(async move { while writer.write_all(&[b'x'; 4096]).await.is_ok() {} });
        let mut answer = Vec::new();
        // What the sender still says makes its end a reset.
        let _ = reader.read_to_end(&mut answer).await;
        assert_eq!(answer, b"too much");
        relaying.await.expect("the relay ends");
        sending.await.expect("the sender is told");
    }
}
