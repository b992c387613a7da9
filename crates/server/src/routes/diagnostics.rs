//! What can be told of a sandbox when something went wrong with it.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, Path, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderName, header};
use protocol::error::code;
use protocol::headers::DEPRECATION;
use serde_json::json;

use super::query::Query;
use crate::app::App;
use crate::driver::CONSOLE_BYTES;
use crate::errors::ApiError;
use crate::store::Row;

/// Log lines and events in an answer with a scope (published).
const SCOPED_LINES: u64 = 100;
const SCOPED_EVENTS: u64 = 50;
/// Words in the name of a variable whose value is not shown (published).
const SECRET_WORDS: [&str; 4] = ["SECRET", "TOKEN", "PASSWORD", "KEY"];

/// `GET .../diagnostics/logs`.
pub(super) async fn logs(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> Result<Response, ApiError> {
    let query = Query::of(&uri);
    let row = app.sandbox(&id)?.row();
    if let Some(scope) = scope(&query, &["container", "all"])? {
        let content = console(&app, &row, SCOPED_LINES).await?;
        return Ok(scoped(&row, "logs", &scope, &content));
    }
    for name in ["since", "container"] {
        if query.text(name).is_some() {
            let why = format!("{name}: log lines here have no times and one source; use tail, or leave it out");
            return Err(ApiError::bad_request(code::NOT_SUPPORTED, why));
        }
    }
    let tail = query.number("tail", 1..=10_000, 100)?;
    Ok(deprecated(console(&app, &row, tail).await?))
}

/// `GET .../diagnostics/events`.
pub(super) async fn events(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> Result<Response, ApiError> {
    let query = Query::of(&uri);
    let row = app.sandbox(&id)?.row();
    if let Some(scope) = scope(&query, &["runtime", "all"])? {
        let content = history(&app, &row, SCOPED_EVENTS).await?;
        return Ok(scoped(&row, "events", &scope, &content));
    }
    let limit = query.number("limit", 1..=500, 50)?;
    Ok(deprecated(history(&app, &row, limit).await?))
}

/// `GET .../diagnostics/inspect`.
pub(super) async fn inspect(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<String, ApiError> {
    Ok(description(&app, &app.sandbox(&id)?.row()))
}

/// `GET .../diagnostics/summary`.
pub(super) async fn summary(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> Result<String, ApiError> {
    let query = Query::of(&uri);
    let tail = query.number("tail", 1..=10_000, 50)?;
    let limit = query.number("event_limit", 1..=500, 20)?;
    let row = app.sandbox(&id)?.row();
    let events = history(&app, &row, limit).await?;
    let logs = console(&app, &row, tail).await?;
    Ok(format!("{}\n\nEvents\n{events}\n\nLogs\n{logs}\n", description(&app, &row).trim_end()))
}

/// The asked scope, if any; an unknown one is refused.
fn scope(query: &Query, known: &[&str]) -> Result<Option<String>, ApiError> {
    let Some(asked) = query.text("scope") else {
        return Ok(None);
    };
    let word = asked.trim().to_ascii_lowercase();
    if known.contains(&word.as_str()) {
        return Ok(Some(word));
    }
    let message = format!("scope: must be one of {}", known.join(", "));
    Err(ApiError::bad_request(code::DIAGNOSTICS_SCOPE_UNSUPPORTED, message))
}

fn scoped(row: &Row, kind: &str, scope: &str, content: &str) -> Response {
    let mut body = json!({
        "sandboxId": row.id.as_str(),
        "kind": kind,
        "scope": scope,
        "delivery": "inline",
        "contentType": "text/plain; charset=utf-8",
        "content": content,
        "contentLength": content.len(),
        "truncated": false,
    });
    if scope == "all" {
        body["warnings"] = json!([format!("the only source of {kind} here is the sandbox itself")]);
    }
    Json(body).into_response()
}

fn deprecated(text: String) -> Response {
    let headers = [(HeaderName::from_static(DEPRECATION), "true"), (header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    (headers, text).into_response()
}

/// The last lines of what the main process wrote.
async fn console(app: &App, row: &Row, lines: u64) -> Result<String, ApiError> {
    let bytes = if row.state.is_live() {
        match app.runtime.console(&row.id, CONSOLE_BYTES).await {
            Ok(bytes) => bytes,
            // It may not have come so far, or be on its way out.
            Err(error) => {
                tracing::debug!(sandbox_id = %row.id, error = %error, "no console");
                Vec::new()
            }
        }
    } else {
        app.store.console(&row.id).await?.unwrap_or_default()
    };
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    let skip = all.len().saturating_sub(usize::try_from(lines).unwrap_or(usize::MAX));
    let tail = all[skip..].join("\n");
    Ok(if tail.is_empty() { "(no logs)".to_owned() } else { tail })
}

/// The newest events, one line each.
async fn history(app: &App, row: &Row, limit: u64) -> Result<String, ApiError> {
    let events = app.store.events(&row.id, u32::try_from(limit).unwrap_or(u32::MAX)).await?;
    let lines: Vec<String> =
        events.iter().map(|e| format!("{}  {}  {}  {}", e.at, e.state, e.reason, e.message)).collect();
    Ok(if lines.is_empty() { "(no events)".to_owned() } else { lines.join("\n") })
}

fn description(app: &App, row: &Row) -> String {
    let spec = &row.spec;
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name}: {value}");
    };
    line("Sandbox", row.id.as_str());
    line("Runtime", app.runtime.name());
    line("State", &format!("{} ({}) since {}", row.state, row.reason, row.transition_at));
    line("Message", &row.message);
    line("Created", &row.created_at.to_string());
    line("Expires", &row.expires_at.map_or_else(|| "never".to_owned(), |at| at.to_string()));
    line("Image", &spec.image);
    line("Entrypoint", &format!("{:?}", spec.entrypoint));
    line("Limits", &format!("{:?}", spec.limits));
    for (key, value) in &spec.metadata {
        line(&format!("Metadata {key}"), value);
    }
    for (name, value) in &spec.env {
        let upper = name.to_ascii_uppercase();
        let secret = SECRET_WORDS.iter().any(|word| upper.contains(word));
        line(&format!("Env {name}"), if secret { "********" } else { value });
    }
    if let Some(credentials) = row.credentials.as_ref().filter(|_| spec.credential_proxy) {
        let (revision, held) = (credentials.revision, credentials.credentials);
        let (bindings, hosts) = (credentials.bindings, credentials.bound.len());
        let told = format!("revision {revision}, {held} credentials, {bindings} bindings, {hosts} hosts");
        line("Credential vault", if revision == 0 { "empty" } else { &told });
    }
    if let Some(receipt) = row.receipt.as_ref().and_then(|r| serde_json::to_string(r).ok()) {
        line("Receipt", &receipt);
    }
    text
}
