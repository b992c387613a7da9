use super::*;

#[test]
fn labels_are_set_and_removed() {
    let words = ["a=1".to_owned(), "b=".to_owned(), "c-".to_owned(), "d=x-".to_owned()];
    let patch = patch(&words).expect("labels");
    let expected = [("a", Some("1")), ("b", Some("")), ("c", None), ("d", Some("x-"))];
    assert_eq!(patch, expected.map(|(key, value)| (key.to_owned(), value.map(str::to_owned))).into());
    for word in ["", "-", "=x", "plain"] {
        assert!(super::patch(&[word.to_owned()]).is_err(), "{word}");
    }
}

#[test]
fn limits_of_a_receipt_are_told_with_what_enforces_them() {
    let receipt = json!({"limits": {"memory": {"value": 536870912, "by": "cgroup v1"}, "pids": {"value": null, "by": "none"}}});
    assert_eq!(limits(&receipt).expect("limits"), "memory 512.0 MiB (cgroup v1), pids none (none)");
    assert_eq!(limits(&json!({})), None);
}

#[test]
fn every_part_of_an_exit_is_told() {
    let status = protocol::lifecycle::ExitStatus {
        kind: "oom".into(),
        code: None,
        signal: Some(9),
        detail: Some("the limit of 64 MiB was reached".into()),
    };
    assert_eq!(exit(&status), "oom signal 9: the limit of 64 MiB was reached");
}
