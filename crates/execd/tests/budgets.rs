//! What execd may cost in every sandbox: sizes are limits, the clock's figure is generous and its ratio is
//! the bench's business.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use support::Target;

/// Bytes of the file that is put into every sandbox.
const FILE_BYTES: u64 = 4 * 1024 * 1024;
/// KiB of memory that an idle daemon costs its host.
const IDLE_PSS_KIB: u64 = 2560;
/// From the start of the process to the answer of `/ping`. The best of some runs: a test machine is shared.
const START_TO_PING: Duration = Duration::from_millis(5);
const STARTS: usize = 20;

/// The daemon as it is shipped; built here when it is not there.
fn shipped() -> &'static PathBuf {
    static SHIPPED: OnceLock<PathBuf> = OnceLock::new();
    SHIPPED.get_or_init(|| {
        let built = Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--profile",
                "execd",
                "--package",
                "execd",
                "--message-format=json-render-diagnostics",
            ])
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo runs");
        assert!(built.status.success(), "the execd profile builds");
        let text = String::from_utf8(built.stdout).expect("JSON");
        let artifact = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let path = artifact.filter_map(|message| Some(message["executable"].as_str()?.into())).next_back();
        path.expect("cargo names the executable")
    })
}

struct Started {
    child: Child,
    target: Target,
    after: Duration,
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the shipped daemon and asks it for a sign of life.
fn start() -> Started {
    let begun = Instant::now();
    let mut command = Command::new(shipped());
    let mut child =
        command.args(["--host", "127.0.0.1", "--port", "0"]).stdout(Stdio::piped()).spawn().expect("execd starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("stdout is piped")).read_line(&mut line).expect("an address");
    let target = Target::Tcp(line.trim().parse().expect("an address"), None);
    target.get("/ping").ok();
    Started { child, target, after: begun.elapsed() }
}

fn pss_kib(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("execd lives");
    let line = rollup.lines().find(|line| line.starts_with("Pss:")).expect("a figure");
    line.split_ascii_whitespace().nth(1).and_then(|figure| figure.parse().ok()).expect("a figure")
}

#[test]
fn the_file_is_small_and_static() {
    let bytes = fs::read(shipped()).expect("the file");
    assert!(bytes.len() as u64 <= FILE_BYTES, "{} bytes", bytes.len());
    // A program that needs an interpreter names it: PT_INTERP is type 3 in the program headers.
    let number = |at: usize, size: usize| {
        bytes[at..at + size].iter().rev().fold(0usize, |value, byte| value << 8 | usize::from(*byte))
    };
    let (offset, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    let kinds: Vec<usize> = (0..count).map(|index| number(offset + index * size, 4)).collect();
    assert!(!kinds.contains(&3), "it asks for a dynamic loader");
}

#[test]
fn an_idle_daemon_is_cheap_also_after_work() {
    let daemon = start();
    assert_becomes_idle(daemon.child.id(), "after its first answer");
    assert_eq!(daemon.target.shell("seq 500000").end(), "0");
    assert_becomes_idle(daemon.child.id(), "after work");
}

/// What an answer took goes back a moment after it.
fn assert_becomes_idle(pid: u32, when: &str) {
    let begun = Instant::now();
    while pss_kib(pid) > IDLE_PSS_KIB {
        assert!(begun.elapsed() < Duration::from_secs(10), "{} KiB {when}", pss_kib(pid));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn it_answers_soon_after_its_start() {
    let best = (0..STARTS).map(|_| start().after).min().expect("some starts");
    assert!(best <= START_TO_PING, "{best:?}");
}
