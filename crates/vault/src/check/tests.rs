use serde_json::{Value, json};

use crate::samples::{ANYWHERE, create_request, generous, try_vault};
use crate::{Kind, Options, Vault};

/// A binding with some of its parts replaced.
fn binding(changes: Value) -> Value {
    let mut binding = json!({
        "name": "b", "match": {"hosts": ["api.example.com"]}, "auth": {"type": "bearer", "credential": "c"},
    });
    merge(&mut binding, changes);
    binding
}

fn merge(into: &mut Value, changes: Value) {
    match (into, changes) {
        (Value::Object(into), Value::Object(changes)) => {
            for (name, change) in changes {
                merge(into.entry(name).or_insert(Value::Null), change);
            }
        }
        (into, changes) => *into = changes,
    }
}

#[track_caller]
fn refused(changes: Value, field: &str) {
    let refused = try_vault(&[("c", "value")], json!([binding(changes)])).expect_err("it is wrong");
    assert_eq!((refused.kind, refused.status()), (Kind::Invalid, 400));
    assert!(refused.message.starts_with(&format!("bindings[0].{field}: ")), "{refused}");
}

#[track_caller]
fn accepted(changes: Value) -> Value {
    let vault = try_vault(&[("c", "value")], json!([binding(changes)])).expect("it is right");
    serde_json::to_value(vault.binding("b").expect("it is there")).expect("it is written")
}

#[test]
fn a_binding_that_says_little_has_the_published_defaults() {
    let shown = json!({
        "name": "b", "revision": 1, "auth": {"type": "bearer"},
        "match": {"schemes": ["https"], "hosts": ["api.example.com"], "paths": ["/*"],
            "methods": ["GET", "POST", "PUT", "PATCH", "DELETE"]},
    });
    assert_eq!(accepted(json!({})), shown);
    assert_eq!(accepted(json!({"match": {"schemes": null, "methods": [], "paths": null, "ports": [443, 80]}})), shown);
}

#[test]
fn what_is_named_is_shown_in_its_one_form() {
    let shown = accepted(json!({
        "match": {"schemes": ["HTTP", "https", "http"], "hosts": ["*.Example.com", "*.example.com"], "methods": ["get", "Options"],
            "paths": ["/v1/*"], "ports": [443, 8443]},
        "auth": {"type": "apiKey", "name": "PRIVATE-TOKEN"},
    }));
    assert_eq!(
        shown["match"],
        json!({"schemes": ["http", "https"], "hosts": ["*.example.com"], "methods": ["GET", "OPTIONS"], "paths": ["/v1/*"],
            "ports": [443, 8443]})
    );
    assert_eq!(shown["auth"], json!({"type": "apiKey", "name": "Private-Token"}));
}

#[test]
fn the_field_of_a_binding_that_is_wrong_is_named() {
    refused(json!({"name": ""}), "name");
    refused(json!({"name": " b"}), "name");
    refused(json!({"name": "a\nb"}), "name");
    refused(json!({"mach": {}}), "mach");
    refused(json!({"match": null}), "match");
    refused(json!({"match": {"host": []}}), "match.host");
    refused(json!({"match": {"hosts": []}}), "match.hosts");
    refused(json!({"match": {"hosts": ["a.test", "10.0.0.1"]}}), "match.hosts[1]");
    refused(json!({"match": {"hosts": vec!["a.test"; 33]}}), "match.hosts");
    refused(json!({"match": {"schemes": ["https", "ftp"]}}), "match.schemes[1]");
    refused(json!({"match": {"methods": ["GET", "A B"]}}), "match.methods[1]");
    refused(json!({"match": {"methods": ["TRACE"]}}), "match.methods[0]");
    refused(json!({"match": {"methods": ["connect"]}}), "match.methods[0]");
    refused(json!({"match": {"paths": ["/a", "b"]}}), "match.paths[1]");
    refused(json!({"match": {"ports": [443, 22]}}), "match.ports[1]");
    refused(json!({"match": {"ports": [70000]}}), "match.ports[0]");
}

#[test]
fn the_field_of_auth_that_is_wrong_is_named() {
    refused(json!({"auth": null}), "auth");
    refused(json!({"auth": {"type": null}}), "auth.type");
    refused(json!({"auth": {"type": "Bearer"}}), "auth.type");
    refused(json!({"auth": {"credential": null}}), "auth.credential");
    refused(json!({"auth": {"tipe": 1}}), "auth.tipe");
    refused(json!({"auth": {"name": "X-Key"}}), "auth.name");
    refused(json!({"auth": {"headers": []}}), "auth.headers");
    refused(json!({"auth": {"type": "apiKey"}}), "auth.name");
    refused(json!({"auth": {"type": "apiKey", "name": "Host"}}), "auth.name");
    refused(json!({"auth": {"type": "passthrough"}}), "auth.credential");
    refused(json!({"auth": {"type": "passthrough", "credential": null, "name": "x"}}), "auth.name");
    refused(json!({"auth": {"type": "passthrough", "credential": null, "headers": []}}), "auth.headers");
    let custom = |headers: Value| json!({"auth": {"type": "customHeaders", "credential": null, "headers": headers}});
    refused(json!({"auth": {"type": "customHeaders"}}), "auth.credential");
    refused(custom(json!([])), "auth.headers");
    let header = |name: &str| json!({"name": name, "credential": "c"});
    refused(custom(json!([header("x-a"), header("X-A")])), "auth.headers[1].name");
    refused(custom(json!([header("x-a"), header("te")])), "auth.headers[1].name");
    refused(custom(json!([{"name": "x-a"}])), "auth.headers[0].credential");
    refused(custom(json!([{"name": "x-a", "credential": "c", "value": "v"}])), "auth.headers[0].value");
}

#[test]
fn the_field_of_a_substitution_that_is_wrong_is_named() {
    let two = |second: Value| {
        let mut other = json!({"credential": "c", "placeholder": "P", "in": ["path", "body"]});
        merge(&mut other, second);
        json!({"auth": {"substitutions": [{"credential": "c", "placeholder": "Q", "in": ["body"]}, other]}})
    };
    accepted(two(json!({})));
    accepted(two(json!({"placeholder": "Q", "in": ["path", "path"]})));
    refused(two(json!({"placeholder": "Q"})), "auth.substitutions[1].placeholder");
    refused(two(json!({"placeholder": ""})), "auth.substitutions[1].placeholder");
    refused(two(json!({"placeholder": "p".repeat(257)})), "auth.substitutions[1].placeholder");
    refused(two(json!({"credential": null})), "auth.substitutions[1].credential");
    refused(two(json!({"in": []})), "auth.substitutions[1].in");
    refused(two(json!({"in": ["body", "cookie"]})), "auth.substitutions[1].in[1]");
    refused(two(json!({"within": []})), "auth.substitutions[1].within");
}

#[test]
fn http_and_other_ports_are_for_the_operator_to_allow() {
    let made = |changes: Value, options: &Options| {
        Vault::create(&create_request(&[("c", "value")], &json!([binding(changes)])), &ANYWHERE, options)
    };
    for changes in [json!({"match": {"schemes": ["http"]}}), json!({"match": {"ports": [8443]}})] {
        assert_eq!(
            made(changes.clone(), &Options::default()).map(|_| ()).map_err(|refused| refused.status()),
            Err(400)
        );
        made(changes, &generous()).expect("it is allowed here");
    }
}

#[test]
fn an_operator_may_demand_methods_and_paths() {
    let options = Options { require_scoped_match: true, ..Options::default() };
    let made = |matches: Value| {
        let request = create_request(&[("c", "value")], &json!([binding(json!({"match": matches}))]));
        Vault::create(&request, &ANYWHERE, &options).map(|_| ()).map_err(|refused| refused.message)
    };
    assert_eq!(made(json!({"methods": ["GET"], "paths": ["/v1/*"]})), Ok(()));
    let field = |matches: Value| made(matches).expect_err("it is not scoped").split(':').next().map(str::to_owned);
    assert_eq!(field(json!({"paths": ["/v1/*"]})).as_deref(), Some("bindings[0].match.methods"));
    assert_eq!(field(json!({"methods": ["GET"]})).as_deref(), Some("bindings[0].match.paths"));
    assert_eq!(
        field(json!({"methods": ["GET"], "paths": ["/a", "/*"]})).as_deref(),
        Some("bindings[0].match.paths[1]")
    );
}

#[test]
fn the_field_of_a_credential_that_is_wrong_is_named() {
    let field = |credential: Value| {
        let request =
            serde_json::from_value(json!({"credentials": [credential], "bindings": []})).expect("on the wire");
        let refused = Vault::create(&request, &ANYWHERE, &generous()).expect_err("it is wrong");
        refused.message.split(':').next().map(str::to_owned).unwrap_or_default()
    };
    assert_eq!(field(json!({"source": {"value": "v"}})), "credentials[0].name");
    assert_eq!(field(json!({"name": "a"})), "credentials[0].source");
    assert_eq!(field(json!({"name": "a", "source": {}})), "credentials[0].source.value");
    assert_eq!(field(json!({"name": "a", "source": {"value": ""}})), "credentials[0].source.value");
    assert_eq!(field(json!({"name": "a", "source": {"value": "v", "type": "env"}})), "credentials[0].source.type");
    assert_eq!(field(json!({"name": "a", "source": {"value": "v", "path": "/"}})), "credentials[0].source.path");
    assert_eq!(field(json!({"name": "a", "value": "v", "source": {"value": "v"}})), "credentials[0].value");
    let long = "v".repeat(crate::MAX_VALUE_BYTES + 1);
    assert_eq!(field(json!({"name": "a", "source": {"value": long}})), "credentials[0].source.value");
}
