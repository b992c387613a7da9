//! Hooks: before the main process, by their schedules and when they are asked for, as PID 1 and with flags.

mod support;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use protocol::execd::boot::{BootConfig, StatusLine};
use protocol::hooks::{Hook, Hooks, OnFailure, PauseHook, PeriodicHook};
use serde_json::json;
use support::pid1::{NOBODY, Sandbox, config};
use support::{Daemon, Target};

fn words(command: &str) -> Vec<String> {
    ["sh", "-c", command].map(str::to_owned).to_vec()
}

fn with_pre_start(command: &str, timeout_seconds: u32, entrypoint: &[&str]) -> BootConfig {
    let hook = Hook { command: words(command), timeout_seconds: Some(timeout_seconds) };
    BootConfig { hooks: Hooks { pre_start: Some(hook), ..Hooks::default() }, ..config(entrypoint) }
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
    let hooks = Hooks { pre_start: Some(missing), ..Hooks::default() };
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
    let hooks = Hooks { periodic, ..Hooks::default() };
    let mut sandbox = Sandbox::ready(&BootConfig { hooks, ..config(&["sleep", "600"]) });
    let mut lines = Vec::new();
    while lines.iter().filter(|line| *line == "slow").count() < 2 {
        lines.push(sandbox.console_line());
    }
    assert!(lines.iter().filter(|line| *line == "quick").count() >= 2, "{lines:?}");
    assert!(lines.iter().all(|line| line != "twice"), "{lines:?}");
}

#[test]
fn a_hook_of_a_moment_runs_when_it_is_asked_for_and_tells_how_it_went() {
    let hook = |command: &str| Some(Hook { command: words(command), timeout_seconds: Some(1) });
    let before_pause = PauseHook {
        command: words("echo paused as $(id -u) $FROM_BOOT ${EXECD_ENVS-hidden}"),
        timeout_seconds: None,
        on_failure: Some(OnFailure::Refuse),
    };
    let hooks = Hooks {
        before_pause: Some(before_pause),
        after_resume: hook("exit 3"),
        before_end: hook("sleep 600"),
        ..Hooks::default()
    };
    let mut sandbox = Sandbox::ready(&BootConfig { hooks, user: Some(NOBODY), ..config(&["sleep", "600"]) });
    let ask = |name: &str| sandbox.target().post(&format!("/v1/hooks/{name}"), &json!({}));
    let (good, failed, late) = (ask("beforePause"), ask("afterResume"), ask("beforeEnd"));
    assert_eq!((good.status, &good.json()["succeeded"]), (200, &json!(true)), "{}", good.text());
    for (answer, word) in [(failed, "exit code 3"), (late, "within 1 s")] {
        assert_eq!((answer.status, &answer.json()["succeeded"]), (200, &json!(false)));
        assert!(answer.text().contains(word), "{}", answer.text());
    }
    for name in ["preStart", "preStop", ""] {
        assert_eq!(ask(name).status, 404, "{name}");
    }
    assert_eq!(sandbox.target().get("/v1/hooks/beforePause").status, 404);
    let Target::Unix(path, _) = sandbox.target() else { panic!("a unix socket") };
    assert_eq!(Target::Unix(path, None).post("/v1/hooks/beforePause", &json!({})).status, 401);
    assert_eq!(sandbox.console_line(), "paused as 65534 yes hidden");
}

#[test]
fn a_hook_ends_with_whoever_asked_for_it() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mine = scratch.path().join("pid").display().to_string();
    let hook = Hook { command: words(&format!("echo $$ > {mine}; exec sleep 600")), timeout_seconds: Some(15) };
    let hooks = Hooks { before_end: Some(hook), ..Hooks::default() };
    let daemon = Daemon::with(|command| {
        command.env("OPENSANDBOX_LIFECYCLE", serde_json::to_string(&hooks).expect("JSON"));
    });
    let mut connection = daemon.connect();
    connection.send("POST", "/v1/hooks/beforeEnd", &[], b"");
    let pid: i32 = eventually("the hook has begun", || fs::read_to_string(&mine).ok()?.trim().parse().ok());
    drop(connection);
    let process = format!("/proc/{pid}");
    eventually("the hook is gone", || (!fs::exists(&process).expect("a look")).then_some(()));
}

/// What `look` finds at last.
fn eventually<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn the_start_is_reported_to_a_file_in_the_published_form() {
    let scratch = tempfile::tempdir().expect("a directory");
    let report = scratch.path().join("status");
    for (hook, ending, told) in [
        (json!({"preStart": {"command": ["true"], "timeoutSeconds": 7}}), Some(0), "running 7\ndone 0\n"),
        (json!({"preStart": {"command": ["false"]}}), Some(1), "running 60\ndone 1\n"),
        (json!({}), Some(0), "done 0\n"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_execd"))
            .args(["--host", "127.0.0.1", "--port", "0", "--lifecycle-startup-status-file"])
            .arg(&report)
            .args(["--init", "--", "true"])
            .env("OPENSANDBOX_LIFECYCLE", hook.to_string())
            .stdin(Stdio::null())
            .output()
            .expect("execd starts");
        assert_eq!(output.status.code(), ending, "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read_to_string(&report).expect("a report"), told);
        fs::remove_file(&report).expect("removed");
    }
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
