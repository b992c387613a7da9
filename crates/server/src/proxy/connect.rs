//! Opens connections to execd and, through it, to ports.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use lifecycle::runtime::ExecdAddress;
use protocol::error::code;
use protocol::headers::EXECD_ACCESS_TOKEN;
use rustix::fs::OFlags;
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::{Backend, EXECD_PORT};
use crate::errors::ApiError;

/// How long execd may take to accept and, for a port, to answer whether something listens there.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of execd's answer to CONNECT.
const MAX_ANSWER_BYTES: usize = 8 * 1024;
/// When a caller should try again whose port does not listen yet.
const RETRY_AFTER_SECONDS: u32 = 1;

/// Bytes to and from one port.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection to the backend's port.
pub(super) async fn open(backend: &Backend) -> Result<Box<dyn Duplex>, ApiError> {
    match tokio::time::timeout(CONNECT_LIMIT, open_unbounded(backend)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(problem)) => Err(unreachable(backend, &problem)),
        Err(_late) => Err(ApiError::new(
            http::StatusCode::GATEWAY_TIMEOUT,
            code::BACKEND_TIMEOUT,
            format!("port {} of the sandbox took longer than {} s to accept", backend.port, CONNECT_LIMIT.as_secs()),
        )),
    }
}

/// Why a port cannot be reached, as an answer.
fn unreachable(backend: &Backend, problem: &io::Error) -> ApiError {
    let message = if backend.port == EXECD_PORT {
        format!("the sandbox's execd cannot be reached: {problem}")
    } else {
        format!("port {} of the sandbox cannot be reached: {problem}", backend.port)
    };
    ApiError::new(http::StatusCode::BAD_GATEWAY, code::BACKEND_CONNECTION_FAILED, message)
        .retry_after(RETRY_AFTER_SECONDS)
}

async fn open_unbounded(backend: &Backend) -> io::Result<Box<dyn Duplex>> {
    let stream: Box<dyn Duplex> = match &backend.address {
        ExecdAddress::Unix(path) => Box::new(connect_unix(path).await?),
        ExecdAddress::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
    };
    if backend.port == EXECD_PORT {
        return Ok(stream);
    }
    tunnel(stream, backend).await
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
async fn tunnel(mut stream: Box<dyn Duplex>, backend: &Backend) -> io::Result<Box<dyn Duplex>> {
    let port = backend.port;
    let head = format!(
        "CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{EXECD_ACCESS_TOKEN}: {}\r\n\r\n",
        backend.token.expose_secret()
    );
    stream.write_all(head.as_bytes()).await?;
    let mut answer = BytesMut::with_capacity(512);
    let length = loop {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::Error::other("execd closed the connection"));
        }
        if let Some(at) = answer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if answer.len() > MAX_ANSWER_BYTES {
            return Err(io::Error::other("execd answered with too long a head"));
        }
    };
    let status = answer.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()).unwrap_or_default().to_owned();
    match status.as_str() {
        "200" => {}
        "502" | "503" | "504" => return Err(io::Error::other("nothing listens there")),
        other => return Err(io::Error::other(format!("execd answered {other}"))),
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
