//! Calls of the server itself to a sandbox's execd.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use ingress::{EXECD_PORT, secret_value};
use lifecycle::spec::SandboxId;
use protocol::error::code;
use protocol::headers::EXECD_ACCESS_TOKEN;

use super::backend;
use crate::app::App;
use crate::errors::ApiError;

/// Most bytes of an answer.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// Characters of a refusal that an error shows.
const MAX_REFUSAL_CHARS: usize = 300;

/// The body of the answer to a POST without a body, whatever the sandbox's state; whoever calls sets the bound.
pub(crate) async fn ask(app: &Arc<App>, id: &SandboxId, path: &str) -> Result<Bytes, ApiError> {
    let backend = backend(app, id, EXECD_PORT);
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::HOST, format!("127.0.0.1:{EXECD_PORT}"))
        .header(header::CONTENT_LENGTH, 0)
        .header(EXECD_ACCESS_TOKEN, secret_value(&backend.daemon.token))
        .body(Body::empty())
        .expect("our paths and tokens are valid in HTTP");
    read(app.ports.ask(&backend, request).await?, MAX_ANSWER_BYTES).await
}

/// The body of a good answer of execd, which is hostile input: bounded, and a refusal is shown cut.
pub(super) async fn read(answer: Response<Incoming>, most_bytes: usize) -> Result<Bytes, ApiError> {
    let status = answer.status();
    let failed = |why: String| ApiError::new(http::StatusCode::BAD_GATEWAY, code::BACKEND_RESPONSE_FAILED, why);
    let body = Limited::new(answer.into_body(), most_bytes).collect().await;
    let body = body.map_err(|error| failed(format!("execd's answer could not be read: {error}")))?.to_bytes();
    if status.is_success() {
        return Ok(body);
    }
    let said: String = String::from_utf8_lossy(&body).chars().take(MAX_REFUSAL_CHARS).collect();
    Err(failed(format!("execd answered {status}: {said}")))
}
