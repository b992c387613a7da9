//! The error body of every API and the codes that the native runtime uses.

use serde::{Deserialize, Serialize};

/// The body of every error answer: a stable code for programs, a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Stable code, for example `SANDBOX::NOT_FOUND`.
    pub code: String,
    /// What went wrong, which field or path, and what to do.
    pub message: String,
}

impl ErrorBody {
    /// An error body from a code of [`code`] and a message.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }
}

/// An error with its sources, in one line: for logs, and for messages of what has no words of its own.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(next) = source {
        text.push_str(": ");
        text.push_str(&next.to_string());
        source = next.source();
    }
    text
}

/// Codes of the lifecycle API. The native runtime uses the family `SANDBOX::` with the suffixes of the
/// published families; plain codes are the published ones.
pub mod code {
    #![allow(missing_docs, reason = "each constant is its own documentation: the code that clients see")]
    pub const MISSING_API_KEY: &str = "MISSING_API_KEY";
    pub const INVALID_API_KEY: &str = "INVALID_API_KEY";
    pub const NOT_FOUND: &str = "SANDBOX::SANDBOX_NOT_FOUND";
    pub const NOT_RUNNING: &str = "SANDBOX::SANDBOX_NOT_RUNNING";
    pub const NOT_PAUSED: &str = "SANDBOX::SANDBOX_NOT_PAUSED";
    pub const INVALID_STATE: &str = "SANDBOX::INVALID_STATE";
    pub const INVALID_EXPIRATION: &str = "SANDBOX::INVALID_EXPIRATION";
    pub const INVALID_PORT: &str = "SANDBOX::INVALID_PORT";
    pub const INVALID_ENTRYPOINT: &str = "SANDBOX::INVALID_ENTRYPOINT";
    pub const INVALID_PARAMETER: &str = "SANDBOX::INVALID_PARAMETER";
    pub const INVALID_REQUEST_BODY: &str = "SANDBOX::INVALID_REQUEST_BODY";
    pub const INVALID_METADATA_LABEL: &str = "SANDBOX::INVALID_METADATA_LABEL";
    pub const RESERVED_METADATA_LABEL: &str = "INVALID_METADATA_LABEL";
    pub const INVALID_METADATA_FORMAT: &str = "INVALID_METADATA_FORMAT";
    pub const NOT_SUPPORTED: &str = "SANDBOX::API_NOT_SUPPORTED";
    pub const UNSUPPORTED_POOL_REF: &str = "SANDBOX::UNSUPPORTED_POOL_REF";
    pub const IMAGE_PULL_FAILED: &str = "SANDBOX::SANDBOX_IMAGE_PULL_FAILED";
    pub const START_FAILED: &str = "SANDBOX::SANDBOX_START_FAILED";
    pub const DELETE_FAILED: &str = "SANDBOX::SANDBOX_DELETE_FAILED";
    pub const PAUSE_FAILED: &str = "SANDBOX::SANDBOX_PAUSE_FAILED";
    pub const RESUME_FAILED: &str = "SANDBOX::SANDBOX_RESUME_FAILED";
    pub const INTERNAL_ERROR: &str = "SANDBOX::INTERNAL_ERROR";
    /// The one code that the published Python client retries during its look-ups.
    pub const POD_IP_NOT_AVAILABLE: &str = "KUBERNETES::POD_IP_NOT_AVAILABLE";
    pub const SNAPSHOT_NOT_FOUND: &str = "SNAPSHOT::NOT_FOUND";
    pub const SNAPSHOT_NOT_READY: &str = "SNAPSHOT::NOT_READY";
    pub const SNAPSHOT_INVALID_STATE: &str = "SNAPSHOT::INVALID_STATE";
    pub const SNAPSHOT_INVALID_SOURCE_STATE: &str = "SNAPSHOT::INVALID_SOURCE_STATE";
    pub const SNAPSHOT_INVALID_RESTORE_CONFIG: &str = "SNAPSHOT::INVALID_RESTORE_CONFIG";
    pub const SNAPSHOT_DELETE_CONFLICT: &str = "SNAPSHOT::DELETE_CONFLICT";
    pub const SNAPSHOT_CREATE_CONFLICT: &str = "SNAPSHOT::RUNTIME_CREATE_CONFLICT";
    pub const SNAPSHOT_CREATE_FAILED: &str = "SNAPSHOT::RUNTIME_CREATE_FAILED";
    pub const SNAPSHOT_DELETE_FAILED: &str = "SNAPSHOT::DELETE_FAILED";
    pub const TOO_MANY_SNAPSHOTS: &str = "SNAPSHOT::TOO_MANY";
    pub const SNAPSHOT_NOT_IMPLEMENTED: &str = "SNAPSHOT::NOT_IMPLEMENTED";
    pub const POOL_NOT_SUPPORTED: &str = "SANDBOX::POOL_NOT_SUPPORTED";
    pub const POOL_NOT_FOUND: &str = "SANDBOX::POOL_NOT_FOUND";
    pub const POOL_ALREADY_EXISTS: &str = "SANDBOX::POOL_ALREADY_EXISTS";
    pub const POOL_CAPACITY_EXHAUSTED: &str = "SANDBOX::POOL_CAPACITY_EXHAUSTED";
    pub const TEMPLATE_NOT_FOUND: &str = "SANDBOX::TEMPLATE_NOT_FOUND";
    pub const TEMPLATE_CONFLICT: &str = "SANDBOX::TEMPLATE_CONFLICT";
    pub const TEMPLATE_NOT_SUPPORTED: &str = "SANDBOX::TEMPLATE_NOT_SUPPORTED";
    pub const POLICY_NOT_SUPPORTED: &str = "SANDBOX::NETWORK_POLICY_NOT_SUPPORTED";
    pub const VAULT_NOT_FOUND: &str = "SANDBOX::CREDENTIAL_VAULT_NOT_FOUND";
    pub const VAULT_LOST: &str = "SANDBOX::CREDENTIAL_VAULT_LOST";
    pub const VAULT_CONFLICT: &str = "SANDBOX::CREDENTIAL_VAULT_CONFLICT";
    pub const VAULT_INVALID: &str = "SANDBOX::CREDENTIAL_VAULT_INVALID";
    pub const VAULT_NOT_READY: &str = "SANDBOX::CREDENTIAL_VAULT_NOT_READY";
    pub const VAULT_NEEDS_TLS: &str = "SANDBOX::CREDENTIAL_VAULT_NEEDS_TLS";
    pub const VAULT_FULL: &str = "SANDBOX::CREDENTIAL_VAULT_FULL";
    pub const VAULT_FORBIDDEN: &str = "SANDBOX::CREDENTIAL_VAULT_FORBIDDEN";
    pub const RECORDING_NOT_FOUND: &str = "RECORDING::NOT_FOUND";
    pub const RECORDING_INVALID: &str = "RECORDING::INVALID";
    pub const RECORDING_IN_USE: &str = "RECORDING::IN_USE";
    pub const RECORDING_LIMIT: &str = "RECORDING::LIMIT";
    pub const DIAGNOSTICS_SCOPE_UNSUPPORTED: &str = "DIAGNOSTICS_SCOPE_UNSUPPORTED";
    pub const INVALID_VOLUME: &str = "VOLUME::INVALID_BACKEND";
    pub const INVALID_VOLUME_NAME: &str = "VOLUME::INVALID_NAME";
    pub const DUPLICATE_VOLUME_NAME: &str = "VOLUME::DUPLICATE_NAME";
    pub const INVALID_MOUNT_PATH: &str = "VOLUME::INVALID_MOUNT_PATH";
    pub const INVALID_SUB_PATH: &str = "VOLUME::INVALID_SUB_PATH";
    pub const INVALID_HOST_PATH: &str = "VOLUME::INVALID_HOST_PATH";
    pub const HOST_PATH_NOT_ALLOWED: &str = "VOLUME::HOST_PATH_NOT_ALLOWED";
    pub const HOST_PATH_CREATE_FAILED: &str = "VOLUME::HOST_PATH_CREATE_FAILED";
    pub const INVALID_PVC_NAME: &str = "VOLUME::INVALID_PVC_NAME";
    pub const PVC_NOT_FOUND: &str = "VOLUME::PVC_NOT_FOUND";
    pub const VOLUME_NOT_FOUND: &str = "VOLUME::NOT_FOUND";
    pub const VOLUME_EXISTS: &str = "VOLUME::ALREADY_EXISTS";
    pub const VOLUME_IN_USE: &str = "VOLUME::IN_USE";
    pub const VOLUME_CONFLICT: &str = "VOLUME::CONFLICT";
    pub const TOO_MANY_VOLUMES: &str = "VOLUME::TOO_MANY";
    pub const BACKEND_CONNECTION_FAILED: &str = "BACKEND_CONNECTION_FAILED";
    pub const BACKEND_RESPONSE_FAILED: &str = "BACKEND_RESPONSE_FAILED";
    pub const BACKEND_TIMEOUT: &str = "BACKEND_TIMEOUT";
    pub const MISSING_OR_INVALID_SECURE_ACCESS: &str = "MISSING_OR_INVALID_SECURE_ACCESS";
    pub const IDEMPOTENCY_KEY_REUSED: &str = "SANDBOX::IDEMPOTENCY_KEY_REUSED";
    pub const IDEMPOTENCY_KEY_SPENT: &str = "SANDBOX::IDEMPOTENCY_KEY_SPENT";
    pub const TOO_MANY_REQUESTS: &str = "SANDBOX::TOO_MANY_REQUESTS";
    pub const IMAGE_NOT_FOUND: &str = "IMAGE::NOT_FOUND";
    pub const IMAGE_AMBIGUOUS: &str = "IMAGE::AMBIGUOUS";
    pub const IMAGE_ACCESS_REFUSED: &str = "IMAGE::ACCESS_REFUSED";
    pub const IMAGE_REFUSED: &str = "IMAGE::REFUSED";
    pub const IMAGE_REGISTRY_FAILED: &str = "IMAGE::REGISTRY_FAILED";
    pub const IMAGE_NO_SPACE: &str = "IMAGE::NO_SPACE";
    pub const IMAGE_STORE_FAILED: &str = "IMAGE::STORE_FAILED";
    pub const IMAGES_NOT_SUPPORTED: &str = "IMAGE::NOT_SUPPORTED";
    pub const ROUTE_NOT_FOUND: &str = "SANDBOX::ROUTE_NOT_FOUND";
    pub const METHOD_NOT_ALLOWED: &str = "SANDBOX::METHOD_NOT_ALLOWED";
}
