//! One kept-alive HTTP/1.1 connection, without a pool: the bench decides what waits for what.

use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};

/// The longest answer that is read whole.
const ANSWER_BYTES: usize = 4 << 20;
/// Bytes that one read of a stream may take: larger than hyper's default, so that the client is not what is measured.
const READ_BYTES: usize = 1 << 20;

/// Headers of a request.
pub type Headers<'a> = &'a [(&'a str, &'a str)];

/// A connection; requests follow one another on it.
pub struct Connection {
    sender: http1::SendRequest<Payload>,
    host: String,
}

impl Connection {
    /// Connects to `host:port`.
    ///
    /// # Errors
    /// Nobody answers.
    pub async fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        Self::over(TokioIo::new(stream), address).await
    }

    /// Connects to a unix socket.
    ///
    /// # Errors
    /// Nobody answers.
    pub async fn open_unix(path: &Path) -> Result<Self> {
        Self::over(TokioIo::new(UnixStream::connect(path).await?), "localhost").await
    }

    async fn over<I>(io: I, host: &str) -> Result<Self>
    where
        I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::Builder::new().max_buf_size(READ_BYTES).handshake(io).await?;
        // Its end shows as an error of the next request; it ends when `sender` is dropped.
        tokio::spawn(connection);
        Ok(Self { sender, host: host.to_owned() })
    }

    /// Sends a request and returns when the head of the answer is there.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: Headers<'_>,
        body: Payload,
    ) -> Result<Response<Incoming>> {
        self.sender.ready().await.context("the connection was closed")?;
        let mut request = Request::builder().method(method).uri(path).header("host", &self.host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.sender.send_request(request.body(body)?).await.with_context(|| format!("send to {path}"))
    }

    /// Sends a request and reads the whole answer; anything but success is an error with the answer in it.
    ///
    /// # Errors
    /// The connection broke or the answer is no success.
    pub async fn ask(&mut self, method: Method, path: &str, headers: Headers<'_>, body: Payload) -> Result<Bytes> {
        let response = self.send(method.clone(), path, headers, body).await?;
        let status = response.status();
        let answer = whole(response.into_body()).await?;
        ensure!(status.is_success(), "{method} {path}: {status}: {}", String::from_utf8_lossy(&answer));
        Ok(answer)
    }

    /// As [`Connection::ask`], with JSON both ways.
    ///
    /// # Errors
    /// As there; or the answer is no JSON.
    pub async fn json(
        &mut self,
        method: Method,
        path: &str,
        headers: Headers<'_>,
        body: serde_json::Value,
    ) -> Result<serde_json::Value> {
        let mut all = headers.to_vec();
        let payload = if body.is_null() {
            Payload::Empty
        } else {
            all.push(("content-type", "application/json"));
            Payload::once(body.to_string())
        };
        let answer = self.ask(method, path, &all, payload).await?;
        if answer.is_empty() {
            return Ok(serde_json::Value::Null);
        }
        serde_json::from_slice(&answer).with_context(|| format!("{path} answered no JSON"))
    }

    /// Sends JSON whose answer is a stream.
    ///
    /// # Errors
    /// The connection broke or the answer is no success.
    pub async fn stream(&mut self, path: &str, headers: Headers<'_>, body: &serde_json::Value) -> Result<Incoming> {
        let mut all = headers.to_vec();
        all.push(("content-type", "application/json"));
        let response = self.send(Method::POST, path, &all, Payload::once(body.to_string())).await?;
        if response.status() != StatusCode::OK {
            let status = response.status();
            bail!("POST {path}: {status}: {}", String::from_utf8_lossy(&whole(response.into_body()).await?));
        }
        Ok(response.into_body())
    }
}

/// Reads a bounded body to its end.
///
/// # Errors
/// It breaks off or is too long.
pub async fn whole(mut body: Incoming) -> Result<Bytes> {
    let mut answer = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            ensure!(answer.len() + data.len() <= ANSWER_BYTES, "an answer is longer than {ANSWER_BYTES} bytes");
            answer.extend_from_slice(&data);
        }
    }
    Ok(answer.freeze())
}

/// What a request carries.
pub enum Payload {
    /// Nothing.
    Empty,
    /// Parts to send in order, each so many times.
    Parts(Vec<(Bytes, u64)>),
}

impl Payload {
    /// One part.
    pub fn once(data: impl Into<Bytes>) -> Self {
        Self::Parts(vec![(data.into(), 1)])
    }

    fn left(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Parts(parts) => parts.iter().map(|(part, times)| part.len() as u64 * times).sum(),
        }
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Self::Parts(parts) = self.get_mut() else { return Poll::Ready(None) };
        while parts.first().is_some_and(|(part, times)| *times == 0 || part.is_empty()) {
            parts.remove(0);
        }
        let Some((part, times)) = parts.first_mut() else { return Poll::Ready(None) };
        *times -= 1;
        Poll::Ready(Some(Ok(Frame::data(part.clone()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left())
    }
}
