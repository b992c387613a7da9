//! Routes of the protocol whose subject does not exist here yet: answered, never missing.

use protocol::error::code;

use crate::errors::ApiError;

pub(super) async fn snapshots() -> ApiError {
    ApiError::not_implemented(code::SNAPSHOT_NOT_IMPLEMENTED, "snapshots do not exist here yet")
}
