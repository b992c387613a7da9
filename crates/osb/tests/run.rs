//! `osb run`: exit codes, output, signals, and that nothing is left.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::Server;

#[test]
fn the_exit_code_is_the_commands_own_and_the_sandbox_is_gone() {
    let server = Server::start();
    for code in [0, 1, 3, 125, 255] {
        let ran = server.run(&["run", "--", "sh", "-c", &format!("echo out; echo err >&2; exit {code}")]);
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(code), "out\n", "err\n"));
        assert_eq!(server.ids(), Vec::<String>::new());
    }
}

#[test]
fn an_end_by_a_signal_is_128_more() {
    let server = Server::start();
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("SEGV", 139)] {
        let ran = server.run(&["run", "--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.stderr.contains("signal"), "{ran:?}");
    }
}

#[test]
fn a_program_that_is_not_there_is_127() {
    let server = Server::start();
    let ran = server.run(&["run", "--", "/nonexistent/program"]);
    assert_eq!(ran.code, Some(127), "{ran:?}");
    let ran = server.run(&["run", "--", "/etc/passwd"]);
    assert_eq!(ran.code, Some(126), "{ran:?}");
}

#[test]
fn what_could_not_be_run_is_125_and_leaves_nothing() {
    let server = Server::start();
    let ran = server.run(&["run", "--image", "refused", "--", "true"]);
    assert_eq!(ran.code, Some(125));
    assert!(ran.stderr.contains("image.uri: refused") && ran.stderr.contains("request-1"), "{ran:?}");
    let ran = server.run(&["run", "--cwd", "/nonexistent", "--", "true"]);
    assert_eq!(ran.code, Some(125), "{ran:?}");
    assert_eq!(server.ids(), Vec::<String>::new());
}

#[test]
fn every_flag_reaches_the_server() {
    let server = Server::start();
    let words = "run --image alpine -e A=1 -e B=x=y --memory 64Mi --cpu 0.5 --disk 1Gi --pids 9 -m team=blue --name n --allow a.test:443 --allow *.b.test --";
    let words: Vec<_> = words.split(' ').chain(["true"]).collect();
    assert_eq!(server.run(&words).code, Some(0));
    let body: Value = serde_json::from_str(&server.bodies("POST", "/v1/sandboxes")[0]).expect("JSON");
    let rules = serde_json::json!([
        { "action": "allow", "target": "a.test", "ports": [443] },
        { "action": "allow", "target": "*.b.test" },
    ]);
    assert_eq!(body["networkPolicy"], serde_json::json!({ "defaultAction": "deny", "egress": rules }));
    assert_eq!(body["image"]["uri"], "alpine");
    assert_eq!(body["env"], serde_json::json!({ "A": "1", "B": "x=y" }));
    let limits = serde_json::json!({ "memory": "64Mi", "cpu": "0.5", "disk": "1Gi", "pids": "9" });
    assert_eq!(body["resourceLimits"], limits);
    assert_eq!(body["metadata"], serde_json::json!({ "team": "blue", "name": "n" }));
}

#[test]
fn the_time_limit_ends_the_command() {
    let server = Server::start();
    let ran = server.run(&["run", "--timeout", "200ms", "--", "sleep", "1000"]);
    assert_eq!(ran.code, Some(137), "{ran:?}");
}

#[test]
fn output_is_complete_and_in_order() {
    let server = Server::start();
    let ran = server.run(&["run", "--", "seq", "1", "200000"]);
    let expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    assert!(ran.stdout == expected, "{} of {} bytes", ran.stdout.len(), expected.len());
}

#[test]
fn json_carries_output_and_exit_code() {
    let server = Server::start();
    let ran = server.run(&["run", "-o", "json", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(ran.code, Some(7));
    let value = ran.json();
    assert_eq!(
        (&value["stdout"], &value["stderr"], &value["exit_code"]),
        (&"out\n".into(), &"err\n".into(), &7.into())
    );
}

#[test]
fn kept_means_kept() {
    let server = Server::start();
    assert_eq!(server.run(&["run", "--keep", "--", "true"]).code, Some(0));
    assert_eq!(server.ids().len(), 1);
}

/// Starts `osb run` with a command that tells its process id and waits; returns when it runs.
fn start_waiting(server: &Server) -> (Child, i32) {
    let mut command = server.osb(&["run", "--", "sh", "-c", "echo $$; exec sleep 1000"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("is piped")).read_line(&mut line).expect("it tells");
    (child, line.trim().parse().expect("a process id"))
}

fn exists(pid: i32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !(state.is_empty() || state.contains(") Z "))
}

#[test]
fn a_signal_ends_command_and_sandbox() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let server = Server::start();
        let (mut child, remote) = start_waiting(&server);
        kill_process(Pid::from_child(&child), signal).expect("is ours");
        let status = child.wait().expect("ends");
        assert_eq!(status.code(), Some(code));
        assert_eq!(server.ids(), Vec::<String>::new());
        assert!(!exists(remote), "the command still runs");
    }
}

#[test]
fn a_reader_that_goes_away_ends_command_and_sandbox() {
    let server = Server::start();
    let mut command = server.osb(&["run", "--", "sh", "-c", "echo $$; exec yes"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("is piped"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("it tells");
    drop(stdout);
    let status = child.wait().expect("ends");
    let mut stderr = String::new();
    child.stderr.take().expect("is piped").read_to_string(&mut stderr).expect("text");
    assert_eq!(status.code(), Some(141), "{stderr}");
    assert_eq!(server.ids(), Vec::<String>::new());
    assert!(!exists(line.trim().parse().expect("a process id")), "the command still runs");
}

#[test]
fn a_create_that_fails_later_tells_its_cause_and_leaves_nothing() {
    let server = Server::start();
    server.memory.lock().expect("nobody panicked").look_ups = vec![
        (
            axum::http::StatusCode::NOT_FOUND,
            serde_json::json!({ "code": "KUBERNETES::POD_IP_NOT_AVAILABLE", "message": "downloading 1 of 2 MB" }),
        ),
        (
            axum::http::StatusCode::INTERNAL_SERVER_ERROR,
            serde_json::json!({ "code": "SANDBOX::SANDBOX_IMAGE_PULL_FAILED", "message": "manifest unknown" }),
        ),
    ];
    let ran = server.run(&["run", "-o", "json", "--", "true"]);
    assert_eq!(ran.code, Some(125));
    assert_eq!(ran.error()["error"]["code"], "SANDBOX::SANDBOX_IMAGE_PULL_FAILED");
    assert_eq!(ran.error()["error"]["message"], "manifest unknown");
    assert_eq!(server.ids(), Vec::<String>::new());
}
