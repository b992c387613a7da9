use http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST};
use serde_json::{Value, json};

use super::*;
use crate::samples::{https, vault};
use crate::{Selection, Vault};

fn injection(vault: &Vault, path: &str) -> Arc<Injection> {
    match vault.select(&https("a.test", "POST", path)) {
        Selection::One(injection) => injection,
        other => panic!("{other:?}"),
    }
}

fn with(auth: Value) -> Arc<Injection> {
    let credentials = [("c", "s3cret-value"), ("d", "other \"value\"")];
    let binding = json!([{"name": "b", "match": {"hosts": ["a.test"]}, "auth": auth}]);
    injection(&vault(&credentials, binding), "/P/x?q=P&r=P")
}

fn substituting(surface: &str) -> Arc<Injection> {
    with(json!({"type": "passthrough", "substitutions": [{"credential": "d", "placeholder": "P", "in": [surface]}]}))
}

#[track_caller]
fn sets(auth: Value, expected: &[(&str, &str)]) {
    let injection = with(auth);
    let mut headers = HeaderMap::new();
    for (name, _) in expected {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        headers.append(&name, HeaderValue::from_static("mine"));
        headers.append(&name, HeaderValue::from_static("also mine"));
    }
    injection.apply_headers(&mut headers);
    let set: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().expect("a text"))).collect();
    assert_eq!(set, expected);
    assert!(headers.values().all(HeaderValue::is_sensitive));
    assert_eq!(
        injection.header_names().map(HeaderName::as_str).collect::<Vec<_>>(),
        expected.iter().map(|(name, _)| *name).collect::<Vec<_>>()
    );
}

#[test]
fn headers_take_the_place_of_those_that_are_there() {
    sets(json!({"type": "bearer", "credential": "c"}), &[("authorization", "Bearer s3cret-value")]);
    sets(json!({"type": "basic", "credential": "c"}), &[("authorization", "Basic s3cret-value")]);
    sets(json!({"type": "apiKey", "name": "X-Key", "credential": "c"}), &[("x-key", "s3cret-value")]);
    let headers = json!([{"name": "X-One", "credential": "c"}, {"name": "Cookie", "credential": "d"}]);
    let expected = [("x-one", "s3cret-value"), ("cookie", "other \"value\"")];
    sets(json!({"type": "customHeaders", "headers": headers}), &expected);
    sets(json!({"type": "passthrough"}), &[]);
}

#[test]
fn a_placeholder_is_replaced_where_it_was_said_and_nowhere_else() {
    let asked = |surface| substituting(surface).path_and_query().to_string();
    assert_eq!(asked("path"), "/other%20%22value%22/x?q=P&r=P");
    assert_eq!(asked("query"), "/P/x?q=other%20%22value%22&r=other%20%22value%22");
    assert_eq!(asked("body"), "/P/x?q=P&r=P");
    for (surface, expected) in [("header", "x other \"value\" y"), ("query", "x P y")] {
        let mut headers = HeaderMap::new();
        for name in [COOKIE, CONTENT_TYPE, HOST] {
            headers.append(name, HeaderValue::from_static("x P y"));
        }
        substituting(surface).apply_headers(&mut headers);
        assert_eq!(headers[COOKIE], expected);
        assert_eq!(headers[CONTENT_TYPE], expected);
        assert_eq!(headers[COOKIE].is_sensitive(), surface == "header");
        assert_eq!(headers[HOST], "x P y");
    }
    assert!(substituting("body").substitutes_body() && !substituting("header").substitutes_body());
    assert!(substituting("header").body_form(None, None).is_none());
}

#[test]
fn a_header_that_is_set_is_not_looked_into_for_placeholders() {
    let substitutions = json!([{"credential": "d", "placeholder": "s3cret", "in": ["header"]}]);
    let injection = with(json!({"type": "bearer", "credential": "c", "substitutions": substitutions}));
    let mut headers = HeaderMap::new();
    headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer s3cret"));
    injection.apply_headers(&mut headers);
    assert_eq!(headers[AUTHORIZATION], "Bearer s3cret-value");
}

#[test]
fn a_body_is_written_as_its_type_says() {
    let injection = substituting("body");
    for (kind, expected) in [
        (Some("application/json"), "other \\\"value\\\""),
        (Some("Application/Problem+JSON; charset=utf-8"), "other \\\"value\\\""),
        (Some("application/x-www-form-urlencoded;charset=UTF-8"), "other+%22value%22"),
        (Some("text/plain"), "other \"value\""),
        (Some("multipart/form-data; boundary=x"), "other \"value\""),
        (None, "other \"value\""),
    ] {
        let body = injection.body_form(kind, Some("identity")).expect("it can be read").whole(b"P".to_vec());
        assert_eq!(body, expected.as_bytes(), "{kind:?}");
    }
    assert!(injection.body_form(None, Some("gzip")).is_none() && injection.substitutes_body());
}

#[test]
fn only_values_of_the_binding_are_taken_out_of_its_answers() {
    let injection = with(json!({"type": "bearer", "credential": "c"}));
    let text = injection.redactor().text(b"Bearer s3cret-value s3cret-value other \"value\"").expect("it is there");
    assert_eq!(text, b"[REDACTED] [REDACTED] other \"value\"");
    let substituted = substituting("query").redactor().text(b"/x?q=other%20%22value%22&P").expect("it is there");
    assert_eq!(substituted, b"/x?q=[REDACTED]&P");
    assert!(with(json!({"type": "passthrough"})).redactor().is_empty());
}

#[test]
fn the_password_within_basic_is_taken_out_by_itself() {
    let credentials = [("c", "dXNlcjpwYXNzd29yZA==")];
    let binding = json!([{"name": "b", "match": {"hosts": ["a.test"]}, "auth": {"type": "basic", "credential": "c"}}]);
    let injection = injection(&vault(&credentials, binding), "/");
    assert_eq!(injection.redactor().text(b"user, password").as_deref(), Some(&b"user, [REDACTED]"[..]));
}

#[test]
fn nothing_shows_values() {
    let injection = with(json!({"type": "bearer", "credential": "c"}));
    let mut headers = HeaderMap::new();
    injection.apply_headers(&mut headers);
    let shown = format!("{injection:?} {headers:?} {:?} {:?}", injection.redactor(), injection.redactor().stream());
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(shown.starts_with("Injection(\"b\")"), "{shown}");
}
