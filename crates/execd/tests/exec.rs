//! Commands in the foreground: the stream's format and what the rows of area exec ask of it.

mod support;

use std::time::{Duration, Instant};

use serde_json::json;
use support::commands::*;
use support::{Daemon, Run, end, is_running};

#[test]
fn a_stream_has_the_published_form() {
    let daemon = Daemon::start();
    let response = daemon.post("/command", &json!({"command": "echo out; echo err >&2; exit 3"}));
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    assert_eq!(response.header("cache-control"), Some("no-cache"));
    assert_eq!(response.header("x-accel-buffering"), Some("no"));
    assert!(!response.text().contains("data:"));
    let run = Run::parse(&response.body);
    let id = run.id();
    assert!(id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{id}");
    assert_eq!((run.events[1]["type"].as_str(), run.events[1]["text"].as_str()), (Some("ping"), Some("pong")));
    assert_eq!((run.stdout().as_str(), run.stderr().as_str()), ("out\n", "err\n"));
    assert_eq!(run.end(), "3");
    let error = &run.events.last().expect("events")["error"];
    assert_eq!(*error, json!({"ename": "CommandExecError", "evalue": "3", "traceback": ["exit status 3"]}));
}

#[test]
fn success_completes_and_every_line_is_an_event() {
    let run = Daemon::start().shell("printf 'a\\n\\nb\\r\\nc\\rd'");
    let lines: Vec<&str> = run
        .events
        .iter()
        .filter(|event| event["type"] == "stdout")
        .filter_map(|event| event["text"].as_str())
        .collect();
    assert_eq!(lines, ["a\n", "\n", "b\r\n", "c\r", "d"]);
    assert_eq!(run.events.last().expect("events")["type"], "execution_complete");
}

#[test]
fn argv_runs_without_a_shell() {
    let daemon = Daemon::start();
    let run = daemon.run(json!({"argv": ["printf", "[%s]", "a b", "$HOME", "-x", "'\""]}));
    assert_eq!(run.stdout(), "[a b][$HOME][-x]['\"]");
    // Written by the daemon's child: what this process holds open for writing, a child of another test may hold.
    let make = format!("printf '#!/bin/sh\\necho tool\\n' > {0}; chmod +x {0}", daemon.path("tool"));
    assert_eq!(daemon.shell(&make).end(), "0");
    let relative = daemon.run(json!({"argv": ["./tool"], "cwd": daemon.path("")}));
    assert_eq!(relative.stdout(), "tool\n");
    let by_path = daemon.run(json!({"argv": ["tool"], "envs": {"PATH": format!("relative:{}", daemon.path(""))}}));
    assert_eq!(by_path.stdout(), "tool\n");
}

#[test]
fn requests_that_cannot_be_obeyed_are_refused_by_field() {
    let daemon = Daemon::start();
    let cases = [
        (json!({}), "command"),
        (json!({"command": ""}), "command"),
        (json!({"command": "a", "argv": ["a"]}), "argv"),
        (json!({"argv": []}), "argv"),
        (json!({"argv": [""]}), "argv"),
        (json!({"argv": ["a\u{0}b"]}), "argv"),
        (json!({"command": "a", "timeout": -1}), "timeout"),
        (json!({"command": "a", "gid": 1}), "gid"),
        (json!({"command": "a", "uid": -1}), "uid"),
        (json!({"command": "a", "uid": 4294967295u32}), "uid"),
        (json!({"command": "a", "cwd": "/etc/passwd"}), "/etc/passwd"),
        (json!({"command": "a", "cwd": "$NO_SUCH_NAME"}), "NO_SUCH_NAME"),
        (json!({"command": "a", "envs": {"A=B": "c"}}), "A=B"),
        (json!({"command": 5}), "JSON"),
    ];
    for (body, word) in cases {
        daemon.post("/command", &body).refuses(400, "INVALID_REQUEST_BODY", word);
    }
    let mut connection = daemon.connect();
    connection.request("POST", "/command", &[], b"").refuses(400, "INVALID_REQUEST_BODY", "empty");
    connection.request("POST", "/command", &[], b"{").refuses(400, "INVALID_REQUEST_BODY", "JSON");
    let trailing = br#"{"command":"true","unknown":1,"cwd":null,"argv":null} trailing"#;
    assert_eq!(Run::parse(&connection.request("POST", "/command", &[], trailing).body).end(), "0");
}

#[test]
fn ex_002_standard_input_is_at_its_end() {
    let run = Daemon::start().shell("cat; read x || echo got; echo end");
    assert_eq!((run.stdout().as_str(), run.end().as_str()), ("got\nend\n", "0"));
}

#[test]
fn ex_002_stream_ends_with_the_commands_own_process() {
    let daemon = Daemon::start();
    for (command, code) in [
        ("sleep 300 & echo $!", "0"),
        ("(sleep 300 & echo $!); exit 4", "4"),
        ("nohup sleep 300 2>/dev/null & echo $!", "0"),
    ] {
        let begun = Instant::now();
        let run = daemon.shell(command);
        assert!(begun.elapsed() < SOON, "{command} held the stream for {:?}", begun.elapsed());
        assert_eq!(run.end(), code, "{command}");
        let pid = pid_in(&run.stdout());
        assert!(is_running(pid), "{command}: the background child lives on");
        end(pid);
    }
}

#[test]
fn ex_002_a_child_that_writes_later_lives_on() {
    let daemon = Daemon::start();
    let (go, done) = (Fifo::new(&daemon, "go"), Fifo::new(&daemon, "done"));
    let late = format!("(read x < {}; echo late; echo late >&2; echo alive > {}) & echo now", go.0, done.0);
    assert_eq!(daemon.shell(&late).stdout(), "now\n");
    std::fs::write(&go.0, "x\n").expect("the child waits");
    assert_eq!(done.read(), "alive\n");
}

#[test]
fn ex_002_last_words_of_a_process_substitution_arrive() {
    assert_eq!(Daemon::start().shell("echo a > >(cat)").stdout(), "a\n");
}

#[test]
fn ex_008_byte_counts_are_exact() {
    let daemon = Daemon::start();
    let one_write = daemon.shell("python3 -c 'import sys; sys.stdout.write(\"x\" * (16 << 20))'");
    assert_eq!(one_write.stdout().len(), 16 << 20);
    let lines = daemon.shell("seq 300000");
    let expected: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    assert!(lines.stdout() == expected, "300000 lines in order");
    let both = daemon.shell("seq 100000 & seq 100000 >&2; wait");
    let expected: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    assert!(both.stdout() == expected && both.stderr() == expected, "both streams in order");
}

/// Bytes that a stream may cost the daemon, whatever runs through it.
const STREAM_MEMORY_KIB: u64 = 12 * 1024;

#[test]
fn ex_008_a_slow_reader_slows_the_process() {
    let daemon = Daemon::start();
    let before = daemon.status_kib("VmRSS");
    let mut connection = daemon.connect();
    let command = format!("yes {} | head -c 200000000; echo done > {}", "x".repeat(99), daemon.path("finished"));
    connection.send("POST", "/command", &[], json!({"command": command}).to_string().as_bytes());
    let head = connection.head();
    // Other requests, each with a process of its own, give the command all the time that it wants.
    for _ in 0..50 {
        assert_eq!(daemon.shell("true").end(), "0");
    }
    assert!(!std::path::Path::new(&daemon.path("finished")).exists(), "the process waits for its reader");
    let mut body = Vec::new();
    let mut bytes = 0usize;
    connection
        .each_piece(&head, |piece| {
            body.extend_from_slice(piece);
            let whole = body.windows(2).rposition(|pair| pair == b"\n\n").map_or(0, |at| at + 2);
            bytes += Run::parse(&body[..whole]).stdout().len();
            body.drain(..whole);
        })
        .expect("a whole stream");
    assert_eq!(bytes, 200_000_000);
    let grown = daemon.status_kib("VmHWM") - before;
    assert!(grown < STREAM_MEMORY_KIB, "memory grew by {grown} KiB");
}

#[test]
fn attack_6_a_line_without_an_end_is_bounded() {
    let daemon = Daemon::start();
    let before = daemon.status_kib("VmRSS");
    let mut connection = daemon.connect();
    connection.send("POST", "/command", &[], br#"{"command":"head -c 300000000 /dev/zero | tr '\\0' x"}"#);
    let head = connection.head();
    let mut x = 0usize;
    connection
        .each_piece(&head, |piece| x += piece.iter().filter(|byte| **byte == b'x').count())
        .expect("a whole stream");
    // The keys of the events hold some more of the letter: "text" has one.
    assert!(x > 300_000_000 && x < 300_100_000, "{x}");
    let grown = daemon.status_kib("VmHWM") - before;
    assert!(grown < STREAM_MEMORY_KIB, "memory grew by {grown} KiB");
}

#[test]
fn ex_009_fifty_parallel_commands_all_end_and_ping_answers_under_load() {
    let daemon = Daemon::start();
    std::thread::scope(|scope| {
        let commands: Vec<_> = (0..50)
            .map(|number| {
                let daemon = &daemon;
                scope.spawn(move || daemon.shell(&format!("for i in $(seq 2000); do :; done; echo {number}")).stdout())
            })
            .collect();
        let begun = Instant::now();
        daemon.get("/ping").ok();
        assert!(begun.elapsed() < SOON, "ping took {:?}", begun.elapsed());
        for (number, command) in commands.into_iter().enumerate() {
            assert_eq!(command.join().expect("a command"), format!("{number}\n"));
        }
    });
}

#[test]
fn ex_025_the_shell_speaks_for_itself() {
    let daemon = Daemon::start();
    let script = "shopt -s extglob\ncd /etc\necho !(*[!p]*|x) >/dev/null\ndiff <(echo a) <(echo a) && awk 'BEGIN { while ((\"echo b\" | getline x) > 0) print x }'";
    assert_eq!(daemon.shell(script).stdout(), "b\n");
    let wrong = daemon.shell("if then (");
    assert_eq!(wrong.end(), "2");
    assert!(wrong.stderr().contains("syntax error"), "{}", wrong.stderr());
}

#[test]
fn os_052_a_hundred_dropped_clients_cost_nothing() {
    let daemon = Daemon::start();
    daemon.shell("true");
    let before = daemon.descriptors();
    for _ in 0..100 {
        let mut connection = daemon.connect();
        connection.send("POST", "/command", &[], br#"{"command":"head -c 1000000 /dev/zero; sleep 0.2"}"#);
        connection.head();
    }
    let begun = Instant::now();
    // The output of each can be read again, through one descriptor; its pipes and connection are gone.
    while daemon.descriptors() > before + 100 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} descriptors, {before} before", daemon.descriptors());
        assert_eq!(daemon.shell("true").end(), "0");
    }
    // Keep-alives would come every three seconds: over a longer time nothing runs.
    let ticks = daemon.cpu_ticks();
    assert_eq!(daemon.shell("sleep 3.5").end(), "0");
    assert!(daemon.cpu_ticks() - ticks < 20, "{} ticks in 3.5 s", daemon.cpu_ticks() - ticks);
}

#[test]
fn a_quiet_command_is_pinged() {
    let run = Daemon::start().shell("sleep 3.5");
    assert_eq!(run.events.iter().filter(|event| event["type"] == "ping").count(), 2);
}
