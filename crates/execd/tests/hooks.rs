//! Hooks: before the main process and by their schedules, as PID 1 and with flags.

mod support;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use protocol::execd::boot::{BootConfig, StatusLine};
use protocol::hooks::{Hook, Hooks, PeriodicHook};
use support::Daemon;
use support::pid1::{NOBODY, Sandbox, config};

fn words(command: &str) -> Vec<String> {
    ["sh", "-c", command].map(str::to_owned).to_vec()
}

fn with_pre_start(command: &str, timeout_seconds: u32, entrypoint: &[&str]) -> BootConfig {
    let hook = Hook { command: words(command), timeout_seconds: Some(timeout_seconds) };
    BootConfig { hooks: Hooks { pre_start: Some(hook), periodic: Vec::new() }, ..config(entrypoint) }
}

#[test]
fn the_hook_before_the_main_process_ends_before_it_begins() {
    let mut config = with_pre_start("echo hook as $(id -u) $FROM_BOOT ${EXECD_ENVS-hidden}", 10, &["echo", "main"]);
    config.user = Some(NOBODY);
    let mut sandbox = Sandbox::ready(&config);
    assert_eq!(sandbox.next_status(), Some(StatusLine::Exited(0)));
    assert_eq!(sandbox.console(), "hook as 65534 yes hidden\nmain\n");
}

#[test]
fn a_hook_that_fails_is_the_end_and_says_why() {
    for (command, seconds, word) in
        [("echo words; exit 3", 10, "exit code 3"), ("kill -9 $$", 10, "signal 9"), ("sleep 600", 1, "within 1 s")]
    {
        let mut sandbox = Sandbox::boot(&with_pre_start(command, seconds, &["echo", "main"]));
        let Some(StatusLine::HookFailed(why)) = sandbox.next_status() else { panic!("the failure is told") };
        assert!(why.contains("preStart") && why.contains(word), "{why}");
        assert_eq!(sandbox.next_status(), None, "nothing else is told");
        assert_eq!(sandbox.wait().code(), Some(1));
        assert!(!sandbox.console().contains("main"), "there is no main process");
    }
    let missing = Hook { command: vec!["/no/such/program".into()], timeout_seconds: None };
    let hooks = Hooks { pre_start: Some(missing), periodic: Vec::new() };
    let mut sandbox = Sandbox::boot(&BootConfig { hooks, ..config(&["true"]) });
    let Some(StatusLine::HookFailed(why)) = sandbox.next_status() else { panic!("the failure is told") };
    assert!(why.contains("/no/such/program"), "{why}");
}

#[test]
fn periodic_hooks_run_by_their_schedule_and_never_twice_at_once() {
    let hook = |name: &str, command: &str| PeriodicHook {
        name: name.into(),
        schedule: "@every 1s".into(),
        command: words(command),
        timeout_seconds: Some(60),
    };
    // The second is longer than its period; a start within a run would say so.
    let scratch = tempfile::tempdir().expect("a directory");
    let busy = scratch.path().join("busy").display().to_string();
    let slow = format!("mkdir {busy} || echo twice; sleep 1.5; rmdir {busy}; echo slow");
    let periodic = vec![hook("quick", "echo quick"), hook("slow", &slow)];
    let hooks = Hooks { pre_start: None, periodic };
    let mut sandbox = Sandbox::ready(&BootConfig { hooks, ..config(&["sleep", "600"]) });
    let mut lines = Vec::new();
    while lines.iter().filter(|line| *line == "slow").count() < 2 {
        lines.push(sandbox.console_line());
    }
    assert!(lines.iter().filter(|line| *line == "quick").count() >= 2, "{lines:?}");
    assert!(lines.iter().all(|line| line != "twice"), "{lines:?}");
}

#[test]
fn hooks_of_the_environment_run_once_the_api_answers_and_no_child_sees_them() {
    let scratch = tempfile::tempdir().expect("a directory");
    let made = scratch.path().join("made");
    let hooks = serde_json::json!({"preStart": {"command": ["touch", made]}});
    let daemon = Daemon::with(|command| {
        command.env("OPENSANDBOX_LIFECYCLE", hooks.to_string());
    });
    let begun = Instant::now();
    while !fs::exists(&made).expect("a look") {
        assert!(begun.elapsed() < Duration::from_secs(20), "the hook runs");
        std::thread::yield_now();
    }
    assert_eq!(daemon.shell("echo \"${OPENSANDBOX_LIFECYCLE-hidden}\"").stdout(), "hidden\n");
}

#[test]
fn hooks_that_cannot_be_read_or_that_fail_end_the_daemon() {
    for (hooks, word) in [
        ("{\"preStart\":{\"command\":[]}}", "preStart.command"),
        ("{\"preStop\":{}}", "preStop"),
        ("{\"preStart\":{\"command\":[\"false\"]}}", "exit code 1"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_execd"))
            .args(["--host", "127.0.0.1", "--port", "0"])
            .env("OPENSANDBOX_LIFECYCLE", hooks)
            .stdin(Stdio::null())
            .output()
            .expect("execd starts");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && told.contains(word), "{hooks}: {told}");
    }
}
