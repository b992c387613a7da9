//! How to reach a port of a sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, OriginalUri, Path, State};
use http::{HeaderMap, header};
use protocol::error::code;
use protocol::lifecycle::Endpoint;
use secrecy::ExposeSecret as _;

use super::query::Query;
use crate::app::App;
use crate::errors::ApiError;
use crate::middleware::Slot;
use ingress::EXECD_PORT;
use ingress::target::parse_port;

/// `GET /sandboxes/{id}/endpoints/{port}`: while the sandbox is being made it waits for the outcome, because
/// the published clients ask right after a create and show whatever comes back.
pub(super) async fn look_up(
    State(app): State<Arc<App>>,
    Extension(slot): Extension<Slot>,
    Path((id, port)): Path<(String, String)>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Result<Json<Endpoint>, ApiError> {
    let port = parse_port(&port)?;
    let query = Query::of(&uri);
    let server_proxy = query.flag("use_server_proxy")?;
    if query.text("expires").is_some() {
        let why = if server_proxy {
            "expires: cannot be used together with use_server_proxy"
        } else {
            "expires: signed routes need a gateway, and there is none; leave it out"
        };
        return Err(ApiError::bad_request(code::NOT_SUPPORTED, why));
    }
    slot.release();
    app.running(&id).await?;
    let authority = authority(&app, &headers)?;
    let prefix = if uri.path().starts_with("/v1/") { "/v1" } else { "" };
    let token = app.auth.token(&id).expose_secret().to_owned();
    let name = if port == EXECD_PORT { "X-EXECD-ACCESS-TOKEN" } else { "OpenSandbox-Secure-Access" };
    Ok(Json(Endpoint {
        endpoint: format!("{authority}{prefix}/sandboxes/{id}/proxy/{port}"),
        headers: Some(BTreeMap::from([(name.to_owned(), token)])),
    }))
}

/// `host[:port]` by which the caller reaches this server.
fn authority(app: &App, headers: &HeaderMap) -> Result<String, ApiError> {
    if let Some(eip) = &app.config.server.eip {
        return Ok(eip.clone());
    }
    headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .filter(|host| !host.is_empty())
        .map(str::to_owned)
        .ok_or_else(|| {
            ApiError::bad_request(code::INVALID_PARAMETER, "Host: is needed to say where the port is reached")
        })
}
