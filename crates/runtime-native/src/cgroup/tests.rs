use std::time::Instant;

use super::*;

#[test]
fn a_hybrid_mount_table_gives_both_versions() {
    let table = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    let found = Hierarchies::parse(table);
    assert_eq!(found.v2.as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
    assert_eq!(found.means("memory"), Some("cgroup v1"));
    assert_eq!(found.means("pids"), None);
    let group = found.group("osb", "a");
    assert_eq!(group.v1.len(), 2, "controllers that are mounted together share a group");
}

#[test]
fn a_delegation_without_cpu_carries_the_other_limits() {
    let found = Hierarchies {
        v2: Some("/sys/fs/cgroup/user.slice/osb.scope".into()),
        v2_controllers: vec!["memory", "pids"],
        ..Hierarchies::default()
    };
    assert_eq!((found.means("memory"), found.means("cpu")), (Some("cgroup v2"), None));
    let asked = PlanLimits { cpu_millis: Some(500), memory_bytes: Some(1 << 20), ..PlanLimits::default() };
    assert_eq!(found.carried(&asked), PlanLimits { memory_bytes: Some(1 << 20), ..PlanLimits::default() });
    let group = found.group("osb", "a");
    let path = Path::new("/sys/fs/cgroup/user.slice/osb.scope/osb/a");
    assert_eq!((group.memory, group.cpu), (Some(Carrier::V2(path.into())), None));
}

#[test]
fn a_group_that_does_not_exist_can_be_killed_and_removed() {
    let found = Hierarchies::discover().expect("this machine has cgroups");
    let group = found.group("osb-test-absent", "nothing");
    group.kill().expect("nothing to kill");
    assert!(group.wait_empty(Instant::now()).expect("nothing to wait for"));
    group.remove().expect("nothing to remove");
}
