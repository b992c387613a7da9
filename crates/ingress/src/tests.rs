use super::target::{Signed, Target};
use crate::ErrorKind;

#[track_caller]
fn check(path: &str, expected: Option<(&str, &str, &str)>) {
    let found = Target::parse(path).map(|t| (t.id, t.prefix, t.rest));
    assert_eq!(found, expected, "{path}");
}

#[test]
fn paths_of_ports_are_read_as_they_were_sent() {
    check("/sandboxes/a/proxy/80", Some(("a", "/sandboxes/a/proxy/80", "")));
    check("/v1/sandboxes/a/proxy/80/", Some(("a", "/v1/sandboxes/a/proxy/80", "/")));
    check("/v1/sandboxes/a/proxy/80/x%2Fy/../z", Some(("a", "/v1/sandboxes/a/proxy/80", "/x%2Fy/../z")));
    check("/v1/sandboxes/a/proxy//x", None);
    check("/v1/sandboxes//proxy/80", None);
    check("/v1/sandboxes/a/b/proxy/80", None);
    check("/v1/sandboxes/a/proxy", None);
    check("/v2/sandboxes/a/proxy/80", None);
    check("/v1/v1/sandboxes/a/proxy/80", None);
}

#[test]
fn links_carry_their_end_and_signature_before_the_rest() {
    check("/links/a/80/x2/087b80a7a", Some(("a", "/links/a/80/x2/087b80a7a", "")));
    check("/v1/links/a/80/x2/087b80a7a/y/z", Some(("a", "/v1/links/a/80/x2/087b80a7a", "/y/z")));
    check("/links/a/80/x2", None);
    check("/links/a/80", None);
    check("/links//80/x2/s", None);
    let link = Target::parse("/links/a/80/x2/s/r").expect("a link").link;
    assert_eq!(link, Some(Signed { expires: "x2", signature: "s" }));
    let empty = Target::parse("/links/a/80//").expect("a link that is refused later").link;
    assert_eq!(empty, Some(Signed { expires: "", signature: "" }));
    assert_eq!(Target::parse("/sandboxes/a/proxy/80/x2/s").expect("no link").link, None);
}

#[test]
fn what_opens_a_link_is_not_shown() {
    assert_eq!(Target::shown("/v1/links/a/80/x2/secret/p"), "/v1/links/a/80/");
    assert_eq!(Target::shown("/v1/sandboxes/a/proxy/80/p"), "/v1/sandboxes/a/proxy/80/p");
    assert_eq!(Target::shown("/links/a"), "/links/a");
}

#[test]
fn ports_have_a_range() {
    let port = |text: &str| Target::parse(text).expect("a target").port();
    assert_eq!(port("/sandboxes/a/proxy/65535").expect("a port"), 65535);
    assert_eq!(port("/sandboxes/a/proxy/65536").expect_err("too large").kind, ErrorKind::PortRange);
    assert_eq!(port("/sandboxes/a/proxy/0").expect_err("too small").kind, ErrorKind::PortRange);
    assert_eq!(port("/sandboxes/a/proxy/web").expect_err("no number").kind, ErrorKind::NoPort);
}
