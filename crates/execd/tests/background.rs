//! Commands in the background: status, logs, starts that fail.

mod support;

use std::time::{Duration, Instant};

use serde_json::json;
use support::Daemon;
use support::commands::*;

#[test]
fn ex_037_the_cursor_is_monotonic() {
    let daemon = Daemon::start();
    let (go, done) = (Fifo::new(&daemon, "go"), Fifo::new(&daemon, "done"));
    let command =
        format!("printf 'one\\nha'; printf '\\303'; echo x > {}; read x < {}; printf '\\244lf\\n'", done.0, go.0);
    let id = daemon.run(json!({"command": command, "background": true})).id();
    done.read();
    // The begun character waits; with complete_lines the begun line does, too.
    assert_eq!(logs(&daemon, &id, ""), ("one\nha".into(), 6));
    assert_eq!(logs(&daemon, &id, "complete_lines=true"), ("one\n".into(), 4));
    assert_eq!(logs(&daemon, &id, "cursor=4&complete_lines=true"), (String::new(), 4));
    assert_eq!(logs(&daemon, &id, "cursor=6"), (String::new(), 6));
    assert_eq!(logs(&daemon, &id, "cursor=1000"), (String::new(), 1000));
    assert_eq!(logs(&daemon, &id, "cursor=x").1, 6);
    daemon.get(&format!("/command/{id}/logs?cursor=-1")).refuses(400, "INVALID_REQUEST_BODY", "cursor");
    std::fs::write(&go.0, "x\n").expect("the command waits");
    wait_until_finished(&daemon, &id);
    assert_eq!(logs(&daemon, &id, "cursor=4"), ("haälf\n".into(), 11));
    daemon.get("/command/nope/logs").refuses(400, "INVALID_REQUEST_BODY", "nope");
    let foreground = daemon.shell("true").id();
    daemon.get(&format!("/command/{foreground}/logs")).refuses(400, "INVALID_REQUEST_BODY", "foreground");
}

#[test]
fn a_background_command_answers_at_once_and_keeps_its_output() {
    let daemon = Daemon::start();
    let run = daemon.run(json!({"command": "echo a; echo b >&2; exit 5", "background": true}));
    assert_eq!(run.end(), "0");
    let status = wait_until_finished(&daemon, &run.id());
    assert_eq!((&status["exit_code"], &status["error"]), (&json!(5), &json!("exit status 5")));
    assert_eq!(status["content"], "echo a; echo b >&2; exit 5");
    assert!(status["started_at"].is_string() && status["finished_at"].is_string());
    assert_eq!(logs(&daemon, &run.id(), "").0, "a\nb\n");
    daemon.get("/command/status/nope").refuses(404, "INVALID_REQUEST_BODY", "nope");
    let argv = daemon.run(json!({"argv": ["true", "x"]}));
    assert_eq!(daemon.get(&format!("/command/status/{}", argv.id())).json()["content"], r#"["true","x"]"#);
}

#[test]
fn os_044_background_input_is_null_and_tracking_outlives_the_connection() {
    let daemon = Daemon::start();
    let id = daemon.run(json!({"command": "cat; echo rc=$?", "background": true})).id();
    wait_until_finished(&daemon, &id);
    assert_eq!(logs(&daemon, &id, "").0, "rc=0\n");
    let id = daemon.run(json!({"command": "sleep 0.3; echo late", "background": true})).id();
    assert_eq!(wait_until_finished(&daemon, &id)["exit_code"], 0);
    assert_eq!(logs(&daemon, &id, "").0, "late\n");
}

#[test]
fn os_045_failed_starts_leave_nothing() {
    let daemon = Daemon::start();
    let fail = || {
        assert_ne!(daemon.run(json!({"argv": ["/no/such/program"]})).end(), "0");
        let background = daemon.run(json!({"argv": ["/etc/passwd"], "background": true}));
        assert_ne!(background.end(), "0");
        background.id()
    };
    fail();
    let tasks = || std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("execd lives").count();
    let before = (daemon.descriptors(), tasks());
    let mut last = String::new();
    for _ in 0..500 {
        last = fail();
    }
    // The last connection and its run are let go of after their answer.
    let begun = Instant::now();
    loop {
        let after = (daemon.descriptors(), tasks());
        if after.0 <= before.0 && after.1 <= before.1 {
            break;
        }
        assert!(begun.elapsed() < SOON, "{before:?} descriptors and threads before, {after:?} after");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(status(&daemon, &last)["exit_code"], 255);
    daemon.get(&format!("/command/{last}/logs")).refuses(400, "INVALID_REQUEST_BODY", "not started");
    assert!(!std::path::Path::new(&format!("/tmp/opensandbox-execd/{last}.output")).exists());
    assert_eq!(daemon.shell("echo fine").stdout(), "fine\n");
}
