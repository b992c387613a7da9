//! What this server is and can do, and the latencies that clients report.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode, header};
use lifecycle::admit::NO_NETWORK;
use protocol::error::code;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::Body;
use crate::app::App;
use crate::errors::ApiError;
use crate::wire;

/// The version that all components carry.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `GET /health`.
pub(super) async fn health() -> Json<Value> {
    Json(json!({ "status": "healthy" }))
}

/// `GET /version`.
pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": VERSION }))
}

/// `GET /capabilities` (ours): what sandboxes of this server can have.
pub(super) async fn capabilities(State(app): State<Arc<App>>) -> Json<Value> {
    let runtime = app.capabilities();
    Json(json!({
        "version": VERSION,
        "network": runtime.network,
        "features": {
            "pause": runtime.pause,
            "images": app.images.is_some(),
            "proxy": ["http", "websocket", "tcp"],
            "signedLinks": [1, 2],
            "secureAccess": true,
            "renewOnAccess": app.config.renew_intent.enabled,
            "idlePause": runtime.pause,
            "createWait": true,
            "snapshots": runtime.snapshots && !app.leased,
            "fork": runtime.snapshots && !app.leased,
            "pools": app.runtime.warm().is_some() && !app.leased,
            "templates": !app.leased,
            "warm": app.runtime.warm().is_some() && !app.leased && app.config.warm.max_memory_bytes > 0,
            "volumes": runtime.volumes.named && !app.leased,
            "hostPaths": !app.config.storage.allowed_host_paths.is_empty(),
            "bucketVolumes": false,
            "networkPolicy": runtime.network != NO_NETWORK,
            "credentialProxy": runtime.network != NO_NETWORK,
            "recordings": runtime.network != NO_NETWORK,
            "lifecycleHooks": ["preStart", "periodic", "beforePause", "afterResume", "beforeEnd"],
        },
        "limits": { "maxSandboxTimeoutSeconds": app.config.server.max_sandbox_timeout_seconds },
        "runtime": runtime,
    }))
}

/// What a client reports of a create.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricsEvent {
    event_type: String,
    create_duration_ms: f64,
    success: bool,
}

/// `POST /v1/metrics/events`.
pub(super) async fn metrics_event(headers: HeaderMap, Body(body): Body) -> Result<StatusCode, ApiError> {
    let event: MetricsEvent = wire::decode(&body)?;
    let invalid = |field: &str, problem: &str| {
        let loc = ["body".to_owned(), field.to_owned()];
        ApiError::invalid(code::INVALID_PARAMETER, "value_error", &loc, format!("{field}: {problem}"))
    };
    if event.event_type != "sandbox.create" {
        return Err(invalid("eventType", "must be sandbox.create"));
    }
    if event.create_duration_ms < 0.0 {
        return Err(invalid("createDurationMs", "must not be negative"));
    }
    let client = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or("unknown");
    tracing::debug!(
        client,
        elapsed_ms = event.create_duration_ms,
        success = event.success,
        "a client reports a create"
    );
    Ok(StatusCode::NO_CONTENT)
}
