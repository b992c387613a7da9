//! Terminals of a real daemon, by a client that reads the bytes of the protocol.

mod support;

use std::time::{Duration, Instant};

use serde_json::json;
use support::commands::pid_in;
use support::pid1::{NOBODY, Sandbox, config};
use support::terminal::{Frame, HANDSHAKE, Seen, Terminal, create, status};
use support::{Connection, Daemon, Target, is_running};

/// Longest wait for something that only polling shows.
const PATIENCE: Duration = Duration::from_secs(30);

/// Polls for what has no event to wait for.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5)); // between two looks
    }
}

/// What `seq 1 last` prints on a terminal.
fn numbers(last: u32) -> Vec<u8> {
    (1..=last).flat_map(|number| format!("{number}\r\n").into_bytes()).collect()
}

/// A terminal with an interactive shell, at its first prompt.
fn shell(daemon: &Daemon) -> (String, Terminal) {
    let id = create(&daemon.target(), &json!({}));
    let (mut terminal, _) = Terminal::connect(&daemon.target(), &id, "");
    terminal.type_in("PS1='$ '; echo re''ady\n");
    terminal.until("ready\r\n");
    (id, terminal)
}

#[test]
fn os_066_a_megabyte_at_once_comes_whole_and_is_replayed_from_any_offset() {
    let daemon = Daemon::start();
    let expected = numbers(150_000);
    let id = create(&daemon.target(), &json!({"command": "seq 1 150000; read line"}));
    let (mut terminal, mut seen) = Terminal::connect(&daemon.target(), &id, "");
    terminal.read_until(&mut seen, |seen| seen.out.len() >= expected.len());
    assert!(seen.out == expected, "other bytes than the shell has printed");
    assert_eq!(status(&daemon.target(), &id)["output_offset"], expected.len());
    drop(terminal);

    let oldest = expected.len() as u64 - 1024 * 1024;
    assert_eq!(status(&daemon.target(), &id)["replay_offset"], oldest);
    for since in [0, oldest - 1, oldest, oldest + 7, expected.len() as u64 - 1] {
        let (mut terminal, mut seen) = Terminal::connect(&daemon.target(), &id, &format!("since={since}&takeover=1"));
        let from = since.max(oldest);
        assert_eq!(seen.from, Some(from), "since {since}");
        terminal.read_until(&mut seen, |seen| seen.out.len() as u64 >= expected.len() as u64 - from);
        assert!(seen.out == expected[from as usize..], "since {since}: other bytes");
    }
    for since in [expected.len(), expected.len() + 10] {
        let (mut terminal, seen) = Terminal::connect(&daemon.target(), &id, &format!("since={since}&takeover=1"));
        assert_eq!((seen.from, seen.out.len()), (None, 0), "since {since}");
        if since > expected.len() {
            terminal.type_in("x\n");
            let (seen, exit) = terminal.until_exit();
            assert_eq!((seen.text().as_str(), &exit["exit_code"]), ("x\r\n", &json!(0)));
        }
    }
}

#[test]
fn os_066_output_goes_on_while_nobody_is_attached_and_nothing_is_lost_or_doubled() {
    let daemon = Daemon::start();
    let id = create(&daemon.target(), &json!({"command": "for n in $(seq 1 20000); do echo $n; done; read line"}));
    let expected = numbers(20_000);
    let mut all = Vec::new();
    while all.len() < expected.len() {
        let (mut terminal, mut seen) =
            Terminal::connect(&daemon.target(), &id, &format!("since={}&takeover=1", all.len()));
        terminal.read_until(&mut seen, |seen| !seen.out.is_empty());
        assert!(seen.from.is_none_or(|from| from == all.len() as u64), "{:?} after {}", seen.from, all.len());
        all.extend(seen.out); // and the connection is dropped without a word
    }
    assert!(all == expected, "bytes were lost or doubled");
}

#[test]
fn a_shell_has_a_terminal_with_size_name_and_job_control() {
    let daemon = Daemon::with(|command| {
        command.env_remove("TERM");
    });
    let (id, mut terminal) = shell(&daemon);
    terminal.type_in("tty; echo $TERM; stty size\n");
    let seen = terminal.until("24 80\r\n");
    assert!(seen.text().contains("/dev/pts/") && seen.text().contains("xterm-256color"), "{}", seen.text());
    terminal.say(&json!({"type": "resize", "cols": 132, "rows": 43}));
    terminal.type_in("stty size\n");
    terminal.until("43 132\r\n");
    for by_key in [false, true] {
        terminal.type_in("sh -c 'echo beg\"\"un; exec sleep 1000'\n");
        terminal.until("begun\r\n");
        if by_key {
            terminal.type_in("\x03");
        } else {
            terminal.signal("SIGINT");
        }
        terminal.until("$ "); // what is typed while the job ends would be thrown away with it
        terminal.type_in("echo code $?\n");
        terminal.until("code 130\r\n");
    }
    assert_eq!(status(&daemon.target(), &id)["running"], true);
    terminal.type_in("exit 7\n");
    assert_eq!(terminal.until_exit().1, json!({"type": "exit", "exit_code": 7}));
    let after = status(&daemon.target(), &id);
    assert_eq!((&after["running"], &after["exit_code"], &after["attached"]), (&json!(false), &json!(7), &json!(false)));
}

#[test]
fn a_size_can_come_with_the_connection() {
    let daemon = Daemon::start();
    let id = create(&daemon.target(), &json!({"command": "stty size"}));
    let (seen, _) = Terminal::attach(&daemon.target(), &id, "cols=99&rows=33").until_exit();
    assert_eq!(seen.text(), "33 99\r\n");
}

#[test]
fn pipes_keep_standard_error_apart_and_end_their_input_when_asked() {
    let daemon = Daemon::start();
    let id = create(&daemon.target(), &json!({"command": "cat; echo bad >&2; test -t 0 || exit 4"}));
    let (mut terminal, seen) = Terminal::connect(&daemon.target(), &id, "pty=0");
    assert_eq!(seen.texts[0], json!({"type": "connected", "session_id": id, "mode": "pipe", "role": "writer"}));
    let sent: Vec<u8> = (0..300_000u32).map(|number| (number % 251) as u8).collect();
    for chunk in sent.chunks(70_000) {
        terminal.send(0x82, &[b"\0", chunk].concat());
    }
    terminal.say(&json!({"type": "eof"}));
    let (seen, exit) = terminal.until_exit();
    assert!(seen.out == sent, "{} bytes came back", seen.out.len());
    assert_eq!((seen.err.as_slice(), &exit["exit_code"]), (&b"bad\n"[..], &json!(4)));
    // Both streams are one in a replay.
    let (_, seen) = Terminal::connect(&daemon.target(), &id, "mode=viewer");
    assert!(seen.out.ends_with(b"bad\n") && seen.out.len() == sent.len() + 4, "{}", seen.out.len());
}

#[test]
fn a_closed_standard_input_is_said_and_not_swallowed() {
    let daemon = Daemon::start();
    let id = create(&daemon.target(), &json!({"command": "exec <&-; echo closed; exec sleep 1000"}));
    let (mut terminal, mut seen) = Terminal::connect(&daemon.target(), &id, "pty=0");
    terminal.read_until(&mut seen, |seen| seen.out.ends_with(b"closed\n"));
    terminal.type_in("x");
    let (seen, code, _) = terminal.until_close();
    assert_eq!((code, &seen.texts[0]["code"]), (1011, &json!("STDIN_WRITE_FAILED")));
    assert_eq!(status(&daemon.target(), &id)["running"], true);
    daemon.delete(&format!("/pty/{id}")).ok();
}

#[test]
fn the_last_words_of_a_shell_come_before_its_exit() {
    let daemon = Daemon::start();
    for mode in ["pty=1", "pty=0"] {
        for turn in 0..40 {
            let id = create(&daemon.target(), &json!({"command": format!("printf 'last {turn}'; exit 3")}));
            let (seen, exit) = Terminal::attach(&daemon.target(), &id, mode).until_exit();
            assert_eq!((seen.text(), &exit["exit_code"]), (format!("last {turn}"), &json!(3)), "{mode}");
            daemon.delete(&format!("/pty/{id}")).ok();
        }
        let id = create(&daemon.target(), &json!({"command": "seq 1 60000"}));
        let (seen, _) = Terminal::attach(&daemon.target(), &id, mode).until_exit();
        let lines = seen.text().replace('\r', "");
        assert!(lines.ends_with("\n60000\n") && lines.lines().count() == 60_000, "{mode}: {}", lines.len());
        daemon.delete(&format!("/pty/{id}")).ok();
    }
}

#[test]
fn an_exit_does_not_wait_for_what_the_shell_left_behind() {
    let daemon = Daemon::start();
    for mode in ["pty=1", "pty=0"] {
        let body = json!({"command": "(trap '' HUP; exec sleep 1000) & echo $!; exit 5"});
        let id = create(&daemon.target(), &body);
        let (seen, exit) = Terminal::attach(&daemon.target(), &id, mode).until_exit();
        assert_eq!(exit["exit_code"], 5, "{mode}");
        let left = pid_in(&seen.text());
        daemon.delete(&format!("/pty/{id}")).ok();
        assert!(!is_running(left), "{mode}: what the shell left behind outlived the session");
    }
}

#[test]
fn a_signal_is_told_and_the_next_client_gets_a_new_shell_after_the_old_output() {
    let daemon = Daemon::start();
    let id = create(&daemon.target(), &json!({"command": "echo $$; read line; echo never"}));
    let (mut terminal, _) = Terminal::connect(&daemon.target(), &id, "");
    let first = terminal.until("\r\n");
    terminal.signal("SIGKILL");
    let (_, exit) = terminal.until_exit();
    assert_eq!(exit, json!({"type": "exit", "exit_code": -1, "signal": "SIGKILL"}));
    let (mut terminal, mut seen) = Terminal::connect(&daemon.target(), &id, "since=0");
    assert_eq!((seen.from, &seen.out), (Some(0), &first.out));
    terminal.read_until(&mut seen, |seen| seen.out.len() > first.out.len() && seen.out.ends_with(b"\n"));
    assert_ne!(seen.out[first.out.len()..], first.out[..], "the same shell");
    assert_eq!(status(&daemon.target(), &id)["output_offset"], seen.out.len());
}

#[test]
fn a_client_that_comes_back_gets_the_end_it_missed_and_no_second_shell() {
    let daemon = Daemon::start();
    let id = create(&daemon.target(), &json!({"command": "echo once; read line; exit 9"}));
    let (mut terminal, _) = Terminal::connect(&daemon.target(), &id, "resume=1");
    terminal.until("once\r\n");
    terminal.type_in("\n");
    drop(terminal);
    eventually("it has ended", || status(&daemon.target(), &id)["running"] == false);
    for (query, rest) in [("resume=1&since=0", "once\r\n\r\n"), ("resume=1&since=6", "\r\n"), ("resume=1&since=8", "")]
    {
        let (seen, exit) = Terminal::attach(&daemon.target(), &id, query).until_exit();
        assert_eq!((seen.text().as_str(), &exit["exit_code"]), (rest, &json!(9)), "{query}");
    }
    assert_eq!(status(&daemon.target(), &id)["output_offset"], 8);
}

#[test]
fn one_client_holds_a_terminal_and_another_may_take_it_over() {
    let daemon = Daemon::start();
    let (id, mut first) = shell(&daemon);
    let path = format!("/pty/{id}/ws");
    let mut refused = daemon.connect();
    refused.send_head("GET", &path, &HANDSHAKE, "");
    refused.response("GET").refuses(409, "ALREADY_CONNECTED", "takeover=1");
    first.type_in("here=1\n");
    let (mut second, _) = Terminal::connect(&daemon.target(), &id, "takeover=1");
    let (seen, code, reason) = first.until_close();
    assert_eq!((code, reason.as_str()), (4001, "TAKEN_OVER"));
    assert_eq!(seen.texts.last().expect("an error")["code"], "TAKEN_OVER");
    second.type_in("echo still $here\n");
    second.until("still 1\r\n");
    assert_eq!(status(&daemon.target(), &id)["attached"], true);
}

#[test]
fn viewers_see_everything_and_change_nothing() {
    let daemon = Daemon::start();
    let (id, mut holder) = shell(&daemon);
    let before = status(&daemon.target(), &id)["output_offset"].as_u64().expect("a number");
    let mut viewers: Vec<Terminal> = (0..3)
        .map(|_| {
            let (viewer, seen) = Terminal::connect(&daemon.target(), &id, &format!("mode=viewer&since={before}"));
            assert_eq!(seen.texts[0]["role"], "viewer");
            viewer
        })
        .collect();
    assert_eq!(status(&daemon.target(), &id)["viewers"], 3);
    viewers[0].type_in("echo intruder\n");
    viewers[0].signal("SIGKILL");
    let mut refusals = Seen::default();
    viewers[0].read_until(&mut refusals, |seen| seen.texts.len() == 2);
    assert!(refusals.texts.iter().all(|text| text["code"] == "INVALID_FRAME"), "{:?}", refusals.texts);
    holder.type_in("echo to''gether\n");
    for viewer in &mut viewers {
        let seen = viewer.until("together\r\n");
        assert!(!seen.text().contains("intruder"), "{}", seen.text());
    }
    holder.type_in("exit 2\n");
    for mut terminal in viewers.into_iter().chain([holder]) {
        assert_eq!(terminal.until_exit().1["exit_code"], 2);
    }
}

#[test]
fn a_client_that_does_not_read_slows_only_itself() {
    let daemon = Daemon::start();
    let id = create(&daemon.target(), &json!({"command": "read line; seq 1 1200000; read line"}));
    let (mut holder, _) = Terminal::connect(&daemon.target(), &id, "pty=0");
    let (mut stalled, _) = Terminal::connect(&daemon.target(), &id, "mode=viewer");
    stalled.takes_little();
    let expected: Vec<u8> = (1..=1_200_000u32).flat_map(|number| format!("{number}\n").into_bytes()).collect();
    holder.type_in("go\n");
    let mut seen = Seen::default();
    holder.read_until(&mut seen, |seen| seen.out.len() >= expected.len());
    assert!(seen.out == expected && seen.replays.is_empty(), "the holder missed something");
    // The viewer reads only now: what it gets is true, wherever it is.
    let (mut at, mut jumps) = (0usize, 0);
    while at < expected.len() {
        let Frame::Binary(bytes) = stalled.next() else { panic!("output") };
        let output = match bytes[0] {
            3 => {
                let offset = u64::from_be_bytes(bytes[1..9].try_into().expect("eight bytes")) as usize;
                assert!(offset > at, "a replay from {offset} for a client at {at}");
                (at, jumps) = (offset, jumps + 1);
                &bytes[9..]
            }
            _ => &bytes[1..],
        };
        assert!(expected[at..].starts_with(output), "other bytes at {at}");
        at += output.len();
    }
    assert!(jumps > 0, "the viewer was never behind the ring: the test shows nothing");
}

#[test]
fn a_holder_that_stands_still_does_not_stop_the_shell() {
    let daemon = Daemon::start();
    let done = daemon.path("done");
    let command = format!("head -c 64000000 /dev/zero; echo x > {done}; exec sleep 1000");
    let id = create(&daemon.target(), &json!({"command": command}));
    let (holder, _) = Terminal::connect(&daemon.target(), &id, "pty=0");
    eventually("the shell goes on", || std::fs::metadata(&done).is_ok());
    drop(holder);
    daemon.delete(&format!("/pty/{id}")).ok();
}

#[test]
fn a_flood_can_be_interrupted() {
    let daemon = Daemon::start();
    let (_, mut terminal) = shell(&daemon);
    terminal.type_in("yes\n");
    terminal.until("y\r\ny\r\ny\r\n");
    terminal.type_in("\x03");
    terminal.until("$ ");
    terminal.type_in("echo st''opped\n");
    terminal.until("stopped\r\n");
}

#[test]
fn delete_ends_the_whole_tree_and_tells_the_client() {
    let daemon = Daemon::start();
    let pids = daemon.path("pids");
    // A job, a daemon of another session, and one that forks without end.
    let script = format!(
        "echo $$ > {pids}; sleep 1000 & echo $! >> {pids}; setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' & \
         setsid sh -c 'echo $$ >> {pids}; while :; do sleep 0.01 & wait; done' & \
         while [ $(wc -l < {pids}) -lt 4 ]; do sleep 0.01; done; echo all; wait"
    );
    let id = create(&daemon.target(), &json!({"command": script}));
    let (mut terminal, mut seen) = Terminal::connect(&daemon.target(), &id, "");
    terminal.read_until(&mut seen, |seen| seen.text().contains("all\r\n"));
    let pids: Vec<i32> = std::fs::read_to_string(pids).expect("pids").lines().map(pid_in).collect();
    assert!(pids.len() == 4 && pids.iter().all(|pid| is_running(*pid)), "{pids:?}");
    daemon.delete(&format!("/pty/{id}")).ok();
    assert!(pids.iter().all(|pid| !is_running(*pid)), "{pids:?}");
    let (seen, code, _) = terminal.until_close();
    assert_eq!((code, &seen.texts[0]["code"]), (1001, &json!("SESSION_GONE")));
    daemon.get(&format!("/pty/{id}")).refuses(404, "CONTEXT_NOT_FOUND", &id);
    daemon.delete(&format!("/pty/{id}")).refuses(404, "CONTEXT_NOT_FOUND", &id);
}

#[test]
fn ex_026_fifty_terminals_outlive_their_lost_connections_and_are_counted_capped_and_deleted() {
    let daemon = Daemon::start();
    let target = daemon.target();
    let mut shells = Vec::new();
    let ids: Vec<String> = (0..50)
        .map(|_| {
            let id = create(&target, &json!({"command": "sleep 1000 & echo $! end; wait"}));
            let (mut terminal, mut seen) = Terminal::connect(&target, &id, "");
            terminal.read_until(&mut seen, |seen| seen.text().contains("end\r\n"));
            shells.push(pid_in(seen.text().split(' ').next().expect("a pid")));
            id // the connection is dropped without a close
        })
        .collect();
    let listed = || target.get("/v1/pty").ok().json();
    eventually("nobody is attached", || {
        listed()["sessions"].as_array().expect("sessions").iter().all(|one| one["attached"] == false)
    });
    let list = listed();
    assert_eq!((&list["count"], &list["limit"], &list["idle_timeout_seconds"]), (&json!(50), &json!(64), &json!(3600)));
    assert!(list["sessions"].as_array().expect("sessions").iter().all(|one| one["running"] == true), "{list}");
    for _ in 50..64 {
        create(&target, &json!({}));
    }
    target.post("/pty", &json!({})).refuses(400, "RUNTIME_ERROR", "64 terminals");
    assert!(shells.iter().all(|pid| is_running(*pid)));
    for id in &ids {
        target.delete(&format!("/pty/{id}")).ok();
    }
    assert!(shells.iter().all(|pid| !is_running(*pid)), "a child outlived its session");
    assert_eq!(listed()["count"], 14);
}

#[test]
fn ex_026_a_session_without_clients_ends_by_its_idle_limit_and_one_with_a_viewer_does_not() {
    let daemon = Daemon::with(|command| {
        command.env("EXECD_PTY_IDLE_TIMEOUT", "1s");
    });
    let target = daemon.target();
    let watched = create(&target, &json!({"command": "sleep 1000"}));
    drop(Terminal::connect(&target, &watched, ""));
    let _viewer = Terminal::connect(&target, &watched, "mode=viewer");
    let left = create(&target, &json!({"command": "echo $$; exec sleep 1000"}));
    let (mut terminal, mut seen) = Terminal::connect(&target, &left, "");
    terminal.read_until(&mut seen, |seen| seen.out.ends_with(b"\n"));
    let pid = pid_in(&seen.text());
    drop(terminal);
    let unused = create(&target, &json!({}));
    eventually("both have ended", || [&left, &unused].iter().all(|id| target.get(&format!("/pty/{id}")).status == 404));
    eventually("its shell has ended", || !is_running(pid));
    assert_eq!(status(&target, &watched)["running"], true);
}

#[test]
fn what_cannot_be_attached_is_refused_before_the_upgrade() {
    let daemon = Daemon::start();
    let id = create(&daemon.target(), &json!({}));
    let attach = |path: &str, headers: &[(&str, &str)]| {
        let mut connection = daemon.connect();
        connection.send_head("GET", path, headers, "");
        connection.response("GET")
    };
    attach("/pty/nope/ws", &HANDSHAKE).refuses(404, "CONTEXT_NOT_FOUND", "nope");
    attach(&format!("/pty/{id}/ws"), &[]).refuses(426, "INVALID_REQUEST_BODY", "WebSocket");
    attach(&format!("/pty/{id}/ws"), &HANDSHAKE[..2]).refuses(400, "INVALID_REQUEST_BODY", "Version");
    attach(&format!("/pty/{id}/ws"), &HANDSHAKE[..3]).refuses(400, "INVALID_REQUEST_BODY", "Key");
    for query in ["since=-1", "since=x", "cols=0&rows=1", "rows=65536&cols=1", "mode=dance"] {
        attach(&format!("/pty/{id}/ws?{query}"), &HANDSHAKE).refuses(400, "INVALID_REQUEST_BODY", &query[..4]);
    }
    assert_eq!(status(&daemon.target(), &id)["attached"], false, "a refused client holds nothing");
    daemon.post("/pty", &json!({"command": "a\u{0}"})).refuses(400, "INVALID_REQUEST_BODY", "NUL");
    daemon.post("/pty", &json!({"cwd": "/proc/nope"})).refuses(400, "INVALID_REQUEST_BODY", "cwd");
    let (mut terminal, _) = Terminal::connect(&daemon.target(), &id, "");
    for (frame, code) in [(json!({"type": "ping"}), None), (json!({"type": "dance"}), Some("INVALID_FRAME"))] {
        terminal.say(&frame);
        let mut seen = Seen::default();
        terminal.read_until(&mut seen, |seen| !seen.texts.is_empty());
        assert_eq!((seen.texts[0]["type"] == "pong", seen.texts[0]["code"].as_str()), (code.is_none(), code));
    }
    terminal.send(0x89, b"alive?");
    let pong = std::iter::repeat_with(|| terminal.next()).find_map(|frame| match frame {
        Frame::Pong(bytes) => Some(bytes),
        _ => None,
    });
    assert_eq!(pong.as_deref(), Some(&b"alive?"[..]));
    terminal.send(0x83, b"");
    assert_eq!(terminal.until_close().1, 1002);
}

#[test]
fn a_shell_that_cannot_start_says_why() {
    let daemon = Daemon::start();
    let id = create(&daemon.target(), &json!({"cwd": daemon.path("gone")}));
    std::fs::remove_dir(daemon.path("gone")).expect("it was made");
    let (seen, code, _) = Terminal::attach(&daemon.target(), &id, "").until_close();
    assert_eq!((code, &seen.texts[0]["code"]), (1011, &json!("START_FAILED")));
    assert!(seen.texts[0]["error"].as_str().is_some_and(|error| error.contains("gone")), "{:?}", seen.texts);
    eventually("the place is free", || status(&daemon.target(), &id)["attached"] == false);
}

#[test]
fn a_terminal_belongs_to_the_user_of_the_sandbox() {
    let mut config = config(&["sleep", "1000"]);
    config.user = Some(NOBODY);
    config.cwd = Some("/".into());
    let sandbox = Sandbox::ready(&config);
    let target = sandbox.target();
    let id =
        create(&target, &json!({"command": "id -u; echo yes > $(tty); echo $FROM_BOOT; echo t:$EXECD_ACCESS_TOKEN"}));
    let (seen, exit) = Terminal::attach(&target, &id, "").until_exit();
    assert_eq!((seen.text().as_str(), &exit["exit_code"]), ("65534\r\nyes\r\nyes\r\nt:\r\n", &json!(0)));
}

#[test]
fn a_terminal_wants_the_token() {
    let daemon = Daemon::with_token("s3cret");
    let id = create(&daemon.target(), &json!({}));
    let stranger = Target::Tcp(daemon.address(), None);
    let mut connection = Connection::open(&stranger);
    connection.send_head("GET", &format!("/pty/{id}/ws"), &HANDSHAKE, "");
    connection.response("GET").refuses(401, "UNAUTHORIZED", "X-EXECD-ACCESS-TOKEN");
    Terminal::connect(&daemon.target(), &id, "");
}

#[test]
fn ended_terminals_leave_no_descriptor_behind() {
    let daemon = Daemon::start();
    let turn = || {
        let id = create(&daemon.target(), &json!({"command": "echo x"}));
        Terminal::attach(&daemon.target(), &id, "").until_exit();
        daemon.delete(&format!("/pty/{id}")).ok();
    };
    turn();
    let before = daemon.descriptors();
    (0..10).for_each(|_| turn());
    eventually("descriptors are closed", || daemon.descriptors() <= before);
}
