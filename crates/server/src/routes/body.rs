//! The body of a request to the API itself, read whole and bounded in size and time.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use http::StatusCode;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use protocol::error::code;

use crate::errors::ApiError;

/// Most bytes of a body; the largest create that is admitted is well below.
const MAX_BODY_BYTES: usize = 2 * 1024 * 1024;
/// How long a body may take: nobody needs longer for two megabytes, and each one holds a place.
const READ_LIMIT: Duration = Duration::from_secs(60);

/// The whole body.
pub(crate) struct Body(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let whole = Limited::new(request.into_body(), MAX_BODY_BYTES).collect();
        match tokio::time::timeout(READ_LIMIT, whole).await {
            Ok(Ok(body)) => Ok(Self(body.to_bytes())),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                code::INVALID_REQUEST_BODY,
                format!("the body is larger than {MAX_BODY_BYTES} bytes"),
            )),
            Ok(Err(_)) => Err(ApiError::bad_request(code::INVALID_REQUEST_BODY, "the body broke off")),
            Err(_late) => Err(ApiError::new(
                StatusCode::REQUEST_TIMEOUT,
                code::INVALID_REQUEST_BODY,
                format!("the body did not arrive within {} s", READ_LIMIT.as_secs()),
            )),
        }
    }
}
