//! Pools: made, shown, resized and removed.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use lifecycle::pool::{Capacity, WhenEmpty, check_name};
use protocol::error::code;
use protocol::lifecycle::{CreatePoolRequest, ListPoolsResponse, PoolResponse, UpdatePoolRequest};

use super::body::Body;
use crate::app::App;
use crate::errors::ApiError;
use crate::store::{PoolRow, Stored};
use crate::{pools, wire};

type Shared = State<Arc<App>>;

/// `GET /pools`.
pub(super) async fn list(State(app): Shared) -> Result<Json<ListPoolsResponse>, ApiError> {
    supported(&app)?;
    let items = app.store.pools().await?.into_iter().map(|row| shown(&app, row)).collect();
    Ok(Json(ListPoolsResponse { items }))
}

/// `GET /pools/{name}`.
pub(super) async fn get(State(app): Shared, Path(name): Path<String>) -> Result<Json<PoolResponse>, ApiError> {
    supported(&app)?;
    let row = find(&app, &name).await?;
    Ok(Json(shown(&app, row)))
}

/// `POST /pools`: 201 when it is remembered; its sandboxes follow.
pub(super) async fn create(State(app): Shared, Body(body): Body) -> Result<(StatusCode, Json<PoolResponse>), ApiError> {
    supported(&app)?;
    let request: CreatePoolRequest = wire::decode(&body)?;
    check_name(&request.name)?;
    let capacity = Capacity::parse(&request.capacity_spec)?;
    let when_empty = WhenEmpty::parse(request.when_empty.as_deref())?;
    let shape = pools::shape(&app, &request.template)?;
    let row = PoolRow {
        name: request.name,
        template: request.template,
        capacity,
        when_empty,
        revision: 1,
        created_at: app.now(),
    };
    let _turn = app.pool_turn.lock().await;
    match app.store.insert_pool(&row).await? {
        Stored::New => {}
        Stored::Exists => {
            let message = format!("there is a pool \"{}\" already; PUT changes its capacity", row.name);
            return Err(ApiError::conflict(code::POOL_ALREADY_EXISTS, message));
        }
        Stored::Full => {
            let message = "this server keeps no more pools; remove some";
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, code::TOO_MANY_REQUESTS, message));
        }
    }
    pools::open(&app, &row, shape);
    tracing::info!(pool = %row.name, "pool made");
    Ok((StatusCode::CREATED, Json(shown(&app, row))))
}

/// `PUT /pools/{name}`: other numbers, from now on.
pub(super) async fn update(
    State(app): Shared,
    Path(name): Path<String>,
    Body(body): Body,
) -> Result<Json<PoolResponse>, ApiError> {
    supported(&app)?;
    let request: UpdatePoolRequest = wire::decode(&body)?;
    let capacity = Capacity::parse(&request.capacity_spec)?;
    let _turn = app.pool_turn.lock().await;
    let before = find(&app, &name).await?;
    let when_empty = match request.when_empty.as_deref() {
        None => before.when_empty,
        word => WhenEmpty::parse(word)?,
    };
    if (capacity, when_empty) == (before.capacity, before.when_empty) {
        return Ok(Json(shown(&app, before)));
    }
    let row = PoolRow { capacity, when_empty, revision: before.revision + 1, ..before };
    app.store.update_pool(&row).await?;
    app.warm.resize(&row);
    tracing::info!(pool = %row.name, revision = row.revision, "pool resized");
    Ok(Json(shown(&app, row)))
}

/// `DELETE /pools/{name}`: 204 when it is forgotten. Those that wait are removed; who has one keeps it.
pub(super) async fn delete(State(app): Shared, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    supported(&app)?;
    let _turn = app.pool_turn.lock().await;
    if !app.store.remove_pool(&name).await? {
        return Err(ApiError::missing(code::POOL_NOT_FOUND, "pool", &name));
    }
    app.warm.close(&name);
    tracing::info!(pool = %name, "pool removed");
    Ok(StatusCode::NO_CONTENT)
}

/// 501 where nothing can wait.
fn supported(app: &App) -> Result<(), ApiError> {
    match app.runtime.warm().filter(|_| !app.leased) {
        Some(_) => Ok(()),
        None => Err(ApiError::not_implemented(code::POOL_NOT_SUPPORTED, pools::no_stock(app))),
    }
}

async fn find(app: &App, name: &str) -> Result<PoolRow, ApiError> {
    app.store.pool(name).await?.ok_or_else(|| ApiError::missing(code::POOL_NOT_FOUND, "pool", name))
}

fn shown(app: &App, row: PoolRow) -> PoolResponse {
    PoolResponse {
        capacity_spec: row.capacity.spec(),
        status: app.warm.status(&row.name),
        created_at: Some(row.created_at.to_string()),
        template: Some(row.template),
        when_empty: Some(row.when_empty.as_str().to_owned()),
        name: row.name,
    }
}
