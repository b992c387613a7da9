//! DELETE and time limits end the whole tree, also what left the group and its parents.

mod support;

use std::time::{Duration, Instant};

use serde_json::json;
use support::commands::*;
use support::{Daemon, is_running};

/// Leaves the group, the parent and the environment behind, prints its pid and sleeps.
const DAEMON: &str = "env -i setsid sh -c 'sh -c \"echo \\$\\$; exec sleep 987\" &'";

fn wait_for_lines(daemon: &Daemon, id: &str, count: usize) -> Vec<i32> {
    let begun = Instant::now();
    loop {
        let text = logs(daemon, id, "").0;
        if text.lines().count() == count {
            return text.lines().map(pid_in).collect();
        }
        assert!(begun.elapsed() < SOON, "{text:?}");
    }
}

fn assert_gone(pids: &[i32], within: Duration) {
    let begun = Instant::now();
    while pids.iter().any(|pid| is_running(*pid)) {
        assert!(begun.elapsed() < within, "still there: {pids:?}");
        std::thread::yield_now();
    }
}

#[test]
fn attack_7_delete_finds_daemons() {
    let daemon = Daemon::start();
    let bystander = daemon.run(json!({"command": format!("{DAEMON}; sleep 987"), "background": true})).id();
    let others = wait_for_lines(&daemon, &bystander, 1);
    let id = daemon.run(json!({"command": format!("{DAEMON}; {DAEMON}; echo $$; sleep 987"), "background": true})).id();
    let pids = wait_for_lines(&daemon, &id, 3);
    daemon.delete(&format!("/command?id={id}")).ok();
    assert_gone(&pids, Duration::ZERO);
    assert!(others.iter().all(|pid| is_running(*pid)), "those of another command are untouched");
    daemon.delete(&format!("/command?id={bystander}")).ok();
    assert_gone(&others, Duration::ZERO);
}

#[test]
fn os_041_a_timeout_finds_daemons() {
    let daemon = Daemon::start();
    let id = daemon.run(json!({"command": format!("{DAEMON}; sleep 987"), "background": true, "timeout": 400})).id();
    let pids = wait_for_lines(&daemon, &id, 1);
    assert_eq!(wait_until_finished(&daemon, &id)["exit_code"], -1);
    assert_gone(&pids, Duration::from_secs(5));
}

#[test]
fn daemons_that_ignore_term_are_killed() {
    let daemon = Daemon::start();
    let stubborn = "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 987; done' & sleep 987";
    let id = daemon.run(json!({"command": stubborn, "background": true})).id();
    let pids = wait_for_lines(&daemon, &id, 1);
    let begun = Instant::now();
    daemon.delete(&format!("/command?id={id}")).ok();
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_gone(&pids, Duration::ZERO);
}

#[test]
fn a_daemon_outlives_a_command_that_ends_by_itself() {
    let daemon = Daemon::start();
    // It tells its number by a file: what it writes after the command's end need not be in the command's stream.
    let file = daemon.path("pid");
    let start = format!("env -i setsid sh -c 'sh -c \"echo \\$\\$ >{file}; exec sleep 987\" >/dev/null 2>&1 &'");
    let run = daemon.shell(&format!("{start}; until [ -s {file} ]; do sleep 0.01; done; cat {file}"));
    let pid = pid_in(&run.stdout());
    assert_eq!(run.end(), "0");
    assert!(is_running(pid));
    daemon.delete(&format!("/command?id={}", run.id())).refuses(400, "RUNTIME_ERROR", "already ended");
    assert!(is_running(pid), "nothing was signalled");
    support::end(pid);
}

#[test]
fn deleting_a_session_finds_daemons() {
    let daemon = Daemon::start();
    let session = daemon.post("/session", &json!({})).ok().json()["session_id"].clone();
    let session = session.as_str().expect("an id");
    let mut connection = daemon.connect();
    let body = json!({"command": format!("{DAEMON}; sleep 987")}).to_string();
    connection.send("POST", &format!("/session/{session}/run"), &[], body.as_bytes());
    connection.head();
    let pid = loop {
        let run = support::Run::parse(&connection.chunk().expect("events"));
        if !run.stdout().is_empty() {
            break pid_in(&run.stdout());
        }
    };
    daemon.delete(&format!("/session/{session}")).ok();
    assert_gone(&[pid], Duration::ZERO);
}
