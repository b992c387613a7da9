use super::target::Target;

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
fn ports_have_a_range() {
    let port = |text: &str| Target::parse(text).expect("a target").port();
    assert_eq!(port("/sandboxes/a/proxy/65535").expect("a port"), 65535);
    assert_eq!(port("/sandboxes/a/proxy/65536").expect_err("too large").status, 400);
    assert_eq!(port("/sandboxes/a/proxy/0").expect_err("too small").status, 400);
    assert_eq!(port("/sandboxes/a/proxy/web").expect_err("no number").status, 422);
}
