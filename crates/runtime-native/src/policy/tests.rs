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
        volumes: Vec::new(),
        image_env: Vec::new(),
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

mod volumes {
    use lifecycle::volume::{Claim, Source, Volume};

    use super::*;
    use crate::volumes::check;
    use crate::volumes::host::HostPaths;

    fn with(source: Source, mount_path: &str, sub_path: Option<&str>) -> Plan {
        let volume = Volume {
            name: "v".to_owned(),
            source,
            mount_path: mount_path.to_owned(),
            sub_path: sub_path.map(str::to_owned),
            read_only: false,
        };
        Plan { volumes: vec![volume], ..plan("a") }
    }

    fn host(path: &str) -> Source {
        Source::Host { path: path.to_owned() }
    }

    fn named(name: &str) -> Source {
        let claim =
            Claim { name: name.to_owned(), create: true, delete_at_end: false, bytes: None, default_bytes: None };
        Source::Named(claim)
    }

    #[test]
    fn os_011_the_jailer_allows_no_host_path_by_itself() {
        let none = HostPaths::default();
        for path in ["/", "/etc", "/proc", "/var/run/docker.sock"] {
            let failure = check(&with(host(path), "/v", None), &none).expect_err(path);
            assert_eq!(failure.kind, Kind::HostPath);
            assert!(path == "/" || !failure.message.contains(path), "{failure}");
        }
        let some = HostPaths { allowed: vec!["/srv".to_owned()], hidden: Vec::new() };
        assert!(check(&with(host("/srv/a"), "/v", None), &some).is_ok());
        for path in ["/srvx", "/srv/../etc", "srv", "/srv//a"] {
            assert!(check(&with(host(path), "/v", None), &some).is_err(), "{path}");
        }
    }

    #[test]
    fn names_and_paths_of_a_plan_are_checked_again() {
        let none = HostPaths::default();
        assert!(check(&with(named("data"), "/v", Some("a/b")), &none).is_ok());
        for (source, target, sub_path) in [
            (named("../x"), "/v", None),
            (named(".new-1"), "/v", None),
            (named("data"), "/", None),
            (named("data"), "/proc/x", None),
            (named("data"), "v", None),
            (named("data"), "/v", Some("../x")),
            (named("data"), "/v", Some("/x")),
        ] {
            let refused = check(&with(source, target, sub_path), &none).expect_err(target);
            assert_eq!(refused.kind, Kind::Refused);
        }
        let many = with(named("data"), "/v", None);
        let volumes = vec![many.volumes[0].clone(); lifecycle::volume::MAX_VOLUMES + 1];
        assert!(check(&Plan { volumes, ..many }, &none).is_err());
    }
}
