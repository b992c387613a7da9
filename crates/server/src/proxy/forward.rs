//! One HTTP exchange with a port.

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
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use lifecycle::spec::SandboxId;
use protocol::error::code;
use tokio::time::Instant;

use super::headers::{Forwarded, for_backend, for_caller};
use super::target::Target;
use super::{Backend, connect};
use crate::accept::Peer;
use crate::app::App;
use crate::errors::ApiError;

/// How long a backend may take for the head of its answer after the last byte of the request moved (published).
const HEAD_LIMIT: Duration = Duration::from_secs(180);
/// Most header fields of an answer.
const MAX_HEADERS: usize = 256;
/// Buffer of a connection to a sandbox: large enough for fast uploads, small enough for many connections.
const BUFFER_BYTES: usize = 256 * 1024;

/// Sends the request on and streams the answer back.
pub(super) async fn forward(app: &Arc<App>, backend: &Backend, request: Request) -> Result<Response, ApiError> {
    let (request, prefix, activity) = outgoing(app, backend, request)?;
    let (response, sender) = send(app, backend, request, &activity).await?;
    let (mut head, body) = response.into_parts();
    for_caller(&mut head.headers, &prefix);
    // Connections to isolated sessions are not kept: sessions are many and their calls few.
    let keep = backend.session.is_none();
    let back =
        keep.then(|| GiveBack { app: app.clone(), id: backend.id.clone(), port: backend.port, sender: Some(sender) });
    Ok(Response::from_parts(head, Body::new(Returning { body, back })))
}

/// The request as the backend gets it, the caller's prefix, and the clock of its body.
pub(super) fn outgoing(
    app: &App,
    backend: &Backend,
    request: Request,
) -> Result<(http::Request<Body>, String, Activity), ApiError> {
    let (mut head, body) = request.into_parts();
    let target = Target::parse(head.uri.path()).expect("parsed before");
    let prefix = target.prefix.to_owned();
    let path = if target.rest.is_empty() { "/" } else { target.rest };
    let uri = match head.uri.query() {
        Some(query) => format!("{path}?{query}").parse::<Uri>(),
        None => path.parse::<Uri>(),
    };
    let uri =
        uri.map_err(|_| ApiError::bad_request(code::INVALID_PARAMETER, "the path for the port cannot be sent on"))?;
    let peer = head.extensions.get::<Peer>().map(|peer| peer.0);
    let forwarded = if app.config.proxy.trust_forwarded { Forwarded::Keep } else { Forwarded::Replace };
    head.headers = for_backend(head.headers, backend, &target, peer, forwarded);
    head.uri = uri;
    head.version = http::Version::HTTP_11;
    let activity = Activity::start();
    let body = Body::new(Watched { body, activity: activity.clone() });
    let mut outgoing = http::Request::from_parts(head, body);
    *outgoing.extensions_mut() = http::Extensions::new();
    Ok((outgoing, prefix, activity))
}

/// Sends on an idle connection or a new one.
pub(super) async fn send(
    app: &Arc<App>,
    backend: &Backend,
    mut request: http::Request<Body>,
    activity: &Activity,
) -> Result<(http::Response<Incoming>, SendRequest<Body>), ApiError> {
    while let Some(mut sender) = idle(app, backend).await {
        match bounded(sender.try_send_request(request), activity, backend).await? {
            Ok(response) => return Ok((response, sender)),
            // It was closed under us before anything was sent.
            Err(mut unsent) => match unsent.take_message() {
                Some(message) => request = message,
                None => return Err(broken(backend, &unsent.into_error())),
            },
        }
    }
    let mut sender = open(app, backend).await?;
    let response = bounded(sender.send_request(request), activity, backend).await?;
    Ok((response.map_err(|error| broken(backend, &error))?, sender))
}

/// An idle connection, where there may be one.
async fn idle(app: &App, backend: &Backend) -> Option<SendRequest<Body>> {
    if backend.session.is_some() { None } else { app.pool.take(&backend.id, backend.port).await }
}

/// A new connection that speaks HTTP.
pub(super) async fn open(app: &Arc<App>, backend: &Backend) -> Result<SendRequest<Body>, ApiError> {
    let stream = connect::open(backend).await?;
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(BUFFER_BYTES)
        .max_headers(MAX_HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| broken(backend, &error))?;
    let closing = app.closing.clone();
    app.tasks.spawn(async move {
        tokio::select! {
            () = closing.cancelled() => {}
            // Its error reaches whoever waits for the answer.
            _ = connection.with_upgrades() => {}
        }
    });
    Ok(sender)
}

/// Waits for the head of the answer as long as the request's body moves, and [`HEAD_LIMIT`] longer.
pub(super) async fn bounded<T>(
    answer: impl Future<Output = T>,
    activity: &Activity,
    backend: &Backend,
) -> Result<T, ApiError> {
    tokio::pin!(answer);
    loop {
        let deadline = activity.last() + HEAD_LIMIT;
        if let Ok(answer) = tokio::time::timeout_at(deadline, &mut answer).await {
            return Ok(answer);
        }
        if activity.last() + HEAD_LIMIT <= Instant::now() {
            return Err(ApiError::new(
                http::StatusCode::GATEWAY_TIMEOUT,
                code::BACKEND_TIMEOUT,
                format!("port {} of the sandbox did not answer for {} s", backend.port, HEAD_LIMIT.as_secs()),
            ));
        }
    }
}

pub(super) fn broken(backend: &Backend, error: &hyper::Error) -> ApiError {
    ApiError::new(
        http::StatusCode::BAD_GATEWAY,
        code::BACKEND_RESPONSE_FAILED,
        format!("port {} of the sandbox broke off: {}", backend.port, crate::wire::chain(error)),
    )
}

/// When a request's body last moved.
#[derive(Clone)]
pub(super) struct Activity {
    start: Instant,
    last_ms: Arc<AtomicU64>,
}

impl Activity {
    pub(super) fn start() -> Self {
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
    app: Arc<App>,
    id: SandboxId,
    port: u16,
    sender: Option<SendRequest<Body>>,
}

impl GiveBack {
    fn now(mut self) {
        if let Some(sender) = self.sender.take() {
            self.app.pool.give(&self.id, self.port, sender);
        }
    }
}

/// An answer's body that gives its connection back when it was read to the end. Dropped before, it closes it.
struct Returning {
    body: Incoming,
    back: Option<GiveBack>,
}

impl http_body::Body for Returning {
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

impl Drop for Returning {
    fn drop(&mut self) {
        // An answer without a body is never polled.
        if self.body.is_end_stream()
            && let Some(back) = self.back.take()
        {
            back.now();
        }
    }
}
