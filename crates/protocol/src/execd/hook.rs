//! `POST /v1/hooks/{name}`, an addition of ours: the sandbox runs its hook of that name to its end.

use serde::{Deserialize, Serialize};

/// How the hook went. A hook that fails is an answer like any other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookReport {
    /// `beforePause`, `afterResume` or `beforeEnd`.
    pub name: String,
    /// Whether it ended with 0 and in time.
    pub succeeded: bool,
    /// What went wrong; completes a sentence that begins with the hook's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Milliseconds from its start to its end.
    #[serde(default)]
    pub elapsed_ms: u64,
}
