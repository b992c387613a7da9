//! Commands: `POST /command` and what can be asked about one afterwards.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::output::Overflow;

/// Body of `POST /command`. Exactly one of `command` and `argv` is given; `null` means absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCommand {
    /// Shell text, run by `bash -c`, or `sh -c` where there is no bash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Program and arguments, run without a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Working directory; the sandbox's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Answer at once and keep the output for `GET /command/{id}/logs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<bool>,
    /// Milliseconds until the process group is killed; 0 or absent means never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// User to run as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<i64>,
    /// Group to run as; needs `uid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<i64>,
    /// Environment of this command alone, literal; wins over everything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envs: Option<BTreeMap<String, Option<String>>>,
    /// What goes when the output outgrows its spool; an addition to the published fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overflow: Option<Overflow>,
}

/// Answer of `GET /command/status/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandStatus {
    /// The id of the `init` event.
    pub id: String,
    /// The shell text, or argv as a JSON array.
    pub content: String,
    /// Whether the command's own process still lives.
    pub running: bool,
    /// Exit code; -1 after a signal, 255 when it could not be started; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it failed; absent after success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// RFC 3339.
    pub started_at: String,
    /// RFC 3339; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
}
