//! The credential vault over HTTP: `/credential-vault` of port 18080, as published.

use std::io::Write as _;
use std::net::IpAddr;

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use egress::{ControlError, Failure, Refusal, Secret, Shown, VAULT_BODY_BYTES};
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt as _;
use lifecycle::spec::VaultDemands;
use protocol::error::code;
use serde_json::json;

use super::super::credentials::{Change, What, overwrite, told};
use crate::accept::Peer;
use crate::app::App;
use crate::driver::Sandbox;
use crate::errors::ApiError;

/// Where it lies.
const ROOT: &str = "/credential-vault";
/// What the published sidecar shows to its own interceptor and to nobody else.
const ACTIVE: &str = "/credential-vault/_active";
/// How long a body may take.
const READ_LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// Whether a path is the vault's.
pub(super) fn is_asked(rest: &str) -> bool {
    rest == ROOT || rest.strip_prefix(ROOT).is_some_and(|more| more.starts_with('/'))
}

/// The answer to a request for what nobody is shown; it comes before any other check.
pub(crate) fn refuse_active(rest: &str, method: &Method) -> Option<ApiError> {
    if rest != ACTIVE {
        return None;
    }
    if method != Method::GET && method != Method::HEAD {
        return Some(method_not_allowed(method, "GET").0);
    }
    Some(ApiError::new(StatusCode::FORBIDDEN, code::VAULT_FORBIDDEN, "values of credentials are shown to nobody"))
}

/// A call to it.
pub(super) async fn call(app: &App, sandbox: &Sandbox, rest: &str, request: Request) -> Result<Response, ApiError> {
    let parts: Vec<&str> = rest[ROOT.len()..].split('/').skip(1).collect();
    let method = request.method().clone();
    let reads = method == Method::GET || method == Method::HEAD;
    match parts.as_slice() {
        [] if method == Method::POST || method == Method::PATCH => {
            let mut answer = change(app, sandbox, request).await.unwrap_or_else(IntoResponse::into_response);
            // The connection's buffers have held secrets: they go with it.
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            Ok(answer)
        }
        [] if method == Method::DELETE => {
            sandbox.change_vault(Change::new(What::Delete)?).await?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        [] if reads => Ok(Json(shown(app, sandbox).await?.state).into_response()),
        [] => Ok(answer_to(&method, "GET, POST, PATCH, DELETE")),
        ["credentials" | "bindings"] | ["credentials" | "bindings", _] if !reads => Ok(answer_to(&method, "GET")),
        ["credentials"] => {
            let state = shown(app, sandbox).await?.state;
            Ok(Json(json!({ "revision": state.revision, "credentials": state.credentials })).into_response())
        }
        ["bindings"] => {
            let state = shown(app, sandbox).await?.state;
            Ok(Json(json!({ "revision": state.revision, "bindings": state.bindings })).into_response())
        }
        ["credentials", name] => {
            let state = shown(app, sandbox).await?.state;
            let name = decoded(name);
            let found = state.credentials.into_iter().find(|one| Some(&one.name) == name.as_ref());
            found.map(|one| Json(one).into_response()).ok_or_else(|| absent("credential not found"))
        }
        ["bindings", name] => {
            let state = shown(app, sandbox).await?.state;
            let name = decoded(name);
            let found = state.bindings.into_iter().find(|one| Some(&one.name) == name.as_ref());
            found.map(|one| Json(one).into_response()).ok_or_else(|| absent("credential binding not found"))
        }
        _ => Err(ApiError::new(
            StatusCode::NOT_FOUND,
            code::ROUTE_NOT_FOUND,
            "the vault answers /credential-vault, and /credentials and /bindings beneath it",
        )),
    }
}

async fn shown(app: &App, sandbox: &Sandbox) -> Result<Shown, ApiError> {
    if !sandbox.row().spec.credential_proxy {
        return Err(absent("credential vault not found"));
    }
    match app.network.vault(sandbox.id()).await {
        // A process that has just begun has not heard of the sandbox.
        Err(ControlError::Failed(Failure::Vault { refusal: Refusal::NotReady, .. })) => Err(told(ControlError::Gone)),
        shown => shown.map_err(told),
    }
}

async fn change(app: &App, sandbox: &Sandbox, request: Request) -> Result<Response, ApiError> {
    let row = sandbox.row();
    let Some(credentials) = row.credentials.as_ref().filter(|_| row.spec.credential_proxy) else {
        let message = "credential vault is not ready: the sandbox was made without credentialProxy.enabled";
        return Err(ApiError::new(StatusCode::PRECONDITION_FAILED, code::VAULT_NOT_READY, message));
    };
    if !app.network.can_leave() {
        let message = "credential vault is not ready: this server has no egress process";
        return Err(ApiError::new(StatusCode::PRECONDITION_FAILED, code::VAULT_NOT_READY, message));
    }
    if credentials.demands.require_tls && !is_encrypted(&credentials.demands, &request) {
        let message = "credential vault requires TLS: send secrets over an encrypted connection";
        return Err(ApiError::new(StatusCode::UPGRADE_REQUIRED, code::VAULT_NEEDS_TLS, message));
    }
    let is_new = request.method() == Method::POST;
    let body = tokio::time::timeout(READ_LIMIT, read(request.into_body())).await.map_err(|_late| {
        let message = format!("the body did not arrive within {} s", READ_LIMIT.as_secs());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, code::INVALID_REQUEST_BODY, message)
    })??;
    let asked = if is_new { What::Create(body) } else { What::Patch(body) };
    let shown = sandbox.change_vault(Change::new(asked)?).await?;
    let shown = shown.ok_or_else(|| ApiError::internal("a vault that was changed is not there"))?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let mut answer = (status, Json(&shown.state)).into_response();
    for warning in &shown.warnings {
        if let Ok(value) = HeaderValue::try_from(format!("299 - \"{}\"", warning.replace('"', "'"))) {
            answer.headers_mut().append(header::WARNING, value);
        }
    }
    Ok(answer)
}

/// The whole body, of which no copy is left behind.
async fn read(mut body: Body) -> Result<Secret, ApiError> {
    let mut secret = Secret::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ApiError::bad_request(code::INVALID_REQUEST_BODY, "the body broke off"))?;
        let Ok(data) = frame.into_data() else { continue };
        let is_too_much = (secret.bytes().len() + data.len()) as u64 > VAULT_BODY_BYTES;
        if !is_too_much {
            secret.write_all(&data).expect("a vector takes everything");
        }
        overwrite(data);
        if is_too_much {
            let message = format!("the body is larger than {VAULT_BODY_BYTES} bytes");
            return Err(ApiError::bad_request(code::INVALID_REQUEST_BODY, message));
        }
    }
    Ok(secret)
}

/// Whether nobody could read along: the last part of the way is this machine's own, or somebody who is trusted says so.
fn is_encrypted(demands: &VaultDemands, request: &Request) -> bool {
    let Some(Peer(peer)) = request.extensions().get::<Peer>() else { return false };
    let peer: IpAddr = peer.ip().to_canonical();
    match request.headers().get("x-forwarded-proto") {
        Some(said) => {
            said.as_bytes().eq_ignore_ascii_case(b"https")
                && demands.trusted_proxies.iter().any(|proxies| proxies.contains(peer))
        }
        None => peer.is_loopback(),
    }
}

fn absent(message: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, code::VAULT_NOT_FOUND, message)
}

fn answer_to(method: &Method, allowed: &'static str) -> Response {
    let (error, allowed) = method_not_allowed(method, allowed);
    let mut answer = error.into_response();
    answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    answer
}

fn method_not_allowed(method: &Method, allowed: &'static str) -> (ApiError, &'static str) {
    let message = format!("the credential vault does not take {method} here; use {allowed}");
    (ApiError::new(StatusCode::METHOD_NOT_ALLOWED, code::METHOD_NOT_ALLOWED, message), allowed)
}

/// A name in a path; `None` if it is no text.
fn decoded(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = |digit: u8| char::from(digit).to_digit(16);
        rest = match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                bytes.push(u8::try_from(hex(*high)? * 16 + hex(*low)?).ok()?);
                tail
            }
            (b'%', _) => return None,
            _ => {
                bytes.push(*first);
                tail
            }
        };
    }
    String::from_utf8(bytes).ok()
}
