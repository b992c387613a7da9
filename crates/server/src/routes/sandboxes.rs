//! Sandboxes: found, changed and ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, OriginalUri, Path, State};
use http::StatusCode;
use lifecycle::state::{self, Event};
use protocol::error::code;
use protocol::lifecycle::{self as wire_types, ListSandboxesResponse, RenewRequest, RenewResponse};

use super::body::Body;
use super::page::Page;
use super::query::Query;
use crate::app::App;
use crate::errors::ApiError;
use crate::middleware::Slot;
use crate::store::{Filter, Row};
use crate::wire::{self, View};

type Shared = State<Arc<App>>;

/// Longest wait of a request for the end of what it started; clients give up after 30 s.
const EFFECT_WAIT: Duration = Duration::from_secs(25);
/// Longest grace that a deletion may ask for.
const MAX_GRACE_SECONDS: f64 = 20.0;

/// `GET /sandboxes`.
pub(super) async fn list(
    State(app): Shared,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<ListSandboxesResponse>, ApiError> {
    let query = Query::of(&uri);
    let page = Page::of(&query)?;
    let states: Vec<&str> = query.all("state").collect();
    let filter = Filter {
        // A word that is no state of ours matches nothing.
        states: (!states.is_empty()).then(|| states.iter().filter_map(|word| word.parse().ok()).collect()),
        metadata: labels(&query)?,
    };
    let found = app.store.list(filter, page.number, page.size).await?;
    let items = found.rows.iter().map(|row| present(&app, row)).collect();
    Ok(Json(ListSandboxesResponse { items, pagination: page.info(found.total) }))
}

/// The labels that are asked for.
pub(super) fn labels(query: &Query) -> Result<Vec<(String, String)>, ApiError> {
    Ok(query.text("metadata").map(metadata_filter).transpose()?.unwrap_or_default())
}

/// A stored row as an item; while `Pending` with the progress that is not stored.
fn present(app: &App, row: &Row) -> wire_types::Sandbox {
    let mut item = wire::sandbox(row, View::Item, app.runtime.name());
    if row.state == state::State::Pending
        && let Some(sandbox) = app.sandboxes.get(row.id.as_str())
    {
        let now = sandbox.row();
        if now.state == row.state {
            item.status.message = Some(now.message.clone());
        }
    }
    item
}

/// `k=v&k2=v2`, each part URL-encoded.
fn metadata_filter(text: &str) -> Result<Vec<(String, String)>, ApiError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    if text.split('&').any(|pair| !pair.contains('=') || pair.starts_with('=')) {
        return Err(ApiError::bad_request(
            code::INVALID_METADATA_FORMAT,
            "metadata: must be key=value pairs joined by &, URL-encoded as one parameter",
        ));
    }
    Ok(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
}

/// `GET /sandboxes/{id}`.
pub(super) async fn get(State(app): Shared, Path(id): Path<String>) -> Result<Json<wire_types::Sandbox>, ApiError> {
    let sandbox = app.sandbox(&id)?;
    Ok(Json(wire::sandbox(&sandbox.row(), View::Detail, app.runtime.name())))
}

/// `DELETE /sandboxes/{id}`: 204 when nothing of it is left.
pub(super) async fn delete(
    State(app): Shared,
    Extension(slot): Extension<Slot>,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> Result<StatusCode, ApiError> {
    let grace = Query::of(&uri).seconds("grace", MAX_GRACE_SECONDS)?;
    let sandbox = app.sandbox(&id)?;
    sandbox.delete(grace).await?;
    slot.release();
    if sandbox.gone(EFFECT_WAIT).await {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        code::DELETE_FAILED,
        format!("the sandbox is still being ended, and it is tried until it is gone: {}", sandbox.row().message),
    ))
}

/// `PATCH /sandboxes/{id}/metadata`.
pub(super) async fn patch_metadata(
    State(app): Shared,
    Path(id): Path<String>,
    Body(body): Body,
) -> Result<Json<wire_types::Sandbox>, ApiError> {
    let sandbox = app.sandbox(&id)?;
    let patch: BTreeMap<String, Option<String>> = wire::decode(&body)?;
    let row = sandbox.patch(patch).await?;
    Ok(Json(wire::sandbox(&row, View::Detail, app.runtime.name())))
}

/// `POST /sandboxes/{id}/renew-expiration`.
pub(super) async fn renew(
    State(app): Shared,
    Path(id): Path<String>,
    Body(body): Body,
) -> Result<Json<RenewResponse>, ApiError> {
    let sandbox = app.sandbox(&id)?;
    let request: RenewRequest = wire::decode(&body)?;
    let at = wire::instant(&request.expires_at).ok_or_else(|| {
        let loc = ["body".to_owned(), "expiresAt".to_owned()];
        let problem = "expiresAt: must be a date and time as in 2030-01-31T12:00:00Z";
        ApiError::invalid(code::INVALID_PARAMETER, "datetime_parsing", &loc, problem)
    })?;
    let row = sandbox.renew(at).await?;
    let expires_at = row.expires_at.expect("a renewal sets it").to_string();
    Ok(Json(RenewResponse { expires_at }))
}

/// `POST /sandboxes/{id}/pause`: 202 when it is frozen.
pub(super) async fn pause(
    State(app): Shared,
    Extension(slot): Extension<Slot>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let sandbox = app.sandbox(&id)?;
    if app.runtime.pause().is_none() {
        return Err(ApiError::bad_request(
            code::NOT_SUPPORTED,
            format!("the runtime {} cannot pause sandboxes on this machine", app.runtime.name()),
        ));
    }
    sandbox.pause().await?;
    slot.release();
    let row = sandbox.wait(|row| row.state != state::State::Pausing, EFFECT_WAIT).await;
    let refused = state::reason(&Event::PauseRefused { message: String::new() }).0;
    if let Some(row) = row.as_deref().filter(|row| row.reason == refused) {
        return Err(ApiError::conflict(code::PAUSE_FAILED, row.message.clone()));
    }
    settled(&id, row.as_deref(), &Event::PauseFailed { message: String::new() }, code::PAUSE_FAILED)
}

/// `POST /sandboxes/{id}/resume`: 202 when it runs again.
pub(super) async fn resume(
    State(app): Shared,
    Extension(slot): Extension<Slot>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let sandbox = app.sandbox(&id)?;
    sandbox.resume().await?;
    slot.release();
    let row = sandbox.wait(|row| row.state != state::State::Resuming, EFFECT_WAIT).await;
    settled(&id, row.as_deref(), &Event::ResumeFailed { message: String::new() }, code::RESUME_FAILED)
}

/// 202, unless what was asked for has failed meanwhile.
fn settled(id: &str, row: Option<&Row>, failure: &Event, code: &str) -> Result<StatusCode, ApiError> {
    let Some(row) = row else {
        return Err(ApiError::not_found(id));
    };
    if row.reason == state::reason(failure).0 {
        return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, code, row.message.clone()));
    }
    if !row.state.is_live() {
        return Err(ApiError::conflict(code::NOT_RUNNING, format!("the sandbox has ended: {}", row.message)));
    }
    Ok(StatusCode::ACCEPTED)
}
