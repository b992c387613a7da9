//! Output that is read again: from any offset, while the command runs and after, exactly.

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::commands::*;
use support::events::{Events, bytes_of, output_of, read};
use support::{Connection, Daemon, Run};

/// Starts a foreground command and returns its connection and id once it is known.
fn begin(daemon: &Daemon, body: &Value) -> (Connection, String) {
    let mut connection = daemon.connect();
    connection.send("POST", "/command", &[], body.to_string().as_bytes());
    let head = connection.head();
    let id = head.header("opensandbox-command-id").expect("the id").to_owned();
    assert_eq!(Run::parse(&connection.chunk().expect("events")).id(), id);
    (connection, id)
}

fn detail(daemon: &Daemon, id: &str) -> Value {
    daemon.get(&format!("/v1/commands/{id}")).ok().json()
}

/// Asks until what is shown of a command is so; for states that no event tells.
fn wait_for(daemon: &Daemon, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let shown = detail(daemon, id);
        if is_so(&shown) {
            return shown;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{shown}");
        std::thread::yield_now();
    }
}

#[test]
fn a_finished_foreground_command_is_read_again_in_order() {
    let daemon = Daemon::start();
    let run = daemon.shell("echo one; sleep 0.05; echo two >&2; sleep 0.05; echo three; exit 3");
    let events = read(&daemon, &run.id(), "");
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().expect("a type")).collect();
    assert_eq!(kinds, ["begin", "output", "output", "output", "end"]);
    assert_eq!(
        (&events[0]["command"]["kind"], &events[0]["command"]["running"]),
        (&json!("foreground"), &json!(false))
    );
    assert_eq!(events[1], json!({"type": "output", "stream": "stdout", "offset": 0, "next": 4, "text": "one\n"}));
    assert_eq!(events[2], json!({"type": "output", "stream": "stderr", "offset": 4, "next": 8, "text": "two\n"}));
    assert_eq!(events[4], json!({"type": "end", "offset": 14, "end": {"outcome": "exited", "exit_code": 3}}));
    for offset in 0..=14 {
        let events = read(&daemon, &run.id(), &format!("offset={offset}"));
        assert_eq!(output_of(&events, None), b"one\ntwo\nthree\n"[offset..], "from {offset}");
    }
}

#[test]
fn a_run_is_followed_while_it_goes_on_and_after_its_client_left() {
    let daemon = Daemon::start();
    let (go, more) = (Fifo::new(&daemon, "go"), Fifo::new(&daemon, "more"));
    let command = format!("echo first; read x < {}; echo second; read x < {}; echo third; exit 4", go.0, more.0);
    let (connection, id) = begin(&daemon, &json!({ "command": command }));
    let mut events = Events::open(&daemon.target(), &id, "");
    assert_eq!(bytes_of(&events.until("output")), b"first\n");
    drop(connection);
    std::fs::write(&go.0, "x\n").expect("the command waits");
    let second = events.until("output");
    assert_eq!(bytes_of(&second), b"second\n");
    drop(events);
    std::fs::write(&more.0, "x\n").expect("the command waits");
    // The next reader goes on where the last one was, also as a browser would ask.
    let mut connection = daemon.connect();
    connection.send(
        "GET",
        &format!("/v1/commands/{id}/stream"),
        &[("Last-Event-ID", &second["next"].to_string())],
        b"",
    );
    connection.head();
    let mut text = String::new();
    while let Some(chunk) = connection.chunk() {
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(text.contains(":\"third") && !text.contains(":\"second") && text.contains("\"exit_code\":4"), "{text}");
}

#[test]
fn without_follow_the_stream_says_where_to_go_on() {
    let daemon = Daemon::start();
    let go = Fifo::new(&daemon, "go");
    let command = format!("echo now; printf '\\303'; read x < {}; printf '\\244\\n'", go.0);
    let id = daemon.run(json!({"command": command, "background": true})).id();
    wait_for(&daemon, &id, |shown| shown["output"]["next"] == 5);
    let events = read(&daemon, &id, "follow=false&encoding=base64");
    assert_eq!(output_of(&events, None), b"now\n\xc3");
    assert_eq!(events.last(), Some(&json!({"type": "more", "offset": 5})));
    // As text, the begun character is one that is replaced: this reader asked for all there is.
    let events = read(&daemon, &id, "follow=false");
    assert_eq!((&events[1]["text"], &events[1]["lossy"]), (&json!("now\n\u{fffd}"), &json!(true)));
    // One who follows gets it whole.
    let following = Events::open(&daemon.target(), &id, "");
    std::fs::write(&go.0, "x\n").expect("the command waits");
    let events = following.all();
    assert_eq!(output_of(&events, None), "now\nä\n".as_bytes());
    assert!(events.iter().all(|event| event["lossy"].is_null()), "{events:?}");
}

#[test]
fn bytes_of_any_kind_come_exactly() {
    let daemon = Daemon::start();
    let run =
        daemon.run(json!({"argv": ["python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000)"]}));
    let expected: Vec<u8> = (0..=255).collect::<Vec<u8>>().repeat(1000);
    assert!(output_of(&read(&daemon, &run.id(), "encoding=base64"), Some("stdout")) == expected);
    let whole = read(&daemon, &run.id(), "encoding=base64&offset=255999");
    assert_eq!(output_of(&whole, None), [255]);
}

#[test]
fn ends_are_told_apart() {
    let daemon = Daemon::start();
    let end_of = |body: Value| {
        let id = daemon.run(body).id();
        let end = read(&daemon, &id, "").pop().expect("events");
        assert_eq!(end["type"], "end", "{end}");
        assert_eq!(detail(&daemon, &id)["end"], end["end"]);
        end["end"].clone()
    };
    assert_eq!(end_of(json!({"command": "true"})), json!({"outcome": "exited", "exit_code": 0}));
    assert_eq!(end_of(json!({"command": "kill -TERM $$"})), json!({"outcome": "signaled", "signal": 15}));
    let late = end_of(json!({"command": "sleep 987", "timeout": 50}));
    assert_eq!((&late["outcome"], &late["signal"]), (&json!("timed_out"), &json!(9)));
    assert!(late["detail"].as_str().is_some_and(|detail| detail.contains("50 ms")), "{late}");
    let missing = end_of(json!({"argv": ["/no/such/program"]}));
    assert_eq!(missing["outcome"], "not_started");
    assert!(missing["detail"].as_str().is_some_and(|detail| detail.contains("/no/such/program")), "{missing}");

    let (connection, id) = begin(&daemon, &json!({"command": "trap 'exit 7' TERM; sleep 987 & wait"}));
    let following = Events::open(&daemon.target(), &id, "");
    daemon.delete(&format!("/command?id={id}")).ok();
    let end = following.all().pop().expect("events");
    assert_eq!(end["end"], json!({"outcome": "killed", "exit_code": 7, "by": "request"}));
    drop(connection);

    let mut dropped = daemon.connect();
    let cancel = [("OpenSandbox-On-Disconnect", "cancel")];
    dropped.send("POST", "/command", &cancel, json!({"command": "sleep 987"}).to_string().as_bytes());
    let id = dropped.head().header("opensandbox-command-id").expect("the id").to_owned();
    drop(dropped);
    let end = read(&daemon, &id, "").pop().expect("events");
    assert_eq!(end["end"], json!({"outcome": "killed", "signal": 15, "by": "disconnect"}));
}

#[test]
fn commands_are_listed_with_their_states() {
    let daemon = Daemon::start();
    let finished = daemon.shell("echo done").id();
    let running = daemon.run(json!({"command": "echo begun; sleep 987", "background": true})).id();
    let session = daemon.post("/session", &json!({})).ok().json()["session_id"].clone();
    let path = format!("/session/{}/run", session.as_str().expect("an id"));
    let answer = daemon.post(&path, &json!({"command": "true"})).ok();
    let in_session = answer.header("opensandbox-command-id").expect("the id").to_owned();
    wait_for(&daemon, &running, |shown| shown["output"]["next"] == 6);

    let ids = |query: &str| {
        let list = daemon.get(&format!("/v1/commands{query}")).ok().json();
        let commands = list["commands"].as_array().expect("a list").clone();
        commands.into_iter().map(|command| command["id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(""), [in_session.clone(), running.clone(), finished.clone()]);
    assert_eq!(ids("?state=running"), std::slice::from_ref(&running));
    assert_eq!(ids("?state=finished"), [in_session.clone(), finished.clone()]);
    assert_eq!(ids("?limit=1"), std::slice::from_ref(&in_session));
    let shown = detail(&daemon, &running);
    assert_eq!((&shown["kind"], &shown["running"], &shown["end"]), (&json!("background"), &json!(true), &Value::Null));
    let output = json!({"oldest": 0, "next": 6, "overflow": "wait", "waiting": false, "complete": false});
    assert_eq!(shown["output"], output);
    let shown = detail(&daemon, &in_session);
    assert_eq!((&shown["kind"], &shown["session_id"]), (&json!("session"), &session));
    assert!(shown["started_at"].is_string() && shown["finished_at"].is_string());

    daemon.get("/v1/commands?state=x").refuses(400, "INVALID_REQUEST_BODY", "state");
    daemon.get("/v1/commands?limit=0").refuses(400, "INVALID_REQUEST_BODY", "limit");
    daemon.get("/v1/commands/nope").refuses(404, "CONTEXT_NOT_FOUND", "nope");
    daemon.get("/v1/commands/nope/stream").refuses(404, "CONTEXT_NOT_FOUND", "nope");
    for (query, word) in
        [("offset=6", "5"), ("offset=-1", "offset"), ("follow=x", "follow"), ("encoding=x", "encoding")]
    {
        daemon.get(&format!("/v1/commands/{finished}/stream?{query}")).refuses(400, "INVALID_REQUEST_BODY", word);
    }
    daemon.post("/command", &json!({"command": "true", "overflow": "explode"})).refuses(
        400,
        "INVALID_REQUEST_BODY",
        "explode",
    );
}

#[test]
fn a_session_run_has_its_exact_bytes_in_the_spool() {
    let daemon = Daemon::start();
    let session = daemon.post("/session", &json!({})).ok().json()["session_id"].clone();
    let path = format!("/session/{}/run", session.as_str().expect("an id"));
    let answer = daemon.post(&path, &json!({"command": "printf 'a\\n\\nb\\r\\n'; printf err >&2"})).ok();
    let id = answer.header("opensandbox-command-id").expect("the id").to_owned();
    assert_eq!(output_of(&read(&daemon, &id, ""), Some("stdout")), b"a\n\nb\r\nerr");
}

#[test]
fn a_session_run_outlives_its_client_when_asked_to() {
    let daemon = Daemon::start();
    let (go, session) = (Fifo::new(&daemon, "go"), daemon.post("/session", &json!({})).ok().json());
    let path = format!("/session/{}/run", session["session_id"].as_str().expect("an id"));
    let mut connection = daemon.connect();
    let body = json!({"command": format!("read x < {}; export A=kept; echo end", go.0)}).to_string();
    connection.send("POST", &path, &[("OpenSandbox-On-Disconnect", "continue")], body.as_bytes());
    let id = connection.head().header("opensandbox-command-id").expect("the id").to_owned();
    drop(connection);
    std::fs::write(&go.0, "x\n").expect("the run waits");
    let events = read(&daemon, &id, "");
    assert_eq!(output_of(&events, None), b"end\n");
    assert_eq!(events.last().expect("events")["end"]["outcome"], "exited");
    let after = daemon.post(&path, &json!({"command": "echo $A"})).ok();
    assert_eq!(Run::parse(&after.body).stdout(), "kept");
}

/// A daemon whose spools lie in a directory of memory, where they are small: 8 MiB.
fn with_small_spools() -> Daemon {
    // By descriptor: the program may lie beneath what is covered.
    let shell = "exec 9<\"$0\"; mount -t tmpfs -o size=64m none /tmp && mount -t tmpfs -o ro none /var/tmp && \
                 mount -t tmpfs -o ro none /dev/shm && exec /proc/self/fd/9 \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", shell, env!("CARGO_BIN_EXE_execd")]);
    Daemon::wrapped(command, |command| {
        command.env_remove("TMPDIR");
    })
}

/// Numbered lines of 100 bytes.
fn lines(from: u64, to: u64) -> Vec<u8> {
    (from..to).flat_map(|number| format!("{number:099}\n").into_bytes()).collect()
}

fn print_lines(count: u64) -> String {
    format!("seq -f %099.0f 0 {}", count - 1)
}

const SMALL_SPOOL: u64 = 8 * 1024 * 1024;

#[test]
fn ex_008_without_a_reader_the_process_waits_and_nothing_is_lost() {
    let daemon = with_small_spools();
    let before = daemon.status_kib("VmRSS");
    let count = 300_000; // 30 MB
    let body = json!({"command": format!("{}; exit 5", print_lines(count)), "background": true});
    let id = daemon.run(body).id();
    let shown = wait_for(&daemon, &id, |shown| shown["output"]["waiting"] == true);
    let held = shown["output"]["next"].as_u64().expect("a number");
    assert!(held <= SMALL_SPOOL && held > SMALL_SPOOL / 2, "{shown}");
    assert_eq!(shown["running"], true);
    // Readers who come and go, each from where the last one was.
    let (mut got, mut at) = (Vec::new(), 0);
    let end = loop {
        let mut events = Events::open(&daemon.target(), &id, &format!("offset={at}"));
        let mut end = None;
        for _ in 0..40 {
            let event = events.next().expect("an event");
            match event["type"].as_str() {
                Some("output") => {
                    assert_eq!(event["offset"], at);
                    got.extend_from_slice(&bytes_of(&event));
                    at = event["next"].as_u64().expect("a number");
                }
                Some("end") => end = Some(event["end"].clone()),
                Some("begin" | "spool_full") => {}
                _ => panic!("{event}"),
            }
            if end.is_some() {
                break;
            }
        }
        if let Some(end) = end {
            break end;
        }
    };
    assert_eq!(end, json!({"outcome": "exited", "exit_code": 5}));
    assert!(got == lines(0, count), "{} bytes", got.len());
    let grown = daemon.status_kib("VmHWM") - before;
    assert!(grown < 4 * 1024, "memory grew by {grown} KiB");
}

#[test]
fn the_first_wait_for_room_is_an_event() {
    let daemon = with_small_spools();
    let id = daemon.run(json!({"command": print_lines(200_000), "background": true})).id();
    wait_for(&daemon, &id, |shown| shown["output"]["waiting"] == true);
    let events = read(&daemon, &id, "");
    let full: Vec<_> = events.iter().filter(|event| event["type"] == "spool_full").collect();
    assert_eq!(full.len(), 1);
    assert!(full[0]["offset"].as_u64().is_some_and(|offset| offset <= SMALL_SPOOL), "{}", full[0]);
}

#[test]
fn polling_the_log_frees_room_too() {
    let daemon = with_small_spools();
    let id = daemon.run(json!({"command": print_lines(200_000), "background": true})).id();
    let (mut got, mut cursor) = (String::new(), 0);
    let begun = Instant::now();
    loop {
        let finished = detail(&daemon, &id)["output"]["complete"] == true;
        let (text, next) = logs(&daemon, &id, &format!("cursor={cursor}"));
        got.push_str(&text);
        cursor = next;
        if finished {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{} bytes", got.len());
    }
    assert!(got.as_bytes() == lines(0, 200_000), "{} bytes", got.len());
}

#[test]
fn by_request_the_oldest_bytes_go_and_the_range_is_told() {
    let daemon = with_small_spools();
    let body = json!({"command": print_lines(200_000), "background": true, "overflow": "drop_oldest"});
    let id = daemon.run(body).id();
    let shown = wait_for(&daemon, &id, |shown| shown["output"]["complete"] == true);
    assert_eq!(shown["output"]["next"], 20_000_000);
    let oldest = shown["output"]["oldest"].as_u64().expect("a number");
    assert_eq!(oldest, 20_000_000 - SMALL_SPOOL);
    let events = read(&daemon, &id, "");
    let lost = events.iter().find(|event| event["type"] == "lost").expect("the range");
    assert_eq!((&lost["offset"], &lost["next"]), (&json!(0), &json!(oldest)));
    assert!(output_of(&events, None) == lines(0, 200_000)[oldest as usize..]);
    assert_eq!(events.last().expect("events")["end"]["exit_code"], 0);
    // The published log says it by a header, and goes on with what there is.
    let log = daemon.get(&format!("/command/{id}/logs?cursor=10")).ok();
    assert_eq!(log.header("opensandbox-output-lost"), Some(format!("10-{oldest}").as_str()));
    assert_eq!(log.body.len() as u64, SMALL_SPOOL);
}

#[test]
fn a_published_client_is_never_overtaken_and_never_waits_for_one_who_left() {
    let daemon = with_small_spools();
    let command = json!({"command": print_lines(400_000)}); // 40 MB, five times the spool
    let run = daemon.run(command);
    assert!(run.stdout().as_bytes() == lines(0, 400_000));
    // What it read last can be read again: at least half of the spool.
    let half = 40_000_000 - SMALL_SPOOL / 2;
    let events = read(&daemon, &run.id(), &format!("offset={half}"));
    assert!(output_of(&events, None) == lines(0, 400_000)[half as usize..]);
}

#[test]
fn two_streams_in_turn_keep_their_order_however_often() {
    let daemon = Daemon::start();
    let script = "import os\nfor n in range(3000):\n os.write(1, b'%d\\n' % n)\n os.write(2, b'%d\\n' % n)";
    let run = daemon.run(json!({"argv": ["python3", "-c", script]}));
    let expected: String = (0..3000).map(|number| format!("{number}\n")).collect();
    let events = read(&daemon, &run.id(), "");
    assert_eq!(String::from_utf8_lossy(&output_of(&events, Some("stdout"))), expected);
    assert_eq!(String::from_utf8_lossy(&output_of(&events, Some("stderr"))), expected);
    // From the middle, too.
    let all = output_of(&events, None);
    let events = read(&daemon, &run.id(), "offset=10000");
    assert!(output_of(&events, None) == all[10_000..]);
}

#[test]
fn os_046_without_any_directory_memory_keeps_the_output() {
    let shell = "exec 9<\"$0\"; for place in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o ro none $place; done && \
                 exec /proc/self/fd/9 \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", shell, env!("CARGO_BIN_EXE_execd")]);
    let daemon = Daemon::wrapped(command, |command| {
        command.env_remove("TMPDIR");
    });
    let run = daemon.shell("echo out; echo err >&2; exit 2");
    let events = read(&daemon, &run.id(), "");
    assert_eq!(
        (output_of(&events, Some("stdout")), output_of(&events, Some("stderr"))),
        (b"out\n".to_vec(), b"err\n".to_vec())
    );
    let id = daemon.run(json!({"command": print_lines(50_000), "background": true})).id();
    let shown = wait_for(&daemon, &id, |shown| shown["output"]["waiting"] == true);
    assert!(shown["output"]["next"].as_u64().is_some_and(|next| next <= 2 * 1024 * 1024), "{shown}");
    assert!(output_of(&read(&daemon, &id, ""), None) == lines(0, 50_000));
}

#[test]
fn a_full_disk_leaves_room_for_others_and_loses_nothing() {
    // 16 MiB of which a quarter stays free, though the spool would take more.
    let shell = "truncate -s 16M /tmp/disk && mkfs.ext4 -q /tmp/disk && mount -o loop /tmp/disk /mnt && \
                 rm /tmp/disk && chmod 1777 /mnt && exec \"$0\" \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", shell, env!("CARGO_BIN_EXE_execd")]);
    let daemon = Daemon::wrapped(command, |command| {
        command.env("TMPDIR", "/mnt");
    });
    let id = daemon.run(json!({"command": print_lines(300_000), "background": true})).id();
    wait_for(&daemon, &id, |shown| shown["output"]["waiting"] == true);
    let spare = daemon.shell("head -c 2000000 /dev/zero > /mnt/others && wc -c < /mnt/others");
    assert_eq!(spare.stdout(), "2000000\n");
    assert!(output_of(&read(&daemon, &id, ""), None) == lines(0, 300_000));
}

#[test]
fn output_of_finished_commands_is_kept_within_bounds() {
    let daemon = Daemon::start();
    let first = daemon.shell("echo first").id();
    let mut last = String::new();
    for _ in 0..256 {
        last = daemon.shell("echo again").id();
    }
    assert_eq!(output_of(&read(&daemon, &last, ""), None), b"again\n");
    let events = read(&daemon, &first, "");
    assert_eq!((&events[1]["type"], &events[1]["next"]), (&json!("lost"), &json!(6)), "{events:?}");
    assert!(events[1]["reason"].as_str().is_some_and(|reason| !reason.is_empty()));
    assert_eq!(events[2]["end"]["exit_code"], 0, "the end is still known");
}
