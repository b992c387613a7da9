use serde_json::{Value, json};

use super::{admit, body, native, refused};
use crate::admit::{Admitted, Refusal, Rules, VolumeRules};
use crate::runtime::{Capabilities, VolumeMeans};
use crate::volume::{Claim, Source, Volume};

fn rules() -> Rules {
    let volumes = VolumeRules { allowed_host_paths: vec!["/srv/shared".to_owned()], default_bytes: None };
    Rules { volumes, ..Rules::default() }
}

fn with(volumes: Value, runtime: &Capabilities, rules: &Rules) -> Result<Admitted, Refusal> {
    admit(body(json!({ "volumes": volumes })), runtime, rules)
}

fn one(volume: Value) -> Result<Volume, Refusal> {
    let mut whole = json!({"name": "v", "mountPath": "/v"});
    for (key, value) in volume.as_object().expect("an object") {
        whole[key] = value.clone();
    }
    let mut admitted = with(json!([whole]), &native(), &rules())?;
    Ok(admitted.spec.volumes.remove(0))
}

#[track_caller]
fn refuses(volume: Value, status: u16, code: &str, field: &str) {
    let refusal = one(volume.clone()).expect_err(&volume.to_string());
    assert_eq!((refusal.status, refusal.code, refusal.field.as_str()), (status, code, field), "{volume}: {refusal}");
}

fn named(fields: Value) -> Value {
    let mut pvc = json!({"claimName": "data"});
    for (key, value) in fields.as_object().expect("an object") {
        pvc[key] = value.clone();
    }
    json!({ "pvc": pvc })
}

#[test]
fn os_117_the_published_client_sends_nulls_for_what_it_does_not_set() {
    let pvc = json!({"claimName": "data", "createIfNotExists": true, "deleteOnSandboxTermination": false,
                     "storageClass": null, "storage": null, "accessModes": null});
    let volume = one(json!({"pvc": pvc, "host": null, "ossfs": null, "readOnly": false, "subPath": null}));
    let claim = Claim { name: "data".to_owned(), create: true, delete_at_end: false, bytes: None, default_bytes: None };
    let expected = Volume {
        name: "v".to_owned(),
        source: Source::Named(claim),
        mount_path: "/v".to_owned(),
        sub_path: None,
        read_only: false,
    };
    assert_eq!(volume.expect("admitted"), expected);
    let host = one(json!({"host": {"path": "/srv/shared/a"}, "pvc": null, "readOnly": true, "subPath": "b/c"}));
    let host = host.expect("admitted");
    assert_eq!(host.source, Source::Host { path: "/srv/shared/a".to_owned() });
    assert_eq!((host.read_only, host.sub_path.as_deref()), (true, Some("b/c")));
}

#[test]
fn os_117_every_mistake_has_its_published_code() {
    let host = || json!({"host": {"path": "/srv/shared"}});
    let and = |mut value: Value, key: &str, with: Value| {
        value[key] = with;
        value
    };
    refuses(json!({}), 400, "VOLUME::INVALID_BACKEND", "volumes[0]");
    let two = json!({"host": {"path": "/srv/shared"}, "pvc": {"claimName": "c"}});
    refuses(two, 400, "VOLUME::INVALID_BACKEND", "volumes[0]");
    refuses(json!({"ossfs": {}}), 400, "SANDBOX::API_NOT_SUPPORTED", "volumes[0].ossfs");
    for name in ["", "A", "a_b", "-a", &"a".repeat(64)] {
        refuses(and(host(), "name", json!(name)), 400, "VOLUME::INVALID_NAME", "volumes[0].name");
    }
    for path in ["v", "", "/", "/a/../b", "//", "/a//b", "/proc", "/proc/x", "/sys", "/dev/shm", "/a/./b"] {
        let volume = and(host(), "mountPath", json!(path));
        refuses(volume, 400, "VOLUME::INVALID_MOUNT_PATH", "volumes[0].mountPath");
    }
    for path in ["/a", "..", "a/../b", "a//b", "a/", "./a"] {
        let volume = and(host(), "subPath", json!(path));
        refuses(volume, 400, "VOLUME::INVALID_SUB_PATH", "volumes[0].subPath");
    }
    for path in ["C:\\data", "d:/data", "relative", "/srv/shared/../x", "/srv//shared", "/srv/shared/", ""] {
        let volume = json!({"host": {"path": path}});
        refuses(volume, 400, "VOLUME::INVALID_HOST_PATH", "volumes[0].host.path");
    }
    for path in ["/", "/srv", "/srv/sharedx", "/etc"] {
        let volume = json!({"host": {"path": path}});
        refuses(volume, 400, "VOLUME::HOST_PATH_NOT_ALLOWED", "volumes[0].host");
    }
    for name in ["", "A", "a.b", "../x", &"a".repeat(254)] {
        refuses(named(json!({"claimName": name})), 400, "VOLUME::INVALID_PVC_NAME", "volumes[0].pvc.claimName");
    }
    for size in ["", "1G", "one", "1Mi", "5Ti", "-1"] {
        refuses(named(json!({"storage": size})), 400, "SANDBOX::INVALID_PARAMETER", "volumes[0].pvc.storage");
    }
    let unsupported = "SANDBOX::API_NOT_SUPPORTED";
    refuses(named(json!({"storageClass": "fast"})), 400, unsupported, "volumes[0].pvc.storageClass");
    refuses(named(json!({"accessModes": ["ReadWriteOncePod"]})), 400, unsupported, "volumes[0].pvc.accessModes");
    refuses(named(json!({"accessModes": ["ReadOnlyMany"]})), 400, unsupported, "volumes[0].pvc.accessModes");
    refuses(json!({"host": {}}), 422, "SANDBOX::INVALID_PARAMETER", "volumes[0]");
    refuses(json!({"host": {"path": "/srv/shared"}, "wings": 2}), 422, "SANDBOX::INVALID_PARAMETER", "volumes[0]");
}

#[test]
fn names_and_places_are_each_volumes_own() {
    let volumes = |second: Value| json!([{"name": "a", "mountPath": "/a", "pvc": {"claimName": "c"}}, second]);
    let code = |second: Value| with(volumes(second), &native(), &rules()).map(|a| a.spec).expect_err("refused").code;
    assert_eq!(code(json!({"name": "a", "mountPath": "/b", "pvc": {"claimName": "d"}})), "VOLUME::DUPLICATE_NAME");
    assert_eq!(code(json!({"name": "b", "mountPath": "/a/", "pvc": {"claimName": "d"}})), "VOLUME::INVALID_MOUNT_PATH");
    let other = json!({"name": "b", "mountPath": "/b", "pvc": {"claimName": "c", "deleteOnSandboxTermination": true}});
    assert_eq!(code(other), "SANDBOX::INVALID_PARAMETER");
    let same = json!({"name": "b", "mountPath": "/a/b", "subPath": "x", "pvc": {"claimName": "c"}});
    assert!(with(volumes(same), &native(), &rules()).is_ok(), "one volume at two places, one within the other");
    let many: Vec<Value> = (0..33)
        .map(|n| json!({"name": format!("n{n}"), "mountPath": format!("/m{n}"), "pvc": {"claimName": "c"}}))
        .collect();
    assert_eq!(with(json!(many), &native(), &rules()).map(|a| a.spec).expect_err("too many").field, "volumes");
    refused(json!({"volumes": ["a"]}), 422, "volumes[0]");
}

#[test]
fn what_one_machine_keeps_of_kubernetes_is_admitted() {
    for modes in [json!(["ReadWriteOnce"]), json!(["ReadWriteMany"]), json!([]), json!(null)] {
        assert!(one(named(json!({ "accessModes": modes }))).is_ok());
    }
    let mut read_only = named(json!({"accessModes": ["ReadOnlyMany"]}));
    read_only["readOnly"] = json!(true);
    assert!(one(read_only).is_ok());
    let sized = one(named(json!({"storage": "1.5Gi", "storageClass": ""}))).expect("admitted");
    assert_eq!(sized.claim().expect("named").bytes, Some(3 << 29));
}

#[test]
fn a_size_limit_that_cannot_be_kept_is_refused_by_name() {
    let means = VolumeMeans { named: true, size_limit: "none".to_owned(), ids: "shifted".to_owned() };
    let user = Capabilities { volumes: means, ..native() };
    let ask = |fields: Value, rules: &Rules| {
        let mut volume = named(fields);
        volume["name"] = json!("v");
        volume["mountPath"] = json!("/v");
        with(json!([volume]), &user, rules).map(|a| a.spec)
    };
    assert!(ask(json!({}), &rules()).is_ok());
    assert_eq!(ask(json!({"storage": "1Gi"}), &rules()).expect_err("size").field, "volumes[0].pvc.storage");
    let mut with_default = rules();
    with_default.volumes.default_bytes = Some(1 << 30);
    assert_eq!(ask(json!({}), &with_default).expect_err("default").field, "volumes[0].pvc");
    let leased = Rules { leased: true, ..rules() };
    assert_eq!(ask(json!({}), &leased).expect_err("no server").field, "volumes[0].pvc");
}
