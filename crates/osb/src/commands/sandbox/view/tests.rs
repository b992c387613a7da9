use serde_json::json;

use super::*;

#[test]
fn limits_of_a_receipt_are_told_with_what_enforces_them() {
    let receipt =
        json!({"limits": {"memory": {"value": 536870912, "by": "cgroup v1"}, "pids": {"value": null, "by": "none"}}});
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
