//! Recordings over HTTP (ours): what a sandbox has recorded, and recordings that sandboxes are answered from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body as StreamBody;
use axum::extract::{Extension, Path, Request, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use egress::recording::{ALL_NOTES_BYTES, BadRecording, Depth, Summary, survey};
use futures_util::StreamExt as _;
use http::{StatusCode, header};
use lifecycle::spec::{SandboxId, Taping};
use protocol::error::code;
use protocol::recording::{Contents, NotRecorded, Recording, Recordings};

use super::shelf::{self, Arriving, MAX_RECORDINGS};
use crate::app::App;
use crate::errors::ApiError;
use crate::middleware::Slot;

type Shared = State<Arc<App>>;

/// Longest silence within an upload.
const UPLOAD_SILENCE: Duration = Duration::from_secs(60);
/// Bytes of a file that are read at a time.
const READ_BYTES: u64 = 256 * 1024;

/// `GET /sandboxes/{id}/network/recording`: until the sandbox is deleted.
pub(crate) async fn of_sandbox(State(app): Shared, Path(id): Path<String>) -> Result<Json<Contents>, ApiError> {
    let file = file_of(&app, &id)?;
    let summary = look(file, Depth::Heads).await?.map_err(|bad| unusable(&bad))?;
    Ok(Json(contents(summary)))
}

/// `GET /sandboxes/{id}/network/recording/file`: as much as is whole at this moment.
pub(crate) async fn download(
    State(app): Shared,
    Extension(slot): Extension<Slot>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let file = file_of(&app, &id)?;
    let again = file.try_clone().map_err(|error| shelf::failed(&error))?;
    let summary = look(again, Depth::Heads).await?.map_err(|bad| unusable(&bad))?;
    slot.release();
    let pieces = futures_util::stream::try_unfold((Arc::new(file), 0), move |(file, at)| async move {
        let length = READ_BYTES.min(summary.bytes - at);
        if length == 0 {
            return Ok::<_, io::Error>(None);
        }
        let read = file.clone();
        let piece = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            read.read_exact_at(&mut piece, at).map(|()| Bytes::from(piece))
        });
        let piece = piece.await.map_err(io::Error::other)??;
        Ok(Some((piece, (file, at + length))))
    });
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, summary.bytes.to_string()),
    ];
    Ok((headers, StreamBody::from_stream(pieces)).into_response())
}

/// `GET /recordings`.
pub(crate) async fn list(State(app): Shared) -> Result<Json<Recordings>, ApiError> {
    let mut items = Vec::new();
    for (id, since) in app.network.shelf.ids().map_err(|error| shelf::failed(&error))? {
        // One that is deleted meanwhile is not there.
        if let Some(file) = app.network.shelf.kept(&id).map_err(|error| shelf::failed(&error))? {
            let summary = look(file, Depth::Heads).await?.map_err(|bad| unusable(&bad))?;
            items.push(Recording { id, created_at: Some(since.to_string()), contents: contents(summary) });
        }
    }
    Ok(Json(Recordings { items }))
}

/// `GET /recordings/{id}`.
pub(crate) async fn get(State(app): Shared, Path(id): Path<String>) -> Result<Json<Recording>, ApiError> {
    let ids = app.network.shelf.ids().map_err(|error| shelf::failed(&error))?;
    let since = ids.into_iter().find(|(known, _)| *known == id).map(|(_, since)| since);
    // Only an id that is known becomes part of a path.
    let since = since.ok_or_else(|| not_found(&id))?;
    let file = app.network.shelf.kept(&id).map_err(|error| shelf::failed(&error))?.ok_or_else(|| not_found(&id))?;
    let summary = look(file, Depth::Heads).await?.map_err(|bad| unusable(&bad))?;
    Ok(Json(Recording { id, created_at: Some(since.to_string()), contents: contents(summary) }))
}

/// `POST /recordings`: the body is the file, as it is. It is read through before it is taken.
pub(crate) async fn upload(
    State(app): Shared,
    Extension(slot): Extension<Slot>,
    request: Request,
) -> Result<Response, ApiError> {
    let shelf = &app.network.shelf;
    slot.release();
    if shelf.ids().map_err(|error| shelf::failed(&error))?.len() >= MAX_RECORDINGS {
        let message = format!("this server keeps {MAX_RECORDINGS} recordings, and no more; delete some");
        return Err(ApiError::conflict(code::RECORDING_LIMIT, message));
    }
    let most = app.network.config.recording_max_bytes + ALL_NOTES_BYTES;
    let arriving = shelf.arriving().map_err(|error| shelf::failed(&error))?;
    let arriving = receive(arriving, request.into_body(), most).await?;
    let file = arriving.file.try_clone().map_err(|error| shelf::failed(&error))?;
    let summary = look(file, Depth::Everything).await?.map_err(|bad| match bad {
        BadRecording::System(error) => shelf::failed(&error),
        bad => ApiError::bad_request(code::RECORDING_INVALID, format!("the recording cannot be used: {bad}")),
    })?;
    if summary.is_torn || summary.bytes == 0 {
        let torn = BadRecording::Torn { at: summary.bytes };
        let message = format!("the recording cannot be used: {torn}; send the whole file");
        return Err(ApiError::bad_request(code::RECORDING_INVALID, message));
    }
    let id = shelf.keep(arriving).map_err(|error| shelf::failed(&error))?;
    tracing::info!(recording = id, exchanges = summary.exchanges, "a recording is kept");
    let kept = Recording { id, created_at: Some(app.now().to_string()), contents: contents(summary) };
    Ok((StatusCode::CREATED, Json(kept)).into_response())
}

/// `DELETE /recordings/{id}`: not while a sandbox is answered from it.
pub(crate) async fn remove(State(app): Shared, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    let is_used = |row: &crate::store::Row| {
        row.state.is_live() && matches!(&row.spec.taping, Taping::Replay { recording } if *recording == id)
    };
    if let Some(user) = app.sandboxes.all().iter().map(|sandbox| sandbox.row()).find(|row| is_used(row)) {
        let message = format!("sandbox {} is answered from it; end that first", user.id);
        return Err(ApiError::conflict(code::RECORDING_IN_USE, message));
    }
    let ids = app.network.shelf.ids().map_err(|error| shelf::failed(&error))?;
    let is_known = ids.iter().any(|(known, _)| *known == id);
    match is_known && app.network.shelf.discard(&id).map_err(|error| shelf::failed(&error))? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(not_found(&id)),
    }
}

/// What a sandbox has recorded.
fn file_of(app: &App, id: &str) -> Result<File, ApiError> {
    let sandbox = app.sandbox(id)?;
    let nothing = |message: &str| ApiError::new(StatusCode::NOT_FOUND, code::RECORDING_NOT_FOUND, message);
    if sandbox.row().spec.taping != Taping::Record {
        return Err(nothing("the sandbox is not recorded; make one with the extension osb.network.record=on"));
    }
    let id: &SandboxId = sandbox.id();
    let file = app.network.shelf.of_sandbox(id).map_err(|error| shelf::failed(&error))?;
    file.ok_or_else(|| nothing("the sandbox is not made yet, and has recorded nothing"))
}

/// Reads a recording beside everything else.
async fn look(file: File, depth: Depth) -> Result<Result<Summary, BadRecording>, ApiError> {
    let looked = tokio::task::spawn_blocking(move || survey(&file, depth)).await;
    looked.map_err(|_| ApiError::internal("a recording was not read to its end; try again"))
}

fn unusable(bad: &BadRecording) -> ApiError {
    ApiError::internal(format!("the recording is not what it was: {}", protocol::error::chain(bad)))
}

fn contents(summary: Summary) -> Contents {
    let not_recorded = summary.not_recorded.into_iter();
    Contents {
        exchanges: summary.exchanges,
        broken: summary.broken,
        bytes: summary.bytes,
        full: summary.full.is_some(),
        full_because: summary.full,
        not_recorded: not_recorded.map(|((why, host, port), times)| NotRecorded { why, host, port, times }).collect(),
        not_recorded_more: summary.has_more,
    }
}

fn not_found(id: &str) -> ApiError {
    ApiError::missing(code::RECORDING_NOT_FOUND, "recording", id)
}

/// Writes an upload down.
async fn receive(arriving: Arriving, body: StreamBody, most: u64) -> Result<Arriving, ApiError> {
    let mut pieces = body.into_data_stream();
    let mut at = 0;
    let file = Arc::new(arriving.file.try_clone().map_err(|error| shelf::failed(&error))?);
    loop {
        let piece = match tokio::time::timeout(UPLOAD_SILENCE, pieces.next()).await {
            Ok(Some(Ok(piece))) => piece,
            Ok(None) => return Ok(arriving),
            Ok(Some(Err(_))) => {
                return Err(ApiError::bad_request(code::INVALID_REQUEST_BODY, "the upload broke off"));
            }
            Err(_late) => {
                let message = format!("nothing arrived for {} s", UPLOAD_SILENCE.as_secs());
                return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, code::INVALID_REQUEST_BODY, message));
            }
        };
        let end = at + piece.len() as u64;
        if end > most {
            let message = format!("the recording is larger than {most} bytes (egress.recording_max_bytes)");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, code::RECORDING_LIMIT, message));
        }
        let write = file.clone();
        let written = tokio::task::spawn_blocking(move || write.write_all_at(&piece, at)).await;
        let written = written.map_err(|_| ApiError::internal("the upload was not written; try again"))?;
        written.map_err(|error| shelf::failed(&error))?;
        at = end;
    }
}
