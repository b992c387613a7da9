//! Types of pools and templates in the lifecycle API; [`crate::lifecycle`] shows them as its own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::lifecycle::PaginationInfo;

/// Which pool a sandbox came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// `pool`.
    pub mode: String,
    /// The pool's name.
    pub pool_ref: String,
    /// `allocated`.
    pub state: String,
}

/// Between which numbers a pool keeps itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolCapacitySpec {
    /// Most sandboxes that wait.
    pub buffer_max: i64,
    /// Fewest that wait.
    pub buffer_min: i64,
    /// Most that there are, waiting or not.
    pub pool_max: i64,
    /// Fewest that there are.
    pub pool_min: i64,
}

/// Body of `POST /pools`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreatePoolRequest {
    /// Its name: `[a-z0-9-]`, at most 253 characters.
    pub name: String,
    /// What its sandboxes have in common: a pod template, or fields of a create.
    pub template: Map<String, Value>,
    /// How many there are.
    pub capacity_spec: PoolCapacitySpec,
    /// What becomes of a create for which nobody waits (ours): `create`, the default, or `refuse`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_empty: Option<String>,
}

/// Body of `PUT /pools/{name}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpdatePoolRequest {
    /// How many there are from now on.
    pub capacity_spec: PoolCapacitySpec,
    /// What becomes of a create for which nobody waits (ours); absent changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_empty: Option<String>,
}

/// A pool as the API shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolResponse {
    /// Its name.
    pub name: String,
    /// How many are wanted.
    pub capacity_spec: PoolCapacitySpec,
    /// How many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PoolStatus>,
    /// When it was made, RFC 3339 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// Its template as it was written (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Map<String, Value>>,
    /// What becomes of a create for which nobody waits (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_empty: Option<String>,
}

/// How many sandboxes a pool has, and how it served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// All: had by somebody, waiting, and being made to wait.
    pub total: u64,
    /// Had by somebody.
    pub allocated: u64,
    /// Waiting.
    pub available: u64,
    /// Changes with the capacity.
    pub revision: String,
    /// Creates that found one waiting, since the server's start (ours).
    #[serde(default)]
    pub hits: u64,
    /// Creates for which one was made (ours).
    #[serde(default)]
    pub misses: u64,
    /// Creates that were refused because the pool was full or empty (ours).
    #[serde(default)]
    pub refused: u64,
    /// Milliseconds that the last 100 claims took, the median; absent before the first (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_ms: Option<f64>,
    /// Sandboxes that were made to wait (ours).
    #[serde(default)]
    pub refilled: u64,
    /// Why the last one could not be made; absent once one could (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Every pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListPoolsResponse {
    /// By name.
    pub items: Vec<PoolResponse>,
}

/// Body of `POST /templates`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateTemplateRequest {
    /// Image reference.
    pub image: String,
    /// Limits by name, as of a create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_limits: Option<BTreeMap<String, String>>,
    /// Argument vector of the main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// Environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Labels of the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// When a golden image is taken; there are none here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness: Option<Value>,
    /// The name under which it is known.
    pub publish: String,
    /// `native`; `overlaybd` does not exist here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
}

/// A template as the API shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// `tpl-` and a UUID.
    pub template_id: String,
    /// Image reference.
    pub image: String,
    /// Limits by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_limits: Option<BTreeMap<String, String>>,
    /// Argument vector of the main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// Environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Labels of the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// The name under which it is known.
    pub publish: String,
    /// `native`.
    pub format: String,
    /// How far it is.
    pub status: TemplateStatus,
    /// When it was asked for, RFC 3339 UTC.
    pub created_at: String,
    /// When its status changed last, RFC 3339 UTC.
    pub updated_at: String,
}

/// How far a template is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateStatus {
    /// `Pending`, `Building`, `Succeeded` or `Failed`.
    pub phase: String,
    /// What it was built to: the image's digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_ref: Option<String>,
    /// Progress, or why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// One page of templates.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListTemplatesResponse {
    /// Newest first.
    pub items: Vec<Template>,
    /// Which page this is.
    pub pagination: PaginationInfo,
}
