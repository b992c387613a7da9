use serde_json::json;

use super::*;
use crate::samples::{ANYWHERE, Names, create_request, generous, try_vault, vault};

fn bound(name: &str, host: &str) -> serde_json::Value {
    json!({"name": name, "match": {"hosts": [host]}, "auth": {"type": "bearer", "credential": "token"}})
}

#[test]
fn what_is_shown_is_sorted_and_has_no_values_placeholders_or_references() {
    let bindings = json!([
        bound("z", "z.test"),
        {"name": "a", "match": {"hosts": ["a.test"]}, "auth": {"type": "apiKey", "name": "x-key", "credential": "other",
            "substitutions": [{"credential": "token", "placeholder": "__PLACE__", "in": ["body"]}]}},
    ]);
    let vault = vault(&[("token", "s3cret-value"), ("other", "s3cret-other")], bindings);
    let shown = serde_json::to_value(vault.shown()).expect("it is written");
    assert_eq!(shown["revision"], 1);
    assert_eq!(
        shown["credentials"],
        json!([{"name": "other", "sourceType": "inline", "revision": 1}, {"name": "token", "sourceType": "inline", "revision": 1}])
    );
    assert_eq!(shown["bindings"][0]["name"], "a");
    assert_eq!(shown["bindings"][1]["name"], "z");
    assert_eq!(shown["bindings"][0]["auth"], json!({"type": "apiKey", "name": "X-Key"}));
    let text = shown["bindings"].to_string();
    assert!(!text.contains("token") && !text.contains("PLACE") && !text.contains("other"), "{text}");
    for text in
        [shown.to_string(), format!("{vault:?}"), format!("{:?}", vault.seal()), format!("{:?}", vault.redactor())]
    {
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn one_of_a_name_is_shown_or_not_found() {
    let vault = vault(&[("token", "v")], json!([bound("b", "b.test")]));
    assert_eq!(vault.credential("token").map(|shown| shown.revision), Ok(1));
    assert_eq!(vault.binding("b").map(|shown| shown.name), Ok("b".to_owned()));
    assert_eq!(vault.credential("b").map_err(|refused| refused.status()), Err(404));
    assert_eq!(vault.binding("token").map_err(|refused| refused.status()), Err(404));
    assert_eq!(Refused::no_vault().to_string(), "credential vault not found");
    assert_eq!(Refused::exists().status(), 409);
}

#[test]
fn names_are_taken_once_and_references_lead_somewhere() {
    let message = |credentials: &[(&str, &str)], bindings| try_vault(credentials, bindings).expect_err("wrong").message;
    assert_eq!(message(&[("a", "1"), ("a", "2")], json!([])), "credentials[1].name: is there twice");
    let twice = json!([bound("b", "b.test"), bound("b", "c.test")]);
    assert_eq!(message(&[("token", "1")], twice), "bindings[1].name: is there twice");
    assert_eq!(message(&[], json!([bound("b", "b.test")])), "binding \"b\": credential \"token\" does not exist");
    let conflict = json!([bound("b", "b.test"), bound("c", "b.test")]);
    assert!(message(&[("token", "1")], conflict).starts_with("binding \"c\": conflicts with binding \"b\""));
}

#[test]
fn a_field_that_nobody_knows_is_refused_by_name() {
    let body = br#"{"credentials": [], "bindings": [], "force": true}"#;
    let request = crate::read(body).expect("on the wire");
    let refused = Vault::create(&request, &ANYWHERE, &generous()).expect_err("it is unknown");
    assert_eq!(refused.message, "force: is unknown here");
}

#[test]
fn a_value_that_is_no_header_is_refused_where_it_would_be_one() {
    let substituted = |surface: &str| {
        json!([{"name": "b", "match": {"hosts": ["b.test"]}, "auth": {"type": "passthrough",
            "substitutions": [{"credential": "token", "placeholder": "P", "in": [surface]}]}}])
    };
    for value in ["a\r\nx: y", "a\n", "a\0b"] {
        for bindings in [json!([bound("b", "b.test")]), substituted("header")] {
            let refused = try_vault(&[("token", value)], bindings).expect_err("it is no header");
            assert!(refused.message.contains("\"token\"") && !refused.message.contains(value), "{refused}");
        }
        for surface in ["body", "query", "path"] {
            try_vault(&[("token", value)], substituted(surface)).expect("it is written so that it harms nothing");
        }
    }
    assert!(try_vault(&[("token", "..")], substituted("path")).is_err());
}

#[test]
fn every_host_must_be_covered_at_its_ports() {
    let request = |bindings| create_request(&[("token", "v")], &bindings);
    let made = |bindings, names: &[&str], ports: &[u16]| {
        let made = Vault::create(&request(bindings), &Names(names, ports), &generous());
        made.map(|_| ()).map_err(|refused| (refused.kind, refused.status()))
    };
    let uncovered = Err((Kind::Uncovered, 400));
    assert_eq!(made(json!([bound("b", "b.test")]), &["b.test"], &[80]), Ok(()));
    assert_eq!(made(json!([bound("b", "b.test")]), &["b.test"], &[443]), uncovered);
    assert_eq!(made(json!([bound("b", "b.test"), bound("c", "c.test")]), &["b.test"], &[]), uncovered);
    assert_eq!(made(json!([bound("b", "*.b.test")]), &["probe.b.test"], &[]), Ok(()));
    assert_eq!(made(json!([bound("b", "a.pinned.test")]), &[""], &[]), uncovered);
}

#[test]
fn a_policy_that_uncovers_a_binding_is_told_in_the_published_words() {
    let vault = vault(&[("token", "v")], json!([bound("b", "b.test")]));
    assert_eq!(vault.recheck(&Names(&["b.test"], &[])), Ok(()));
    let refused = vault.recheck(&Names(&["c.test"], &[])).expect_err("it is not covered");
    assert_eq!(refused.status(), 400);
    let expected =
        "credential vault policy validation: binding \"b\": the network policy does not allow b.test at port 443";
    assert_eq!(refused.message, expected);
}

#[test]
fn hosts_are_told_once_and_asked_for() {
    let bindings = json!([
        {"name": "b", "match": {"hosts": ["b.test", "*.c.test"]}, "auth": {"type": "passthrough"}},
        {"name": "c", "match": {"hosts": ["b.test"], "schemes": ["http"]}, "auth": {"type": "passthrough"}},
        {"name": "d", "match": {"hosts": ["d.test"], "ports": [8443]}, "auth": {"type": "passthrough"}},
    ]);
    let vault = vault(&[], bindings);
    assert_eq!(vault.hosts(), ["*.c.test", "b.test", "d.test"]);
    for (host, ports) in [
        ("b.test", vec![80, 443]),
        ("x.y.c.test", vec![443]),
        ("D.test.", vec![8443]),
        ("c.test", vec![]),
        ("x.b.test", vec![]),
    ] {
        assert_eq!(vault.is_bound(host), !ports.is_empty(), "{host}");
        assert_eq!(crate::is_any(vault.hosts(), host), !ports.is_empty(), "{host}");
        for port in [80, 443, 8443, 22] {
            assert_eq!(vault.is_bound_at(host, port), ports.contains(&port), "{host} {port}");
        }
    }
}

#[test]
fn what_a_vault_holds_is_limited() {
    let many = |count: usize| (0..count).map(|at| (format!("c{at}"), "v".to_owned())).collect::<Vec<_>>();
    let made = |credentials: &[(String, String)]| {
        let credentials: Vec<_> = credentials.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        try_vault(&credentials, json!([])).map(|_| ())
    };
    assert_eq!(made(&many(MAX_CREDENTIALS)), Ok(()));
    assert!(made(&many(MAX_CREDENTIALS + 1)).is_err());
    let long = |count: usize| (0..count).map(|at| (format!("c{at}"), "v".repeat(MAX_VALUE_BYTES))).collect::<Vec<_>>();
    assert_eq!(made(&long(MAX_SECRET_BYTES / MAX_VALUE_BYTES)), Ok(()));
    assert!(made(&long(MAX_SECRET_BYTES / MAX_VALUE_BYTES + 1)).is_err());
    let bindings =
        |count: usize| (0..count).map(|at| bound(&format!("b{at}"), &format!("b{at}.test"))).collect::<Vec<_>>();
    try_vault(&[("token", "v")], json!(bindings(MAX_BINDINGS))).expect("just few enough");
    assert!(try_vault(&[("token", "v")], json!(bindings(MAX_BINDINGS + 1))).is_err());
    // One value in many bindings counts once; each set of values counts.
    let value = "v".repeat(MAX_VALUE_BYTES);
    try_vault(&[("token", &value)], json!(bindings(MAX_BINDINGS))).expect("it is the same value");
    let with_another = |count: usize| {
        let bindings = (0..count).map(|at| {
            let substitution = json!({"credential": format!("c{at}"), "placeholder": "P", "in": ["body"]});
            json!({"name": format!("b{at}"), "match": {"hosts": [format!("b{at}.test")]},
                "auth": {"type": "bearer", "credential": "token", "substitutions": [substitution]}})
        });
        let names: Vec<_> = (0..count).map(|at| format!("c{at}")).collect();
        let credentials = names.iter().map(|name| (name.as_str(), "v")).chain([("token", value.as_str())]);
        try_vault(&credentials.collect::<Vec<_>>(), bindings.collect()).map(|_| ())
    };
    assert_eq!(with_another(MAX_SECRET_BYTES / MAX_VALUE_BYTES - 1), Ok(()));
    assert!(with_another(MAX_SECRET_BYTES / MAX_VALUE_BYTES).is_err());
}

#[test]
fn the_redactor_of_a_vault_knows_every_value() {
    let vault = vault(&[("a", "first-value"), ("b", "second-value")], json!([]));
    let text = vault.redactor().text(b"first-value, 7365636f6e642d76616c7565").expect("both are there");
    assert_eq!(text, b"[REDACTED], [REDACTED]");
}
