use protocol::vault::{CreateRequest, MutationRequest};

use super::*;
use crate::{Options, Vault};

struct Anywhere;

impl crate::Coverage for Anywhere {
    fn allows(&self, _: &str, _: u16) -> bool {
        true
    }
}

#[track_caller]
fn refused(body: &str, place: &str) {
    let message = read::<CreateRequest>(body.as_bytes()).expect_err("it is wrong").message;
    assert!(message.starts_with(place), "{message}");
    assert!(!message.contains("s3cret") && !message.contains("73"), "{message}");
}

#[test]
fn the_place_is_told_and_never_what_is_there() {
    refused(r#"{"credentials": [{"name": "a", "source": {"value": 73}}]}"#, "credentials[0].source.value: ");
    refused(r#"{"credentials": [{"name": "a", "source": "s3cret"}]}"#, "credentials[0].source: ");
    refused(
        r#"{"credentials": [{"name": "a", "source": {"value": "s3cret", "value": "s3cret"}}]}"#,
        "credentials[0].source",
    );
    refused(r#"{"credentials": "s3cret"}"#, "credentials: ");
    refused(r#"{"credentials": [], "bindings": [{"match": {"ports": ["s3cret"]}}]}"#, "bindings[0].match.ports[0]: ");
    refused("", "body: ends too early");
    refused(r#"{"credentials": ["#, "credentials");
    refused(r#"{} s3cret"#, "body: is no JSON");
    refused("s3cret", "body: is no JSON");
}

#[test]
fn a_body_over_the_limit_is_refused() {
    let body = format!("{{}}{}", " ".repeat(MAX_BODY_BYTES - 2));
    read::<CreateRequest>(body.as_bytes()).expect("it is just short enough");
    assert!(read::<CreateRequest>(format!("{body} ").as_bytes()).is_err());
}

#[test]
fn requests_of_any_form_are_obeyed_or_refused() {
    let create = br#"{"credentials":[{"name":"a","source":{"type":"inline","value":"v"}}],"bindings":[{"name":"b",
        "match":{"hosts":["a.test","*.b.test"],"methods":["GET"],"paths":["/v1/*"],"ports":[443]},"auth":{"type":"apiKey",
        "name":"X-Key","credential":"a","substitutions":[{"credential":"a","placeholder":"{{p}}","in":["path","body"]}]}}]}"#;
    let change = br#"{"expectedRevision":1,"credentials":{"add":[{"name":"c","source":{"value":"w"}}],"delete":["a"]},
        "bindings":{"replace":[{"name":"b","match":{"hosts":["c.test"]},"auth":{"type":"passthrough"}}]}}"#;
    let vault = Vault::create(&read(create).expect("a request"), &Anywhere, &Options::default()).expect("a vault");
    fuzz::run("vault requests", &[create, change], |body| {
        if let Ok(made) = read(body).and_then(|request| Vault::create(&request, &Anywhere, &Options::default())) {
            let kept = Vault::restore(&made.seal()).expect("what was made can be made again");
            assert_eq!(kept.shown(), made.shown());
        }
        if let Ok(changed) =
            read::<MutationRequest>(body).and_then(|request| vault.patch(&request, &Anywhere, &Options::default()))
        {
            assert_eq!(changed.revision(), vault.revision() + 1);
        }
    });
}
