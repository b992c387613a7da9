//! Starts real daemons and speaks plain HTTP/1.1 with them: no client library stands between a test and
//! the bytes that it checks.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod code;
pub mod commands;
pub mod events;
pub mod files;
pub mod http;
pub mod jupyter;
pub mod pid1;
pub mod terminal;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

pub use http::{Connection, Response, Target};

/// A stand-alone daemon on a free loopback port, with a directory of its own. It ends with the value.
pub struct Daemon {
    child: Child,
    address: SocketAddr,
    directory: tempfile::TempDir,
    token: Option<String>,
}

impl Daemon {
    /// Without a token.
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    /// With a token that all requests of the test carry.
    pub fn with_token(token: &str) -> Self {
        let mut daemon = Self::with(|command| {
            command.env("EXECD_ACCESS_TOKEN", token);
        });
        daemon.token = Some(token.to_owned());
        daemon
    }

    /// With changes to its command line and environment.
    pub fn with(change: impl FnOnce(&mut Command)) -> Self {
        Self::wrapped(Command::new(env!("CARGO_BIN_EXE_execd")), change)
    }

    /// Started by another program, whose last arguments are execd's.
    pub fn wrapped(mut command: Command, change: impl FnOnce(&mut Command)) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        // A daemon that runs as another user must reach it.
        std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("chmod");
        command
            .args(["--host", "127.0.0.1", "--port", "0"])
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command.env_remove("EXECD_ACCESS_TOKEN").env("EXECD_ENVS", directory.path().join("env"));
        change(&mut command);
        let mut child = command.spawn().expect("execd starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut line).expect("execd prints its address");
        let address = line.trim().parse().unwrap_or_else(|_| panic!("an address, not {line:?}"));
        Self { child, address, directory, token: None }
    }

    /// A new connection.
    pub fn connect(&self) -> Connection {
        Connection::open(&self.target())
    }

    /// Where it listens, with its token.
    pub fn target(&self) -> Target {
        Target::Tcp(self.address, self.token.clone())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Pid of the process that was started.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A path in the daemon's directory.
    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    /// The daemon's directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The env file.
    pub fn env_file(&self) -> PathBuf {
        self.directory.path().join("env")
    }

    /// A line of `/proc/PID/status`, in KiB for memory.
    pub fn status_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("execd lives");
        let line = status.lines().find(|line| line.starts_with(name)).expect("the line is there");
        line.split_ascii_whitespace().nth(1).expect("a number").parse().expect("a number")
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("execd lives").count()
    }

    /// Processor time so far, in clock ticks.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("execd lives");
        let after = stat.rsplit(')').next().expect("fields");
        let fields: Vec<u64> =
            after.split_ascii_whitespace().skip(11).take(2).map(|field| field.parse().expect("a number")).collect();
        fields.iter().sum()
    }

    /// See [`Target::get`].
    pub fn get(&self, path: &str) -> Response {
        self.target().get(path)
    }

    /// See [`Target::delete`].
    pub fn delete(&self, path: &str) -> Response {
        self.target().delete(path)
    }

    /// See [`Target::post`].
    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.target().post(path, body)
    }

    /// See [`Target::run`].
    pub fn run(&self, body: Value) -> Run {
        self.target().run(body)
    }

    /// See [`Target::shell`].
    pub fn shell(&self, command: &str) -> Run {
        self.target().shell(command)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

impl Target {
    /// One request without a body.
    pub fn get(&self, path: &str) -> Response {
        Connection::open(self).request("GET", path, &[], b"")
    }

    /// One DELETE.
    pub fn delete(&self, path: &str) -> Response {
        Connection::open(self).request("DELETE", path, &[], b"")
    }

    /// One POST of JSON.
    pub fn post(&self, path: &str, body: &Value) -> Response {
        Connection::open(self).request(
            "POST",
            path,
            &[("Content-Type", "application/json")],
            body.to_string().as_bytes(),
        )
    }

    /// Runs a command to the end of its stream.
    pub fn run(&self, body: Value) -> Run {
        let response = self.post("/command", &body);
        assert_eq!(response.status, 200, "{}", response.text());
        Run::parse(&response.body)
    }

    /// Runs shell text.
    pub fn shell(&self, command: &str) -> Run {
        self.run(json!({ "command": command }))
    }
}

/// The events of one stream.
pub struct Run {
    pub events: Vec<Value>,
}

impl Run {
    /// Splits a stream; every event must be a bare object with type and timestamp.
    pub fn parse(body: &[u8]) -> Self {
        let text = std::str::from_utf8(body).expect("a stream is UTF-8");
        assert!(text.is_empty() || text.ends_with("\n\n"), "the stream ends within an event");
        let events: Vec<Value> = text
            .split_terminator("\n\n")
            .map(|event| serde_json::from_str(event).unwrap_or_else(|_| panic!("an event: {event:?}")))
            .collect();
        for event in &events {
            assert!(event["type"].is_string() && event["timestamp"].is_i64(), "{event}");
        }
        Self { events }
    }

    /// Texts of one kind put together.
    pub fn text(&self, kind: &str) -> String {
        self.events.iter().filter(|event| event["type"] == kind).filter_map(|event| event["text"].as_str()).collect()
    }

    /// Standard output.
    pub fn stdout(&self) -> String {
        self.text("stdout")
    }

    /// Standard error.
    pub fn stderr(&self) -> String {
        self.text("stderr")
    }

    /// The id of the `init` event, which comes first.
    pub fn id(&self) -> String {
        assert_eq!(self.events[0]["type"], "init");
        self.events[0]["text"].as_str().expect("an id").to_owned()
    }

    /// `0` after completion, the `evalue` after an error; it comes last and once.
    pub fn end(&self) -> String {
        let is_end = |event: &Value| matches!(event["type"].as_str(), Some("error" | "execution_complete"));
        assert_eq!(self.events.iter().filter(|event| is_end(event)).count(), 1, "one end in {:?}", self.events);
        let last = self.events.last().expect("events");
        match last["type"].as_str() {
            Some("execution_complete") => "0".into(),
            _ => {
                let error = last["error"].as_object().expect("the end is an error");
                assert!(error["ename"].is_string() && error["traceback"].is_array() && error.len() == 3, "{error:?}");
                error["evalue"].as_str().expect("evalue is text").to_owned()
            }
        }
    }
}

/// Whether a process exists and is no zombie.
pub fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().next()).is_some_and(|state| state != "Z")
}

/// Ends a process that a test's command left behind, by the pid that it reported.
pub fn end(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}
