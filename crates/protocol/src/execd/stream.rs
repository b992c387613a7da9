//! The event stream of an execution: bare JSON objects, each followed by an empty line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `ename` of every failure of a command.
pub const COMMAND_ERROR_NAME: &str = "CommandExecError";

/// `ename` when a line of a session's output is beyond the bound; the run was killed.
pub const OVERLONG_ERROR_NAME: &str = "OutputLineTooLong";

/// `ename` when a session's run ended and its variables or directory could not be kept.
pub const SESSION_STATE_ERROR_NAME: &str = "SessionStateError";

/// Media type of the stream.
pub const CONTENT_TYPE: &str = "text/event-stream";

/// One event, as a client reads it. Order: `init`, output and pings, then exactly one of
/// `execution_complete` and `error`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamEvent {
    /// `init`, `ping`, `stdout`, `stderr`, `status`, `execution_count`, `result`, `error` or `execution_complete`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The id, a piece of output or a word, depending on the kind. Output keeps its line terminators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Number of the execution in its context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_count: Option<i64>,
    /// Milliseconds; absent for 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_time: Option<i64>,
    /// Unix milliseconds.
    #[serde(default)]
    pub timestamp: i64,
    /// Results by media type, `text/plain` under the name `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results: Option<BTreeMap<String, serde_json::Value>>,
    /// Why the execution failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<StreamError>,
}

/// The failure of an execution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamError {
    /// Kind of failure; [`COMMAND_ERROR_NAME`] for commands.
    #[serde(default)]
    pub ename: String,
    /// The exit code in decimal, `-1` after a signal, or the system's words when nothing was started.
    #[serde(default)]
    pub evalue: String,
    /// More detail; older daemons send null.
    #[serde(default)]
    pub traceback: Option<Vec<String>>,
}
