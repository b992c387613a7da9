//! Named volumes (ours): made, shown and removed by themselves.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Path, State};
use http::StatusCode;
use lifecycle::admit::named_volume;
use protocol::error::code;
use protocol::lifecycle::{CreateVolumeRequest, ListVolumesResponse, VolumeInfo};

use super::body::Body;
use crate::app::App;
use crate::errors::ApiError;
use crate::middleware::Slot;
use crate::store::VolumeRow;
use crate::{volumes, wire};

type Shared = State<Arc<App>>;

/// `GET /volumes`.
pub(super) async fn list(State(app): Shared) -> Result<Json<ListVolumesResponse>, ApiError> {
    let items = app.store.volumes().await?.into_iter().map(info).collect();
    Ok(Json(ListVolumesResponse { items }))
}

/// `GET /volumes/{name}`.
pub(super) async fn get(State(app): Shared, Path(name): Path<String>) -> Result<Json<VolumeInfo>, ApiError> {
    let found =
        app.store.volume(&name).await?.ok_or_else(|| ApiError::missing(code::VOLUME_NOT_FOUND, "volume", &name))?;
    Ok(Json(info(found)))
}

/// `POST /volumes`: 201 when it is there.
pub(super) async fn create(
    State(app): Shared,
    Extension(slot): Extension<Slot>,
    Body(body): Body,
) -> Result<(StatusCode, Json<VolumeInfo>), ApiError> {
    let request: CreateVolumeRequest = wire::decode(&body)?;
    if app.leased {
        let message = "named volumes outlive sandboxes: they need a server (`osb server`)";
        return Err(ApiError::bad_request(code::NOT_SUPPORTED, message));
    }
    let size_bytes = named_volume(&request, &app.capabilities(), &app.config.storage.rules())?;
    let row = VolumeRow {
        name: request.name,
        created_at: app.now(),
        size_bytes,
        created_by: None,
        delete_at_end: false,
        sandboxes: Vec::new(),
    };
    slot.release();
    volumes::make(&app, row.clone()).await?;
    Ok((StatusCode::CREATED, Json(info(row))))
}

/// `DELETE /volumes/{name}`: 204 when nothing of it is left.
pub(super) async fn delete(
    State(app): Shared,
    Extension(slot): Extension<Slot>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    slot.release();
    volumes::remove(&app, name).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn info(row: VolumeRow) -> VolumeInfo {
    VolumeInfo {
        name: row.name,
        created_at: row.created_at.to_string(),
        created_by: row.created_by,
        size_bytes: row.size_bytes,
        delete_on_sandbox_termination: row.delete_at_end,
        sandboxes: row.sandboxes,
    }
}
