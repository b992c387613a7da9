//! The ends of commands: timeout, DELETE, disconnect; whole groups, and never another's.

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::commands::*;
use support::{Connection, Daemon, Run, is_running};

const PIPELINE: &str = "sleep 987 & echo $!; sleep 987 | cat; wait";

/// The pids of a group whose leader's first words are the pid of a background child.
fn group_of(pid: i32) -> Vec<i32> {
    let stat = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let group =
        |stat: &str| stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().nth(2)?.parse::<i32>().ok());
    let wanted = stat(&pid.to_string()).and_then(|stat| group(&stat)).expect("the child lives");
    let pids = std::fs::read_dir("/proc")
        .expect("proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| stat(&pid.to_string()).and_then(|stat| group(&stat)) == Some(wanted)).collect()
}

/// Starts the pipeline and returns its connection, id and group once all of it runs.
fn start_pipeline(daemon: &Daemon, body: Value, headers: &[(&str, &str)]) -> (Connection, String, Vec<i32>) {
    let mut connection = daemon.connect();
    connection.send("POST", "/command", headers, body.to_string().as_bytes());
    assert_eq!(connection.head().status, 200);
    let (mut id, mut pid) = (None, None);
    while pid.is_none() {
        for event in Run::parse(&connection.chunk().expect("events")).events {
            match event["type"].as_str() {
                Some("init") => id = event["text"].as_str().map(str::to_owned),
                Some("stdout") => pid = event["text"].as_str().map(pid_in),
                _ => {}
            }
        }
    }
    let begun = Instant::now();
    loop {
        let group = group_of(pid.expect("a pid"));
        if group.len() >= 4 {
            return (connection, id.expect("an id"), group);
        }
        assert!(begun.elapsed() < SOON, "bash, two sleeps and cat: {group:?}");
    }
}

fn assert_gone(group: &[i32], within: Duration) {
    let begun = Instant::now();
    while group.iter().any(|pid| is_running(*pid)) {
        assert!(begun.elapsed() < within, "still there: {group:?}");
        std::thread::yield_now();
    }
}

fn rest_of(mut connection: Connection) -> Run {
    let mut body = Vec::new();
    while let Some(chunk) = connection.chunk() {
        body.extend_from_slice(&chunk);
    }
    Run::parse(&body)
}

#[test]
fn os_041_a_timeout_ends_the_whole_group() {
    let daemon = Daemon::start();
    let (connection, id, group) = start_pipeline(&daemon, json!({"command": PIPELINE, "timeout": 1500}), &[]);
    let run = rest_of(connection);
    assert_eq!(run.end(), "-1");
    let traceback = &run.events.last().expect("events")["error"]["traceback"];
    assert_eq!(traceback[0], "signal: killed");
    assert!(traceback[1].as_str().is_some_and(|text| text.contains("1500")), "{traceback}");
    assert_gone(&group, Duration::from_secs(5));
    assert_eq!(status(&daemon, &id)["exit_code"], -1);
}

#[test]
fn os_041_delete_ends_the_whole_group_and_a_second_one_signals_nothing() {
    let daemon = Daemon::start();
    let (_other, _, bystanders) = start_pipeline(&daemon, json!({"command": PIPELINE}), &[]);
    let (connection, id, group) = start_pipeline(&daemon, json!({"command": PIPELINE}), &[]);
    daemon.delete(&format!("/command?id={id}")).ok();
    assert_gone(&group, Duration::ZERO);
    let run = rest_of(connection);
    assert_eq!(run.end(), "-1");
    assert_eq!(run.events.last().expect("events")["error"]["traceback"][0], "signal: terminated");
    daemon.delete(&format!("/command?id={id}")).refuses(400, "RUNTIME_ERROR", "already ended");
    assert!(bystanders.iter().all(|pid| is_running(*pid)), "unrelated commands are untouched");
}

#[test]
fn os_041_members_that_ignore_term_are_killed_after_the_leader() {
    let daemon = Daemon::start();
    let stubborn = "bash -c 'trap \"\" TERM; echo $$; while :; do sleep 987; done' & wait";
    let mut connection = daemon.connect();
    connection.send("POST", "/command", &[], json!({ "command": stubborn }).to_string().as_bytes());
    connection.head();
    let mut seen = Vec::new();
    let pid = loop {
        seen.extend_from_slice(&connection.chunk().expect("events"));
        let run = Run::parse(&seen);
        if !run.stdout().is_empty() {
            break (pid_in(&run.stdout()), run.id());
        }
    };
    let group = group_of(pid.0);
    let begun = Instant::now();
    daemon.delete(&format!("/command?id={}", pid.1)).ok();
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_gone(&group, SOON);
}

#[test]
fn os_041_a_dropped_connection_ends_the_group_when_asked_to() {
    let daemon = Daemon::start();
    let (connection, _, group) =
        start_pipeline(&daemon, json!({"command": PIPELINE}), &[("OpenSandbox-On-Disconnect", "cancel")]);
    drop(connection);
    assert_gone(&group, Duration::from_secs(5));
}

#[test]
fn os_041_a_dropped_connection_leaves_the_command_alone_by_default() {
    let daemon = Daemon::start();
    let (go, done) = (Fifo::new(&daemon, "go"), Fifo::new(&daemon, "done"));
    let command = format!("echo begun; read x < {}; seq 100000; seq 100000 >&2; echo finished > {}", go.0, done.0);
    let mut connection = daemon.connect();
    connection.send("POST", "/command", &[], json!({ "command": command }).to_string().as_bytes());
    connection.head();
    drop(connection);
    std::fs::write(&go.0, "x\n").expect("the command waits");
    assert_eq!(done.read(), "finished\n");
}

#[test]
fn an_unknown_way_to_treat_a_disconnect_is_refused() {
    let response = Daemon::start().connect().request(
        "POST",
        "/command",
        &[("OpenSandbox-On-Disconnect", "explode")],
        br#"{"command":"true"}"#,
    );
    response.refuses(400, "INVALID_REQUEST_BODY", "explode");
}

#[test]
fn os_042_finished_and_unknown_ids_are_reported_and_signal_nothing() {
    let daemon = Daemon::start();
    let id = daemon.shell("true").id();
    daemon.delete(&format!("/command?id={id}")).refuses(400, "RUNTIME_ERROR", "already ended with exit code 0");
    daemon.delete("/command?id=nope").refuses(400, "CONTEXT_NOT_FOUND", "nope");
    daemon.delete("/command").refuses(400, "MISSING_QUERY", "id");
}

#[test]
fn os_043_an_id_is_known_from_the_moment_it_is_visible() {
    let daemon = Daemon::start();
    for round in 0..60 {
        let background = round % 2 == 0;
        let mut connection = daemon.connect();
        connection.send(
            "POST",
            "/command",
            &[],
            json!({"command": "sleep 987", "background": background}).to_string().as_bytes(),
        );
        connection.head();
        let run = Run::parse(&connection.chunk().expect("the first events"));
        let id = run.id();
        assert_eq!(status(&daemon, &id)["running"], true);
        if background {
            assert_eq!(logs(&daemon, &id, "").0, "");
            assert_eq!(connection.chunk(), None, "the stream ends without the command");
        }
        daemon.delete(&format!("/command?id={id}")).ok();
        assert_eq!(status(&daemon, &id)["exit_code"], -1);
    }
}

#[test]
fn a_background_command_obeys_its_timeout() {
    let daemon = Daemon::start();
    let id = daemon.run(json!({"command": "sleep 987", "background": true, "timeout": 100})).id();
    let status = wait_until_finished(&daemon, &id);
    assert_eq!(status["exit_code"], -1);
    assert!(status["error"].as_str().is_some_and(|error| error.contains("100 ms")), "{status}");
}
