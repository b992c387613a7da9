use super::checks::all;
use super::machine::{Attempt, Cgroups, Machine};
use super::*;

/// A machine on which everything is there, seen by root.
fn good() -> Machine {
    Machine {
        root: true,
        user: "root".into(),
        kernel: (6, 18),
        release: "6.18.0".into(),
        user_namespace: Attempt::Worked,
        overlay: Attempt::Worked,
        network: Attempt::Worked,
        cgroups: Cgroups {
            layout: "v2",
            controllers: ["cpu", "memory", "pids"].map(String::from).to_vec(),
            unusable: None,
        },
        loop_devices: true,
        ext4: true,
        mkfs: Some("/sbin/mkfs.ext4".into()),
        seccomp: true,
        landlock: true,
        python: Some("Python 3.11".into()),
        pid_max: 4_194_304,
        open_files: (1024, 1_048_576),
        ..Machine::default()
    }
}

/// The check of this name.
fn check(machine: &Machine, name: &str) -> Check {
    all(machine).into_iter().find(|check| check.name == name).expect("there is such a check")
}

#[test]
fn a_good_machine_has_nothing_to_do() {
    for check in all(&good()) {
        assert_eq!((check.verdict, check.remedy), (Verdict::Ok, None), "{}", check.name);
    }
}

#[test]
fn what_is_missing_comes_with_what_to_do() {
    let machine = Machine { mkfs: None, ..good() };
    let check = check(&machine, "disk limits");
    assert_eq!(check.verdict, Verdict::Weaker);
    assert_eq!(check.remedy.as_deref(), Some("apt-get install -y e2fsprogs"));
}

#[test]
fn gvisor_is_told_and_nobody_needs_it() {
    let with = check(&Machine { gvisor: Some("1".into()), ..good() }, "gvisor");
    assert!(with.found.starts_with("runsc 1"), "{with:?}");
    let without = check(&good(), "gvisor");
    assert_eq!(without.verdict, Verdict::Ok);
    assert!(without.found.contains("apt-get install -y runsc"), "{without:?}");
}

#[test]
fn os_080_a_machine_that_can_give_no_network_says_why() {
    let machine = Machine { network: Attempt::Failed("add a rule: no tproxy".into()), ..good() };
    let check = check(&machine, "network of sandboxes");
    assert_eq!(check.verdict, Verdict::Weaker);
    assert!(check.found.starts_with("add a rule: no tproxy") && check.remedy.is_some(), "{check:?}");
}

#[test]
fn a_forbidden_user_namespace_names_the_switch() {
    let machine = Machine {
        user_namespace: Attempt::Failed("unshare failed: Operation not permitted".into()),
        forbidden_by: vec!["kernel.unprivileged_userns_clone=0".into(), "user.max_user_namespaces=0".into()],
        ..good()
    };
    let check = check(&machine, "user namespaces");
    assert_eq!(check.verdict, Verdict::Missing);
    let remedy = check.remedy.expect("there is one");
    assert_eq!(
        remedy,
        "as root: sysctl -w kernel.unprivileged_userns_clone=1 && sysctl -w user.max_user_namespaces=65536"
    );
}

#[test]
fn an_ordinary_user_learns_how_to_get_ids() {
    let machine = Machine { root: false, user: "ada".into(), ..good() };
    let check = check(&machine, "subordinate ids");
    assert_eq!(check.verdict, Verdict::Weaker);
    assert!(check.remedy.expect("there is one").contains("usermod --add-subuids 100000-165535"));
}

#[test]
fn this_machine_can_be_looked_at() {
    let checks = all(&Machine::look());
    assert!(checks.iter().any(|check| check.name == "kernel" && check.verdict == Verdict::Ok), "{checks:?}");
}
