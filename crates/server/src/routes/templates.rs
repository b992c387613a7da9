//! Templates: built, shown and removed.

use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, Path, State};
use http::StatusCode;
use protocol::error::code;
use protocol::lifecycle::{CreateTemplateRequest, ListTemplatesResponse, Template};

use super::body::Body;
use super::page::Page;
use super::query::Query;
use crate::app::App;
use crate::errors::ApiError;
use crate::store::Stored;
use crate::{templates, wire};

type Shared = State<Arc<App>>;

/// `POST /templates`: 201 when it is remembered; it is built then.
pub(super) async fn create(State(app): Shared, Body(body): Body) -> Result<(StatusCode, Json<Template>), ApiError> {
    let request: CreateTemplateRequest = wire::decode(&body)?;
    let template = templates::accept(&app, request)?;
    match app.store.add_template(&template).await? {
        Stored::New => {}
        Stored::Exists => {
            let message = format!("publish: there is a template \"{}\" already; choose another name", template.publish);
            return Err(ApiError::conflict(code::TEMPLATE_CONFLICT, message));
        }
        Stored::Full => {
            let message = "this server keeps no more templates; remove some";
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, code::TOO_MANY_REQUESTS, message));
        }
    }
    templates::build(&app, template.clone());
    Ok((StatusCode::CREATED, Json(template)))
}

/// `GET /templates`: a page of them, newest first.
pub(super) async fn list(
    State(app): Shared,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<ListTemplatesResponse>, ApiError> {
    let query = Query::of(&uri);
    let page = Page::of(&query)?;
    let labels = super::sandboxes::labels(&query)?;
    let has = |template: &Template| {
        let own = template.metadata.clone().unwrap_or_default();
        labels.iter().all(|(name, value)| own.get(name) == Some(value))
    };
    let all: Vec<Template> = app.store.templates().await?.into_iter().filter(has).collect();
    let total = all.len() as u64;
    let skipped = usize::try_from((page.number - 1).saturating_mul(page.size)).unwrap_or(usize::MAX);
    let items: Vec<Template> = all.into_iter().skip(skipped).take(page.size as usize).collect();
    Ok(Json(ListTemplatesResponse { items, pagination: page.info(total) }))
}

/// `GET /templates/{id}`.
pub(super) async fn get(State(app): Shared, Path(id): Path<String>) -> Result<Json<Template>, ApiError> {
    let found = app.store.template(&id).await?;
    found.map(Json).ok_or_else(|| ApiError::missing(code::TEMPLATE_NOT_FOUND, "template", &id))
}

/// `DELETE /templates/{id}`: 204. Its sandboxes go on.
pub(super) async fn delete(State(app): Shared, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    if !app.store.remove_template(&id).await? {
        return Err(ApiError::missing(code::TEMPLATE_NOT_FOUND, "template", &id));
    }
    app.warm.unpin(&id);
    Ok(StatusCode::NO_CONTENT)
}
