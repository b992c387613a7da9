use serde_json::json;

use super::*;
use crate::samples::{https, told, vault};

#[test]
fn a_vault_is_what_it_was_after_it_was_sealed() {
    let bindings = json!([
        {"name": "a", "match": {"hosts": ["a.test", "*.a.test"], "schemes": ["https", "http"], "ports": [443, 8443],
            "methods": ["GET"], "paths": ["/v1/*", "/x"]}, "auth": {"type": "apiKey", "name": "x-key", "credential": "c",
            "substitutions": [{"credential": "d", "placeholder": "P", "in": ["path", "query", "header", "body"]}]}},
        {"name": "b", "match": {"hosts": ["b.test"]}, "auth": {"type": "customHeaders", "headers": [{"name": "x", "credential": "c"}]}},
        {"name": "c", "match": {"hosts": ["c.test"]}, "auth": {"type": "passthrough"}},
        {"name": "d", "match": {"hosts": ["d.test"]}, "auth": {"type": "basic", "credential": "d"}},
    ]);
    let vault = vault(&[("c", "first"), ("d", "second")], bindings);
    let kept = serde_json::to_vec(&vault.seal()).expect("it is written");
    let restored = Vault::restore(&serde_json::from_slice(&kept).expect("it is read")).expect("it was kept whole");
    assert_eq!(restored.shown(), vault.shown());
    assert_eq!(serde_json::to_vec(&restored.seal()).expect("it is written"), kept);
    let facts = https("a.test", "GET", "/v1/P");
    assert_eq!(told(&restored.select(&facts)), "a /v1/second");
}

#[test]
fn what_was_not_kept_whole_is_refused() {
    let vault = vault(
        &[("c", "v")],
        json!([{"name": "a", "match": {"hosts": ["a.test"]}, "auth": {"type": "bearer", "credential": "c"}}]),
    );
    let kept = serde_json::to_value(vault.seal()).expect("it is written");
    let mut without = kept.clone();
    without["credentials"] = json!([]);
    assert!(Vault::restore(&serde_json::from_value(without).expect("it is read")).is_err());
    let mut other = kept;
    other["bindings"][0]["hosts"][0] = json!("10.0.0.1");
    assert!(serde_json::from_value::<Sealed>(other).is_err());
}
