use super::*;

fn sandbox() -> Value {
    config(&Shape { hostname: "box", shm_bytes: 4096, scratch: true, volumes: &[] })
}

#[test]
fn nothing_inside_may_touch_the_network_or_low_ports() {
    let capabilities = &sandbox()["process"]["capabilities"];
    for set in ["bounding", "effective", "permitted"] {
        let names: Vec<&str> = capabilities[set].as_array().expect("names").iter().filter_map(Value::as_str).collect();
        assert!(names.contains(&"CAP_CHOWN"), "{names:?}");
        assert!(!names.iter().any(|name| name.starts_with("CAP_NET") || *name == "CAP_SYS_ADMIN"), "{names:?}");
    }
    assert_eq!(capabilities.get("inheritable"), None);
}

#[test]
fn the_network_is_the_one_around() {
    let namespaces = sandbox()["linux"]["namespaces"].to_string();
    assert!(!namespaces.contains("network") && !namespaces.contains("user"), "{namespaces}");
}

#[test]
fn every_path_lies_in_the_cell() {
    let config = sandbox();
    let binds = config["mounts"].as_array().expect("mounts").iter().filter(|mount| mount["type"] == "bind");
    let sources: Vec<&str> = binds.filter_map(|mount| mount["source"].as_str()).collect();
    assert_eq!(sources, ["/execd", "/scratch"]);
    assert_eq!(config["root"]["path"], "/root");
}

#[test]
fn an_image_without_a_directory_for_scratch_files_gets_no_mount_there() {
    let config = config(&Shape { hostname: "box", shm_bytes: 4096, scratch: false, volumes: &[] });
    assert!(!config["mounts"].to_string().contains("/tmp"));
}

#[test]
fn volumes_come_after_what_they_may_lie_in() {
    let bind = |name: &str, target, read_only| Bind { source: PathBuf::from(name), target, read_only };
    let volumes = [bind("/volume-0", "/tmp/a", false), bind("/volume-1", "/tmp/a/b", true)];
    let config = config(&Shape { hostname: "box", shm_bytes: 4096, scratch: true, volumes: &volumes });
    let mounts = config["mounts"].as_array().expect("mounts");
    let at = |target: &str| mounts.iter().position(|mount| mount["destination"] == target).expect(target);
    assert!(at("/tmp") < at("/tmp/a") && at("/tmp/a") < at("/tmp/a/b"));
    assert!(mounts[at("/tmp/a/b")]["options"].to_string().contains("\"ro\""));
}
