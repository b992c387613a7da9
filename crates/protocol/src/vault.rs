//! Credentials of a sandbox and where they are used, as clients send them and what they read back.
//!
//! What is sent is optional and kept as text here: the crate `vault` gives it meaning and names the field that is wrong.
//! A value can be read from JSON and not be written to it, and shows nothing in `Debug`. What JSON readers say of a wrong
//! type quotes what they met, so a request is read with `vault::read`, which does not.

use std::collections::BTreeMap;

use secrecy::SecretString;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

/// Fields that nobody knows, by name; refused. Their values are not kept, since they may be secret.
pub type Unknown = BTreeMap<String, IgnoredAny>;

/// Makes a vault.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct CreateRequest {
    /// Credentials.
    #[serde(default, deserialize_with = "null_as_default")]
    pub credentials: Vec<Credential>,
    /// Where they are used.
    #[serde(default, deserialize_with = "null_as_default")]
    pub bindings: Vec<Binding>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Changes a vault.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct MutationRequest {
    /// The revision that is changed; any when it is missing.
    #[serde(default, rename = "expectedRevision")]
    pub expected_revision: Option<i64>,
    /// Changes of credentials.
    #[serde(default, deserialize_with = "null_as_default")]
    pub credentials: Mutations<Credential>,
    /// Changes of bindings.
    #[serde(default, deserialize_with = "null_as_default")]
    pub bindings: Mutations<Binding>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Changes of one list. A name may occur once in all of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct Mutations<T> {
    /// What is new.
    #[serde(default, deserialize_with = "null_as_default")]
    pub add: Vec<T>,
    /// What takes the place of something of the same name.
    #[serde(default, deserialize_with = "null_as_default")]
    pub replace: Vec<T>,
    /// Names of what goes.
    #[serde(default, deserialize_with = "null_as_default")]
    pub delete: Vec<String>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl<T> Default for Mutations<T> {
    fn default() -> Self {
        Self { add: Vec::new(), replace: Vec::new(), delete: Vec::new(), unknown: Unknown::new() }
    }
}

/// A secret value with a name.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Credential {
    /// By which bindings refer to it.
    #[serde(default)]
    pub name: Option<String>,
    /// Where its value comes from.
    #[serde(default)]
    pub source: Option<Source>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Where a value comes from.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Source {
    /// `inline`, also when it is missing.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// The value.
    #[serde(default)]
    pub value: Option<SecretString>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Which requests are given credentials, and how.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Binding {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Which requests.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<Match>,
    /// How.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// Fields that nobody knows.
    #[serde(flatten, skip_serializing)]
    pub unknown: Unknown,
}

/// Which requests a binding is about. What is missing has the published default.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Match {
    /// `https`, `http`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schemes: Option<Vec<String>>,
    /// Ports; as published, 80 and 443 say nothing: the scheme does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<u32>>,
    /// Names, or `*.` and a name.
    #[serde(default, deserialize_with = "null_as_default")]
    pub hosts: Vec<String>,
    /// Methods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub methods: Option<Vec<String>>,
    /// Paths, or beginnings of paths with `*` behind them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<Vec<String>>,
    /// Fields that nobody knows.
    #[serde(flatten, skip_serializing)]
    pub unknown: Unknown,
}

/// What is done to a request. Which fields belong together depends on `kind`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Auth {
    /// `bearer`, `basic`, `apiKey`, `customHeaders` or `passthrough`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The credential of `bearer`, `basic` and `apiKey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// The header of `apiKey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The headers of `customHeaders`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<Vec<HeaderEntry>>,
    /// What takes the place of placeholders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub substitutions: Option<Vec<Substitution>>,
    /// Fields that nobody knows.
    #[serde(flatten, skip_serializing)]
    pub unknown: Unknown,
}

/// One header of `customHeaders`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HeaderEntry {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The credential that is its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// Fields that nobody knows.
    #[serde(flatten, skip_serializing)]
    pub unknown: Unknown,
}

/// A text in requests whose place a credential takes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Substitution {
    /// The credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placeholder: Option<String>,
    /// Where it is looked for: `path`, `query`, `header`, `body`.
    #[serde(default, rename = "in", deserialize_with = "null_as_default")]
    pub surfaces: Vec<String>,
    /// Fields that nobody knows.
    #[serde(flatten, skip_serializing)]
    pub unknown: Unknown,
}

/// A vault as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// 1 when it was made, one more with each change.
    pub revision: i64,
    /// By name.
    pub credentials: Vec<CredentialMetadata>,
    /// By name.
    pub bindings: Vec<BindingMetadata>,
}

/// The credentials of a vault as they are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialList {
    /// The vault's.
    pub revision: i64,
    /// By name.
    pub credentials: Vec<CredentialMetadata>,
}

/// The bindings of a vault as they are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingList {
    /// The vault's.
    pub revision: i64,
    /// By name.
    pub bindings: Vec<BindingMetadata>,
}

/// A credential as it is shown: never its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialMetadata {
    /// Its name.
    pub name: String,
    /// `inline`.
    pub source_type: String,
    /// The revision of the vault that last wrote it.
    pub revision: i64,
}

/// A binding as it is shown: never its placeholders, nor the names of its credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingMetadata {
    /// Its name.
    pub name: String,
    /// The vault's.
    pub revision: i64,
    /// Which requests.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<MatchMetadata>,
    /// How.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthMetadata>,
}

/// Which requests a binding is about, with the defaults written out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatchMetadata {
    /// `https`, `http`.
    pub schemes: Vec<String>,
    /// Ports other than those of the schemes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u32>,
    /// Names, or `*.` and a name.
    pub hosts: Vec<String>,
    /// Methods; `HEAD` comes with `GET` without being named.
    pub methods: Vec<String>,
    /// Paths, or beginnings of paths with `*` behind them.
    pub paths: Vec<String>,
}

/// What a binding does to a request, as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthMetadata {
    /// `bearer`, `basic`, `apiKey`, `customHeaders` or `passthrough`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The header of `apiKey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

fn null_as_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests;
