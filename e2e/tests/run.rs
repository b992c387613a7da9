//! `osb run`: with no server at all, and with one.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::server::{Server, built, copy_program};
use tempfile::TempDir;

/// An `osb` with a data directory of its own and no server.
struct Alone {
    scratch: TempDir,
}

impl Alone {
    fn new() -> Result<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        let scratch = tempfile::Builder::new().prefix("osb-run-").tempdir()?;
        std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755))?;
        copy_program(&built("OSB_BIN", "osb")?, &scratch.path().join("osb"))?;
        Ok(Self { scratch })
    }

    fn osb(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.scratch.path().join("osb"));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", self.scratch.path())
            .env("OSB_DATA_DIR", self.scratch.path().join("data"))
            .current_dir("/")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<Output> {
        self.osb(arguments).output().context("start osb")
    }

    /// Waits until no process of this copy and no mount of its data is left.
    fn nothing_left(&self) -> Result<()> {
        let program = self.scratch.path().join("osb");
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let processes: Vec<String> = std::fs::read_dir("/proc")?
                .flatten()
                .filter(|entry| std::fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == program))
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect();
            let sandboxes = std::fs::read_dir(self.scratch.path().join("data/sandboxes")).map_or(0, Iterator::count);
            if processes.is_empty() && sandboxes == 0 {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "left: processes {processes:?}, {sandboxes} sandboxes");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[track_caller]
fn says(output: &Output, code: i32, stdout: &str) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), stdout, "stderr: {err}");
    assert_eq!(output.status.code(), Some(code), "stderr: {err}");
}

#[test]
fn a_command_runs_without_a_server_and_leaves_nothing() {
    let alone = Alone::new().expect("a copy of osb");
    let started = Instant::now();
    says(&alone.run(&["run", "--", "/usr/bin/python3", "-c", "print(6*7)"]).expect("osb runs"), 0, "42\n");
    println!("first run took {:?}", started.elapsed());
    alone.nothing_left().expect("nothing is left");
}

#[test]
fn a_data_directory_that_the_api_process_cannot_reach_is_told_with_what_to_change() {
    use std::os::unix::fs::PermissionsExt as _;
    let alone = Alone::new().expect("a copy of osb");
    let closed = alone.scratch.path().join("closed");
    std::fs::create_dir(&closed).expect("make it");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).expect("close it");
    let output = alone
        .osb(&["server", "--host", "127.0.0.1", "--port", "0"])
        .env("OSB_DATA_DIR", closed.join("data"))
        .output()
        .expect("osb runs");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "stderr: {err}");
    assert!(err.contains("closed/data/exits") && err.contains("chmod o+x"), "stderr: {err}");
    alone.nothing_left().expect("nothing is left");
}

#[test]
fn exit_codes_and_signals_pass_through() {
    let alone = Alone::new().expect("a copy of osb");
    for (script, code) in [("exit 0", 0), ("exit 1", 1), ("exit 255", 255), ("kill -9 $$", 137), ("kill -15 $$", 143)] {
        says(&alone.run(&["run", "--", "sh", "-c", script]).expect("osb runs"), code, "");
    }
    alone.nothing_left().expect("nothing is left");
}

#[test]
fn flags_reach_the_sandbox() {
    let alone = Alone::new().expect("a copy of osb");
    let output = alone
        .run(&["run", "--env", "GREETING=a b", "--cwd", "/usr/share", "--", "sh", "-c", "echo $GREETING; pwd"])
        .expect("osb runs");
    says(&output, 0, "a b\n/usr/share\n");
    let hog = "b = bytearray(256 << 20)";
    let output = alone.run(&["run", "--memory", "64Mi", "--", "/usr/bin/python3", "-c", hog]).expect("osb runs");
    assert_ne!(output.status.code(), Some(0), "64 MiB held 256");
    let started = Instant::now();
    let output = alone.run(&["run", "--timeout", "2s", "--", "sleep", "60"]).expect("osb runs");
    assert_ne!(output.status.code(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(20), "took {:?}", started.elapsed());
    alone.nothing_left().expect("nothing is left");
}

#[test]
fn an_interrupt_ends_command_and_sandbox() {
    let alone = Alone::new().expect("a copy of osb");
    let mut child = alone
        .osb(&["run", "--", "sh", "-c", "echo started; sleep 300"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("osb starts");
    let mut first = [0; 8];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut first).expect("it says started");
    assert_eq!(&first, b"started\n");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signal osb");
    let deadline = Instant::now() + Duration::from_secs(15);
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait") {
            break status;
        }
        assert!(Instant::now() < deadline, "osb run did not end");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(130), "{status}");
    alone.nothing_left().expect("nothing is left");
}

#[test]
fn a_killed_osb_run_takes_its_sandbox_with_it() {
    let alone = Alone::new().expect("a copy of osb");
    let mut child = alone
        .osb(&["run", "--", "sh", "-c", "echo started; sleep 300"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("osb starts");
    let mut first = [0; 8];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut first).expect("it says started");
    child.kill().expect("kill osb run");
    child.wait().expect("reap osb run");
    alone.nothing_left().expect("nothing is left");
}

#[test]
fn a_running_server_is_used() {
    let mut server = Server::start().expect("the server starts");
    let output = server.osb(&["run", "--", "/bin/echo", "through the server"]).output().expect("osb runs");
    says(&output, 0, "through the server\n");
    let log = server.log();
    server.stop().unwrap_or_else(|error| panic!("{error:#}\n{log}"));
}
