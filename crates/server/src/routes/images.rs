//! The image store over HTTP (ours): list, pull, import, remove, prune.
//!
//! Pull and import answer with JSON lines: `{"message": ...}` while they go on, at the end `{"image": ...}` or
//! `{"error": {"code", "message"}}`. What fails at once is answered as a plain error.

use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body as StreamBody;
use axum::extract::{Extension, OriginalUri, Path, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{StatusCode, header};
use image::{Bounds, Credentials, EnsureOptions, Image, Platform, Progress, Store};
use protocol::error::code;
use protocol::lifecycle::{ImageAuth, ImageInfo, PlatformSpec};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;

use super::body::Body;
use super::query::Query;
use crate::app::App;
use crate::errors::ApiError;
use crate::images::in_use;
use crate::middleware::Slot;
use crate::wire;

type Shared = State<Arc<App>>;

/// Most bytes of an uploaded archive; beyond what any image of a sandbox has.
const MAX_UPLOAD_BYTES: u64 = 64 << 30;
/// Longest silence within an upload.
const UPLOAD_SILENCE: Duration = Duration::from_secs(60);
/// Least time between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Lines that wait for a slow reader; further progress is left out, the outcome never is.
const LINES: usize = 16;

/// `GET /images`.
pub(super) async fn list(State(app): Shared) -> Result<Json<Value>, ApiError> {
    let images = store(&app)?.list().await?;
    Ok(Json(json!({ "items": images.iter().map(info).collect::<Vec<_>>() })))
}

/// What to pull.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PullRequest {
    uri: String,
    #[serde(default)]
    auth: Option<ImageAuth>,
    #[serde(default)]
    platform: Option<PlatformSpec>,
}

/// `POST /images/pull`.
pub(super) async fn pull(
    State(app): Shared,
    Extension(slot): Extension<Slot>,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let store = store(&app)?;
    let request: PullRequest = wire::decode(&body)?;
    let credentials = match request.auth {
        None => None,
        Some(ImageAuth { username: Some(username), password: Some(password) }) => {
            Some(Credentials { username, password: SecretString::from(password) })
        }
        Some(_) => {
            return Err(ApiError::bad_request(code::INVALID_PARAMETER, "auth: needs both username and password"));
        }
    };
    let platform = request
        .platform
        .map(|asked| {
            format!("{}/{}", asked.os, asked.arch)
                .parse::<Platform>()
                .map_err(|error| ApiError::bad_request(code::INVALID_PARAMETER, format!("platform: {error}")))
        })
        .transpose()?;
    let options = EnsureOptions { credentials, platform, plain_http_hosts: app.config.images.plain_http_hosts.clone() };
    slot.release();
    lines(&app, move |lines| async move { Ok(store.pull(&request.uri, options, &|p| lines.progress(p)).await?) }).await
}

/// `POST /images/import?name=`: the body is an archive, as it is.
pub(super) async fn import(
    State(app): Shared,
    Extension(slot): Extension<Slot>,
    OriginalUri(uri): OriginalUri,
    request: Request,
) -> Result<Response, ApiError> {
    let store = store(&app)?;
    let name = Query::of(&uri).text("name").map(str::to_owned);
    slot.release();
    let upload = Upload::receive(&app.uploads, request.into_body()).await?;
    lines(&app, move |lines| async move {
        let imported = store.import(&upload.0, name.as_deref(), &|p| lines.progress(p)).await;
        imported.map_err(|error| {
            // Where uploads lie is nobody's business, and says nothing to whoever sent it.
            let mut error = ApiError::from(error);
            error.message = error.message.replace(&upload.0.display().to_string(), "the upload");
            error
        })
    })
    .await
}

/// `DELETE /images/{reference}`.
pub(super) async fn remove(State(app): Shared, Path(reference): Path<String>) -> Result<StatusCode, ApiError> {
    store(&app)?.remove(&reference).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which images a prune takes beside those without a name.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PruneRequest {
    /// Bytes of all unpacked images, beyond which pulled ones go that are unused for longest.
    #[serde(default)]
    max_bytes: Option<u64>,
    /// Seconds after which a pulled image goes that nobody asked for.
    #[serde(default)]
    unused_for_seconds: Option<u64>,
}

/// `POST /images/prune`, with a body or without.
pub(super) async fn prune(
    State(app): Shared,
    Extension(slot): Extension<Slot>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let store = store(&app)?;
    let asked: PruneRequest = if body.is_empty() { PruneRequest::default() } else { wire::decode(&body)? };
    slot.release();
    let bounds = Bounds { max_bytes: asked.max_bytes, unused_for: asked.unused_for_seconds.map(Duration::from_secs) };
    let pruned = store.collect(&in_use(&app).await?, bounds).await?;
    Ok(Json(json!({
        "images": pruned.images,
        "layers": pruned.layers.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "layersKept": pruned.layers_kept,
        "bytes": pruned.bytes,
    })))
}

fn store(app: &App) -> Result<Store, ApiError> {
    app.images.clone().ok_or_else(|| {
        ApiError::not_implemented(code::IMAGES_NOT_SUPPORTED, "this server has no image store of its own")
    })
}

fn info(image: &Image) -> ImageInfo {
    ImageInfo {
        id: image.id.clone(),
        references: image.references.clone(),
        platform: image.config.platform.to_string(),
        size_bytes: image.size_bytes,
        layers: image.layers.len(),
        created_at: Some(wire::micros(image.pulled_at).to_string()),
    }
}

impl From<image::Error> for ApiError {
    fn from(error: image::Error) -> Self {
        use image::Error as E;
        let (status, code) = match &error {
            E::Reference { .. } => (StatusCode::BAD_REQUEST, code::INVALID_PARAMETER),
            E::NotLocal { .. } | E::NotFound { .. } => (StatusCode::NOT_FOUND, code::IMAGE_NOT_FOUND),
            E::AmbiguousId { .. } => (StatusCode::CONFLICT, code::IMAGE_AMBIGUOUS),
            E::Unauthorized { .. } => (StatusCode::FORBIDDEN, code::IMAGE_ACCESS_REFUSED),
            E::RateLimited { .. } => (StatusCode::TOO_MANY_REQUESTS, code::IMAGE_REGISTRY_FAILED),
            E::Unreachable { .. } | E::Interrupted { .. } | E::Registry { .. } => {
                (StatusCode::BAD_GATEWAY, code::IMAGE_REGISTRY_FAILED)
            }
            E::DigestMismatch { .. }
            | E::MediaType { .. }
            | E::Platform { .. }
            | E::Malformed { .. }
            | E::TooLarge { .. }
            | E::UnknownKind { .. }
            | E::SeveralImages { .. }
            | E::Unpack { .. } => (StatusCode::BAD_REQUEST, code::IMAGE_REFUSED),
            E::NoSpace { .. } => (StatusCode::INSUFFICIENT_STORAGE, code::IMAGE_NO_SPACE),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, code::IMAGE_STORE_FAILED),
        };
        Self::new(status, code, protocol::error::chain(&error))
    }
}

/// Lines of an answer that grows.
struct Lines {
    out: mpsc::Sender<Line>,
    last: Mutex<Option<Instant>>,
}

enum Line {
    Progress(String),
    Image(Box<ImageInfo>),
    Failed(ApiError),
}

impl Lines {
    fn progress(&self, progress: Progress) {
        let mut last = self.last.lock().expect("no holder panics");
        if last.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL) {
            *last = Some(Instant::now());
            // A reader that is slow misses progress, and never the outcome.
            let _ = self.out.try_send(Line::Progress(progress.to_string()));
        }
    }
}

/// Runs the work and answers with its lines; a caller that leaves ends it.
async fn lines<F>(app: &App, work: impl FnOnce(Arc<Lines>) -> F) -> Result<Response, ApiError>
where
    F: Future<Output = Result<Image, ApiError>> + Send + 'static,
{
    let (out, mut written) = mpsc::channel(LINES);
    let work = work(Arc::new(Lines { out: out.clone(), last: Mutex::default() }));
    let closing = app.closing.clone();
    app.tasks.spawn(async move {
        let line = tokio::select! {
            () = out.closed() => return,
            () = closing.cancelled() => Line::Failed(ApiError::internal("the server stopped; try again")),
            outcome = work => match outcome {
                Ok(image) => Line::Image(Box::new(info(&image))),
                Err(error) => Line::Failed(error),
            },
        };
        let _ = out.send(line).await;
    });
    let first =
        written.recv().await.unwrap_or_else(|| Line::Failed(ApiError::internal("the work ended without a result")));
    if let Line::Failed(error) = first {
        return Err(error);
    }
    let rest = tokio_stream::wrappers::ReceiverStream::new(written);
    let all = futures_util::stream::once(std::future::ready(first)).chain(rest);
    let body = StreamBody::from_stream(all.map(|line| Ok::<_, std::convert::Infallible>(text(line))));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

fn text(line: Line) -> Bytes {
    let value = match line {
        Line::Progress(message) => json!({ "message": message }),
        Line::Image(image) => json!({ "image": image }),
        Line::Failed(error) => json!({ "error": { "code": error.code, "message": error.message } }),
    };
    Bytes::from(format!("{value}\n"))
}

/// An uploaded archive on disk, removed with this value.
struct Upload(PathBuf);

impl Drop for Upload {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "an upload could not be removed");
        }
    }
}

impl Upload {
    async fn receive(dir: &FilePath, body: StreamBody) -> Result<Self, ApiError> {
        let failed = |error: &std::io::Error| {
            let full = matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
            match full {
                true => ApiError::new(
                    StatusCode::INSUFFICIENT_STORAGE,
                    code::IMAGE_NO_SPACE,
                    "the server's disk is full; free some and upload again",
                ),
                false => ApiError::internal(format!("the upload could not be written: {error}")),
            }
        };
        tokio::fs::create_dir_all(dir).await.map_err(|error| failed(&error))?;
        let path = dir.join(format!("{PREFIX}{}", uuid::Uuid::new_v4().simple()));
        let file = tokio::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).await;
        let mut file = file.map_err(|error| failed(&error))?;
        let upload = Self(path);
        let mut pieces = body.into_data_stream();
        let mut bytes = 0_u64;
        loop {
            let piece = match tokio::time::timeout(UPLOAD_SILENCE, pieces.next()).await {
                Ok(Some(Ok(piece))) => piece,
                Ok(None) => break,
                Ok(Some(Err(_))) => {
                    return Err(ApiError::bad_request(code::INVALID_REQUEST_BODY, "the upload broke off"));
                }
                Err(_late) => {
                    let message = format!("nothing arrived for {} s", UPLOAD_SILENCE.as_secs());
                    return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, code::INVALID_REQUEST_BODY, message));
                }
            };
            bytes += piece.len() as u64;
            if bytes > MAX_UPLOAD_BYTES {
                let message = format!("the archive is larger than {MAX_UPLOAD_BYTES} bytes");
                return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, code::INVALID_REQUEST_BODY, message));
            }
            file.write_all(&piece).await.map_err(|error| failed(&error))?;
        }
        file.flush().await.map_err(|error| failed(&error))?;
        Ok(upload)
    }
}

/// Names of uploads begin with this.
const PREFIX: &str = "osb-upload-";

/// Removes uploads that a killed server left behind.
pub(crate) fn sweep(dir: &FilePath) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        // It is made with the first upload.
        return;
    };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        if let Err(error) = std::fs::remove_file(entry.path()) {
            tracing::warn!(path = %entry.path().display(), %error, "a left upload could not be removed");
        }
    }
}
