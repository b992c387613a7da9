//! Routes of the protocol whose subject does not exist here yet: answered, never missing.

use protocol::error::code;

use crate::errors::ApiError;

pub(super) async fn pools() -> ApiError {
    ApiError::not_implemented(code::POOL_NOT_SUPPORTED, "pools do not exist here yet")
}

pub(super) async fn templates() -> ApiError {
    ApiError::not_implemented(code::TEMPLATE_NOT_SUPPORTED, "templates do not exist here yet; create from an image")
}
