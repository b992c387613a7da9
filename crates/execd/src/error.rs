//! What a request is refused with.

use http::StatusCode;
use protocol::execd::code;

/// A refusal: status, code and a sentence that names the field or path.
#[derive(Debug)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// One of [`protocol::execd::code`].
    pub code: &'static str,
    /// For people.
    pub message: String,
}

/// Result of a request.
pub type Result<T> = std::result::Result<T, ApiError>;

impl ApiError {
    /// Any status and code.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    /// 400 for a body or parameter.
    pub fn body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::INVALID_REQUEST_BODY, message)
    }

    /// 400 for an absent query parameter.
    pub fn missing_query(name: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::MISSING_QUERY, format!("query parameter {name:?} is required"))
    }

    /// 400 for a path that cannot be used so.
    pub fn file(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::INVALID_FILE, message)
    }

    /// 404 for a path.
    pub fn not_found(path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, code::FILE_NOT_FOUND, format!("{path}: no such file or directory"))
    }

    /// 500 for what the system refused.
    pub fn runtime(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, code::RUNTIME_ERROR, message)
    }

    /// The right refusal for a failed operation on a path: 404 where it is missing, 400 where the path is
    /// of the wrong kind or not allowed, 500 for the rest.
    pub fn io(operation: &str, path: &str, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Kind;
        let message = format!("{operation} {path}: {}", system_text(error));
        match error.kind() {
            Kind::NotFound => Self::new(StatusCode::NOT_FOUND, code::FILE_NOT_FOUND, message),
            Kind::IsADirectory
            | Kind::NotADirectory
            | Kind::AlreadyExists
            | Kind::DirectoryNotEmpty
            | Kind::InvalidInput
            | Kind::InvalidFilename
            | Kind::ReadOnlyFilesystem
            | Kind::PermissionDenied => Self::new(StatusCode::BAD_REQUEST, code::INVALID_FILE, message),
            _ if error.raw_os_error() == Some(libc::ELOOP) => {
                Self::new(StatusCode::BAD_REQUEST, code::INVALID_FILE, message)
            }
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, code::RUNTIME_ERROR, message),
        }
    }

    /// The same refusal with a sentence before its message.
    pub fn context(mut self, context: impl std::fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }
}

/// The system's words, lower-case and without the error number.
pub fn system_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}
