use lifecycle::spec::SandboxId;

use super::*;

fn plan(layer: &str) -> Plan {
    Plan {
        id: SandboxId::parse("a").expect("valid id"),
        layers: vec![layer.to_owned()],
        host_programs: false,
        user: None,
        working_dir: None,
        limits: PlanLimits::default(),
        kernel: Kernel::Host,
        network: Network::None,
        authority: None,
        leased: false,
        start_deadline_ms: 1000,
        grace_ms: 0,
    }
}

#[test]
fn a_layer_that_is_a_path_is_refused() {
    let dir = tempfile::tempdir().expect("temp dir");
    let paths = Paths::new(dir.path());
    for layer in ["../../etc", "", "/", "ABCDEF", &"g".repeat(64), &"a".repeat(63)] {
        assert_eq!(check(&plan(layer), &paths).expect_err(layer).kind, Kind::Refused);
    }
}

#[test]
fn a_layer_that_is_missing_is_the_images_fault() {
    let dir = tempfile::tempdir().expect("temp dir");
    let failure = check(&plan(&"a".repeat(64)), &Paths::new(dir.path())).expect_err("missing");
    assert_eq!(failure.kind, Kind::Image);
}

#[test]
fn limits_just_outside_are_refused_by_name() {
    let dir = tempfile::tempdir().expect("temp dir");
    let paths = Paths::new(dir.path());
    let layer = "b".repeat(64);
    std::fs::create_dir_all(paths.layer(&layer)).expect("layer");
    assert!(check(&plan(&layer), &paths).is_ok());
    let mut small = plan(&layer);
    small.limits.memory_bytes = Some(MIN_MEMORY_BYTES - 1);
    let failure = check(&small, &paths).expect_err("too little memory");
    assert!(failure.message.contains("resourceLimits.memory"), "{failure}");
}
