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
    /// Whether what no rule speaks of is allowed.
    pub fn allows_by_default(&self) -> bool {
        self.default_action.as_ref().is_some_and(|action| action.eq_ignore_ascii_case("allow"))
    }

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

/// Some of what became of a sandbox's questions for names and of its connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkEvents {
    /// Oldest first.
    pub events: Vec<NetworkEvent>,
    /// Give it as `after` to go on.
    pub next: String,
    /// Events between `after` and `next` that were not kept.
    pub lost: u64,
    /// Whether what came after `after` was lost with an egress process; these are of its successor.
    pub restarted: bool,
}

/// What became of one question for a name, or of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkEvent {
    /// Give it as `after` to go on behind this event.
    pub cursor: String,
    /// Place among the sandbox's events, from 1, without gaps.
    pub number: u64,
    /// When.
    pub at: String,
    /// `question` (for a name; told when it has no answer), `connection` (begun or refused), `closed`, `request` (for a host
    /// that is bound to a credential, which was put in or not), `vault` (the
    /// credential vault was made, changed or deleted), `recording` (something passed and is not recorded), or `replay` (a
    /// request is not in the recording that answers the sandbox).
    pub kind: String,
    /// `allow` or `deny`; of what is closed only where it was the policy that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Why, as one word for programs.
    pub reason: String,
    /// Why, as a sentence.
    pub message: String,
    /// The rule that decided, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<DecidingRule>,
    /// Number of the connection; its end has the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// The name that was asked for or connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The type of record that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_type: Option<String>,
    /// The address that was connected to; where there is a name, the one that stands for it in this sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The port that was connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The address that was dialled, or that the policy refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dialled: Option<String>,
    /// The name in the first bytes of the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presented: Option<String>,
    /// Bytes from the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_bytes: Option<u64>,
    /// Bytes to the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_bytes: Option<u64>,
    /// Method of a request to a bound host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Its path as the sandbox wrote it, without a query, and only its beginning where it is long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The binding by which a credential was put into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// The status with which it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Revision of the vault: the one that a credential is of, or the one from then on; 0 where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Rules that would have let it through, where rules of the sandbox can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permit: Vec<NetworkRule>,
}

/// A rule that decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidingRule {
    /// `always_deny`, `always_allow` (the operator's) or `user`.
    pub list: String,
    /// Its place, from 0.
    pub index: usize,
}

fn null_as_empty<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<NetworkRule>, D::Error> {
    Option::<Vec<NetworkRule>>::deserialize(from).map(Option::unwrap_or_default)
}
