//! `GET /v1/activity`, an addition of ours: whether something runs in a sandbox that somebody started.

use serde::{Deserialize, Serialize};

/// What runs now, and since when nothing does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Commands, runs in sessions, cells and terminals with a living shell. The sandbox's main process does not count.
    pub running: u64,
    /// Milliseconds since the last command ended; absent when there was none, or it was forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_ms: Option<u64>,
}
