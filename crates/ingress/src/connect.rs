//! Opens connections to execd and to ports: by a socket of the sandbox's network, or else through execd.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use early_answer::Hearing;
use protocol::headers::EXECD_ACCESS_TOKEN;
use rustix::fs::OFlags;
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::time::Instant;

use crate::error::{Error, ErrorKind};
use crate::pool::Way;
use crate::stock::Stock;
use crate::{Address, Backend, EXECD_PORT};

/// How long execd may take to accept and, for a port, to answer whether something listens there.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long a port on which nothing listens is tried again: a server that was just started is nearly there, and
/// whoever polls for it asks again anyway.
const LISTEN_WAIT: Duration = Duration::from_secs(1);
/// Between two such tries. Nothing in the system tells when a port begins to listen.
const LISTEN_RETRY: Duration = Duration::from_millis(50);
/// Most bytes of execd's answer to CONNECT.
const MAX_ANSWER_BYTES: usize = 8 * 1024;

/// Bytes to and from one port.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Why a connection did not come about.
enum Problem {
    Execd(io::Error),
    NotListening,
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Execd(error)
    }
}

/// A connection to the backend's port; waits a moment where nothing listens yet.
pub(crate) async fn open(backend: &Backend, stock: &Stock) -> Result<(Box<dyn Duplex>, Way), Error> {
    let is_port = backend.port != EXECD_PORT;
    if is_port
        && let Some(socket) = stock.take(&backend.daemon.id)
        // Where nothing answers there execd is asked, which tries IPv6 too and knows how to say so.
        && let Ok(Ok(stream)) = tokio::time::timeout(CONNECT_LIMIT, connect(socket, backend.port)).await
    {
        return Ok((Box::new(Hearing::new(stream)), Way::Direct));
    }
    let stream = open_by_execd(backend).await?;
    Ok((stream, if is_port { Way::Tunnel } else { Way::Direct }))
}

/// Connects a socket of the sandbox's network to a port there.
async fn connect(socket: OwnedFd, port: u16) -> io::Result<TcpStream> {
    let socket = TcpSocket::from_std_stream(socket.into());
    socket.set_nodelay(true)?;
    socket.connect((Ipv4Addr::LOCALHOST, port).into()).await
}

async fn open_by_execd(backend: &Backend) -> Result<Box<dyn Duplex>, Error> {
    let patience = Instant::now() + LISTEN_WAIT;
    loop {
        match tokio::time::timeout(CONNECT_LIMIT, open_once(backend)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(Problem::Execd(problem))) => {
                let message = format!("the sandbox's execd cannot be reached: {problem}");
                return Err(Error::new(ErrorKind::Unreachable, message));
            }
            Ok(Err(Problem::NotListening)) if Instant::now() + LISTEN_RETRY < patience => {
                tokio::time::sleep(LISTEN_RETRY).await;
            }
            Ok(Err(Problem::NotListening)) => {
                let message = format!("port {} of the sandbox cannot be reached: nothing listens there", backend.port);
                return Err(Error::new(ErrorKind::NotListening, message));
            }
            Err(_late) => {
                let limit = CONNECT_LIMIT.as_secs();
                let message = format!("port {} of the sandbox took longer than {limit} s to accept", backend.port);
                return Err(Error::new(ErrorKind::TimedOut, message));
            }
        }
    }
}

async fn open_once(backend: &Backend) -> Result<Box<dyn Duplex>, Problem> {
    let stream: Box<dyn Duplex> = match &backend.daemon.address {
        Address::Unix(path) => Box::new(connect_unix(path).await?),
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
    };
    let stream = if backend.port == EXECD_PORT { stream } else { tunnel(stream, backend).await? };
    Ok(Box::new(Hearing::new(stream)))
}

/// Longest path in a unix socket's address, in bytes, without the final NUL.
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Connects to a socket whose path may be longer than an address takes: then by way of its directory's descriptor.
async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    if path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES {
        return UnixStream::connect(path).await;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, rustix::fs::Mode::empty())?;
    let short = format!("/proc/self/fd/{}", directory.as_raw_fd());
    UnixStream::connect(Path::new(&short).join(name)).await
}

/// Asks execd for the port.
async fn tunnel(mut stream: Box<dyn Duplex>, backend: &Backend) -> Result<Box<dyn Duplex>, Problem> {
    let port = backend.port;
    let head = format!(
        "CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{EXECD_ACCESS_TOKEN}: {}\r\n\r\n",
        backend.daemon.token.expose_secret()
    );
    stream.write_all(head.as_bytes()).await?;
    let mut answer = BytesMut::with_capacity(512);
    let length = loop {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::Error::other("it closed the connection").into());
        }
        if let Some(at) = answer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if answer.len() > MAX_ANSWER_BYTES {
            return Err(io::Error::other("it answered with too long a head").into());
        }
    };
    let status = answer.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()).unwrap_or_default().to_owned();
    match status.as_str() {
        "200" => {}
        "502" | "503" | "504" => return Err(Problem::NotListening),
        other => return Err(io::Error::other(format!("it answered {other}")).into()),
    }
    answer.advance(length);
    Ok(Box::new(Tunnel { first: answer.freeze(), stream }))
}

/// A stream of which the first bytes were read with the answer.
struct Tunnel {
    first: Bytes,
    stream: Box<dyn Duplex>,
}

impl AsyncRead for Tunnel {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let n = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first[..n]);
        self.first.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
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
