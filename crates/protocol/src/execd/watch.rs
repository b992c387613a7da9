//! The event stream of `GET /v1/files/watch`, an addition of ours: bare JSON objects, each followed by an
//! empty line.
//!
//! A client that opens the stream, waits for [`kind::WATCHING`], lists the tree and then applies the events in
//! order knows what exists, except below the path of a [`kind::RESCAN`], which it lists again.

use serde::{Deserialize, Serialize};

/// Words of [`WatchEvent::kind`].
pub mod kind {
    /// The first event: whatever changes from now on is told.
    pub const WATCHING: &str = "watching";
    /// Something is new at the path.
    pub const CREATED: &str = "created";
    /// Content was written or cut off.
    pub const MODIFIED: &str = "modified";
    /// A file that was open for writing was closed: for now its content is complete.
    pub const CLOSED: &str = "closed";
    /// Mode, owner, times or the number of links changed.
    pub const ATTRIBUTES: &str = "attributes";
    /// What was at `from`, with all below it, is at the path now. Where nothing is known of `from`, because a
    /// listing was ahead of this event, the path is to be listed.
    pub const MOVED: &str = "moved";
    /// Nothing is at the path any more, nor below it.
    pub const DELETED: &str = "deleted";
    /// What is known below the path may be wrong or incomplete: list it again. Later events are complete.
    pub const RESCAN: &str = "rescan";
    /// Changes below the path are not told from now on: a limit is reached.
    pub const UNWATCHED: &str = "unwatched";
    /// The last event: the directory itself is gone.
    pub const ENDED: &str = "ended";
    /// Nothing happened for a while.
    pub const PING: &str = "ping";
}

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// One of [`kind`].
    #[serde(rename = "type")]
    pub kind: String,
    /// Absolute path; what is not UTF-8 in it reads U+FFFD. Absent in a ping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Where something was before it moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Whether the path is a directory; absent when not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub directory: bool,
    /// Why, in `rescan`, `unwatched` and `ended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Given as `cursor` of a later request, the stream goes on behind this event. Absent in a ping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Unix milliseconds.
    #[serde(default)]
    pub timestamp: i64,
}
