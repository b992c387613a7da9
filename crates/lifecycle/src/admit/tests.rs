use std::collections::BTreeMap;

use protocol::lifecycle::CreateSandboxRequest;
use serde_json::{Value, json};

mod origin;
mod volumes;

use super::{Admitted, NO_NETWORK, Refusal, Rules, admit, metadata_patch};
use crate::runtime::{Capabilities, VolumeMeans};
use crate::spec::Taping;

fn native() -> Capabilities {
    let limits = ["cpu", "memory", "pids", "disk", "inodes"].map(|k| (k.to_owned(), "cgroup v1".to_owned()));
    Capabilities {
        runtime: "native".to_owned(),
        arch: "amd64".to_owned(),
        limits: limits.into(),
        fractional_cpu: true,
        network: NO_NETWORK.to_owned(),
        volumes: VolumeMeans { named: true, size_limit: "ext4 image".to_owned(), ids: "id-mapped".to_owned() },
        ..Capabilities::default()
    }
}

/// The smallest good body with some fields replaced.
fn body(fields: Value) -> CreateSandboxRequest {
    let mut body = json!({"image": {"uri": "host"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {}});
    for (key, value) in fields.as_object().expect("fields are an object") {
        body[key] = value.clone();
    }
    serde_json::from_value(body).expect("body fits the wire type")
}

fn try_admit(fields: Value) -> Result<Admitted, Refusal> {
    let rules = Rules { max_timeout_seconds: Some(86_400), leased: false, renews_on_access: true, ..Rules::default() };
    admit(body(fields), &native(), &rules)
}

#[track_caller]
fn refused(fields: Value, status: u16, field: &str) {
    let refusal = try_admit(fields.clone()).map(|a| a.spec).expect_err(&fields.to_string());
    assert_eq!((refusal.status, refusal.field.as_str()), (status, field), "{fields}: {refusal}");
    assert!(refusal.message.starts_with(field), "the message names the field: {refusal}");
    assert!(!refusal.code.is_empty());
}

#[test]
fn the_published_clients_default_body_is_admitted() {
    let admitted = try_admit(json!({
        "timeout": 600, "resourceLimits": {"cpu": "1", "memory": "2Gi"}, "secureAccess": false,
        "env": {"A": "1", "B": null}, "metadata": {"team": "x"}, "volumes": [], "lifecycle": null,
    }))
    .expect("admitted");
    assert_eq!(admitted.spec.timeout_seconds, Some(600));
    assert_eq!(admitted.spec.limits.cpu_millis, Some(1000));
    assert_eq!(admitted.spec.limits.memory_bytes, Some(2 << 30));
    assert_eq!(admitted.spec.env, BTreeMap::from([("A".to_owned(), "1".to_owned())]));
}

#[test]
fn one_wrong_value_for_every_field_names_it() {
    for (fields, status, field) in [
        (json!({"image": null}), 422, "image"),
        (json!({"image": {"uri": "  "}}), 422, "image"),
        (json!({"image": {"uri": "a b"}}), 400, "image.uri"),
        (json!({"image": {"uri": "alpine", "auth": {"username": "u"}}}), 400, "image.auth"),
        (json!({"image": null, "snapshotId": "s"}), 400, "snapshotId"),
        (json!({"snapshotId": "s"}), 422, "snapshotId"),
        (json!({"templateId": "t"}), 400, "templateId"),
        (json!({"platform": {"os": "windows", "arch": "amd64"}}), 400, "platform.os"),
        (json!({"platform": {"os": "beos", "arch": "amd64"}}), 400, "platform.os"),
        (json!({"platform": {"os": "linux", "arch": "arm64"}}), 400, "platform.arch"),
        (json!({"platform": {"os": "linux", "arch": "mips"}}), 400, "platform.arch"),
        (json!({"timeout": 59}), 422, "timeout"),
        (json!({"timeout": -1}), 422, "timeout"),
        (json!({"timeout": 86_401}), 400, "timeout"),
        (json!({"timeout": i64::MAX}), 400, "timeout"),
        (json!({"resourceLimits": null}), 422, "resourceLimits"),
        (json!({"resourceLimits": {"cpu": "fast"}}), 400, "resourceLimits.cpu"),
        (json!({"resourceLimits": {"cpu": "1m"}}), 400, "resourceLimits.cpu"),
        (json!({"resourceLimits": {"memory": "1.5Gi"}}), 400, "resourceLimits.memory"),
        (json!({"resourceLimits": {"memory": "1Mi"}}), 400, "resourceLimits.memory"),
        (json!({"resourceLimits": {"disk": "1"}}), 400, "resourceLimits.disk"),
        (json!({"resourceLimits": {"inodes": "none"}}), 400, "resourceLimits.inodes"),
        (json!({"resourceLimits": {"pids": "0"}}), 400, "resourceLimits.pids"),
        (json!({"resourceLimits": {"gpu": "1"}}), 400, "resourceLimits.gpu"),
        (json!({"resourceLimits": {"gpu": "abc"}}), 400, "resourceLimits.gpu"),
        (json!({"resourceLimits": {"tpu": "1"}}), 400, "resourceLimits.tpu"),
        (json!({"resourceRequests": {"cpu": "1"}}), 400, "resourceRequests"),
        (json!({"env": {"A=B": "1"}}), 400, "env.A=B"),
        (json!({"env": {"A": "a\u{0}b"}}), 400, "env.A"),
        (json!({"env": {"OPENSANDBOX_LIFECYCLE": "x"}}), 422, "env.OPENSANDBOX_LIFECYCLE"),
        (json!({"env": {"OPENSANDBOX_EGRESS_LOG_LEVEL": "x"}}), 400, "env.OPENSANDBOX_EGRESS_LOG_LEVEL"),
        (json!({"metadata": {"-bad": "x"}}), 400, "metadata.-bad"),
        (json!({"metadata": {"ok": "not ok"}}), 400, "metadata.ok"),
        (json!({"metadata": {"opensandbox.io/id": "x"}}), 400, "metadata.opensandbox.io/id"),
        (json!({"lifecycle": {"preStart": {"command": []}}}), 422, "lifecycle.preStart.command"),
        (json!({"lifecycle": {"preStop": {"command": ["x"]}}}), 422, "lifecycle"),
        (
            json!({"lifecycle": {"periodic": [{"name": "a", "schedule": "* * *", "command": ["x"]}]}}),
            422,
            "lifecycle.periodic[0].schedule",
        ),
        (json!({"entrypoint": null}), 400, "entrypoint"),
        (json!({"entrypoint": []}), 422, "entrypoint"),
        (json!({"entrypoint": [" "]}), 400, "entrypoint"),
        (json!({"networkPolicy": {"defaultAction": "allow"}}), 400, "networkPolicy"),
        (json!({"networkPolicy": {"egress": [{"action": "allow", "target": "a.b"}]}}), 400, "networkPolicy"),
        (json!({"credentialProxy": {"enabled": true}}), 422, "credentialProxy"),
        (json!({"credentialProxy": {"enabled": true}, "networkPolicy": {}}), 400, "credentialProxy"),
        (
            json!({"env": {"OPENSANDBOX_EGRESS_CREDENTIAL_VAULT_REQUIRE_TLS": "1"}}),
            400,
            "env.OPENSANDBOX_EGRESS_CREDENTIAL_VAULT_REQUIRE_TLS",
        ),
        (json!({"volumes": [{"name": "a", "mountPath": "/a"}]}), 400, "volumes[0]"),
        (
            json!({"volumes": [{"name": "a", "mountPath": "/a", "host": {"path": "/var/run/docker.sock"}}]}),
            400,
            "volumes[0].host",
        ),
        (json!({"volumes": [{"name": "a", "mountPath": "/a", "ossfs": {}}]}), 400, "volumes[0].ossfs"),
        (json!({"extensions": {"poolRef": "*"}}), 400, "extensions.poolRef"),
        (json!({"extensions": {"access.renew.extend.seconds": "5"}}), 400, "extensions.access.renew.extend.seconds"),
        (json!({"extensions": {"nosuch": "1"}}), 400, "extensions.nosuch"),
    ] {
        refused(fields, status, field);
    }
}

#[test]
fn os_019_gpu_is_refused_by_name_never_ignored() {
    for value in ["1", "all", "0", "abc"] {
        refused(json!({"resourceLimits": {"cpu": "1", "gpu": value}}), 400, "resourceLimits.gpu");
    }
}

#[test]
fn os_011_every_host_mount_is_denied_without_an_allow_list() {
    for path in ["/var/run/docker.sock", "/", "/etc", "/proc"] {
        let fields = json!({"volumes": [{"name": "v", "mountPath": "/v", "host": {"path": path}}]});
        let refusal = try_admit(fields).map(|a| a.spec).expect_err(path);
        assert_eq!(refusal.code, "VOLUME::HOST_PATH_NOT_ALLOWED");
        assert!(!refusal.message.contains(path) || path == "/", "host details are not echoed: {refusal}");
    }
}

#[test]
fn a_limit_that_cannot_be_enforced_is_refused() {
    let mut user = native();
    user.limits.insert("memory".to_owned(), "none".to_owned());
    user.fractional_cpu = false;
    let ask = |limits: Value| admit(body(json!({"resourceLimits": limits})), &user, &Rules::default()).map(|a| a.spec);
    assert_eq!(ask(json!({"memory": "1Gi"})).expect_err("memory").field, "resourceLimits.memory");
    assert_eq!(ask(json!({"cpu": "0.5"})).expect_err("cpu").field, "resourceLimits.cpu");
    assert!(ask(json!({"cpu": "2"})).is_ok());
}

#[test]
fn os_080_a_policy_that_denies_everything_holds_where_nothing_can_leave_and_no_other() {
    assert!(try_admit(json!({"networkPolicy": {"defaultAction": "deny", "egress": []}})).is_ok());
    assert!(try_admit(json!({"networkPolicy": {"egress": [{"action": "DENY", "target": "a.test"}]}})).is_ok());
    for opens in [json!({"defaultAction": "allow"}), json!({"egress": [{"action": "allow", "target": "a.test"}]})] {
        refused(json!({"networkPolicy": opens}), 400, "networkPolicy");
    }
}

#[test]
fn a_policy_is_passed_on_where_something_can_leave() {
    let policy = json!({"defaultAction": "deny", "egress": [{"action": "allow", "target": "a.test"}]});
    let runtime = Capabilities { network: "egress".to_owned(), ..native() };
    let admitted = admit(body(json!({"networkPolicy": policy})), &runtime, &Rules::default()).expect("it is obeyed");
    assert_eq!(serde_json::to_value(admitted.spec.policy).expect("JSON"), policy);
}

#[test]
fn a_login_never_shows_in_debug_output() {
    let admitted =
        try_admit(json!({"image": {"uri": "r/i", "auth": {"username": "u", "password": "hunter2"}}})).expect("ok");
    assert!(admitted.spec.private_pull);
    assert!(!format!("{admitted:?}").contains("hunter2"));
}

#[test]
fn a_metadata_patch_changes_only_what_it_names() {
    let current = BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())]);
    let patch = |key: &str, value: Option<&str>| BTreeMap::from([(key.to_owned(), value.map(str::to_owned))]);
    let patched = metadata_patch(&current, patch("a", None)).expect("removed");
    assert_eq!(patched, BTreeMap::from([("b".to_owned(), "2".to_owned())]));
    let patched = metadata_patch(&current, patch("c", Some("3"))).expect("added");
    assert_eq!(patched.len(), 3);
    let refusal = metadata_patch(&current, patch("opensandbox.io/id", None)).expect_err("reserved");
    assert_eq!((refusal.status, refusal.code), (400, "INVALID_METADATA_LABEL"));
    let refusal = metadata_patch(&current, patch("a", Some("not ok"))).expect_err("bad value");
    assert_eq!(refusal.code, "SANDBOX::INVALID_METADATA_LABEL");
}

#[test]
fn an_unknown_field_is_refused_by_name() {
    let wrong = json!({"image": {"uri": "host"}, "entrypint": ["x"]});
    let why = serde_json::from_value::<CreateSandboxRequest>(wrong).expect_err("refused").to_string();
    assert!(why.contains("entrypint"), "{why}");
}

#[test]
fn recordings_are_asked_for_by_extensions() {
    let network = Capabilities { network: "steered".to_owned(), ..native() };
    let admitted = |extensions: Value| {
        let request = body(json!({ "extensions": extensions }));
        admit(request, &network, &Rules::default()).map(|admitted| admitted.spec)
    };
    let spec = admitted(json!({ "osb.network.record": "on" })).expect("admitted");
    assert_eq!((spec.taping.clone(), spec.needs_authority()), (Taping::Record, true));
    let spec = admitted(json!({ "osb.network.replay": "rec-1" })).expect("admitted");
    assert_eq!(spec.taping, Taping::Replay { recording: "rec-1".to_owned() });
    assert!(spec.extensions.is_empty(), "they are not echoed");
    for (extensions, field) in [
        (json!({ "osb.network.record": "yes" }), "extensions.osb.network.record"),
        (json!({ "osb.network.replay": "../x" }), "extensions.osb.network.replay"),
        (json!({ "osb.network.replay": "" }), "extensions.osb.network.replay"),
        (json!({ "osb.network.record": "on", "osb.network.replay": "a" }), "extensions.osb.network.replay"),
    ] {
        let refusal = admitted(extensions.clone()).expect_err("refused");
        assert_eq!((refusal.status, refusal.field.as_str()), (400, field), "{extensions}");
    }
    // Where nothing leaves, nothing can be recorded.
    refused(json!({ "extensions": { "osb.network.record": "on" } }), 400, "extensions.osb.network.record");
}
