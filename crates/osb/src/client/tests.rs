use super::*;

#[test]
fn every_shape_of_refusal_has_code_and_message() {
    let status = StatusCode::UNPROCESSABLE_ENTITY;
    for (body, code, message) in [
        (r#"{"code":"A::B","message":"no"}"#, "A::B", "no"),
        (r#"{"error":"Unauthorized: x"}"#, "HTTP_422", "Unauthorized: x"),
        (r#"{"detail":"Not Found"}"#, "HTTP_422", "Not Found"),
        (
            r#"{"detail":[{"loc":["body","timeout"],"msg":"must be at least 60"},{"loc":["body",0],"msg":"bad"}]}"#,
            "HTTP_422",
            "body.timeout: must be at least 60; body.0: bad",
        ),
        ("", "HTTP_422", "GET /x: 422 Unprocessable Entity"),
        ("plain", "HTTP_422", "GET /x: 422 Unprocessable Entity: plain"),
    ] {
        assert_eq!(words(body.as_bytes(), status, "GET /x"), (code.into(), message.into()), "{body}");
    }
}

#[test]
fn ids_cannot_climb_in_the_path() {
    assert_eq!(segment("a-1_b"), "a-1_b");
    assert_eq!(segment("../x"), "..%2Fx");
    assert_eq!(segment(".."), "%00");
    assert_eq!(segment("a?b#c"), "a%3Fb%23c");
}

#[test]
fn loopback_is_recognised() {
    for (url, expected) in [
        ("http://localhost:1", true),
        ("http://127.0.0.1:1", true),
        ("http://[::1]:1", true),
        ("http://example.test", false),
        ("http://10.0.0.1", false),
    ] {
        assert_eq!(is_loopback(url), expected, "{url}");
    }
}
