//! Snapshots: taken, found and removed.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, OriginalUri, Path, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use lifecycle::snapshot::{self, MAX_NAME_CHARS};
use protocol::error::code;
use protocol::snapshot::{CreateSnapshotRequest, ListSnapshotsResponse, Snapshot, SnapshotStatus};

use super::body::Body;
use super::page::Page;
use super::query::Query;
use crate::app::App;
use crate::errors::ApiError;
use crate::middleware::Slot;
use crate::store::{SnapshotFilter, SnapshotRow};
use crate::{snapshots, wire};

type Shared = State<Arc<App>>;

/// `POST /sandboxes/{id}/snapshots`: 202 as soon as it is remembered.
pub(super) async fn create(State(app): Shared, Path(id): Path<String>, Body(body): Body) -> Result<Response, ApiError> {
    let sandbox = app.sandbox(&id)?;
    let request: Option<CreateSnapshotRequest> = if body.is_empty() { None } else { wire::decode(&body)? };
    let name = request.and_then(|request| request.name).map(checked).transpose()?;
    let row = snapshots::begin(&app, &sandbox, name).await?;
    let location = [(header::LOCATION, format!("/v1/snapshots/{}", row.id))];
    Ok((StatusCode::ACCEPTED, location, Json(shown(row))).into_response())
}

fn checked(name: String) -> Result<String, ApiError> {
    let is_fit = (1..=MAX_NAME_CHARS).contains(&name.chars().count())
        && !name.trim().is_empty()
        && !name.chars().any(char::is_control);
    if is_fit {
        return Ok(name);
    }
    let loc = ["body".to_owned(), "name".to_owned()];
    let message = format!("name: must be 1 to {MAX_NAME_CHARS} characters, not blank, without control characters");
    Err(ApiError::invalid(code::INVALID_PARAMETER, "value_error", &loc, message))
}

/// `GET /snapshots`.
pub(super) async fn list(
    State(app): Shared,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<ListSnapshotsResponse>, ApiError> {
    let query = Query::of(&uri);
    let page = Page::of(&query)?;
    let states: Vec<&str> = query.all("state").collect();
    let filter = SnapshotFilter {
        sandbox: query.text("sandboxId").map(str::to_owned),
        name: query.text("name").map(str::to_owned),
        states: (!states.is_empty()).then(|| states.iter().filter_map(|word| snapshot::State::parse(word)).collect()),
    };
    let found = app.store.snapshots(filter, page.number, page.size).await?;
    let items = found.rows.into_iter().map(shown).collect();
    Ok(Json(ListSnapshotsResponse { items, pagination: page.info(found.total) }))
}

/// `GET /snapshots/{id}`.
pub(super) async fn get(State(app): Shared, Path(id): Path<String>) -> Result<Json<Snapshot>, ApiError> {
    let missing = || ApiError::missing(code::SNAPSHOT_NOT_FOUND, "snapshot", &id);
    Ok(Json(shown(app.store.snapshot(&id).await?.ok_or_else(missing)?)))
}

/// `DELETE /snapshots/{id}`: 204 when nothing of it is left.
pub(super) async fn delete(
    State(app): Shared,
    Extension(slot): Extension<Slot>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    slot.release();
    snapshots::remove(&app, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn shown(row: SnapshotRow) -> Snapshot {
    let taken = row.taken.as_ref();
    Snapshot {
        digest: taken.and_then(|taken| taken.standing.layers.last()).map(|layer| format!("sha256:{layer}")),
        size_bytes: taken.map(|taken| taken.bytes),
        entries: taken.map(|taken| taken.entries),
        frozen_ms: taken.map(|taken| u64::try_from(taken.frozen.as_millis()).unwrap_or(u64::MAX)),
        id: row.id.to_string(),
        sandbox_id: row.sandbox,
        name: row.name,
        status: SnapshotStatus {
            state: row.state.as_str().to_owned(),
            reason: Some(row.reason),
            message: Some(row.message),
            last_transition_at: Some(row.transition_at.to_string()),
        },
        created_at: row.created_at.to_string(),
        image: Some(row.image),
    }
}
