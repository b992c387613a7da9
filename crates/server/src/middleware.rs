//! What happens to every request before its route: identity, panics, CORS, the key, the concurrency limit.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use http::header;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use ingress::target::Target;
use protocol::error::code;
use protocol::headers;
use tokio::sync::OwnedSemaphorePermit;

use crate::app::App;
use crate::errors::ApiError;

/// Longest request id that is taken over from a client; longer ones are replaced.
const MAX_REQUEST_ID_BYTES: usize = 256;
/// How long browsers may remember the answer to a preflight (published).
const PREFLIGHT_SECONDS: Duration = Duration::from_secs(600);

/// Whom a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This server's own API.
    Api,
    /// A port of a sandbox. Such calls have a check of their own, last as long as they like, and are bounded by the
    /// number of connections.
    Port,
}

/// The place that a request holds in the concurrency limit; a handler that only waits gives it back.
#[derive(Clone, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Slot {
    /// Gives the place back: what follows is a wait.
    pub(crate) fn release(&self) {
        self.0.lock().expect("no holder panics").take();
    }
}

/// Outermost: names the request, turns panics into answers, sets CORS headers.
pub(crate) async fn identify<F: Future<Output = Response>>(
    mut request: Request,
    kind: Kind,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let id = request_id(request.headers());
    request.headers_mut().insert(headers::REQUEST_ID, id.clone());
    let origin = request.headers().get(header::ORIGIN).cloned();
    let preflight =
        request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let asked_headers = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let started = std::time::Instant::now();
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let path = Target::shown(uri.path());

    let mut response = if preflight && origin.is_some() {
        preflight_answer(asked_headers)
    } else {
        match AssertUnwindSafe(next(request)).catch_unwind().await {
            Ok(response) => response,
            Err(_panic) => {
                tracing::error!(request_id = ?id, %method, path, "a handler panicked");
                ApiError::internal("the server failed at this request; report it with the request id").into_response()
            }
        }
    };
    tracing::debug!(
        request_id = ?id,
        %method,
        path,
        status = response.status().as_u16(),
        elapsed_ms = started.elapsed().as_secs_f64() * 1000.0,
        "request answered"
    );
    response.headers_mut().insert(headers::REQUEST_ID, id);
    if let Some(origin) = origin {
        allow_origin(response.headers_mut(), origin, kind);
    }
    response
}

fn request_id(request: &HeaderMap) -> HeaderValue {
    let sent = request.get(headers::REQUEST_ID).map(|value| value.as_bytes().trim_ascii());
    sent.filter(|id| !id.is_empty() && id.len() <= MAX_REQUEST_ID_BYTES)
        .and_then(|id| HeaderValue::from_bytes(id).ok())
        .unwrap_or_else(fresh_id)
}

/// An id that no other request has: a random start for each process and a count. It is no secret, and randomness for
/// each request costs a system call.
fn fresh_id() -> HeaderValue {
    static START: LazyLock<u128> = LazyLock::new(|| uuid::Uuid::new_v4().as_u128());
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = u128::from(COUNT.fetch_add(1, Ordering::Relaxed));
    // Neighbours differ in many digits, so that people can tell them apart.
    let id = START.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    HeaderValue::try_from(format!("{id:032x}")).expect("hex digits are a header value")
}

fn preflight_answer(asked_headers: Option<HeaderValue>) -> Response {
    let mut response = (StatusCode::OK, "OK").into_response();
    let set = response.headers_mut();
    let methods = HeaderValue::from_static("DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT");
    set.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    set.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(PREFLIGHT_SECONDS.as_secs()));
    if let Some(asked) = asked_headers {
        set.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
    }
    response
}

/// Any origin may call, because nothing that a browser sends by itself opens anything: keys and tokens travel
/// in headers of their own. What a sandbox answers is never marked as readable with credentials, and its own
/// CORS headers are its own business.
fn allow_origin(response: &mut HeaderMap, origin: HeaderValue, kind: Kind) {
    if response.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
        return;
    }
    response.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    response.append(header::VARY, HeaderValue::from_static("Origin"));
    let exposed = match kind {
        Kind::Api => "OPEN-SANDBOX-ORIGIN",
        Kind::Port => "OPEN-SANDBOX-ORIGIN, OpenSandbox-Error-Source",
    };
    response.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(exposed));
    if kind == Kind::Api {
        response.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
}

/// Second: nothing but `/health` and `/version` goes without the key.
pub(crate) async fn authenticate(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let open = matches!(path, "/health" | "/version");
    if !open && let Err(refused) = app.auth.check_api_key(request.headers()) {
        return refused.into_response();
    }
    next.run(request).await
}

/// Third: bounds the requests that are worked on.
pub(crate) async fn limit(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let free = request.uri().path() == "/health";
    let slot = Slot::default();
    if !free && let Some(slots) = &app.slots {
        match slots.clone().try_acquire_owned() {
            Ok(permit) => *slot.0.lock().expect("no holder panics") = Some(permit),
            Err(_full) => {
                return ApiError::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    code::TOO_MANY_REQUESTS,
                    "the server works on as many requests as it may (server.limit_concurrency); try again",
                )
                .retry_after(1)
                .into_response();
            }
        }
    }
    request.extensions_mut().insert(slot.clone());
    let response = next.run(request).await;
    slot.release();
    response
}
