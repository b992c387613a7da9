//! Error codes of the execd API.

/// The token is missing or wrong; ours, since the published answer carries no code.
pub const UNAUTHORIZED: &str = "UNAUTHORIZED";
/// The body or a parameter cannot be used.
pub const INVALID_REQUEST_BODY: &str = "INVALID_REQUEST_BODY";
/// A required query parameter is absent.
pub const MISSING_QUERY: &str = "MISSING_QUERY";
/// The system refused or the daemon failed.
pub const RUNTIME_ERROR: &str = "RUNTIME_ERROR";
/// A path or an upload cannot be used as a file.
pub const INVALID_FILE: &str = "INVALID_FILE";
/// An upload carries metadata but no content.
pub const INVALID_FILE_CONTENT: &str = "INVALID_FILE_CONTENT";
/// The metadata of an upload is absent or malformed.
pub const INVALID_FILE_METADATA: &str = "INVALID_FILE_METADATA";
/// No such file or directory.
pub const FILE_NOT_FOUND: &str = "FILE_NOT_FOUND";
/// A fault with no better name (malformed ranges, by contract).
pub const UNKNOWN: &str = "UNKNOWN";
/// No context, command or session has this id.
pub const CONTEXT_NOT_FOUND: &str = "CONTEXT_NOT_FOUND";
/// The file calls cannot be done under this user and group here.
pub const FILESYSTEM_IDENTITY_UNAVAILABLE: &str = "FILESYSTEM_IDENTITY_UNAVAILABLE";
/// This build or platform cannot do it.
pub const NOT_SUPPORTED: &str = "NOT_SUPPORTED";
/// Another client holds the terminal.
pub const ALREADY_CONNECTED: &str = "ALREADY_CONNECTED";
/// An isolated session or run that does not exist.
pub const SESSION_NOT_FOUND: &str = "SESSION_NOT_FOUND";
/// Isolated sessions cannot be had here.
pub const SERVICE_UNAVAILABLE: &str = "SERVICE_UNAVAILABLE";
