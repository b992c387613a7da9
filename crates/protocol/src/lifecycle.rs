//! Types of the lifecycle API: what clients send and see.
//!
//! Absent values are omitted, never `null`: the published clients break on nulls. On input `null` and
//! absent mean the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::egress::NetworkPolicy;
pub use crate::pool::*;

/// Body of `POST /sandboxes`. A field that is not listed here is refused by name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateSandboxRequest {
    /// What to start from; exactly one of this, `snapshotId` and `templateId`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSpec>,
    /// Snapshot to restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// Template to start from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_id: Option<String>,
    /// Operating system and architecture of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<PlatformSpec>,
    /// Lifetime in seconds, at least 60; absent means until it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// Limits by name: `cpu`, `memory`, and of ours `pids`, `disk`, `inodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_limits: Option<BTreeMap<String, String>>,
    /// Kubernetes' requests; must not exceed the limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_requests: Option<BTreeMap<String, String>>,
    /// Environment of every process of the sandbox; a `null` value drops the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, Option<String>>>,
    /// Labels for finding the sandbox again, by the rules of Kubernetes labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Commands around the sandbox's life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Value>,
    /// Argument vector of the main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// What the sandbox may reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicy>,
    /// Whether credentials are put in on the way out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential_proxy: Option<CredentialProxyConfig>,
    /// Whether ports need the sandbox's token; here they always do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure_access: Option<bool>,
    /// Volumes to mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<Value>>,
    /// Extensions by key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extensions: Option<BTreeMap<String, String>>,
}

/// Body of `POST /sandboxes/batch` (ours): many creates by one call.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BatchRequest {
    /// What all of them have: fields of [`CreateSandboxRequest`].
    #[serde(default)]
    pub sandbox: Map<String, Value>,
    /// What each has of its own, 1 to 1000. `env` and `metadata` are joined with those of `sandbox`; any other field
    /// replaces it.
    pub items: Vec<Map<String, Value>>,
}

/// Answer of `POST /sandboxes/batch`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchResponse {
    /// How many are being made.
    pub accepted: u64,
    /// How many are not.
    pub refused: u64,
    /// One for each item, in the request's order.
    pub items: Vec<BatchItem>,
    /// Code of the first refusal, when none was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The first refusal, when none was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What became of one item: exactly one of the two.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchItem {
    /// The sandbox, as a create alone would answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ItemError>,
}

/// Why an item was refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ItemError {
    /// As a create alone would answer.
    pub code: String,
    /// For people.
    pub message: String,
}

/// One volume of a create; exactly one of `host`, `pvc` and `ossfs`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Volume {
    /// Name within the sandbox: a DNS label of at most 63 characters.
    pub name: String,
    /// A path of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostVolume>,
    /// A named volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<NamedVolume>,
    /// A bucket; refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ossfs: Option<Value>,
    /// Where it is mounted, absolute.
    pub mount_path: String,
    /// Whether it can only be read; `false` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// A path within it, relative, that is mounted instead of the whole; made if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
}

/// A path of the machine that a sandbox shares.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostVolume {
    /// Absolute; the operator must have allowed it or a directory above it.
    pub path: String,
}

/// A named volume that a sandbox has.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NamedVolume {
    /// Its name: `[a-z0-9-]`, at most 253 characters.
    pub claim_name: String,
    /// Whether it is made where it does not exist; `true` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_if_not_exists: Option<bool>,
    /// Whether it goes with the sandbox, if that made it and nobody else has it then; `false` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_on_sandbox_termination: Option<bool>,
    /// Kubernetes' storage class; there are none here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// Most that it may hold, for example `1Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// Kubernetes' access modes; those that one machine keeps are accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_modes: Option<Vec<String>>,
}

/// Body of `POST /volumes` (ours).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateVolumeRequest {
    /// Its name: `[a-z0-9-]`, at most 253 characters.
    pub name: String,
    /// Most that it may hold, for example `1Gi`; absent means the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
}

/// A named volume as the API shows it (ours).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// When it was made, RFC 3339 UTC.
    pub created_at: String,
    /// The sandbox whose create made it; absent if a call of its own did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// Most bytes that it may hold; absent means no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Whether it goes when the sandbox that made it ends.
    pub delete_on_sandbox_termination: bool,
    /// The sandboxes that have it.
    pub sandboxes: Vec<String>,
}

/// Every named volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListVolumesResponse {
    /// By name.
    pub items: Vec<VolumeInfo>,
}

/// An image and how to be allowed to pull it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageSpec {
    /// Name as people type it, a digest reference, or `host`.
    pub uri: String,
    /// Credentials for the pull; never stored, never echoed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<ImageAuth>,
}

/// A registry login. Its `Debug` shows no password.
#[derive(Clone, Serialize, Deserialize)]
pub struct ImageAuth {
    /// User name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Password or token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

impl std::fmt::Debug for ImageAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ImageAuth(masked)")
    }
}

/// Operating system and architecture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlatformSpec {
    /// `linux` or `windows`.
    pub os: String,
    /// `amd64` or `arm64`.
    pub arch: String,
}

/// Whether the credential proxy is on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CredentialProxyConfig {
    /// On or off.
    #[serde(default)]
    pub enabled: bool,
}

/// A sandbox as the API shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// Identifier, never reused.
    pub id: String,
    /// What it was started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageUri>,
    /// The snapshot that it was started from instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// The requested platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<PlatformSpec>,
    /// Where it is in its life.
    pub status: SandboxStatus,
    /// The user's labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// The extensions that are echoed (`opensandbox.extensions.*`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extensions: Option<BTreeMap<String, String>>,
    /// Argument vector of the main process.
    pub entrypoint: Vec<String>,
    /// When it ends by itself, RFC 3339 UTC; absent means never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// When it was accepted, RFC 3339 UTC.
    pub created_at: String,
    /// The pool that it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// Which runtime holds it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// What the kernel really applied, read back from it (ours; only in the detail).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Value>,
}

/// An image reference without its login.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageUri {
    /// Name as it was asked for.
    pub uri: String,
}

/// Where a sandbox is in its life.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    /// `Pending`, `Running`, `Pausing`, `Paused`, `Resuming`, `Stopping`, `Terminated` or `Failed`.
    pub state: String,
    /// Stable word for why, for example `OOM_KILLED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A sentence for people; while `Pending` the progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the state was entered, RFC 3339 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_at: Option<String>,
    /// How the sandbox ended (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitStatus>,
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitStatus {
    /// `exited`, `signaled`, `oom`, `pids`, `disk`, `stopped` or `unknown`.
    pub kind: String,
    /// Exit code of the main process, when it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Signal that ended the main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// One page of sandboxes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListSandboxesResponse {
    /// The sandboxes of this page, newest first.
    pub items: Vec<Sandbox>,
    /// Which page this is.
    pub pagination: PaginationInfo,
}

/// Which page of how many.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PaginationInfo {
    /// From 1.
    pub page: u64,
    /// 1 to 200.
    pub page_size: u64,
    /// Items in all pages.
    pub total_items: u64,
    /// 0 when there are none.
    pub total_pages: u64,
    /// Whether a later page has items.
    pub has_next_page: bool,
}

/// How to reach a port of a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Endpoint {
    /// `host[:port][/path]`, never a scheme.
    pub endpoint: String,
    /// Headers to send with every call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
}

/// Body of `POST /sandboxes/{id}/renew-expiration`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RenewRequest {
    /// The new deadline, RFC 3339; without an offset it is UTC.
    pub expires_at: String,
}

/// Answer to a renewal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RenewResponse {
    /// The deadline that is now stored.
    pub expires_at: String,
}

/// An image of the store as the API shows it (ours: `/v1/images`).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageInfo {
    /// Digest of the image's configuration.
    pub id: String,
    /// Names it is known by.
    pub references: Vec<String>,
    /// `os/arch`.
    pub platform: String,
    /// Bytes on disk, shared layers counted for each image.
    pub size_bytes: u64,
    /// Number of layers.
    pub layers: usize,
    /// When it came, RFC 3339 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
}
