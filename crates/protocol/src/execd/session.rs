//! Shell sessions: `POST /session`, `POST /session/{id}/run`, `DELETE /session/{id}`.

use serde::{Deserialize, Serialize};

use super::output::Overflow;

/// Body of `POST /session`; an absent body is an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateSession {
    /// First working directory, made when it is missing; the sandbox's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Answer of `POST /session`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedSession {
    /// A UUID.
    pub session_id: String,
}

/// Body of `POST /session/{id}/run`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunInSession {
    /// Shell text; not empty.
    #[serde(default)]
    pub command: Option<String>,
    /// Working directory of this run, which must exist; where the run ends is where the next one begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Milliseconds until the run is killed; 0 or absent means the default of 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// What goes when the output outgrows its spool; an addition to the published fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overflow: Option<Overflow>,
}
