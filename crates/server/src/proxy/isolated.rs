//! Isolated sessions: the calls below `/v1/isolated` of a sandbox's execd.
//!
//! A sandbox may neither mount nor unshare, so its own execd cannot make a session. These calls are therefore answered
//! here: the runtime makes and ends sessions, each of which has an execd of its own, and every call to one is passed on
//! to that. Nothing is kept here; what exists is what the runtime finds.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::FromRequest as _;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{Method, StatusCode};
use ingress::target::Target;
use ingress::{Address, Backend, Daemon, ErrorKind as PortErrorKind, Reuse, secret_value};
use lifecycle::isolated::{Isolated, Record, Seen, SessionId, Start, admit};
use lifecycle::runtime::{ErrorKind, RuntimeError};
use lifecycle::spec::SandboxId;
use protocol::execd::boot::{BootConfig, BootUser, IsolatedBoot};
use protocol::execd::code;
use protocol::execd::hardening::Hardening;
use protocol::execd::isolated::{Capabilities, CreateSession, PREFIX, Session, Sessions, Surroundings};
use protocol::headers;
use protocol::hooks::Hooks;
use secrecy::ExposeSecret as _;

use super::Call;
use super::ask::read;
use crate::app::App;
use crate::errors::ApiError;
use crate::routes::body;

/// Most bytes of an answer of execd to this server: an environment.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// Most bytes of what a session says of itself: what was asked fits into one packet to the jailer.
const MAX_SESSION_BYTES: usize = 256 * 1024;
/// How long the sessions of one sandbox may take to answer, all together; the rest is told from the records.
const LIST_LIMIT: std::time::Duration = std::time::Duration::from_secs(20);
/// Grace of a session's boot configuration, which only a sandbox uses.
const NO_GRACE_MS: u64 = 0;

/// Whether a call to execd is one of these.
pub(super) fn is_asked(path: &str) -> bool {
    path.starts_with(PREFIX)
}

/// Answers one.
pub(super) async fn call(app: &Arc<App>, sandbox: &SandboxId, call: Call) -> Result<Response, ApiError> {
    let target = Target::parse(call.request.uri().path()).ok_or_else(|| unknown(""))?;
    let path = target.rest.to_owned();
    let Some(runtime) = app.runtime.isolated() else {
        return without(&path, call.request.method());
    };
    let backend = &call.backend;
    let rest = path.strip_prefix(PREFIX).unwrap_or_default();
    let segments: Vec<&str> = rest.split('/').collect();
    match (call.request.method(), segments.as_slice()) {
        (&Method::GET, ["capabilities"]) => {
            // What a daemon of another version does not tell is left out.
            let hardening = ask(app, backend, "/v1/hardening", MAX_ANSWER_BYTES).await.ok();
            Ok(Json(capabilities(runtime, hardening)).into_response())
        }
        (&Method::POST, ["session"]) => create(app, runtime, sandbox, call).await,
        (&Method::GET, ["sessions"]) => list(app, runtime, sandbox, backend).await,
        (&Method::DELETE, ["session", id]) => {
            let id = find(runtime, sandbox, id).await?.record.id;
            runtime.end(sandbox, &id).await.map_err(failed)?;
            Ok(StatusCode::OK.into_response())
        }
        (_, ["session", id, ..]) => {
            let id = SessionId::parse(id).ok_or_else(|| unknown(id))?;
            pass_on(app, runtime, sandbox, call, id).await
        }
        _ => Err(ApiError::new(
            StatusCode::NOT_FOUND,
            code::UNKNOWN,
            format!("there is no call {path} of isolated sessions"),
        )),
    }
}

/// The answers of a runtime that cannot make sessions.
fn without(path: &str, method: &Method) -> Result<Response, ApiError> {
    let message = "this server's runtime cannot make isolated sessions here; `osb doctor` says what is missing";
    if method == Method::GET && path.strip_prefix(PREFIX) == Some("capabilities") {
        let none = Capabilities { message: Some(message.to_owned()), ..Capabilities::default() };
        return Ok(Json(none).into_response());
    }
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code::SERVICE_UNAVAILABLE, message))
}

fn capabilities(runtime: &dyn Isolated, hardening: Option<Hardening>) -> Capabilities {
    let means = runtime.means();
    Capabilities {
        available: true,
        isolator: Some("osb".to_owned()),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        message: (!means.weaker.is_empty()).then(|| means.weaker.join(" ")),
        setpriv_available: true,
        userns_available: false,
        commit_supported: true,
        diff_supported: true,
        hardening,
    }
}

async fn create(app: &Arc<App>, runtime: &dyn Isolated, sandbox: &SandboxId, call: Call) -> Result<Response, ApiError> {
    let backend = call.backend;
    let body::Body(bytes) = body::Body::from_request(call.request, &()).await?;
    let asked: CreateSession = serde_json::from_slice(&bytes).map_err(|error| {
        ApiError::bad_request(code::INVALID_REQUEST_BODY, format!("the body is not the expected JSON: {error}"))
    })?;
    let (mut spec, asked) = admit(asked, &runtime.means()).map_err(|refusal| {
        ApiError::new(
            StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST),
            refusal.code,
            refusal.message,
        )
    })?;
    let surroundings: Surroundings = ask(app, &backend, "/v1/environment", MAX_ANSWER_BYTES).await?;
    let user = asked.uid.map(|uid| BootUser { uid, gid: asked.gid.unwrap_or(uid) }).or(surroundings.user);
    spec.owner = user.map(|user| (user.uid, user.gid));
    let now = app.now();
    let id = SessionId::parse(&uuid::Uuid::new_v4().hyphenated().to_string()).expect("a UUID is an id");
    let record = Record { id: id.clone(), created_ms: now.as_millisecond(), asked };
    let boot = BootConfig {
        sandbox_id: sandbox.to_string(),
        token: Some(backend.daemon.token.expose_secret().to_owned()),
        env: surroundings.env,
        entrypoint: Vec::new(),
        cwd: None,
        user: surroundings.user,
        grace_ms: NO_GRACE_MS,
        hooks: Hooks::default(),
        isolated: Some(IsolatedBoot {
            session_id: id.to_string(),
            created_ms: record.created_ms,
            asked: record.asked.clone(),
        }),
    };
    let boot = serde_json::to_vec(&boot).map_err(|_| ApiError::internal("encode the session's boot configuration"))?;
    let shown = dead_or(&record, "active");
    runtime.start(Start { sandbox, record, spec, boot }).await.map_err(failed)?;
    Ok((StatusCode::CREATED, Json(shown)).into_response())
}

/// What is known of a session that cannot be asked itself.
fn dead_or(record: &Record, status: &str) -> Session {
    let created_at = jiff::Timestamp::from_millisecond(record.created_ms).unwrap_or_default().to_string();
    Session {
        session_id: record.id.to_string(),
        status: status.to_owned(),
        created_at: created_at.clone(),
        last_run_at: created_at,
        idle_remaining_seconds: None,
        asked: record.asked.clone(),
    }
}

async fn list(
    app: &Arc<App>,
    runtime: &dyn Isolated,
    sandbox: &SandboxId,
    backend: &Backend,
) -> Result<Response, ApiError> {
    let deadline = tokio::time::Instant::now() + LIST_LIMIT;
    let mut sessions = Vec::new();
    for seen in runtime.list(sandbox).await.map_err(failed)? {
        let path = format!("{PREFIX}session/{}", seen.record.id);
        if !seen.alive {
            sessions.push(dead_or(&seen.record, "dead"));
            continue;
        }
        let session = to_session(runtime, sandbox, backend, &seen.record.id);
        let asked = ask::<Session>(app, &session, &path, MAX_SESSION_BYTES);
        sessions.push(match tokio::time::timeout_at(deadline, asked).await {
            // What was asked for is the record's word, not the sandbox's.
            Ok(Ok(told)) => Session { asked: seen.record.asked.clone(), ..told },
            Ok(Err(_)) => dead_or(&seen.record, "dead"), // it ended while it was asked
            Err(_) => dead_or(&seen.record, "active"),
        });
    }
    Ok(Json(Sessions { sessions }).into_response())
}

/// Passes a call on to the session's own execd.
async fn pass_on(
    app: &Arc<App>,
    runtime: &dyn Isolated,
    sandbox: &SandboxId,
    mut call: Call,
    id: SessionId,
) -> Result<Response, ApiError> {
    let is_question = call.request.method() == Method::GET
        && call.request.uri().path().strip_suffix(id.as_str()).is_some_and(|before| before.ends_with("/session/"));
    call.backend = to_session(runtime, sandbox, &call.backend, &id);
    let error = match call.pass_on(app).await {
        Ok(answer) => return Ok(answer),
        Err(error) if error.kind == PortErrorKind::Unreachable => error,
        Err(error) => return Err(error.into()),
    };
    let seen = find(runtime, sandbox, id.as_str()).await?;
    if seen.alive {
        return Err(error.into());
    }
    if is_question {
        return Ok(Json(dead_or(&seen.record, "dead")).into_response());
    }
    Err(ApiError::new(StatusCode::NOT_FOUND, code::SESSION_NOT_FOUND, format!("the isolated session {id} has ended")))
}

/// The execd of a session. Connections to it are not kept: sessions are many and their calls few.
pub(super) fn to_session(runtime: &dyn Isolated, sandbox: &SandboxId, backend: &Backend, id: &SessionId) -> Backend {
    let Daemon { id: of, token, .. } = &*backend.daemon;
    let address = Address::Unix(runtime.address(sandbox, id));
    let daemon = Daemon { id: of.clone(), address, token: token.clone(), reuse: Reuse::Never };
    Backend { daemon: Arc::new(daemon), port: backend.port }
}

async fn find(runtime: &dyn Isolated, sandbox: &SandboxId, id: &str) -> Result<Seen, ApiError> {
    let sessions = runtime.list(sandbox).await.map_err(failed)?;
    sessions.into_iter().find(|seen| seen.record.id.as_str() == id).ok_or_else(|| unknown(id))
}

fn unknown(id: &str) -> ApiError {
    let shown: String = id.chars().take(80).collect();
    let message = format!("there is no isolated session \"{shown}\"; ids are UUIDs in lower case");
    ApiError::new(StatusCode::NOT_FOUND, code::SESSION_NOT_FOUND, message)
}

fn failed(error: RuntimeError) -> ApiError {
    let (status, code) = match error.kind {
        ErrorKind::Invalid => (StatusCode::BAD_REQUEST, code::INVALID_REQUEST_BODY),
        ErrorKind::Unsupported => (StatusCode::SERVICE_UNAVAILABLE, code::NOT_SUPPORTED),
        ErrorKind::NotFound => (StatusCode::NOT_FOUND, code::SESSION_NOT_FOUND),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, code::RUNTIME_ERROR),
    };
    ApiError::new(status, code, error.message)
}

/// Asks an execd something on behalf of this server. Its answer is hostile input: bounded, and used for its own sandbox
/// only.
pub(super) async fn ask<T: serde::de::DeserializeOwned>(
    app: &Arc<App>,
    backend: &Backend,
    path: &str,
    most_bytes: usize,
) -> Result<T, ApiError> {
    let request = http::Request::get(path)
        .header(http::header::HOST, "sandbox")
        .header(headers::EXECD_ACCESS_TOKEN, secret_value(&backend.daemon.token))
        .body(Body::empty())
        .map_err(|_| ApiError::internal("ask the sandbox's execd"))?;
    let bytes = tokio::time::timeout(ASK_LIMIT, exchange(app, backend, request, most_bytes)).await;
    let late = || {
        ApiError::new(
            StatusCode::GATEWAY_TIMEOUT,
            protocol::error::code::BACKEND_TIMEOUT,
            format!("the sandbox's execd did not answer for {} s", ASK_LIMIT.as_secs()),
        )
    };
    serde_json::from_slice(&bytes.map_err(|_| late())??).map_err(|error| strange(&error))
}

/// How long an execd may take to answer this server.
const ASK_LIMIT: std::time::Duration = std::time::Duration::from_secs(20);

async fn exchange(
    app: &Arc<App>,
    backend: &Backend,
    request: http::Request<Body>,
    most_bytes: usize,
) -> Result<Bytes, ApiError> {
    read(app.ports.ask(backend, request).await?, most_bytes).await
}

fn strange(error: &serde_json::Error) -> ApiError {
    ApiError::new(
        StatusCode::BAD_GATEWAY,
        protocol::error::code::BACKEND_RESPONSE_FAILED,
        format!("the sandbox's execd gave an answer that cannot be used: {error}"),
    )
}
