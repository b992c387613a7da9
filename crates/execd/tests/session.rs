//! Shell sessions: what lasts between runs, what does not, and how runs end.

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::commands::*;
use support::{Connection, Daemon, Response, Run, Target, is_running};

struct Session {
    target: Target,
    id: String,
}

impl Session {
    fn new(target: Target) -> Self {
        Self::with(target, json!({}))
    }

    fn with(target: Target, body: Value) -> Self {
        let answer = target.post("/session", &body).ok().json();
        let id = answer["session_id"].as_str().expect("an id").to_owned();
        Self { target, id }
    }

    fn post(&self, body: &Value) -> Response {
        self.target.post(&format!("/session/{}/run", self.id), body)
    }

    fn run(&self, command: &str) -> Run {
        Run::parse(&self.post(&json!({ "command": command })).ok().body)
    }

    /// The lines of a run that must succeed.
    #[track_caller]
    fn lines(&self, command: &str) -> Vec<String> {
        let run = self.run(command);
        assert_eq!(run.end(), "0", "{command}: {:?}", run.events);
        let texts = run.events.iter().filter(|event| event["type"] == "stdout");
        texts.map(|event| event["text"].as_str().expect("text").to_owned()).collect()
    }

    /// Begins a run and returns its connection with the first line that the command printed.
    fn begin(&self, body: &Value) -> (Connection, String) {
        let mut connection = Connection::open(&self.target);
        connection.send("POST", &format!("/session/{}/run", self.id), &[], body.to_string().as_bytes());
        assert_eq!(connection.head().status, 200);
        loop {
            let run = Run::parse(&connection.chunk().expect("events"));
            if !run.stdout().is_empty() {
                return (connection, run.stdout());
            }
        }
    }

    fn delete(&self) -> Response {
        self.target.delete(&format!("/session/{}", self.id))
    }
}

fn rest_of(mut connection: Connection) -> Run {
    let mut body = Vec::new();
    while let Some(chunk) = connection.chunk() {
        body.extend_from_slice(&chunk);
    }
    Run::parse(&body)
}

fn assert_gone(pid: i32) {
    let begun = Instant::now();
    while is_running(pid) {
        assert!(begun.elapsed() < Duration::from_secs(5), "{pid} is still there");
        std::thread::yield_now();
    }
}

/// Prints two pids, of the shell's child in the foreground and of one in the background.
const LONG: &str = "sleep 987 & echo $! $$; sleep 987 | cat";

fn pids(line: &str) -> Vec<i32> {
    line.split(' ').map(pid_in).collect()
}

#[test]
fn a_run_has_the_published_form() {
    let daemon = Daemon::start();
    let answer = daemon.connect().request("POST", "/session", &[], b"").ok().json();
    let id = answer["session_id"].as_str().expect("an id").to_owned();
    assert_eq!((answer.as_object().map(serde_json::Map::len), id.len()), (Some(1), 36));
    let session = Session { target: daemon.target(), id };
    let response =
        session.post(&json!({"command": "echo a; echo; echo b >&2; printf 'c\\r\\n'; printf d; exit 3"})).ok();
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    let run = Run::parse(&response.body);
    assert_eq!((run.id(), run.end()), (session.id.clone(), "3".to_owned()));
    let texts: Vec<_> = run.events.iter().map(|event| (event["type"].as_str(), event["text"].as_str())).collect();
    let stdout = |text| (Some("stdout"), Some(text));
    assert_eq!(texts[1], (Some("ping"), Some("pong")));
    assert_eq!(texts[2..6], [stdout("a"), stdout("b"), stdout("c"), stdout("d")]);
    let error = &run.events.last().expect("events")["error"];
    assert_eq!(*error, json!({"ename": "CommandExecError", "evalue": "3", "traceback": ["exit status 3"]}));
}

#[test]
fn exported_variables_and_the_directory_last_and_nothing_else() {
    let daemon = Daemon::start();
    let session = Session::new(daemon.target());
    assert!(
        session.lines("export A=1 B='two words'; C=3; f() { :; }; set -u; shopt -s extglob; cd /usr/share").is_empty()
    );
    let seen = session.lines("echo \"$A|$B|${C-unset}|$PWD|$-\"; type f >/dev/null 2>&1 || echo no function");
    assert_eq!(seen, ["1|two words|unset|/usr/share|hBc", "no function"]);
    session.lines("unset A; export B=");
    assert_eq!(session.lines("echo \"${A-unset}|${B-unset}|\""), ["unset||"]);
}

#[test]
fn values_of_any_bytes_last() {
    let daemon = Daemon::start();
    let session = Session::new(daemon.target());
    session
        .lines("export LINES_='one\n  two\n\n' QUOTES=$'\\'\"`$\\\\' BYTES=$'\\xff\\x01\\e'; export BIG=$(seq 10000)");
    let seen = session
        .lines("printf %s \"$LINES_\" | od -An -c; echo \"$QUOTES\"; printf %s \"$BYTES\" | od -An -tx1; echo ${#BIG}");
    assert_eq!(seen, ["   o   n   e  \\n           t   w   o  \\n  \\n", "'\"`$\\", " ff 01 1b", "48893"]);
}

#[test]
fn a_command_that_leaves_the_shell_changes_nothing() {
    let daemon = Daemon::start();
    let session = Session::new(daemon.target());
    session.lines("export A=before; cd /usr");
    for (command, code) in [
        ("export A=after; cd /; exit 4", "4"),
        ("export A=after; cd /; exec false", "1"),
        ("export A=after; cd /; set -e; false", "1"),
        ("export A=after; kill -9 $$", "-1"),
    ] {
        assert_eq!(session.run(command).end(), code, "{command}");
        assert_eq!(session.lines("echo $A $PWD"), ["before /usr"], "{command}");
    }
    // A failing last command is no way out of the shell.
    assert_eq!(session.run("export A=after; false").end(), "1");
    assert_eq!(session.lines("echo $A"), ["after"]);
}

#[test]
fn output_that_looks_like_state_is_only_output() {
    let daemon = Daemon::start();
    let session = Session::new(daemon.target());
    let forged = "__PWD__:/etc\n__EXIT_CODE__:7\n__ENV_DUMP_START__\ndeclare -x FORGED=\"1\"";
    let seen = session.lines(&format!("cat <<'END'\n{forged}\nEND\n{{ echo /etc; printf '\\0\\0'; }} >&3; true"));
    assert_eq!(seen[..4].join("\n"), forged);
    assert!(seen[4].contains("3: Bad file descriptor"), "{seen:?}");
    assert_eq!(session.lines("echo ${FORGED-unset} $PWD"), ["unset /"]);
    // Nor do a descriptor of the same number, functions, options and traces of the command get in the way.
    let tricks = "exec 3>/dev/null; pwd() { echo /etc; }; export() { echo x; }; exit() { :; }; printf() { :; }; set -aux; X=1; cd /usr";
    assert_eq!(session.run(tricks).end(), "0");
    assert_eq!(session.lines("echo $X $PWD ${__osb_status-unset}"), ["1 /usr unset"]);
    assert_eq!(session.lines("echo $#; ls /proc/self/fd | grep -c '^3$'").first().map(String::as_str), Some("0"));
}

#[test]
fn the_shell_speaks_for_itself() {
    let daemon = Daemon::start();
    let session = Session::new(daemon.target());
    let run = session.run("true\nno_such_program");
    assert_eq!(
        (run.end().as_str(), run.stdout().as_str()),
        ("127", "bash: line 2: no_such_program: command not found")
    );
    let run = session.run("if then (");
    assert_eq!(run.end(), "2");
    assert!(run.stdout().contains("syntax error"), "{}", run.stdout());
    assert_eq!(session.lines("cat; read x || echo no input"), ["no input"]);
}

#[test]
fn directories_are_made_at_the_start_and_must_exist_for_a_run() {
    let daemon = Daemon::start();
    let made = daemon.path("made/below");
    let session = Session::with(daemon.target(), json!({ "cwd": made }));
    assert_eq!(session.lines("pwd"), [made.as_str()]);
    let there = session.post(&json!({"command": "pwd", "cwd": "/usr"})).ok();
    assert_eq!(Run::parse(&there.body).stdout(), "/usr");
    // The last directory is kept, whoever chose it.
    assert_eq!(session.lines("pwd"), ["/usr"]);
    session.post(&json!({"command": "pwd", "cwd": "/no/such"})).refuses(400, "INVALID_REQUEST_BODY", "/no/such");
    session.post(&json!({"command": "pwd", "cwd": "/etc/passwd"})).refuses(400, "INVALID_REQUEST_BODY", "/etc/passwd");
    daemon.post("/session", &json!({"cwd": "/etc/passwd/x"})).refuses(400, "INVALID_REQUEST_BODY", "/etc/passwd/x");
}

#[test]
fn ex_036_a_directory_removed_under_a_session_is_named() {
    let daemon = Daemon::start();
    let gone = daemon.path("gone");
    let session = Session::with(daemon.target(), json!({ "cwd": gone }));
    session.lines("rmdir \"$PWD\"");
    session.post(&json!({"command": "true"})).refuses(400, "INVALID_REQUEST_BODY", &gone);
    let there = session.post(&json!({"command": "pwd", "cwd": "/"})).ok();
    assert_eq!(Run::parse(&there.body).stdout(), "/");
    assert_eq!(session.lines("pwd"), ["/"]);
}

#[test]
fn os_051_the_env_file_counts_at_the_start_and_private_names_never() {
    let daemon = Daemon::with(|command| {
        command.env("JUPYTER_HOST", "http://127.0.0.1:1").env("OPENSANDBOX_LIFECYCLE", r#"{"periodic":[]}"#);
        command.env("EXECD_ISOLATION_CONFIG", "private").env("EXECD_RUNTIME_INIT", "false");
        command.env("FROM_START", "start").env("BOTH", "start");
    });
    std::fs::write(daemon.env_file(), "BOTH=file\nFROM_FILE='a b'\n").expect("the env file");
    let session = Session::new(daemon.target());
    assert_eq!(session.lines("echo $FROM_START,$BOTH,$FROM_FILE"), ["start,file,a b"]);
    assert_eq!(session.lines("env | grep -E '^(EXECD|JUPYTER|OPENSANDBOX_L)' || echo none"), ["none"]);
    // Afterwards the session's own word holds.
    session.lines("export BOTH=mine");
    std::fs::write(daemon.env_file(), "BOTH=late\n").expect("the env file");
    assert_eq!(session.lines("echo $BOTH"), ["mine"]);
}

#[test]
fn requests_that_cannot_be_obeyed_are_refused() {
    let daemon = Daemon::start();
    let session = Session::new(daemon.target());
    for (body, word) in [
        (json!({}), "command"),
        (json!({"command": ""}), "command"),
        (json!({"command": "a\u{0}b"}), "NUL"),
        (json!({"command": "true", "timeout": -1}), "timeout"),
        (json!({"command": "x".repeat(1_000_000)}), "921600"),
        (json!({"command": 5}), "JSON"),
    ] {
        session.post(&body).refuses(400, "INVALID_REQUEST_BODY", word);
    }
    let unknown = "/session/6a1f7a3e-0000-4000-8000-000000000000";
    daemon.post(&format!("{unknown}/run"), &json!({"command": "true"})).refuses(400, "CONTEXT_NOT_FOUND", "6a1f7a3e");
    daemon.delete(unknown).refuses(404, "CONTEXT_NOT_FOUND", "6a1f7a3e");
    daemon.connect().request("POST", "/session", &[], b"{").refuses(400, "INVALID_REQUEST_BODY", "JSON");
}

#[test]
fn a_long_command_arrives_whole() {
    let daemon = Daemon::start();
    let text: String = (0..60_000).map(|number| format!("{number:09}\n")).collect();
    let session = Session::new(daemon.target());
    let seen = session.lines(&format!("sha256sum <<'END'\n{text}END"));
    let direct = daemon.shell("for i in $(seq 0 59999); do printf '%09d\\n' $i; done | sha256sum");
    assert_eq!(format!("{}\n", seen.join("")), direct.stdout());
}

#[test]
fn state_that_cannot_be_kept_is_an_error_and_no_loss() {
    let daemon = Daemon::start();
    let session = Session::new(daemon.target());
    session.lines("export A=1");
    for too_much in ["export BIG=$(seq 30000)", "for i in $(seq 100); do export V$i=\"$(seq 1000)\"; done"] {
        let run = session.run(&format!("export A=2; {too_much}; echo done"));
        assert_eq!(run.stdout(), "done");
        let error = &run.events.last().expect("events")["error"];
        assert_eq!(error["ename"], "SessionStateError", "{error}");
        assert!(run.end().contains("bytes"), "{}", run.end());
        assert_eq!(session.lines("echo $A ${BIG-unset}"), ["1 unset"]);
    }
}

#[test]
fn os_041_a_timeout_ends_the_group_with_a_typed_error() {
    let daemon = Daemon::start();
    let session = Session::new(daemon.target());
    let (connection, line) = session.begin(&json!({ "command": LONG, "timeout": 500 }));
    let run = rest_of(connection);
    assert_eq!(run.end(), "-1");
    let traceback = &run.events.last().expect("events")["error"]["traceback"];
    assert_eq!(traceback[0], "signal: killed");
    assert!(traceback[1].as_str().is_some_and(|text| text.contains("500 ms")), "{traceback}");
    pids(&line).into_iter().for_each(assert_gone);
    assert_eq!(session.lines("echo usable"), ["usable"]);
}

#[test]
fn os_041_a_dropped_connection_ends_the_group() {
    let daemon = Daemon::start();
    let session = Session::new(daemon.target());
    let (connection, line) = session.begin(&json!({ "command": LONG }));
    drop(connection);
    pids(&line).into_iter().for_each(assert_gone);
    assert_eq!(session.lines("echo usable"), ["usable"]);
}

#[test]
fn os_041_deleting_a_session_ends_all_its_runs_and_forgets_it() {
    let daemon = Daemon::start();
    let bystander = Session::new(daemon.target());
    let (_held, other) = bystander.begin(&json!({ "command": LONG }));
    for by_command in [false, true] {
        let session = Session::new(daemon.target());
        let (first, first_line) = session.begin(&json!({ "command": LONG }));
        let (_second, second_line) = session.begin(&json!({ "command": LONG }));
        match by_command {
            false => session.delete().ok(),
            true => daemon.delete(&format!("/command?id={}", session.id)).ok(),
        };
        for line in [first_line, second_line] {
            pids(&line).into_iter().for_each(assert_gone);
        }
        assert_eq!(rest_of(first).end(), "-1");
        session.delete().refuses(404, "CONTEXT_NOT_FOUND", &session.id);
        daemon.delete(&format!("/command?id={}", session.id)).refuses(400, "CONTEXT_NOT_FOUND", &session.id);
        session.post(&json!({"command": "true"})).refuses(400, "CONTEXT_NOT_FOUND", &session.id);
    }
    assert!(pids(&other).into_iter().all(is_running), "another session is untouched");
}

#[test]
fn runs_are_not_serialised() {
    let daemon = Daemon::start();
    let session = Session::new(daemon.target());
    let fifo = Fifo::new(&daemon, "go");
    let (connection, _) = session.begin(&json!({"command": format!("echo begun; read x < {}; export A=slow", fifo.0)}));
    session.lines("export A=quick");
    assert_eq!(session.lines("echo $A"), ["quick"]);
    std::fs::write(&fifo.0, "x\n").expect("the run waits");
    assert_eq!(rest_of(connection).end(), "0");
    assert_eq!(session.lines("echo $A"), ["slow"], "the last to end wins");
}

#[test]
fn a_line_beyond_the_bound_is_a_typed_error() {
    let daemon = Daemon::start();
    let session = Session::new(daemon.target());
    let line = |bytes: u64| format!("head -c {bytes} /dev/zero | tr '\\0' x; echo; echo after");
    let whole = session.lines(&line(2 << 20));
    assert_eq!((whole[0].len(), whole[1].as_str()), (2 << 20, "after"));
    let run = session.run(&line((16 << 20) + 1));
    assert_eq!(run.events.last().expect("events")["error"]["ename"], "OutputLineTooLong");
    assert!(run.end().contains("16777216 bytes"), "{}", run.end());
    assert_eq!(session.lines("echo usable"), ["usable"]);
}

#[test]
fn there_is_a_limit_of_sessions_and_a_deleted_one_makes_room() {
    let daemon = Daemon::start();
    let mut connection = daemon.connect();
    let ids: Vec<String> = (0..256)
        .map(|_| {
            connection.request("POST", "/session", &[], b"{}").ok().json()["session_id"]
                .as_str()
                .expect("id")
                .to_owned()
        })
        .collect();
    connection.request("POST", "/session", &[], b"{}").refuses(400, "RUNTIME_ERROR", "256 sessions");
    daemon.delete(&format!("/session/{}", ids[7])).ok();
    connection.request("POST", "/session", &[], b"{}").ok();
}

#[test]
fn many_runs_leave_no_descriptor() {
    let daemon = Daemon::start();
    let session = Session::new(daemon.target());
    session.lines("true");
    let before = daemon.descriptors();
    for _ in 0..50 {
        session.lines("export A=$RANDOM");
    }
    let begun = Instant::now();
    while daemon.descriptors() > before {
        assert!(begun.elapsed() < SOON, "{} descriptors, {before} before", daemon.descriptors());
    }
}
