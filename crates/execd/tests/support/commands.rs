//! Helpers for tests of commands.

use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Daemon;

/// Longest time in which something that happens at once may be seen on a busy machine.
pub const SOON: Duration = Duration::from_secs(20);

pub fn pid_in(text: &str) -> i32 {
    text.trim().parse().unwrap_or_else(|_| panic!("a pid, not {text:?}"))
}

pub fn logs(daemon: &Daemon, id: &str, query: &str) -> (String, u64) {
    let response = daemon.get(&format!("/command/{id}/logs?{query}")).ok();
    let cursor = response.header("execd-commands-tail-cursor").expect("a cursor").parse().expect("a number");
    (response.text(), cursor)
}

pub fn status(daemon: &Daemon, id: &str) -> Value {
    daemon.get(&format!("/command/status/{id}")).ok().json()
}

/// Waits for the end of a background command by what it writes when it ends: a line into a fifo.
pub struct Fifo(pub String);

impl Fifo {
    pub fn new(daemon: &Daemon, name: &str) -> Self {
        let path = daemon.path(name);
        assert_eq!(daemon.shell(&format!("mkfifo -m 666 {path}")).end(), "0");
        Self(path)
    }

    /// Blocks until somebody has written and closed.
    pub fn read(&self) -> String {
        let mut text = String::new();
        std::fs::File::open(&self.0).expect("the fifo").read_to_string(&mut text).expect("text");
        text
    }
}

/// Polls the status, as clients do: the daemon offers no event for the end of a background command.
pub fn wait_until_finished(daemon: &Daemon, id: &str) -> Value {
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
