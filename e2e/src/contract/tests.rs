use std::path::Path;
use std::sync::LazyLock;

use super::*;

/// Read once: every schema of the three documents is compiled.
static CONTRACT: LazyLock<Contract> = LazyLock::new(|| {
    let specs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../specs/published");
    Contract::load(&specs).expect("the committed documents load")
});

fn body(text: &str) -> Body {
    Body { seen: text.as_bytes().to_vec(), total: text.len() as u64, ended: true }
}

/// An exchange with the headers that every answer needs.
fn exchange(method: &str, path: &str, status: u16, media: &str, answer: &str) -> Exchange {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Exchange {
        method: method.into(),
        path: path.into(),
        status,
        headers: vec![
            header("content-type", media),
            header("date", "Sun, 29 Nov 2026 00:00:00 GMT"),
            header("x-request-id", "1"),
        ],
        response: body(answer),
        ..Exchange::default()
    }
}

#[track_caller]
fn kinds(exchange: &Exchange) -> Vec<&'static str> {
    check(&CONTRACT, exchange).violations.iter().map(|violation| violation.kind).collect()
}

const PORT: &str = "/v1/sandboxes/a/proxy/44772";
const SANDBOX: &str = r#"{"id":"a","status":{"state":"Running"},"createdAt":"2026-11-29T00:00:00Z"}"#;

#[test]
fn operations_are_found_bare_under_v1_and_behind_the_port_proxy() {
    for (path, name) in [
        ("/v1/sandboxes/a", "lifecycle GET /v1/sandboxes/{sandbox_id}"),
        ("/sandboxes/a", "lifecycle GET /v1/sandboxes/{sandbox_id}"),
        ("/v1/sandboxes/a/proxy/44772/ping", "execd GET /ping"),
        ("/sandboxes/a/proxy/44772/command/status/7", "execd GET /command/status/{id}"),
        ("/v1/sandboxes/a/proxy/18080/policy", "egress GET /policy"),
        ("/v1/sandboxes/a/proxy/8000/x/y", "lifecycle GET /v1/sandboxes/{sandbox_id}/proxy/{port}/{full_path}"),
    ] {
        let found = CONTRACT.find("GET", path).expect(path);
        assert_eq!(format!("{} {}", found.api.name(), found.name), name, "{path}");
    }
    assert!(CONTRACT.find("GET", "/v1/capabilities").is_none());
}

#[test]
fn a_good_answer_has_no_violation() {
    assert_eq!(kinds(&exchange("GET", "/v1/sandboxes/a", 200, "application/json", SANDBOX)), [""; 0]);
}

#[test]
fn missing_and_mistyped_fields_are_seen() {
    let missing = r#"{"id":"a","createdAt":"2026-11-29T00:00:00Z"}"#;
    assert_eq!(kinds(&exchange("GET", "/v1/sandboxes/a", 200, "application/json", missing)), ["body-schema"]);
    let mistyped = SANDBOX.replace(r#""a""#, "7");
    assert_eq!(kinds(&exchange("GET", "/v1/sandboxes/a", 200, "application/json", &mistyped)), ["body-schema"]);
    let not_a_time = SANDBOX.replace("2026-11-29T", "yesterday ");
    assert_eq!(kinds(&exchange("GET", "/v1/sandboxes/a", 200, "application/json", &not_a_time)), ["body-schema"]);
}

#[test]
fn status_type_and_error_shape_are_checked() {
    let at = "/v1/sandboxes/a";
    let good = r#"{"code":"X","message":"y"}"#;
    assert_eq!(kinds(&exchange("GET", at, 418, "application/json", good)), ["undocumented-status"]);
    assert_eq!(kinds(&exchange("GET", at, 200, "text/html", SANDBOX)), ["content-type"]);
    assert_eq!(kinds(&exchange("GET", at, 404, "application/json", r#"{"code":"X"}"#)), ["body-schema"]);
    assert_eq!(kinds(&exchange("GET", at, 500, "application/json", good)), ["server-error"]);
    assert_eq!(kinds(&exchange("GET", "/nowhere", 404, "application/json", "{}")), ["error-shape"]);
    assert_eq!(kinds(&exchange("GET", "/nowhere", 200, "application/json", "{}")), ["undocumented-operation"]);
}

#[test]
fn the_request_id_and_one_date_are_demanded() {
    let mut bare = exchange("GET", "/v1/sandboxes/a", 200, "application/json", SANDBOX);
    let date = bare.headers[1].clone();
    bare.headers.push(date);
    bare.headers.remove(2);
    assert_eq!(kinds(&bare), ["request-id", "date"]);
}

#[test]
fn a_wrong_request_that_succeeds_is_a_violation() {
    let mut wrong = exchange("POST", &format!("{PORT}/files/mv"), 200, "", "");
    wrong.request = body(r#"[{"src":1}]"#);
    assert_eq!(kinds(&wrong), ["invalid-request-accepted"]);
    wrong.status = 400;
    wrong.headers[0].1 = "application/json".into();
    wrong.response = body(r#"{"code":"X","message":"y"}"#);
    assert_eq!(kinds(&wrong), [""; 0]);
}

#[test]
fn refusals_by_the_control_plane_do_not_count_for_the_daemon() {
    let refused = exchange(
        "GET",
        &format!("{PORT}/ping"),
        401,
        "application/json",
        r#"{"code":"MISSING_API_KEY","message":"no key"}"#,
    );
    let finding = check(&CONTRACT, &refused);
    assert_eq!(finding.violations, []);
    assert!(finding.operation.starts_with("lifecycle GET"), "{}", finding.operation);
}

#[test]
fn streams_are_checked_for_framing_order_and_terminal() {
    let at = format!("{PORT}/command");
    let event = |kind: &str| format!(r#"{{"type":"{kind}","timestamp":1,"text":"t"}}"#);
    let stream = |kinds: &[&str]| {
        let text: String = kinds.iter().map(|kind| event(kind) + "\n\n").collect();
        exchange("POST", &at, 200, "text/event-stream", &text)
    };
    assert_eq!(kinds(&stream(&["init", "ping", "stdout", "execution_complete"])), [""; 0]);
    assert_eq!(kinds(&stream(&["stdout", "execution_complete"])), ["stream"]);
    assert_eq!(kinds(&stream(&["init", "stdout"])), ["stream"]);
    assert_eq!(kinds(&stream(&["init", "error", "execution_complete"])), ["stream"]);
    assert_eq!(kinds(&stream(&["init", "surprise", "execution_complete"])), ["stream"]);
    let mut framed = stream(&["init", "execution_complete"]);
    framed.response = body("data: {}\n\n");
    assert!(!kinds(&framed).is_empty());
    // A reader who leaves early sees no terminal event, and that is no fault.
    let mut cut = stream(&["init", "stdout"]);
    cut.response.ended = false;
    assert_eq!(kinds(&cut), [""; 0]);
}

#[test]
fn errata_accept_by_operation_kind_and_detail() {
    let errata = Errata::parse(
        "[[erratum]]\noperation = \"execd DELETE /c*d\"\nkind = \"undocumented-status\"\ndetail = \"404\"\nours = \"404\"\nwhy = \"because\"\n",
    )
    .expect("well formed");
    let violation = |kind, detail: &str| Violation { kind, detail: detail.into() };
    assert_eq!(errata.accepts("execd DELETE /command", &violation("undocumented-status", "404")), Some(1));
    assert_eq!(errata.accepts("execd DELETE /command", &violation("undocumented-status", "410")), None);
    assert_eq!(errata.accepts("execd DELETE /commands", &violation("undocumented-status", "404")), None);
    assert_eq!(errata.accepts("execd GET /command", &violation("undocumented-status", "404")), None);
    assert_eq!(errata.accepts("execd DELETE /command", &violation("body-schema", "404")), None);
    assert!(Errata::parse("[[erratum]]\noperation = \"x\"\nkind = \"y\"\nours = \"\"\nwhy = \"\"\n").is_err());
}

#[test]
fn the_committed_errata_load() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../specs/errata.toml");
    Errata::load(&path).expect("errata.toml is well formed");
}
