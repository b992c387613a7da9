use protocol::lifecycle::CreateSandboxRequest;
use serde_json::{Value, json};

use super::{Capacity, Census, Governor, Want, check_name, join, template};
use crate::admit::Refusal;

fn capacity(buffer_min: u32, buffer_max: u32, pool_min: u32, pool_max: u32) -> Capacity {
    Capacity { buffer_max, buffer_min, pool_max, pool_min }
}

fn census(bound: u32, ready: u32, making: u32) -> Census {
    Census { bound, ready, making }
}

#[track_caller]
fn wants(capacity: Capacity, census: Census, expected: Want) {
    assert_eq!(Governor::default().want(&capacity, &census), expected, "{capacity:?} {census:?}");
}

#[test]
fn a_pool_goes_to_the_middle_of_its_band_and_rests_within() {
    wants(capacity(2, 6, 0, 100), census(0, 1, 0), Want::Make(3));
    wants(capacity(2, 6, 0, 100), census(0, 2, 0), Want::Nothing);
    wants(capacity(2, 6, 0, 100), census(0, 6, 0), Want::Nothing);
    wants(capacity(2, 6, 0, 100), census(0, 7, 0), Want::Drop(3));
    wants(capacity(0, 0, 0, 100), census(0, 1, 0), Want::Drop(1));
}

#[test]
fn the_least_number_of_all_goes_before_the_most_that_wait() {
    wants(capacity(0, 2, 10, 20), census(0, 4, 0), Want::Make(6));
    wants(capacity(0, 2, 10, 20), census(0, 10, 0), Want::Nothing);
    wants(capacity(0, 2, 10, 20), census(5, 10, 0), Want::Drop(5));
}

#[test]
fn the_most_that_there_may_be_is_never_passed() {
    wants(capacity(5, 5, 0, 8), census(6, 0, 0), Want::Make(2));
    wants(capacity(5, 5, 0, 8), census(8, 0, 0), Want::Nothing);
    wants(capacity(1, 5, 0, 8), census(7, 3, 0), Want::Drop(2));
    // What somebody has does not go, however small the pool became.
    wants(capacity(0, 0, 0, 1), census(7, 0, 0), Want::Nothing);
}

/// Numbers that a linear congruence gives: the same at every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(bound.max(1))) as u32
    }
}

#[test]
fn os_098_whatever_happens_no_limit_is_passed_and_it_settles_without_swinging() {
    let mut numbers = Numbers(7);
    for _ in 0..300 {
        let mut governor = Governor::default();
        let mut now = Census::default();
        let mut capacity = capacity(0, 0, 0, 0);
        for round in 0..200 {
            if round % 40 == 0 {
                let (least, most) = (numbers.below(20), numbers.below(50));
                let pool_max = least + most + numbers.below(450);
                capacity = Capacity {
                    buffer_min: least,
                    buffer_max: least + most,
                    pool_max,
                    pool_min: numbers.below(pool_max.min(60)),
                };
            }
            match numbers.below(6) {
                0 if now.ready > 0 => {
                    now.ready -= 1;
                    now.bound += 1;
                }
                1 => now.bound -= numbers.below(now.bound + 1),
                2 => {
                    let done = numbers.below(now.making + 1);
                    now.making -= done;
                    now.ready += done;
                }
                _ => {}
            }
            let before = now;
            match governor.want(&capacity, &now) {
                Want::Make(count) => now.making += count.min(1 + numbers.below(4)),
                Want::Drop(count) => now.ready -= count.min(1 + numbers.below(4)),
                Want::Nothing => {}
            }
            assert_eq!(now.bound, before.bound, "what somebody has goes when he says so");
            assert!(now.total() <= capacity.pool_max.max(before.total()), "{capacity:?} {before:?} {now:?}");
        }
        // Left alone it comes to rest, and never turns round on the way.
        let (mut made, mut dropped) = (false, false);
        for round in 0.. {
            assert!(round < 1000, "does not come to rest: {capacity:?} {now:?}");
            now = Census { ready: now.ready + now.making, making: 0, ..now };
            match governor.want(&capacity, &now) {
                Want::Make(_) => {
                    made = true;
                    now.making = 1;
                }
                Want::Drop(_) => {
                    dropped = true;
                    now.ready -= 1;
                }
                Want::Nothing => break,
            }
        }
        assert!(!(made && dropped), "it swings: {capacity:?} {now:?}");
    }
}

#[test]
fn numbers_that_contradict_each_other_are_refused_by_name() {
    let parse = |min: i64, max: i64, pool_min: i64, pool_max: i64| {
        let asked = serde_json::from_value(
            json!({"bufferMin": min, "bufferMax": max, "poolMin": pool_min, "poolMax": pool_max}),
        );
        Capacity::parse(&asked.expect("fits the wire type"))
    };
    assert_eq!(parse(1, 2, 3, 4), Ok(capacity(1, 2, 3, 4)));
    for (numbers, field, status) in [
        ((3, 2, 0, 9), "capacitySpec.bufferMin", 400),
        ((0, 2, 9, 8), "capacitySpec.poolMin", 400),
        ((5, 5, 0, 4), "capacitySpec.bufferMin", 400),
        ((-1, 2, 0, 9), "capacitySpec.bufferMin", 422),
        ((0, 2, 0, 10_001), "capacitySpec.poolMax", 400),
    ] {
        let (min, max, pool_min, pool_max) = numbers;
        let refusal = parse(min, max, pool_min, pool_max).expect_err("is refused");
        assert_eq!((refusal.field.as_str(), refusal.status), (field, status), "{refusal}");
    }
}

#[test]
fn names_are_labels() {
    for good in ["a", "web-1", &"x".repeat(253)] {
        assert!(check_name(good).is_ok(), "{good}");
    }
    for bad in ["", "A", "-a", "a-", "a.b", "a/b", &"x".repeat(254)] {
        assert!(check_name(bad).is_err(), "{bad}");
    }
}

fn read(value: Value) -> Result<CreateSandboxRequest, Refusal> {
    template(value.as_object().expect("an object"), "native")
}

#[test]
fn a_pod_template_means_its_one_container() {
    let request = read(json!({
        "metadata": {"labels": {"team": "a"}},
        "spec": {"containers": [{
            "name": "sandbox",
            "image": "python:3.12",
            "command": ["sh", "-c"],
            "args": ["sleep 1"],
            "env": [{"name": "A", "value": "1"}],
            "resources": {"limits": {"cpu": 2, "memory": "512Mi", "ephemeral-storage": "1Gi"}},
        }]},
    }))
    .expect("a template");
    assert_eq!(request.image.expect("an image").uri, "python:3.12");
    assert_eq!(request.entrypoint.expect("a main process"), ["sh", "-c", "sleep 1"]);
    assert_eq!(request.env.expect("variables")["A"].as_deref(), Some("1"));
    let limits = request.resource_limits.expect("limits");
    assert_eq!((limits["cpu"].as_str(), limits["disk"].as_str()), ("2", "1Gi"));
    assert_eq!(request.metadata.expect("labels")["team"], "a");
}

#[test]
fn what_a_template_cannot_mean_is_refused_by_name() {
    let container = |field: &str, value: Value| {
        let mut container = json!({"image": "host"});
        container[field] = value;
        json!({"spec": {"containers": [container]}})
    };
    for (value, field) in [
        (json!({"image": {"uri": "host"}, "volumes": []}), "template.volumes"),
        (json!({"image": {"uri": " "}}), "template.image.uri"),
        (json!({"image": {"uri": "a", "auth": {"username": "u", "password": "p"}}}), "template.image.auth"),
        (json!({"spec": {"containers": []}}), "template.spec.containers"),
        (json!({"spec": {"containers": [{}]}}), "template.spec.containers.0.image"),
        (json!({"spec": {"containers": [{"image": "a"}], "hostNetwork": true}}), "template.spec.hostNetwork"),
        (json!({"spec": {"containers": [{"image": "a"}], "restartPolicy": "Always"}}), "template.spec.restartPolicy"),
        (container("securityContext", json!({})), "template.spec.containers.0.securityContext"),
        (container("resources", json!({"requests": {"cpu": "1"}})), "template.spec.containers.0.resources.requests"),
        (container("env", json!([{"name": "A", "valueFrom": {}}])), "template.spec.containers.0.env.0.valueFrom"),
    ] {
        let refusal = read(value.clone()).expect_err("is refused");
        assert_eq!(refusal.field, field, "{value}");
    }
}

#[test]
fn ex_039_a_pool_serves_its_own_runtime_class_and_image_only() {
    let class = json!({"spec": {"runtimeClassName": "gvisor", "containers": [{"image": "a"}]}});
    assert_eq!(read(class).expect_err("is refused").field, "template.spec.runtimeClassName");
    let pool = read(json!({"image": {"uri": "a"}})).expect("a template");
    let wants = |value: Value| join("p", &pool, serde_json::from_value(value).expect("fits the wire type"));
    assert_eq!(wants(json!({"image": {"uri": "b"}})).expect_err("is refused").field, "image.uri");
    assert_eq!(wants(json!({"snapshotId": "s"})).expect_err("is refused").field, "snapshotId");
    assert_eq!(wants(json!({"image": {"uri": "a"}})).expect("fits").image.expect("an image").uri, "a");
}

#[test]
fn a_request_joins_its_variables_and_replaces_the_main_process() {
    let pool = read(json!({
        "image": {"uri": "a"}, "entrypoint": ["x"], "env": {"A": "1", "B": "1"}, "resourceLimits": {"cpu": "1"},
    }));
    let pool = pool.expect("a template");
    let asked = json!({"entrypoint": ["y"], "env": {"B": "2"}, "resourceLimits": {"memory": "64Mi"}});
    let request = join("p", &pool, serde_json::from_value(asked).expect("fits")).expect("fits");
    assert_eq!(request.entrypoint.expect("a main process"), ["y"]);
    let env = request.env.expect("variables");
    assert_eq!((env["A"].as_deref(), env["B"].as_deref()), (Some("1"), Some("2")));
    assert_eq!(request.resource_limits.expect("limits").len(), 2);
    let bare = join("p", &pool, CreateSandboxRequest::default()).expect("fits");
    assert_eq!(bare.entrypoint.expect("a main process"), ["x"]);
}
