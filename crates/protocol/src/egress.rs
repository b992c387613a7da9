//! The policy of what a sandbox may reach, as clients send it and read it back.
//!
//! Everything is optional and kept as text here: `egress::policy` gives it meaning and names the field that is wrong.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a sandbox may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicy {
    /// `allow` or `deny`, in any case; `deny` when it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_action: Option<String>,
    /// Rules, the first that matches wins. Written even when empty: a published client fails on `null`.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub egress: Vec<NetworkRule>,
    /// Fields that nobody knows; refused by name.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

impl NetworkPolicy {
    /// Whether anything may leave by it, or might: everything but `deny` counts.
    pub fn opens(&self) -> bool {
        let is_deny =
            |action: &Option<String>| action.as_ref().is_none_or(|action| action.eq_ignore_ascii_case("deny"));
        !is_deny(&self.default_action) || self.egress.iter().any(|rule| !is_deny(&rule.action))
    }
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRule {
    /// `allow` or `deny`, in any case; `deny` when it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// A name, `*.` and a name, an address, or a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Ports to which the rule applies; all when it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<u32>>,
    /// Fields that nobody knows; refused by name.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

fn null_as_empty<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<NetworkRule>, D::Error> {
    Option::<Vec<NetworkRule>>::deserialize(from).map(Option::unwrap_or_default)
}
