//! Every route, bare and under `/v1`, and what answers where there is none.

mod about;
pub(crate) mod body;
mod create;
mod diagnostics;
mod endpoints;
pub(crate) mod images;
mod page;
mod pools;
pub(crate) mod query;
mod sandboxes;
mod snapshots;
mod templates;
mod volumes;

use std::sync::Arc;

use axum::Router;
use axum::extract::{OriginalUri, Request};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, patch, post};
use http::{HeaderValue, Method, StatusCode, header};
use protocol::error::code;
use tower::Service as _;

use crate::app::App;
use crate::errors::ApiError;
use crate::middleware::{Kind, identify};
use crate::{middleware, network, proxy};

/// Everything that this server answers: its API, and calls to ports, which bypass the API's routes.
#[derive(Clone)]
pub(crate) struct Routes {
    app: Arc<App>,
    api: Router,
}

impl Routes {
    pub(crate) fn new(app: &Arc<App>) -> Self {
        Self { app: app.clone(), api: router(app) }
    }

    pub(crate) async fn answer(self, request: Request) -> Response {
        if ingress::is_port(request.uri().path()) {
            let app = self.app;
            return identify(request, Kind::Port, |request| async move { proxy::call(&app, request).await }).await;
        }
        let mut api = self.api;
        let next = |request: Request| async move { api.call(request).await.unwrap_or_else(|never| match never {}) };
        identify(request, Kind::Api, next).await
    }
}

fn router(app: &Arc<App>) -> Router {
    let mut router = Router::new()
        .route("/health", get(about::health))
        .route("/version", get(about::version))
        .route("/metrics", get(network::counts::metrics))
        .route("/v1/metrics/events", post(about::metrics_event));
    for prefix in ["", "/v1"] {
        let at = |path: &str| format!("{prefix}{path}");
        router = router
            .route(&at("/images"), get(images::list))
            .route(&at("/images/pull"), post(images::pull))
            .route(&at("/images/import"), post(images::import))
            .route(&at("/images/prune"), post(images::prune))
            .route(&at("/images/{*reference}"), delete(images::remove))
            .route(&at("/volumes"), get(volumes::list).post(volumes::create))
            .route(&at("/volumes/{name}"), get(volumes::get).delete(volumes::delete))
            .route(&at("/capabilities"), get(about::capabilities))
            .route(&at("/sandboxes"), post(create::one).get(sandboxes::list))
            .route(&at("/sandboxes/batch"), post(create::many))
            .route(&at("/sandboxes/{id}"), get(sandboxes::get).delete(sandboxes::delete))
            .route(&at("/sandboxes/{id}/metadata"), patch(sandboxes::patch_metadata))
            .route(&at("/sandboxes/{id}/pause"), post(sandboxes::pause))
            .route(&at("/sandboxes/{id}/resume"), post(sandboxes::resume))
            .route(&at("/sandboxes/{id}/renew-expiration"), post(sandboxes::renew))
            .route(&at("/sandboxes/{id}/endpoints/{port}"), get(endpoints::look_up))
            .route(&at("/sandboxes/{id}/diagnostics/logs"), get(diagnostics::logs))
            .route(&at("/sandboxes/{id}/diagnostics/events"), get(diagnostics::events))
            .route(&at("/sandboxes/{id}/diagnostics/inspect"), get(diagnostics::inspect))
            .route(&at("/sandboxes/{id}/diagnostics/summary"), get(diagnostics::summary))
            .route(&at("/sandboxes/{id}/snapshots"), post(snapshots::create))
            .route(&at("/sandboxes/{id}/fork"), post(create::fork))
            .route(&at("/snapshots"), get(snapshots::list))
            .route(&at("/snapshots/{id}"), get(snapshots::get).delete(snapshots::delete))
            .route(&at("/pools"), get(pools::list).post(pools::create))
            .route(&at("/pools/{name}"), get(pools::get).put(pools::update).delete(pools::delete))
            .route(&at("/templates"), get(templates::list).post(templates::create))
            .route(&at("/templates/{id}"), get(templates::get).delete(templates::delete))
            .route(
                &at("/sandboxes/{id}/networkpolicy"),
                get(network::api::beneath)
                    .put(network::api::beneath)
                    .patch(network::api::beneath)
                    .delete(network::api::beneath),
            )
            .route(&at("/sandboxes/{id}/network/events"), get(network::events::read))
            .route(&at("/sandboxes/{id}/network/recording"), get(network::recordings::of_sandbox))
            .route(&at("/sandboxes/{id}/network/recording/file"), get(network::recordings::download))
            .route(&at("/recordings"), get(network::recordings::list).post(network::recordings::upload))
            .route(&at("/recordings/{id}"), get(network::recordings::get).delete(network::recordings::remove));
    }
    router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(app.clone(), middleware::limit))
        .layer(from_fn_with_state(app.clone(), middleware::authenticate))
        .with_state(app.clone())
}

/// An unknown path; one that only ends in a slash too many is sent to where it meant.
async fn not_found(OriginalUri(uri): OriginalUri, request: Request) -> Response {
    let path = uri.path();
    let trimmed = path.trim_end_matches('/');
    if trimmed.len() < path.len() && trimmed.len() > 1 && !trimmed.starts_with("//") {
        let location = match uri.query() {
            Some(query) => format!("{trimmed}?{query}"),
            None => trimmed.to_owned(),
        };
        if let Ok(location) = HeaderValue::try_from(location) {
            return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, location)]).into_response();
        }
    }
    let shown: String = path.chars().take(MAX_ECHOED_PATH).collect();
    ApiError::new(
        StatusCode::NOT_FOUND,
        code::ROUTE_NOT_FOUND,
        format!("there is no route {} {shown}", request.method()),
    )
    .into_response()
}

/// Most characters of an unknown path that the answer repeats.
const MAX_ECHOED_PATH: usize = 200;

async fn method_not_allowed(method: Method, OriginalUri(uri): OriginalUri) -> ApiError {
    let shown: String = uri.path().chars().take(MAX_ECHOED_PATH).collect();
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        code::METHOD_NOT_ALLOWED,
        format!("{shown} does not take {method}; the header Allow lists what it takes"),
    )
}
