//! Why a request about a vault is not obeyed.

use serde::{Deserialize, Serialize};

/// Why a request about a vault is not obeyed: names fields, credentials and bindings, never a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// What kind of reason.
    pub kind: Kind,
    /// A sentence for people.
    pub message: String,
}

/// What kind of reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Something in the request is wrong.
    Invalid,
    /// A host that is bound is not covered by the sandbox's policy.
    Uncovered,
    /// There is no such vault, credential or binding.
    NotFound,
    /// There is a vault already.
    Exists,
    /// The vault is not at the revision that was expected.
    Stale,
}

impl Refused {
    /// A request that is wrong: the path of the field, and why.
    pub(crate) fn field(field: impl std::fmt::Display, reason: impl std::fmt::Display) -> Self {
        Self { kind: Kind::Invalid, message: format!("{field}: {reason}") }
    }

    /// There is no vault.
    pub fn no_vault() -> Self {
        Self { kind: Kind::NotFound, message: "credential vault not found".to_owned() }
    }

    /// There is no credential of this name.
    pub fn no_credential(name: &str) -> Self {
        Self { kind: Kind::NotFound, message: format!("credential {name:?} not found") }
    }

    /// There is no binding of this name.
    pub fn no_binding(name: &str) -> Self {
        Self { kind: Kind::NotFound, message: format!("credential binding {name:?} not found") }
    }

    /// There is a vault already.
    pub fn exists() -> Self {
        Self { kind: Kind::Exists, message: "credential vault already exists".to_owned() }
    }

    /// The status with which it is answered.
    pub fn status(&self) -> u16 {
        match self.kind {
            Kind::Invalid | Kind::Uncovered => 400,
            Kind::NotFound => 404,
            Kind::Exists | Kind::Stale => 409,
        }
    }
}
