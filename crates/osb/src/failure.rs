//! Why a command did not do what was asked, as people and programs see it.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

/// Exit code of every failure that is neither the user's words nor a remote command's.
pub const EXIT_FAILURE: u8 = 1;
/// Exit code for words that the program does not understand.
pub const EXIT_USAGE: u8 = 2;

/// A failed command: a stable code for programs, a sentence for people, and what to do next.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Stable code; the server's own where the server refused.
    pub code: String,
    /// What went wrong, naming the field or operation.
    pub message: String,
    /// The answer's `X-Request-ID`, for the server's log.
    pub request_id: Option<String>,
    /// The HTTP status of the answer.
    pub status: Option<u16>,
    /// What the user can do.
    pub hint: Option<String>,
    /// Exit code of the program.
    pub exit: u8,
}

impl Failure {
    /// A failure that ends the program with [`EXIT_FAILURE`].
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            message: message.into(),
            request_id: None,
            status: None,
            hint: None,
            exit: EXIT_FAILURE,
        }
    }

    /// A mistake in the command line or in a value of it.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: EXIT_USAGE, ..Self::new("USAGE", message) }
    }

    /// A file of this machine that could not be used.
    pub fn file(operation: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::new("LOCAL_FILE", format!("{operation} {}: {error}", path.display()))
    }

    /// The same failure with advice.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// As in `{"error": ...}` of `-o json` and `-o yaml`.
    pub fn to_value(&self) -> Value {
        let mut error = Map::new();
        error.insert("code".into(), json!(self.code));
        error.insert("message".into(), json!(self.message));
        for (name, value) in [
            ("request_id", self.request_id.as_ref().map(|id| json!(id))),
            ("status", self.status.map(|status| json!(status))),
            ("hint", self.hint.as_ref().map(|hint| json!(hint))),
        ] {
            if let Some(value) = value {
                error.insert(name.into(), value);
            }
        }
        json!({ "error": error })
    }

    /// The program's exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit)
    }
}
