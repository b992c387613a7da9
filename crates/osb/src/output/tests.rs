use super::*;

#[test]
fn facts_leave_out_what_is_absent() {
    let text = table::facts(&[("id", Some("a".into())), ("expires", None), ("state", Some("Running".into()))]);
    assert_eq!(text, "id     a\nstate  Running\n");
}

#[test]
fn tables_have_no_lines_and_no_trailing_spaces() {
    let text = table::rows(&["id", "state"], vec![vec!["abcdef".into(), "Running".into()]]);
    assert_eq!(text, "ID      STATE\nabcdef  Running\n");
}

#[test]
fn failures_name_code_and_request_for_programs() {
    let failure = Failure { request_id: Some("r1".into()), status: Some(404), ..Failure::new("X::Y", "no such thing") };
    assert_eq!(
        failure.to_value(),
        json!({"error": {"code": "X::Y", "message": "no such thing", "request_id": "r1", "status": 404}})
    );
}

#[test]
fn yaml_keeps_text_that_looks_like_a_number() {
    let text = yaml(&json!({"a": "1", "b": [1, "x: y"]})).expect("plain values");
    assert!(text.contains("\"1\"") || text.contains("'1'"), "{text}");
}
