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
fn a_group_that_does_not_exist_can_be_killed_and_removed() {
    let found = Hierarchies::discover().expect("this machine has cgroups");
    let group = found.group("osb-test-absent", "nothing");
    group.kill().expect("nothing to kill");
    assert!(group.wait_empty(Instant::now()).expect("nothing to wait for"));
    group.remove().expect("nothing to remove");
}
