//! The one place where refusals and failures become HTTP answers.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lifecycle::runtime::{ErrorKind, RuntimeError};
use lifecycle::state::Rejected;
use protocol::error::code;
use serde_json::{Value, json};

use crate::store::{Refused, SnapshotRefused};

/// An answer that is not a success: a status, a stable code, a sentence for people.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) code: String,
    pub(crate) message: String,
    /// The published shape of validation errors, beside code and message.
    detail: Option<Value>,
    retry_after_seconds: Option<u32>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self { status, code: code.to_owned(), message: message.into(), detail: None, retry_after_seconds: None }
    }

    pub(crate) fn bad_request(code: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(crate) fn not_found(id: &str) -> Self {
        Self::missing(code::NOT_FOUND, "sandbox", id)
    }

    /// 404 for a thing by its name.
    pub(crate) fn missing(code: &str, what: &str, name: &str) -> Self {
        let shown: String = name.chars().take(MAX_ECHOED_CHARS).collect();
        Self::new(StatusCode::NOT_FOUND, code, format!("there is no {what} \"{shown}\""))
    }

    pub(crate) fn conflict(code: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, code::INTERNAL_ERROR, message)
    }

    pub(crate) fn not_implemented(code: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, code, message)
    }

    /// 422 in the published shape: `loc` is the path to the value, `kind` a word for programs.
    pub(crate) fn invalid(code: &str, kind: &str, loc: &[String], message: impl Into<String>) -> Self {
        let message = message.into();
        let loc: Vec<Value> =
            loc.iter().map(|part| part.parse::<u64>().map_or_else(|_| json!(part), |n| json!(n))).collect();
        let detail = json!([{ "type": kind, "loc": loc, "msg": message }]);
        Self { detail: Some(detail), ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, message) }
    }

    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }
}

/// Most characters of a caller's own words that an error repeats.
const MAX_ECHOED_CHARS: usize = 80;

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut body = json!({ "code": self.code, "message": self.message });
        if let Some(detail) = self.detail {
            body["detail"] = detail;
        }
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<ingress::Error> for ApiError {
    fn from(error: ingress::Error) -> Self {
        use ingress::ErrorKind;
        let (status, code) = match error.kind {
            ErrorKind::NoPort => {
                let loc = ["path".to_owned(), "port".to_owned()];
                return Self::invalid(code::INVALID_PARAMETER, "int_parsing", &loc, error.message);
            }
            ErrorKind::PortRange => (StatusCode::BAD_REQUEST, code::INVALID_PORT),
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, code::INVALID_PARAMETER),
            ErrorKind::Unreachable | ErrorKind::NotListening => {
                let error = Self::new(StatusCode::BAD_GATEWAY, code::BACKEND_CONNECTION_FAILED, error.message);
                return error.retry_after(RETRY_AFTER_SECONDS);
            }
            ErrorKind::Broken => (StatusCode::BAD_GATEWAY, code::BACKEND_RESPONSE_FAILED),
            ErrorKind::TimedOut => (StatusCode::GATEWAY_TIMEOUT, code::BACKEND_TIMEOUT),
        };
        Self::new(status, code, error.message)
    }
}

/// When a caller should try again whose port does not listen yet.
const RETRY_AFTER_SECONDS: u32 = 1;

impl From<lifecycle::admit::Refusal> for ApiError {
    fn from(refusal: lifecycle::admit::Refusal) -> Self {
        let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST);
        if status == StatusCode::UNPROCESSABLE_ENTITY {
            let mut loc = vec!["body".to_owned()];
            loc.extend(refusal.field.split('.').filter(|part| !part.is_empty()).map(str::to_owned));
            return Self::invalid(refusal.code, "value_error", &loc, refusal.message);
        }
        Self::new(status, refusal.code, refusal.message)
    }
}

impl From<Rejected> for ApiError {
    fn from(rejected: Rejected) -> Self {
        Self::conflict(rejected.code, rejected.message)
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::Missing(_) => Self::bad_request(code::PVC_NOT_FOUND, message),
            Refused::Exists(_) => Self::conflict(code::VOLUME_EXISTS, message),
            Refused::OtherSize { .. } => Self::conflict(code::VOLUME_CONFLICT, message),
            Refused::Going(_) => Self::conflict(code::VOLUME_CONFLICT, message).retry_after(RETRY_AFTER_SECONDS),
            Refused::InUse { .. } => Self::conflict(code::VOLUME_IN_USE, message),
            Refused::TooMany => Self::conflict(code::TOO_MANY_VOLUMES, message),
        }
    }
}

impl From<SnapshotRefused> for ApiError {
    fn from(refused: SnapshotRefused) -> Self {
        let message = refused.to_string();
        match refused {
            SnapshotRefused::Missing(id) => Self::missing(code::SNAPSHOT_NOT_FOUND, "snapshot", &id),
            SnapshotRefused::NameTaken { .. } => Self::conflict(code::SNAPSHOT_CREATE_CONFLICT, message),
            SnapshotRefused::AtWork(_) => {
                Self::conflict(code::SNAPSHOT_CREATE_CONFLICT, message).retry_after(RETRY_AFTER_SECONDS)
            }
            SnapshotRefused::NotReady { .. } => Self::conflict(code::SNAPSHOT_NOT_READY, message),
            SnapshotRefused::Creating(_) => {
                Self::conflict(code::SNAPSHOT_INVALID_STATE, message).retry_after(RETRY_AFTER_SECONDS)
            }
            SnapshotRefused::InUse { .. } => Self::conflict(code::SNAPSHOT_DELETE_CONFLICT, message),
            SnapshotRefused::TooMany => Self::conflict(code::TOO_MANY_SNAPSHOTS, message),
        }
    }
}

impl From<crate::store::Error> for ApiError {
    fn from(error: crate::store::Error) -> Self {
        let error = match error {
            crate::store::Error::Volume(refused) => return refused.into(),
            crate::store::Error::Snapshot(refused) => return refused.into(),
            other => other,
        };
        tracing::error!(error = %protocol::error::chain(&error), "the database failed");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            code::INTERNAL_ERROR,
            "the server's database cannot be used just now; nothing was changed, try again",
        )
    }
}

/// The code under which a failed create is remembered.
pub(crate) fn create_failure_code(error: &RuntimeError) -> &'static str {
    match error.kind {
        ErrorKind::Image => code::IMAGE_PULL_FAILED,
        ErrorKind::Entrypoint => code::INVALID_ENTRYPOINT,
        ErrorKind::Unsupported => code::NOT_SUPPORTED,
        ErrorKind::HostPath => code::HOST_PATH_NOT_ALLOWED,
        ErrorKind::HostPathFailed => code::HOST_PATH_CREATE_FAILED,
        ErrorKind::SubPath => code::INVALID_SUB_PATH,
        ErrorKind::Restore => code::SNAPSHOT_INVALID_RESTORE_CONFIG,
        ErrorKind::Exhausted | ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::Held | ErrorKind::Internal => {
            code::START_FAILED
        }
    }
}

/// The answer to a look-up of a sandbox that could not be made: a user's mistake is a 4xx, ours a 5xx that no
/// published client repeats by itself.
pub(crate) fn create_failure(failure_code: &str, message: &str) -> ApiError {
    let status = match failure_code {
        code::IMAGE_PULL_FAILED
        | code::INVALID_ENTRYPOINT
        | code::NOT_SUPPORTED
        | code::HOST_PATH_NOT_ALLOWED
        | code::INVALID_SUB_PATH => StatusCode::BAD_REQUEST,
        code::SNAPSHOT_INVALID_RESTORE_CONFIG => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    ApiError::new(status, failure_code, format!("the sandbox could not be made: {message}"))
}
