//! What a sandbox may reach, and what became of what it tried.

use protocol::egress::{NetworkEvent, NetworkPolicy, NetworkRule};
use reqwest::Method;
use serde::{Deserialize, Serialize};

use super::sandboxes::{path, with_query};
use super::stream::EventStream;
use super::{Client, Patience};
use crate::failure::Failure;

/// The policy of a sandbox, as the server shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// `ok`.
    pub status: String,
    /// `allow_all`, `deny_all` or `enforcing`.
    pub mode: String,
    /// How it is put in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement_mode: Option<String>,
    /// More about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The policy; not told after a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<NetworkPolicy>,
}

/// What a stream of events tells.
#[derive(Clone, Debug)]
pub enum Told {
    /// A question or a connection.
    Event(Box<NetworkEvent>),
    /// Something about the stream itself, as the server said it: `lost`, `restarted` or `ended`.
    Notice(Notice),
}

/// Something about the stream itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Notice {
    /// `lost`, `restarted` or `ended`.
    pub kind: String,
    /// What happened, as a sentence.
    #[serde(default)]
    pub message: String,
}

impl Client {
    /// What a sandbox may reach.
    pub async fn policy(&self, id: &str) -> Result<PolicyStatus, Failure> {
        self.json(self.request(Method::GET, &path(id, "/networkpolicy")), Patience::Usual).await
    }

    /// Replaces the policy; one that is empty denies everything.
    pub async fn put_policy(&self, id: &str, policy: &NetworkPolicy) -> Result<PolicyStatus, Failure> {
        self.json(self.request(Method::PUT, &path(id, "/networkpolicy")).json(policy), Patience::Usual).await
    }

    /// Puts rules before the others, in place of those for the same targets.
    pub async fn put_rules(&self, id: &str, rules: &[NetworkRule]) -> Result<PolicyStatus, Failure> {
        self.json(self.request(Method::PATCH, &path(id, "/networkpolicy")).json(rules), Patience::Usual).await
    }

    /// Removes every rule for these targets.
    pub async fn remove_rules(&self, id: &str, targets: &[String]) -> Result<PolicyStatus, Failure> {
        self.json(self.request(Method::DELETE, &path(id, "/networkpolicy")).json(targets), Patience::Usual).await
    }

    /// What becomes of a sandbox's questions and connections, from the first that is kept or from behind this cursor.
    pub async fn network_events(&self, id: &str, cursor: Option<&str>) -> Result<EventStream, Failure> {
        let query: Vec<_> = cursor.map(|cursor| ("after", cursor.to_owned())).into_iter().collect();
        let request = self.request(Method::GET, &with_query(&path(id, "/network/events"), &query));
        let answer = self.send(request.header("accept", "text/event-stream"), Patience::Usual).await?;
        Ok(EventStream::new(answer))
    }
}
