//! A machine that has cgroup v2 only, as current distributions do, with the kernel of Debian 12: as root, as an
//! ordinary user, and as an ordinary user to whom a group was delegated. One emulated guest runs all of it once.
#![cfg(target_arch = "x86_64")]

use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result};
use e2e::guest::{Guest, Step};
use e2e::server::built;
use serde_json::Value;

/// What the guest told, by one boot for all tests of this file.
static TOLD: LazyLock<Result<Vec<Step>, String>> = LazyLock::new(|| told().map_err(|error| format!("{error:#}")));

fn told() -> Result<Vec<Step>> {
    let guest = Guest::made(Path::new(env!("CARGO_TARGET_TMPDIR"))).context("make a guest")?;
    guest.run(&built("OSB_BIN", "osb")?, include_str!("../guest/pure_v2.sh"))
}

/// The step of this name.
#[track_caller]
fn step(name: &str) -> &'static Step {
    let told = TOLD.as_ref().unwrap_or_else(|error| panic!("{error}"));
    told.iter().find(|step| step.name == name).unwrap_or_else(|| panic!("the script has no step {name}"))
}

/// The step, which must have this exit code and these texts in its output.
#[track_caller]
fn check(name: &str, status: i32, texts: &[&str]) {
    let step = step(name);
    assert_eq!(step.status, status, "{name}: {}", step.output);
    for text in texts {
        assert!(step.output.contains(text), "{name} without {text:?}: {}", step.output);
    }
}

/// The one JSON document in a step's output.
#[track_caller]
fn document(name: &str) -> Value {
    let step = step(name);
    let start = step.output.find('{').unwrap_or_else(|| panic!("{name}: {}", step.output));
    let mut documents = serde_json::Deserializer::from_str(&step.output[start..]).into_iter();
    documents.next().and_then(std::result::Result::ok).unwrap_or_else(|| panic!("{name}: {}", step.output))
}

/// A limit of the receipt of `<who>.get`.
#[track_caller]
fn limit(who: &str, name: &str) -> (Option<u64>, String) {
    let limit = &document(&format!("{who}.get"))["receipt"]["limits"][name];
    (limit["value"].as_u64(), limit["by"].as_str().unwrap_or_default().to_owned())
}

/// What holds for whoever has cgroups.
#[track_caller]
fn check_whole_life(who: &str) {
    let name = |step: &str| format!("{who}.{step}");
    check(&name("run"), 0, &[]);
    check(&name("run-hog"), 137, &[]);
    check(&name("server"), 0, &[]);
    check(&name("create"), 0, &[]);
    for (limit_name, value) in [("memory", 128 << 20), ("cpu", 1000), ("pids", 64)] {
        assert_eq!(limit(who, limit_name), (Some(value), "cgroup v2".to_owned()), "{limit_name}");
    }
    assert_eq!(limit(who, "swap"), (Some(0), "cgroup v2".to_owned()));
    check(&name("view"), 0, &["134217728", "100000 100000", "64\n"]);
    let pids = step(&name("pids"));
    assert!(pids.status != 0, "100 processes at a limit of 64: {}", pids.output);
    check(&name("pause"), 0, &[]);
    assert_eq!(document(&name("paused"))["status"]["state"], "Paused");
    check(&name("resume"), 0, &[]);
    check(&name("resumed"), 0, &["awake"]);
    check(&name("kill"), 0, &[]);
    assert_eq!(document(&name("create-half"))["receipt"]["limits"]["cpu"]["value"], 500);
    assert_eq!(document(&name("hog"))["status"]["reason"], "OOM_KILLED");
    check(&name("kill-hog"), 0, &[]);
}

/// Lines of a list of groups that name one of a sandbox: neither a waiting seat nor what holds all.
#[track_caller]
fn groups_of_sandboxes(name: &str) -> Vec<&'static str> {
    let lines = step(name).output.lines().filter(|line| !line.is_empty());
    let is_frame = |line: &&str| {
        let last = line.rsplit('/').next().unwrap_or_default();
        last == "delegated" || last.starts_with("osb-") || last.starts_with("seat-")
    };
    lines.filter(|line| !is_frame(line)).collect()
}

#[test]
fn root_has_all_limits_on_pure_cgroup_v2() {
    check("root.doctor", 0, &["sandboxes run here, as root"]);
    check_whole_life("root");
    check("root.disk", 1, &["No space left"]);
}

#[test]
fn root_leaves_no_group() {
    check("root.run-left", 0, &[]);
    assert_eq!(step("root.run-left").output.trim(), "");
    assert_eq!(groups_of_sandboxes("root.groups"), Vec::<&str>::new());
    assert_eq!(step("root.left").output.trim(), "");
}

#[test]
fn a_user_without_delegation_has_limits_of_processes_and_is_told_why() {
    check("user.doctor", 0, &["is not this user's to write", "sandboxes run here, as an ordinary user"]);
    check("user.run", 0, &[]);
    check("user.create", 0, &[]);
    assert_eq!(limit("user", "memory"), (Some(128 << 20), "rlimit".to_owned()));
    assert_eq!(limit("user", "pids"), (Some(64), "rlimit".to_owned()));
    assert_eq!(limit("user", "cpu"), (Some(1000), "affinity".to_owned()));
    let weaker = document("user.get")["receipt"]["weaker"].to_string();
    assert!(weaker.contains("No control group can be used"), "{weaker}");
    assert_ne!(step("user.pause").status, 0, "pausing needs a group");
    check("user.create-half", 1, &["resourceLimits.cpu", "whole cores"]);
    assert_eq!(step("user.left").output.trim(), "");
}

#[test]
fn a_user_with_a_delegated_group_has_the_limits_of_root() {
    check("delegated.doctor", 0, &["v2: cpu memory pids", "sandboxes run here, as an ordinary user"]);
    check_whole_life("delegated");
    assert_eq!(document("delegated.get")["receipt"]["mode"], "user");
    let weaker = document("delegated.get")["receipt"]["weaker"].to_string();
    for gone in ["control group", "Memory is limited", "Processes are limited", "whole cores", "paused"] {
        assert!(!weaker.contains(gone), "{weaker}");
    }
}

#[test]
fn a_delegated_group_is_given_back_as_it_was() {
    for name in ["delegated.run-left", "delegated.left"] {
        assert_eq!(step(name).output.trim(), "/sys/fs/cgroup/delegated", "{name}");
    }
    assert_eq!(groups_of_sandboxes("delegated.groups"), Vec::<&str>::new());
    assert_eq!(step("delegated.controllers").output.trim(), "", "controllers are passed down no more");
}

#[test]
fn a_delegated_group_with_other_programs_is_left_alone() {
    check("shared.doctor", 0, &["(bash) is in /sys/fs/cgroup/delegated too"]);
}
