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

#[test]
fn a_kernel_of_its_own_is_named() {
    let receipt = json!({ "isolation": { "kind": "gvisor", "platform": "ptrace", "version": "1.0" } });
    assert_eq!(isolation(&receipt).as_deref(), Some("gvisor 1.0 ptrace"));
    assert_eq!(isolation(&json!({ "isolation": { "kind": "namespaces" } })), None);
    assert_eq!(isolation(&json!({})), None, "a sandbox of an earlier version");
}
