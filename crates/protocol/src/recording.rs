//! Recordings of what sandboxes fetched, as clients see them (ours).

use serde::{Deserialize, Serialize};

/// Extension of a create whose sandbox is recorded: `on`.
pub const RECORD_EXTENSION: &str = "osb.network.record";
/// Extension of a create whose sandbox is answered from a recording: its id.
pub const REPLAY_EXTENSION: &str = "osb.network.replay";

/// What is in a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Contents {
    /// Exchanges that are whole, and can be served again.
    pub exchanges: u64,
    /// Exchanges that broke off: they are not served.
    pub broken: u64,
    /// Length of the file.
    pub bytes: u64,
    /// Whether it is full: what came after that was not recorded.
    pub full: bool,
    /// Why it is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_because: Option<String>,
    /// What was passed on and not recorded.
    pub not_recorded: Vec<NotRecorded>,
    /// Whether more was not recorded than that.
    pub not_recorded_more: bool,
}

/// Something that was passed on and not recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRecorded {
    /// Why, as a sentence.
    pub why: String,
    /// Where it went: a name, or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// How often.
    pub times: u64,
}

/// A recording that a server keeps, for sandboxes to be answered from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Recording {
    /// Its id.
    pub id: String,
    /// When it was uploaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// What is in it.
    #[serde(flatten)]
    pub contents: Contents,
}

/// All recordings that a server keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recordings {
    /// The oldest first.
    pub items: Vec<Recording>,
}
