//! A registry that misbehaves on request.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use base64::Engine as _;
use bytes::Bytes;
use tokio::sync::watch;

use super::{Recipe, digest};

/// What the registry does besides answering.
#[derive(Default)]
pub struct Habits {
    /// Account that a bearer token is given for; without one everything is public.
    pub account: Option<(String, String)>,
    /// Close each connection after so many bytes of a blob, unless the rest is shorter.
    pub break_after: Option<usize>,
    /// Answer a range with everything.
    pub ignores_ranges: bool,
    /// Answer each blob larger than a configuration with other bytes of the same length.
    pub corrupts: bool,
    /// Answer every request so.
    pub answers: Option<(StatusCode, String)>,
    /// Send requests for blobs there.
    pub redirects_to: Option<String>,
    /// Hold blobs back until the channel says so.
    pub gate: Option<watch::Receiver<bool>>,
}

struct Inner {
    contents: Mutex<HashMap<String, (String, Bytes)>>,
    habits: Mutex<Habits>,
    requests: Mutex<Vec<String>>,
    host: String,
}

/// A running registry; it ends with the test's runtime.
#[derive(Clone)]
pub struct Fake {
    inner: Arc<Inner>,
}

impl Fake {
    pub async fn start(habits: Habits) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let inner = Arc::new(Inner {
            contents: Mutex::default(),
            habits: Mutex::new(habits),
            requests: Mutex::default(),
            host,
        });
        let router = axum::Router::new().fallback(answer).with_state(inner.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { inner }
    }

    pub fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.inner.host)
    }

    pub fn host(&self) -> &str {
        &self.inner.host
    }

    pub fn put(&self, repository: &str, tag: &str, recipe: &Recipe) {
        for blob in recipe.blobs() {
            self.put_blob(repository, blob);
        }
        self.put_manifest(repository, tag, recipe.manifest_type, &recipe.manifest);
    }

    pub fn put_blob(&self, repository: &str, blob: &[u8]) {
        self.insert(format!("/v2/{repository}/blobs/{}", digest(blob)), "application/octet-stream", blob);
    }

    pub fn put_manifest(&self, repository: &str, tag: &str, media_type: &str, manifest: &[u8]) {
        for version in [tag, &digest(manifest)] {
            self.insert(format!("/v2/{repository}/manifests/{version}"), media_type, manifest);
        }
    }

    pub fn change(&self, change: impl FnOnce(&mut Habits)) {
        change(&mut self.inner.habits.lock().unwrap());
    }

    /// Requests so far whose line has all of these in it.
    pub fn requests(&self, with: &str) -> Vec<String> {
        self.inner.requests.lock().unwrap().iter().filter(|line| line.contains(with)).cloned().collect()
    }

    fn insert(&self, path: String, media_type: &str, content: &[u8]) {
        self.inner.contents.lock().unwrap().insert(path, (media_type.to_owned(), Bytes::copy_from_slice(content)));
    }
}

async fn answer(State(inner): State<Arc<Inner>>, request: Request<Body>) -> Response<Body> {
    let (path, headers) = (request.uri().path().to_owned(), request.headers().clone());
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    inner.requests.lock().unwrap().push(format!(
        "{} range={} authorization={}",
        request.uri(),
        text("range"),
        text("authorization")
    ));
    let is_blob = path.contains("/blobs/");
    let gate = inner.habits.lock().unwrap().gate.clone();
    if let (true, Some(mut gate)) = (is_blob, gate) {
        gate.wait_for(|open| *open).await.unwrap();
    }
    let habits = inner.habits.lock().unwrap();
    if let Some((status, body)) = &habits.answers {
        return response(*status, &[], Body::from(body.clone()));
    }
    if let Some(refusal) = authenticate(&inner.host, &habits, &path, &text("authorization")) {
        return refusal;
    }
    if let (true, Some(target)) = (is_blob, &habits.redirects_to) {
        return response(StatusCode::TEMPORARY_REDIRECT, &[("location", target)], Body::empty());
    }
    let Some((media_type, content)) = inner.contents.lock().unwrap().get(&path).cloned() else {
        return response(
            StatusCode::NOT_FOUND,
            &[],
            Body::from(r#"{"errors":[{"code":"UNKNOWN","message":"not here"}]}"#),
        );
    };
    if !is_blob {
        return response(StatusCode::OK, &[("content-type", &media_type)], Body::from(content));
    }
    blob(&habits, &headers, content)
}

fn authenticate(host: &str, habits: &Habits, path: &str, authorization: &str) -> Option<Response<Body>> {
    let (username, password) = habits.account.as_ref()?;
    if path == "/token" {
        let expected = base64::engine::general_purpose::STANDARD.encode(format!("{username}:{password}"));
        return Some(match authorization == format!("Basic {expected}") {
            true => response(StatusCode::OK, &[], Body::from(r#"{"token":"let-me-in"}"#)),
            false => response(StatusCode::UNAUTHORIZED, &[], Body::empty()),
        });
    }
    let challenge = format!(r#"Bearer realm="http://{host}/token",service="fake",scope="repository:x:pull""#);
    (authorization != "Bearer let-me-in")
        .then(|| response(StatusCode::UNAUTHORIZED, &[("www-authenticate", &challenge)], Body::empty()))
}

fn blob(habits: &Habits, headers: &HeaderMap, content: Bytes) -> Response<Body> {
    let content = match habits.corrupts && content.len() > 900 {
        true => Bytes::from(vec![0; content.len()]),
        false => content,
    };
    let range = headers.get("range").and_then(|v| v.to_str().ok()).and_then(|v| v.strip_prefix("bytes="));
    let start: Option<usize> =
        range.filter(|_| !habits.ignores_ranges).map(|range| range.trim_end_matches('-').parse().unwrap());
    let total = content.len();
    let part = content.slice(start.unwrap_or(0)..);
    let length = part.len().to_string();
    let body = match habits.break_after.filter(|limit| part.len() > *limit) {
        None => Body::from(part),
        Some(limit) => {
            // The promised length never comes: the connection breaks.
            Body::from_stream(Broken { first: Some(part.slice(..limit)), sent: false })
        }
    };
    match start {
        Some(start) => {
            let range = format!("bytes {start}-{}/{total}", total - 1);
            response(StatusCode::PARTIAL_CONTENT, &[("content-range", &range), ("content-length", &length)], body)
        }
        None => response(StatusCode::OK, &[("content-length", &length)], body),
    }
}

/// Gives some bytes, lets them be sent, then an error.
struct Broken {
    first: Option<Bytes>,
    sent: bool,
}

impl futures_util::Stream for Broken {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            // The server sends what it has when there is nothing more for now.
            None if !std::mem::replace(&mut self.sent, true) => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            None => Poll::Ready(Some(Err(std::io::Error::other("the line was cut")))),
        }
    }
}

fn response(status: StatusCode, headers: &[(&str, &str)], body: Body) -> Response<Body> {
    let mut builder = Response::builder().status(status);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(body).unwrap()
}
