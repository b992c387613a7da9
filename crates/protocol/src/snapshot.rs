//! Types of the snapshots of the lifecycle API.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::lifecycle::PaginationInfo;

/// Body of `POST /sandboxes/{id}/snapshots`, which may be absent. A field that is not listed here is refused by name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateSnapshotRequest {
    /// A name by which it is found again; no two that are ready or being taken have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A snapshot as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Identifier, never reused.
    pub id: String,
    /// The sandbox that it was taken of, which may be gone.
    pub sandbox_id: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where it is in its life.
    pub status: SnapshotStatus,
    /// When it was accepted, RFC 3339 UTC.
    pub created_at: String,
    /// The image of the sandbox (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// SHA-256 of what this snapshot adds to what the sandbox stood on (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Bytes of file content in that (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Files, directories and links in that (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
    /// Milliseconds for which the sandbox stood still (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_ms: Option<u64>,
}

/// Where a snapshot is in its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// `Creating`, `Ready`, `Failed` or `Deleting`.
    pub state: String,
    /// Stable word for why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the state was entered, RFC 3339 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_at: Option<String>,
}

/// One page of snapshots.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListSnapshotsResponse {
    /// The snapshots of this page, newest first.
    pub items: Vec<Snapshot>,
    /// Which page this is.
    pub pagination: PaginationInfo,
}

/// Body of `POST /sandboxes/{id}/fork` (ours): fields of a create that the forks have instead of their source's.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ForkRequest {
    /// How many, 1 to 1000; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Variables over those of the source; a `null` value drops one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, Option<String>>>,
    /// Labels; the source's are not taken over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Lifetime in seconds, at least 60; absent means that of the source, counted from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// Argument vector of the main process, instead of the source's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
}
