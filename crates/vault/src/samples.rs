//! Vaults and policies of tests.

use std::sync::Arc;

use protocol::vault as wire;
use secrecy::SecretString;
use serde_json::{Value, json};

use crate::{Coverage, Facts, Options, Refused, Scheme, Selection, Vault};

/// A policy that allows the names that end so, at every port but these.
pub(crate) struct Names<'a>(pub &'a [&'a str], pub &'a [u16]);

impl Coverage for Names<'_> {
    fn allows(&self, host: &str, port: u16) -> bool {
        self.0.iter().any(|end| host.ends_with(end)) && !self.1.contains(&port)
    }

    fn opens(&self, host: &str) -> bool {
        !host.ends_with("pinned.test")
    }
}

pub(crate) const ANYWHERE: Names<'static> = Names(&[""], &[]);

/// What an operator may allow, allowed.
pub(crate) fn generous() -> Options {
    Options { allow_http: true, require_scoped_match: false, extra_ports: vec![8443] }
}

pub(crate) fn credential(name: &str, value: &str) -> Value {
    json!({"name": name, "source": {"type": "inline", "value": value}})
}

pub(crate) fn create_request(credentials: &[(&str, &str)], bindings: &Value) -> wire::CreateRequest {
    let credentials: Vec<_> = credentials.iter().map(|(name, value)| credential(name, value)).collect();
    serde_json::from_value(json!({"credentials": credentials, "bindings": bindings})).expect("on the wire")
}

pub(crate) fn try_vault(credentials: &[(&str, &str)], bindings: Value) -> Result<Vault, Refused> {
    Vault::create(&create_request(credentials, &bindings), &ANYWHERE, &generous())
}

#[track_caller]
pub(crate) fn vault(credentials: &[(&str, &str)], bindings: Value) -> Vault {
    try_vault(credentials, bindings).expect("a vault")
}

pub(crate) fn https<'a>(host: &'a str, method: &'a str, path_and_query: &'a str) -> Facts<'a> {
    Facts { scheme: Scheme::Https, host, port: 443, method, path_and_query }
}

/// The binding and what is asked for, or what else became of a request.
pub(crate) fn told(selection: &Selection) -> String {
    match selection {
        Selection::None => "none".to_owned(),
        Selection::Ambiguous => "ambiguous".to_owned(),
        Selection::BadPath => "bad path".to_owned(),
        Selection::One(injection) => format!("{} {}", injection.binding(), injection.path_and_query()),
    }
}

/// Placeholders and their values.
pub(crate) fn owned(of: &[(&str, &str)]) -> Vec<(String, Arc<SecretString>)> {
    of.iter().map(|(placeholder, value)| ((*placeholder).to_owned(), Arc::new(SecretString::from(*value)))).collect()
}
