//! One HTTP exchange with a port.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::Uri;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use crate::error::{Error, ErrorKind};
use crate::headers::{Prefix, for_backend, for_caller};
use crate::pool::{Line, Way};
use crate::target::Target;
use crate::{Backend, Ports, Reuse, connect};

/// How long a backend may take for the head of its answer after the last byte of the request moved (published).
const HEAD_LIMIT: Duration = Duration::from_secs(180);
/// Most header fields of an answer.
const MAX_HEADERS: usize = 256;
/// Buffer of a connection to a sandbox: large enough for fast uploads, small enough for many connections.
const BUFFER_BYTES: usize = 256 * 1024;

impl Ports {
    /// Sends the request on and streams the answer back.
    pub(crate) async fn forward<H: Send + Sync + 'static>(
        self: &Arc<Self>,
        backend: &Backend,
        peer: Option<SocketAddr>,
        request: Request,
        hold: H,
    ) -> Result<Response, Error> {
        let (request, prefix, activity) = self.outgoing(backend, peer, request)?;
        let (response, line) = self.send(backend, request, &activity).await?;
        let (mut head, body) = response.into_parts();
        for_caller(&mut head.headers, &prefix);
        let back = (backend.daemon.reuse == Reuse::Keep).then(|| GiveBack {
            ports: self.clone(),
            id: backend.daemon.id.clone(),
            port: backend.port,
            line,
        });
        Ok(Response::from_parts(head, Body::new(Returning { body, back, _hold: hold })))
    }

    /// The request as the backend gets it, the caller's prefix, and the clock of its body.
    pub(crate) fn outgoing(
        &self,
        backend: &Backend,
        peer: Option<SocketAddr>,
        request: Request,
    ) -> Result<(http::Request<Body>, Prefix, Activity), Error> {
        let (mut head, body) = request.into_parts();
        let not_a_port = || Error::new(ErrorKind::Invalid, "the path for the port cannot be sent on");
        let target = Target::parse(head.uri.path()).ok_or_else(not_a_port)?;
        let whole = head.uri.path_and_query().map(http::uri::PathAndQuery::as_str).unwrap_or_default();
        let rest = &whole[target.prefix.len()..];
        let uri = if rest.starts_with('/') { rest.parse::<Uri>() } else { format!("/{rest}").parse::<Uri>() };
        let uri = uri.map_err(|_| not_a_port())?;
        head.headers = for_backend(head.headers, backend, &target, peer, self.forwarded);
        let prefix = Prefix { text: target.prefix.to_owned(), is_link: target.link.is_some() };
        head.uri = uri;
        head.version = http::Version::HTTP_11;
        head.extensions = http::Extensions::new();
        let activity = Activity::start();
        let body =
            if body.is_end_stream() { Body::empty() } else { Body::new(Watched { body, activity: activity.clone() }) };
        Ok((http::Request::from_parts(head, body), prefix, activity))
    }

    /// Sends on an idle connection or a new one.
    pub(crate) async fn send(
        self: &Arc<Self>,
        backend: &Backend,
        mut request: http::Request<Body>,
        activity: &Activity,
    ) -> Result<(http::Response<Incoming>, Line), Error> {
        while let Some(mut line) = self.idle(backend).await {
            match bounded(line.sender.try_send_request(request), activity, backend).await? {
                Ok(response) => return Ok((response, line)),
                // It was closed under us before anything was sent.
                Err(mut unsent) => match unsent.take_message() {
                    Some(message) => request = message,
                    None => return Err(broken(backend, &unsent.into_error())),
                },
            }
        }
        let mut line = self.connect(backend).await?;
        let response = bounded(line.sender.send_request(request), activity, backend).await?;
        Ok((response.map_err(|error| broken(backend, &error))?, line))
    }

    /// An idle connection, where there may be one.
    async fn idle(&self, backend: &Backend) -> Option<Line> {
        match backend.daemon.reuse {
            Reuse::Keep => self.pool.take(&backend.daemon.id, backend.port).await,
            Reuse::Never => None,
        }
    }

    /// A new connection that speaks HTTP.
    pub(crate) async fn connect(&self, backend: &Backend) -> Result<Line, Error> {
        let (stream, way) = connect::open(backend, &self.stock).await?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| broken(backend, &error))?;
        let closing = self.closing.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = closing.cancelled() => {}
                // Its error reaches whoever waits for the answer.
                _ = connection.with_upgrades() => {}
            }
        });
        Ok(Line { sender, way })
    }
}

/// Waits for the head of the answer as long as the request's body moves, and [`HEAD_LIMIT`] longer.
pub(crate) async fn bounded<T>(
    answer: impl Future<Output = T>,
    activity: &Activity,
    backend: &Backend,
) -> Result<T, Error> {
    tokio::pin!(answer);
    loop {
        let deadline = activity.last() + HEAD_LIMIT;
        if let Ok(answer) = tokio::time::timeout_at(deadline, &mut answer).await {
            return Ok(answer);
        }
        if activity.last() + HEAD_LIMIT <= Instant::now() {
            let limit = HEAD_LIMIT.as_secs();
            let message = format!("port {} of the sandbox did not answer for {limit} s", backend.port);
            return Err(Error::new(ErrorKind::TimedOut, message));
        }
    }
}

pub(crate) fn broken(backend: &Backend, error: &hyper::Error) -> Error {
    Error::new(
        ErrorKind::Broken,
        format!("port {} of the sandbox broke off: {}", backend.port, protocol::error::chain(error)),
    )
}

/// When a request's body last moved.
#[derive(Clone)]
pub(crate) struct Activity {
    start: Instant,
    last_ms: Arc<AtomicU64>,
}

impl Activity {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), last_ms: Arc::default() }
    }

    fn touch(&self) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(ms, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.start + Duration::from_millis(self.last_ms.load(Ordering::Relaxed))
    }
}

/// A request's body that says when it moves.
struct Watched {
    body: Body,
    activity: Activity,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_ready() {
            self.activity.touch();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Puts a connection back into the pool.
struct GiveBack {
    ports: Arc<Ports>,
    id: Arc<str>,
    port: u16,
    line: Line,
}

impl GiveBack {
    fn now(self) {
        if self.line.way == Way::Tunnel {
            self.ports.stock.count_tunnelled(&self.id);
            if self.ports.stock.has(&self.id) {
                // The next connection goes by a shorter way.
                return;
            }
        }
        self.ports.pool.give(&self.id, self.port, self.line);
    }
}

/// An answer's body that gives its connection back when it was read to the end. Dropped before, it closes it.
struct Returning<H> {
    body: Incoming,
    back: Option<GiveBack>,
    _hold: H,
}

impl<H> Unpin for Returning<H> {}

impl<H> http_body::Body for Returning<H> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let ended = match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => self.body.is_end_stream(),
            _ => false,
        };
        if ended && let Some(back) = self.back.take() {
            back.now();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<H> Drop for Returning<H> {
    fn drop(&mut self) {
        // An answer without a body is never polled.
        if self.body.is_end_stream()
            && let Some(back) = self.back.take()
        {
            back.now();
        }
    }
}
