//! What stands around the programs, as the daemon tells it: what the kernel says, in every way of starting.

mod support;

use std::process::Command;

use serde_json::Value;
use support::pid1::{Sandbox, config};
use support::{Daemon, Target};

fn report(target: &Target) -> Value {
    let report = target.get("/v1/hardening").ok().json();
    let published = target.get("/v1/isolated/capabilities").ok().json()["hardening"].clone();
    for (name, value) in published.as_object().expect("the published layers") {
        assert_eq!(&report[name], value, "{name}");
    }
    assert_eq!(published.as_object().map(serde_json::Map::len), Some(6));
    report
}

#[test]
fn pid_1_is_told_as_such() {
    let sandbox = Sandbox::ready(&config(&["sleep", "600"]));
    let report = report(&sandbox.target());
    assert_eq!((&report["init_mode"], &report["signal_shield"]), (&"pid1".into(), &true.into()));
}

#[test]
fn the_reaper_of_orphans_is_told_as_such_and_a_plain_daemon_as_none() {
    let plain = Daemon::start();
    assert_eq!(report(&plain.target())["init_mode"], "none");
    let reaper = Daemon::with(|command| {
        command.args(["--init", "--", "sleep", "600"]);
    });
    let told = report(&reaper.target());
    assert_eq!((&told["init_mode"], &told["signal_shield"]), (&"subreaper".into(), &false.into()));
}

#[test]
fn what_is_taken_away_is_what_the_kernel_says() {
    let plain = Daemon::start();
    let mut command = Command::new("setpriv");
    command.args(["--no-new-privs", "--bounding-set=-all,+chown,+kill", "--", env!("CARGO_BIN_EXE_execd")]);
    let less = Daemon::wrapped(command, |_| {});
    let told = report(&less.target());
    assert_eq!(told["capabilities_bounding"], "0000000000000021");
    assert_eq!((&told["cap_drop"]["state"], &told["no_new_privs"]), (&"active".into(), &true.into()));
    let status = |daemon: &Daemon, name: &str| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("execd lives");
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        line.expect("the line is there").to_owned()
    };
    for daemon in [&plain, &less] {
        let told = report(&daemon.target());
        assert_eq!(told["capabilities_effective"], status(daemon, "CapEff"));
        assert_eq!(told["capabilities_bounding"], status(daemon, "CapBnd"));
        assert_eq!(told["seccomp_mode"].to_string(), status(daemon, "Seccomp"));
        assert_eq!(told["no_new_privs"], status(daemon, "NoNewPrivs") == "1");
        let filtered = if told["seccomp_mode"] == 2 { "active" } else { "disabled" };
        assert_eq!(told["seccomp"]["state"], filtered);
    }
}
