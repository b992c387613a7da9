//! Commands: what the rows of area exec ask, and the stream's format.

mod support;

use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Connection, Daemon, Run, end, is_running};

/// Longest time in which something that happens at once may be seen on a busy machine.
const SOON: Duration = Duration::from_secs(3);

fn pid_in(text: &str) -> i32 {
    text.trim().parse().unwrap_or_else(|_| panic!("a pid, not {text:?}"))
}

fn logs(daemon: &Daemon, id: &str, query: &str) -> (String, u64) {
    let response = daemon.get(&format!("/command/{id}/logs?{query}")).ok();
    let cursor = response.header("execd-commands-tail-cursor").expect("a cursor").parse().expect("a number");
    (response.text(), cursor)
}

fn status(daemon: &Daemon, id: &str) -> Value {
    daemon.get(&format!("/command/status/{id}")).ok().json()
}

/// Waits for the end of a background command by what it writes when it ends: a line into a fifo.
struct Fifo(String);

impl Fifo {
    fn new(daemon: &Daemon, name: &str) -> Self {
        let path = daemon.path(name);
        assert_eq!(daemon.shell(&format!("mkfifo -m 666 {path}")).end(), "0");
        Self(path)
    }

    /// Blocks until somebody has written and closed.
    fn read(&self) -> String {
        let mut text = String::new();
        std::fs::File::open(&self.0).expect("the fifo").read_to_string(&mut text).expect("text");
        text
    }
}

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
    std::fs::write(daemon.path("tool"), "#!/bin/sh\necho tool\n").expect("a script");
    assert_eq!(daemon.shell(&format!("chmod +x {}", daemon.path("tool"))).end(), "0");
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
fn ex_009_a_child_dies_of_memory_before_the_daemon() {
    let daemon = Daemon::start();
    assert_eq!(daemon.shell("cat /proc/self/oom_score_adj").stdout(), "500\n");
    let own = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", daemon.pid())).expect("execd lives");
    assert_eq!(own.trim(), std::fs::read_to_string("/proc/self/oom_score_adj").expect("we live").trim());
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
fn ex_036_a_missing_directory_is_named_and_others_still_work() {
    let gone = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::with(|command| {
        command.current_dir(gone.path());
    });
    let missing = daemon.path("nope");
    daemon.post("/command", &json!({"command": "true", "cwd": missing})).refuses(400, "INVALID_REQUEST_BODY", &missing);
    let name = gone.path().to_str().expect("UTF-8").to_owned();
    drop(gone);
    daemon.post("/command", &json!({"command": "true"})).refuses(400, "INVALID_REQUEST_BODY", &name);
    assert_eq!(daemon.run(json!({"command": "pwd", "cwd": "/"})).stdout(), "/\n");
}

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

/// Polls the status, as clients do: the daemon offers no event for the end of a background command.
fn wait_until_finished(daemon: &Daemon, id: &str) -> Value {
    let begun = Instant::now();
    loop {
        let status = status(daemon, id);
        if status["running"] == false {
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{status}");
        std::thread::yield_now();
    }
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
fn a_background_command_obeys_its_timeout() {
    let daemon = Daemon::start();
    let id = daemon.run(json!({"command": "sleep 987", "background": true, "timeout": 100})).id();
    let status = wait_until_finished(&daemon, &id);
    assert_eq!(status["exit_code"], -1);
    assert!(status["error"].as_str().is_some_and(|error| error.contains("100 ms")), "{status}");
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
    let after = (daemon.descriptors(), tasks());
    assert!(after.0 <= before.0 && after.1 <= before.1, "{before:?} descriptors and threads before, {after:?} after");
    assert_eq!(status(&daemon, &last)["exit_code"], 255);
    daemon.get(&format!("/command/{last}/logs")).refuses(400, "INVALID_REQUEST_BODY", "not started");
    assert!(!std::path::Path::new(&format!("/tmp/opensandbox-execd/{last}.output")).exists());
    assert_eq!(daemon.shell("echo fine").stdout(), "fine\n");
}

#[test]
fn os_048_an_error_always_has_its_three_keys_and_the_systems_words() {
    let daemon = Daemon::start();
    let too_long = daemon.run(json!({"argv": ["true", "x".repeat(200_000)]}));
    assert!(too_long.end().contains("argument list too long"), "{}", too_long.end());
    let missing = daemon.run(json!({"argv": ["no-such-program"]}));
    assert!(missing.end().contains("no such file or directory"), "{}", missing.end());
    let forbidden = daemon.run(json!({"argv": ["/etc/passwd"]}));
    assert!(forbidden.end().contains("permission denied"), "{}", forbidden.end());
    assert_eq!(
        forbidden.events.iter().map(|event| event["type"].as_str().expect("a type")).collect::<Vec<_>>(),
        ["init", "error"]
    );
}

#[test]
fn os_049_a_switch_takes_home_user_and_groups_along() {
    let daemon = Daemon::start();
    let run = daemon.run(json!({"command": "id -u; id -g; id -G; echo $HOME $USER", "uid": 65534}));
    assert_eq!(run.stdout(), "65534\n65534\n65534\n/nonexistent nobody\n");
    let unknown = daemon.run(json!({"command": "id -u; id -g; echo $HOME", "uid": 424242}));
    assert_eq!(unknown.stdout(), "424242\n424242\n/\n");
    let group = daemon.run(json!({"command": "id -u; id -g", "uid": 65534, "gid": 12}));
    assert_eq!(group.stdout(), "65534\n12\n");
    let own = daemon.run(json!({"command": "id -u; id -g", "uid": 0, "gid": 0}));
    assert_eq!(own.stdout(), "0\n0\n");
}

#[test]
fn os_049_without_capabilities_the_own_identity_works_and_another_names_what_is_missing() {
    let mut setpriv = std::process::Command::new("setpriv");
    setpriv.args(["--reuid", "0", "--bounding-set", "-all", "--inh-caps", "-all", env!("CARGO_BIN_EXE_execd")]);
    let daemon = Daemon::wrapped(setpriv, |_| {});
    assert_eq!(daemon.run(json!({"command": "id -u", "uid": 0, "gid": 0})).stdout(), "0\n");
    let refused = daemon.run(json!({"command": "id -u", "uid": 1000}));
    assert!(refused.end().contains("CAP_SETGID"), "{}", refused.end());
}

#[test]
fn os_051_request_over_file_over_create_and_empty_values_stay() {
    let daemon = Daemon::with(|command| {
        command.env("FROM_CREATE", "create").env("IN_FILE", "create").env("IN_ALL", "create");
    });
    let show = "echo \"$FROM_CREATE-$IN_FILE-$IN_ALL-${EMPTY-unset}\"";
    assert_eq!(daemon.shell(show).stdout(), "create-create-create-unset\n");
    assert!(daemon.env_file().exists(), "the file is made for those who append to it");
    std::fs::write(daemon.env_file(), "IN_FILE=file\nIN_ALL=file\nEMPTY=\n").expect("the env file");
    let run = daemon.run(json!({"command": show, "envs": {"IN_ALL": "request"}}));
    assert_eq!(run.stdout(), "create-file-request-\n");
    let append = daemon.shell("echo \"LATER='a b'\" >> $EXECD_ENVS; echo $LATER");
    assert_eq!(append.stdout(), "\n");
    assert_eq!(daemon.shell("echo $LATER").stdout(), "a b\n");
}

#[test]
fn os_051_an_env_file_that_cannot_be_made_is_ignored() {
    let daemon = Daemon::with(|command| {
        command.env("EXECD_ENVS", "/proc/nowhere/env");
    });
    assert_eq!(daemon.shell("echo $EXECD_ENVS").stdout(), "/proc/nowhere/env\n");
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
    while daemon.descriptors() > before {
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

#[test]
fn attack_34_children_see_neither_token_nor_descriptors() {
    let daemon = Daemon::with_token("s3cret");
    let run = daemon.shell("env; cat /proc/self/environ; ls /proc/self/fd");
    assert!(!run.stdout().contains("s3cret"), "the token travels");
    assert!(run.stdout().ends_with("0\n1\n2\n3\n"), "ls sees its three and the one it opened: {}", run.stdout());
}
