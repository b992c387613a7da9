//! Credentials of sandboxes, as the server knows them: whose programs trust which authority, which hosts are bound, and
//! never what a secret is. Values pass through here on their way to the egress process and are overwritten behind it.

use bytes::Bytes;
use egress::policy::Policy;
use egress::{Bound, ControlError, Demands, Expected, Failure, Operation, Refusal, Secret, Shown};
use http::StatusCode;
use lifecycle::spec::{SandboxId, SandboxSpec, VaultDemands};
use protocol::egress::NetworkPolicy;
use protocol::error::code;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::Network;
use crate::app::App;
use crate::errors::ApiError;

/// What is remembered of the credentials of a sandbox that was made with the credential proxy. No secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Credentials {
    /// What its owner demands.
    pub(crate) demands: VaultDemands,
    /// PEM of the certificate that its programs trust.
    pub(crate) authority: String,
    /// Revision of its vault; 0 where there is none.
    pub(crate) revision: u64,
    /// How many credentials the vault holds.
    pub(crate) credentials: usize,
    /// How many bindings.
    pub(crate) bindings: usize,
    /// Hosts that are bound. If a change is under way, those before and after it.
    pub(crate) bound: Vec<Bound>,
    /// Whether a change is under way, or its outcome is not known.
    pub(crate) in_doubt: bool,
}

impl Credentials {
    pub(crate) fn new(demands: VaultDemands) -> Self {
        Self { demands, ..Self::default() }
    }

    /// What the egress process should have.
    pub(super) fn expected(&self) -> Expected {
        let hosts = self.bound.iter().map(|bound| bound.host.clone()).collect();
        Expected { authority: self.authority.clone(), hosts }
    }

    /// Before a change: whatever becomes of it, no host is forgotten.
    pub(crate) fn before(&self, change: &Change) -> Self {
        let mut bound = self.bound.clone();
        bound.extend(change.hosts());
        bound.sort();
        bound.dedup();
        Self { bound, in_doubt: true, ..self.clone() }
    }

    /// With what a vault holds; `None` is no vault.
    pub(crate) fn after(&self, shown: Option<&Shown>) -> Self {
        let empty =
            Self { revision: 0, credentials: 0, bindings: 0, bound: Vec::new(), in_doubt: false, ..self.clone() };
        let Some(shown) = shown else { return empty };
        Self {
            revision: shown.state.revision.unsigned_abs(),
            credentials: shown.state.credentials.len(),
            bindings: shown.state.bindings.len(),
            bound: shown.bound.clone(),
            ..empty
        }
    }
}

/// Something that is done to a vault.
#[derive(Debug)]
pub(crate) struct Change {
    /// Put again to another process, it is made once.
    operation: Operation,
    what: What,
}

/// What is done to a vault.
#[derive(Debug)]
pub(crate) enum What {
    /// Make it.
    Create(Secret),
    /// Change what it holds.
    Patch(Secret),
    /// Delete it.
    Delete,
}

impl Change {
    pub(crate) fn new(what: What) -> Result<Self, ApiError> {
        let operation = Operation::new().map_err(|error| ApiError::internal(error.to_string()))?;
        Ok(Self { operation, what })
    }

    /// Hosts that will be bound if all goes well. What is wrong with the request is found by who carries it out.
    fn hosts(&self) -> Vec<Bound> {
        let bindings = match &self.what {
            What::Create(body) => serde_json::from_slice::<Create>(body.bytes()).map(|create| create.bindings),
            What::Patch(body) => serde_json::from_slice::<Patch>(body.bytes()).map(|patch| {
                let Mutations { mut add, replace } = patch.bindings.unwrap_or_default();
                add.extend(replace);
                add
            }),
            What::Delete => return Vec::new(),
        };
        let hosts = bindings.unwrap_or_default().into_iter().flat_map(|binding| binding.r#match.hosts);
        hosts.map(|host| Bound { host: host.to_ascii_lowercase(), ports: vec![80, 443] }).collect()
    }
}

/// As much of the requests as has hosts in it.
#[derive(Deserialize)]
struct Create {
    #[serde(default)]
    bindings: Vec<Binding>,
}

#[derive(Deserialize)]
struct Patch {
    #[serde(default)]
    bindings: Option<Mutations>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Mutations {
    add: Vec<Binding>,
    replace: Vec<Binding>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Binding {
    r#match: Match,
    #[serde(rename = "auth")]
    _auth: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Match {
    hosts: Vec<String>,
}

impl Network {
    /// PEM of the authority that the programs of a new sandbox are to trust, if it was asked for.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn authority(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Option<String>, String> {
        if !spec.needs_authority() {
            return Ok(None);
        }
        let control = self.control().ok_or("this server has no egress process")?;
        let made = control.authority(id.as_str()).await;
        made.map(Some).map_err(|error| format!("make its certificate authority: {}", protocol::error::chain(&error)))
    }

    /// Changes a vault; what it holds then, or nothing if it was deleted.
    ///
    /// # Errors
    /// Why it is not changed, or that nobody says so.
    pub(crate) async fn change_vault(
        &self,
        app: &App,
        id: &SandboxId,
        spec: &SandboxSpec,
        credentials: &Credentials,
        change: &Change,
    ) -> Result<Option<Shown>, ControlError> {
        let changed = self.try_change_vault(id, credentials, change).await;
        let is_unknown = matches!(
            changed,
            Err(ControlError::Failed(Failure::NotAttached | Failure::Vault { refusal: Refusal::NotReady, .. }))
        );
        if !is_unknown {
            return changed;
        }
        // A process that has just begun knows nothing of it yet.
        match self.attach(app, id, spec, Some(credentials)).await {
            Ok(()) => self.try_change_vault(id, credentials, change).await,
            Err(why) => {
                tracing::warn!(sandbox_id = %id, error = why, "a sandbox cannot be attached for a change of its vault");
                changed
            }
        }
    }

    async fn try_change_vault(
        &self,
        id: &SandboxId,
        credentials: &Credentials,
        change: &Change,
    ) -> Result<Option<Shown>, ControlError> {
        let control = self.control().ok_or(ControlError::Gone)?;
        let demands = Demands { scoped_match: credentials.demands.scoped_match };
        let (id, operation) = (id.as_str(), change.operation);
        match &change.what {
            What::Create(body) => control.create_vault(id, operation, body, demands).await.map(Some),
            What::Patch(body) => control.patch_vault(id, operation, body, demands).await.map(Some),
            What::Delete => control.delete_vault(id, operation).await.map(|()| None),
        }
    }

    /// What a vault holds, without any value.
    ///
    /// # Errors
    /// When there is none, or nobody answers.
    pub(crate) async fn vault(&self, id: &SandboxId) -> Result<Shown, ControlError> {
        self.control().ok_or(ControlError::Gone)?.vault(id.as_str()).await
    }

    /// Whether a policy lets a sandbox reach every host that its credentials are bound to.
    ///
    /// # Errors
    /// Names the first that it does not.
    pub(crate) fn check_covers(&self, policy: &NetworkPolicy, bound: &[Bound]) -> Result<(), ApiError> {
        let parsed =
            Policy::parse(&self.source(Some(policy)), "networkPolicy").map_err(|invalid| super::refused(&invalid))?;
        for bound in bound {
            egress::check_covers(&parsed, bound).map_err(|why| ApiError::bad_request(code::VAULT_INVALID, why))?;
        }
        Ok(())
    }
}

/// How a client is told that its vault is not as it asked.
pub(crate) fn told(error: ControlError) -> ApiError {
    let (status, code, message) = match error {
        ControlError::Failed(Failure::Vault { refusal, message }) => {
            let (status, code) = match refusal {
                Refusal::Invalid => (StatusCode::BAD_REQUEST, code::VAULT_INVALID),
                Refusal::Conflict => (StatusCode::CONFLICT, code::VAULT_CONFLICT),
                Refusal::Absent => (StatusCode::NOT_FOUND, code::VAULT_NOT_FOUND),
                Refusal::Lost => (StatusCode::NOT_FOUND, code::VAULT_LOST),
                Refusal::NotReady => (StatusCode::PRECONDITION_FAILED, code::VAULT_NOT_READY),
                Refusal::Full => (StatusCode::INSUFFICIENT_STORAGE, code::VAULT_FULL),
            };
            (status, code, message)
        }
        error => {
            let message = format!("{}; ask again", protocol::error::chain(&error));
            return ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code::INTERNAL_ERROR, message).retry_after(1);
        }
    };
    ApiError::new(status, code, message)
}

/// Overwrites bytes that were received, if nobody else has them.
pub(super) fn overwrite(bytes: Bytes) {
    if let Ok(mut own) = bytes.try_into_mut() {
        own.fill(0);
        std::hint::black_box(&own);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::{Value, json};

    use super::*;

    fn secret(value: &Value) -> Secret {
        let mut secret = Secret::default();
        secret.write_all(value.to_string().as_bytes()).expect("memory");
        secret
    }

    fn hosts(credentials: &Credentials) -> Vec<&str> {
        credentials.bound.iter().map(|bound| bound.host.as_str()).collect()
    }

    #[test]
    fn no_host_is_forgotten_before_a_change_is_known_to_be_made() {
        let bound = vec![Bound { host: "old.test".into(), ports: vec![443] }];
        let held = Credentials { bound, revision: 1, ..Credentials::default() };
        let binding = |host: &str| json!({ "name": host, "match": { "hosts": [host] }, "auth": { "type": "bearer" } });
        let change = |what| Change::new(what).expect("random bytes");
        let create = json!({ "credentials": [{ "name": "a" }], "bindings": [binding("New.test")] });
        let ahead = held.before(&change(What::Create(secret(&create))));
        assert_eq!((hosts(&ahead), ahead.in_doubt), (vec!["new.test", "old.test"], true));
        let patch =
            json!({ "bindings": { "add": [binding("a.test")], "replace": [binding("r.test")], "delete": ["x"] } });
        let ahead = held.before(&change(What::Patch(secret(&patch))));
        assert_eq!(hosts(&ahead), ["a.test", "old.test", "r.test"]);
        for nothing in [json!({}), json!([]), json!({ "bindings": null }), json!({ "bindings": 1 })] {
            assert_eq!(hosts(&held.before(&change(What::Patch(secret(&nothing))))), ["old.test"], "{nothing}");
        }
        let gone = held.before(&change(What::Delete)).after(None);
        assert_eq!((hosts(&gone).len(), gone.in_doubt, gone.revision), (0, false, 0));
    }

    #[test]
    fn bytes_that_somebody_else_has_are_left_alone() {
        let bytes = Bytes::from(b"secret".to_vec());
        overwrite(bytes.clone());
        assert_eq!(bytes, "secret");
    }
}
