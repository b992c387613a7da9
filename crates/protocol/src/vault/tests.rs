use secrecy::ExposeSecret;

use super::*;

#[test]
fn a_value_is_read_and_never_shown() {
    let body = r#"{"credentials": [{"name": "token", "source": {"value": "s3cret-value"}}], "bindings": null}"#;
    let request: CreateRequest = serde_json::from_str(body).expect("a request");
    let value = request.credentials[0].source.as_ref().and_then(|source| source.value.as_ref()).expect("a value");
    assert_eq!(value.expose_secret(), "s3cret-value");
    assert!(!format!("{request:?}").contains("s3cret"));
}

#[test]
fn fields_that_nobody_knows_are_kept_by_name_without_their_values() {
    let body = r#"{"credentials": [{"name": "a", "sauce": {"value": "s3cret-value"}}], "extra": 1}"#;
    let request: CreateRequest = serde_json::from_str(body).expect("a request");
    assert_eq!(request.unknown.keys().collect::<Vec<_>>(), ["extra"]);
    assert_eq!(request.credentials[0].unknown.keys().collect::<Vec<_>>(), ["sauce"]);
    assert!(!format!("{request:?}").contains("s3cret"));
}

#[test]
fn a_binding_is_written_as_it_was_read() {
    let wire = serde_json::json!({
        "name": "b", "match": {"hosts": ["api.example.com"], "methods": ["GET"]},
        "auth": {"type": "passthrough", "substitutions": [{"credential": "c", "placeholder": "p", "in": ["body"]}]},
    });
    let binding: Binding = serde_json::from_value(wire.clone()).expect("a binding");
    assert_eq!(serde_json::to_value(binding).expect("it is written"), wire);
}

#[test]
fn nulls_are_what_is_missing() {
    let body = r#"{"expectedRevision": null, "credentials": null, "bindings": {"add": null, "delete": null}}"#;
    let request: MutationRequest = serde_json::from_str(body).expect("a request");
    assert_eq!(request.expected_revision, None);
    assert!(request.bindings.add.is_empty() && request.credentials.delete.is_empty());
}
