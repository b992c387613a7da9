use secrecy::ExposeSecret;

use super::challenge::{self, Challenge};
use super::*;

#[test]
fn challenges_are_read_as_registries_write_them() {
    let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
        Some(Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
        })
    };
    for (header, expected) in [
        (r#"Basic realm="Registry""#, Some(Challenge::Basic)),
        ("basic", Some(Challenge::Basic)),
        (
            r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/alpine:pull""#,
            bearer("https://auth.docker.io/token", Some("registry.docker.io"), Some("repository:library/alpine:pull")),
        ),
        (
            r#"bearer scope="a:b:pull,push", realm=https://x/token , error="x""#,
            bearer("https://x/token", None, Some("a:b:pull,push")),
        ),
        (r#"Bearer realm="a\"b""#, bearer("a\"b", None, None)),
        (r#"Bearer realm="unclosed"#, bearer("unclosed", None, None)),
        (r#"Bearer service="x""#, None),
        ("Negotiate", None),
        ("", None),
    ] {
        assert_eq!(Challenge::parse(header), expected, "{header}");
    }
}

#[test]
fn tokens_are_found_under_either_name() {
    let token = |text: &str| challenge::token(text.as_bytes()).map(|token| token.expose_secret().to_owned());
    assert_eq!(token(r#"{"token":"a"}"#).as_deref(), Some("Bearer a"));
    assert_eq!(token(r#"{"token":"","access_token":"b"}"#).as_deref(), Some("Bearer b"));
    assert_eq!(token(r#"{"expires_in":1}"#), None);
    assert_eq!(token("nonsense"), None);
}

#[test]
fn an_encrypted_registry_cannot_send_credentials_to_a_plain_address() {
    let session = Session::new(&"example.org/app".parse().unwrap(), None, &["plain.example:5000".to_owned()]).unwrap();
    let url = |realm: &str| session.token_url(realm, Some("s"), None);
    assert!(url("https://auth.example/token").unwrap().as_str().contains("scope=repository%3Aapp%3Apull"));
    for realm in ["http://auth.example/token", "http://192.0.2.7/", "file:///etc/passwd", "nonsense"] {
        assert!(url(realm).is_err(), "{realm}");
    }
}

#[test]
fn only_loopback_and_named_hosts_speak_plain_http() {
    for (host, plain) in [
        ("localhost", true),
        ("localhost:5000", true),
        ("127.0.0.1:5000", true),
        ("127.9.8.7", true),
        ("[::1]:5000", true),
        ("named:5000", true),
        ("named", false),
        ("localhost.example", false),
        ("127.0.0.1.example", false),
        ("10.0.0.1:5000", false),
        ("[::2]", false),
    ] {
        assert_eq!(is_plain(host, &["named:5000".to_owned()]), plain, "{host}");
    }
}
