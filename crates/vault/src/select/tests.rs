use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::samples::{https, told, try_vault, vault};

fn binding(name: &str, matches: Value) -> Value {
    json!({"name": name, "match": matches, "auth": {"type": "passthrough"}})
}

#[test]
fn every_fact_counts() {
    let vault = vault(&[], json!([binding("b", json!({"hosts": ["api.test"], "paths": ["/v1/*"]}))]));
    let facts = https("api.test", "GET", "/v1/x?y=/../z");
    assert_eq!(told(&vault.select(&facts)), "b /v1/x?y=/../z");
    assert_eq!(told(&vault.select(&Facts { host: "API.test.", ..facts })), "b /v1/x?y=/../z");
    for other in [
        Facts { scheme: Scheme::Http, ..facts },
        Facts { scheme: Scheme::Http, port: 80, ..facts },
        Facts { port: 8443, ..facts },
        Facts { host: "x.api.test", ..facts },
        Facts { host: "api.test.evil.test", ..facts },
        Facts { method: "OPTIONS", ..facts },
        Facts { method: "get", ..facts },
        Facts { path_and_query: "/v2/x", ..facts },
        Facts { path_and_query: "/v1?/v1/x", ..facts },
        Facts { path_and_query: "*", method: "GET", ..facts },
        Facts { path_and_query: "", ..facts },
    ] {
        assert_eq!(told(&vault.select(&other)), "none", "{other:?}");
    }
}

#[test]
fn head_comes_with_get_unless_somebody_names_it() {
    let one = vault(
        &[],
        json!([
            binding("get", json!({"hosts": ["a.test"]})),
            binding("post", json!({"hosts": ["b.test"], "methods": ["POST"]}))
        ]),
    );
    assert_eq!(told(&one.select(&https("a.test", "HEAD", "/x"))), "get /x");
    assert_eq!(told(&one.select(&https("b.test", "HEAD", "/x"))), "none");
    let two = vault(
        &[],
        json!([
            binding("get", json!({"hosts": ["a.test"]})),
            binding("head", json!({"hosts": ["a.test"], "methods": ["HEAD"]}))
        ]),
    );
    assert_eq!(told(&two.select(&https("a.test", "HEAD", "/x"))), "head /x");
    assert_eq!(told(&two.select(&https("a.test", "GET", "/x"))), "get /x");
}

#[test]
fn a_name_beats_a_wildcard_where_it_matches() {
    let vault = vault(
        &[],
        json!([
            binding("wild", json!({"hosts": ["*.a.test", "*.b.test"]})),
            binding("name", json!({"hosts": ["x.a.test"], "paths": ["/v1/*"]})),
        ]),
    );
    assert_eq!(told(&vault.select(&https("x.a.test", "GET", "/v1/x"))), "name /v1/x");
    assert_eq!(told(&vault.select(&https("x.a.test", "GET", "/v2/x"))), "wild /v2/x");
    assert_eq!(told(&vault.select(&https("y.x.a.test", "GET", "/v1/x"))), "wild /v1/x");
    assert_eq!(told(&vault.select(&https("a.test", "GET", "/v1/x"))), "none");
}

#[test]
fn what_is_matched_is_what_is_forwarded() {
    let vault = vault(&[], json!([binding("b", json!({"hosts": ["a.test"], "paths": ["/v1/*"]}))]));
    let select = |path: &str| told(&vault.select(&https("a.test", "GET", path)));
    assert_eq!(select("/v1/../admin"), "none");
    assert_eq!(select("/v1/%2e%2e/admin"), "none");
    assert_eq!(select("/x/../v1/y"), "b /v1/y");
    assert_eq!(select("/v1/./%61"), "b /v1/a");
    assert_eq!(select("/v1/group%2fproject?a=%2e%2e"), "b /v1/group%2Fproject?a=%2e%2e");
    assert_eq!(select("/v1/a//b;c=d"), "b /v1/a//b;c=d");
}

#[test]
fn a_path_that_a_server_may_read_elsewhere_is_refused() {
    let vault = vault(
        &[],
        json!([
            binding("b", json!({"hosts": ["a.test"], "paths": ["/v1/*"]})),
            binding("c", json!({"hosts": ["a.test"], "paths": ["/v2/*"]})),
            binding("all", json!({"hosts": ["b.test"]})),
        ]),
    );
    for path in [
        "/v1/..%2fadmin",
        "/v1/..%5cadmin",
        "/v1/..\\admin",
        "/v1/..\\v2\\x",
        "/v1/..;/admin",
        "/v1/%252e%252e/admin",
        "/v1/%252e%252e%252fv2",
        "/v1/x%00",
        "/v1/%c0%ae%c0%ae/admin",
        "/v1/%u002e",
        "/v1/%",
        "/v1/%2525252541",
    ] {
        assert_eq!(told(&vault.select(&https("a.test", "GET", path))), "bad path", "{path}");
        let everything = vault.select(&https("b.test", "GET", path));
        assert!(matches!(everything, Selection::One(_)), "{path}");
        assert_eq!(told(&vault.select(&https("c.test", "GET", path))), "none", "{path}");
    }
    assert_eq!(told(&vault.select(&https("a.test", "GET", "v1/x"))), "bad path");
    assert_eq!(told(&vault.select(&https("a.test", "GET", &format!("/v1/{}", "x".repeat(70000))))), "bad path");
}

#[test]
fn ports_follow_the_scheme_unless_others_are_named() {
    let vault = vault(
        &[],
        json!([
            binding("both", json!({"hosts": ["a.test"], "schemes": ["http", "https"], "ports": [80]})),
            binding("other", json!({"hosts": ["b.test"], "ports": [8443]})),
        ]),
    );
    let at = |host, scheme, port| told(&vault.select(&Facts { scheme, port, ..https(host, "GET", "/") }));
    assert_eq!(at("a.test", Scheme::Https, 443), "both /");
    assert_eq!(at("a.test", Scheme::Http, 80), "both /");
    assert_eq!(at("a.test", Scheme::Https, 80), "none");
    assert_eq!(at("b.test", Scheme::Https, 8443), "other /");
    assert_eq!(at("b.test", Scheme::Https, 443), "none");
}

fn some(of: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec(proptest::sample::select(of).prop_map(str::to_owned), 1..3)
}

proptest! {
    #[test]
    fn requests_are_given_what_the_model_says(
        parts in proptest::collection::vec((
            some(&["a.test", "x.a.test", "*.a.test", "*.x.a.test", "*.b.test"]),
            some(&["GET", "HEAD", "POST"]),
            some(&["/*", "/a", "/a/*", "/a/b*", "/b*"]),
        ), 1..4),
    ) {
        let bindings: Vec<_> = parts.iter().enumerate().map(|(at, (hosts, methods, paths))| {
            binding(&at.to_string(), json!({"hosts": hosts, "methods": methods, "paths": paths}))
        }).collect();
        let Ok(vault) = try_vault(&[], json!(bindings)) else { return Ok(()) };
        for host in ["a.test", "x.a.test", "y.a.test", "y.x.a.test", "y.b.test", "b.test"] {
            for method in ["GET", "HEAD", "POST", "PUT"] {
                for path in ["/", "/a", "/a/", "/a/b", "/a/bc/d", "/b", "/c"] {
                    let is_below = |own: &str| own.strip_prefix('*').is_some_and(|end| host.ends_with(end));
                    let is_within = |own: &str| own.strip_suffix('*').map_or(own == path, |start| path.starts_with(start));
                    let by = |exact: bool, method: &str| parts.iter().position(|(hosts, methods, paths)| {
                        hosts.iter().any(|own| if exact { own == host } else { is_below(own) })
                            && methods.iter().any(|own| own == method)
                            && paths.iter().any(|own| is_within(own))
                    });
                    let instead = if method == "HEAD" { "GET" } else { method };
                    let expected = by(true, method).or_else(|| by(true, instead));
                    let expected = expected.or_else(|| by(false, method)).or_else(|| by(false, instead));
                    let expected = expected.map_or("none".to_owned(), |at| format!("{at} {path}"));
                    prop_assert_eq!(told(&vault.select(&https(host, method, path))), expected);
                }
            }
        }
    }
}
