//! `osb shell` and `osb run -it` at a real terminal: settings, keys, size, dropped connections, and every end.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use e2e::server::Server;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

/// Longest wait for anything, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A program at a terminal.
struct Terminal {
    master: OwnedFd,
    slave: OwnedFd,
    child: Child,
    before: String,
    seen: Vec<u8>,
}

impl Terminal {
    /// Starts a program that leads a session of its own at a new terminal.
    fn start(command: &Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("its other side");
        let slave = ioctl_tiocgptpeer(&master, flags).expect("its other side");
        resize(&master, 100, 30);
        let end = || Stdio::from(slave.try_clone().expect("a descriptor"));
        // `setsid` makes the terminal the program's own, which a size that changes is told to.
        let mut started = Command::new("setsid");
        started.arg("--ctty").arg(command.get_program()).args(command.get_args()).current_dir("/").env_clear();
        started.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let child = started.stdin(end()).stdout(end()).stderr(end()).spawn().expect("starts");
        let before = settings(&slave);
        Self { master, slave, child, before, seen: Vec::new() }
    }

    fn type_in(&self, text: &str) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            rest = &rest[rustix::io::write(&self.master, rest).expect("it takes input")..];
        }
    }

    /// Reads what is there, or waits for it; false at the end.
    fn read(&mut self, deadline: Instant, what: &str) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = Timespec { tv_sec: left.as_secs().try_into().expect("short"), tv_nsec: left.subsec_nanos().into() };
        let ready = poll(&mut [PollFd::new(&self.master, PollFlags::IN)], Some(&wait)).expect("a look");
        assert!(ready > 0, "{what:?} did not come; seen: {}", String::from_utf8_lossy(&self.seen));
        let mut buffer = [0; 65536];
        match rustix::io::read(&self.master, &mut buffer) {
            Ok(length) => {
                self.seen.extend_from_slice(&buffer[..length]);
                length > 0
            }
            Err(_) => false,
        }
    }

    /// Reads until the text has come; what was read up to its end is forgotten and returned.
    fn until(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.windows(text.len()).position(|window| window == text.as_bytes()) {
                let rest = self.seen.split_off(at + text.len());
                return String::from_utf8_lossy(&std::mem::replace(&mut self.seen, rest)).into_owned();
            }
            self.read(deadline, text);
        }
    }

    /// Waits for the end of the program, reading meanwhile; the terminal must be as it was.
    fn end(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            let none = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            let ready = poll(&mut [PollFd::new(&self.master, PollFlags::IN)], Some(&none)).expect("a look");
            if ready > 0 {
                self.read(deadline, "the end");
            } else if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end; seen: {}", String::from_utf8_lossy(&self.seen));
        };
        assert_eq!(settings(&self.slave), self.before, "the terminal is not as it was");
        (status, String::from_utf8_lossy(&self.seen).into_owned())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it lives");
    }

    /// Waits until the program has taken the terminal.
    fn prompt(&mut self) {
        self.until("# ");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

fn settings(terminal: impl AsFd) -> String {
    let settings = tcgetattr(terminal).expect("a terminal");
    format!(
        "{:?} {:?} {:?} {:?} {:?}",
        settings.input_modes,
        settings.output_modes,
        settings.control_modes,
        settings.local_modes,
        settings.special_codes
    )
}

fn resize(terminal: impl AsFd, cols: u16, rows: u16) {
    let size = Winsize { ws_col: cols, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("a size");
}

/// A server with a sandbox.
fn with_sandbox() -> (Server, String) {
    let server = Server::start().expect("a server");
    let made = server.osb(&["sandbox", "create", "-o", "json"]).output().expect("osb runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).expect("JSON");
    let id = made["id"].as_str().expect("an id").to_owned();
    (server, id)
}

/// A relay to the server whose connections can be cut.
struct Relay {
    address: String,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn start(to: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let connections: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let open = Arc::clone(&connections);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&to) else { continue };
                for (from, into) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut into) = (from.try_clone().expect("a copy"), into.try_clone().expect("a copy"));
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut into); // until it is cut
                        let _ = into.shutdown(Shutdown::Write);
                    });
                }
                open.lock().expect("nobody panicked").extend([client, server]);
            }
        });
        Self { address, connections }
    }

    /// Breaks off everything that is open.
    fn cut(&self) -> usize {
        let cut: Vec<TcpStream> = self.connections.lock().expect("nobody panicked").drain(..).collect();
        cut.iter().filter(|stream| stream.shutdown(Shutdown::Both).is_ok()).count()
    }
}

/// `osb` with these words, by way of the relay.
fn through(server: &Server, relay: &Relay, words: &[&str]) -> Command {
    let mut command = server.osb(words);
    let key = std::fs::read_to_string(server.data().join("api-key")).expect("a key");
    command.env("OPEN_SANDBOX_DOMAIN", &relay.address).env("OPEN_SANDBOX_API_KEY", key.trim());
    command.env("OPEN_SANDBOX_USE_SERVER_PROXY", "true");
    command
}

fn address(server: &Server) -> String {
    let facts = std::fs::read(server.data().join("server.json")).expect("facts");
    let facts: serde_json::Value = serde_json::from_slice(&facts).expect("JSON");
    facts["url"].as_str().expect("a URL").trim_start_matches("http://").trim_end_matches('/').to_owned()
}

#[test]
fn a_shell_has_the_size_the_keys_and_the_exit_code() {
    let (server, id) = with_sandbox();
    let mut terminal = Terminal::start(&server.osb(&["shell", &id]));
    terminal.prompt();
    terminal.type_in("stty size; tty\n");
    let text = terminal.until("/dev/pts/");
    assert!(text.contains("30 100\r\n"), "{text}");
    resize(&terminal.master, 90, 20);
    terminal.type_in("until [ \"$(stty size)\" = '20 90' ]; do sleep 0.01; done; echo resi''zed\n");
    terminal.until("resized\r\n");
    terminal.type_in("sh -c 'echo wai\"\"ting; exec sleep 1000'\n");
    terminal.until("waiting\r\n");
    terminal.type_in("\x03");
    terminal.prompt();
    terminal.type_in("echo code $?\n");
    terminal.until("code 130\r\n");
    terminal.type_in("exit 7\n");
    let (status, rest) = terminal.end();
    assert_eq!(status.code(), Some(7), "{rest}");
}

#[test]
fn a_cut_connection_is_taken_up_and_nothing_is_shown_twice() {
    let (server, id) = with_sandbox();
    let relay = Relay::start(address(&server));
    let command = through(
        &server,
        &relay,
        &["shell", &id, "--", "for n in $(seq 1 4000); do echo n$n; [ $((n % 400)) = 0 ] && sleep 0.2; done; exit 5"],
    );
    let mut terminal = Terminal::start(&command);
    let mut shown = String::new();
    for mark in [400, 1200, 2000, 2800] {
        shown += &terminal.until(&format!("n{mark}\r\n"));
        assert!(relay.cut() > 0, "nothing was open");
    }
    let (status, rest) = terminal.end();
    shown += &rest;
    assert_eq!(status.code(), Some(5), "{rest}");
    let notes = |line: &&str| line.starts_with("[osb: ") || line.is_empty();
    let lines: Vec<&str> =
        shown.split("\r\n").map(|line| line.trim_matches('\r')).filter(|line| !notes(line)).collect();
    let expected: Vec<String> = (1..=4000).map(|number| format!("n{number}")).collect();
    let same = lines.iter().zip(&expected).take_while(|(line, expected)| *line == expected).count();
    assert_eq!(
        (same, lines.len()),
        (4000, 4000),
        "at {:?}",
        &lines[same.saturating_sub(2)..(same + 3).min(lines.len())]
    );
}

#[test]
fn an_end_that_was_missed_is_told_and_nothing_runs_twice() {
    let (server, id) = with_sandbox();
    let relay = Relay::start(address(&server));
    let script = "echo ru''nning >> /tmp/runs; cat /tmp/runs; while [ ! -e /tmp/go ]; do sleep 0.01; done; exit 9";
    let mut terminal = Terminal::start(&through(&server, &relay, &["shell", &id, "--", script]));
    terminal.until("running\r\n");
    terminal.signal(Signal::STOP); // it cannot come back before the end
    relay.cut();
    let go =
        server.osb(&["command", "run", &id, "--", "touch /tmp/go; sleep 0.3; cat /tmp/runs"]).output().expect("runs");
    assert_eq!(String::from_utf8_lossy(&go.stdout), "running\n");
    terminal.signal(Signal::CONT);
    let (status, rest) = terminal.end();
    assert_eq!(status.code(), Some(9), "{rest}");
    let runs = server.osb(&["command", "run", &id, "--", "cat /tmp/runs"]).output().expect("runs");
    assert_eq!(String::from_utf8_lossy(&runs.stdout), "running\n");
}

#[test]
fn left_running_it_is_found_again_and_ended_by_key() {
    let (server, id) = with_sandbox();
    let mut terminal = Terminal::start(&server.osb(&["shell", &id]));
    terminal.prompt();
    terminal.type_in("here=still\n");
    terminal.prompt();
    terminal.type_in("\n");
    terminal.prompt();
    terminal.type_in("~d");
    let (status, rest) = terminal.end();
    assert_eq!(status.code(), Some(0), "{rest}");
    let session = rest.split("--attach ").nth(1).and_then(|rest| rest.split('`').next()).expect("how to come back");
    let mut terminal = Terminal::start(&server.osb(&["shell", &id, "--attach", session]));
    terminal.prompt();
    terminal.type_in("echo $here he''re\n");
    terminal.until("still here\r\n");
    // Another takes it over, then ends it.
    let mut other = Terminal::start(&server.osb(&["shell", &id, "--attach", session]));
    let (status, rest) = terminal.end();
    assert_eq!(status.code(), Some(125), "{rest}");
    assert!(rest.contains("another client took over"), "{rest}");
    other.until("still here\r\n");
    other.type_in("\n");
    other.prompt();
    other.type_in("~.");
    assert_eq!(other.end().0.code(), Some(129));
    let gone = server.osb(&["shell", &id, "--attach", session]).output().expect("runs");
    assert_eq!(gone.status.code(), Some(125));
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let (server, id) = with_sandbox();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut terminal = Terminal::start(&server.osb(&["shell", &id]));
        terminal.prompt();
        terminal.signal(signal);
        assert_eq!(terminal.end().0.code(), Some(code));
    }
}

#[test]
fn a_server_that_is_gone_gives_the_terminal_back_and_says_so() {
    let (mut server, id) = with_sandbox();
    let mut terminal = Terminal::start(&server.osb(&["shell", &id, "--reconnect", "1s"]));
    terminal.prompt();
    server.stop().expect("it stops");
    let (status, rest) = terminal.end();
    assert_eq!(status.code(), Some(125), "{rest}");
    assert!(rest.contains("the connection broke"), "{rest}");
}

#[test]
fn a_sandbox_that_ends_gives_the_terminal_back_and_says_so() {
    let (server, id) = with_sandbox();
    let mut terminal = Terminal::start(&server.osb(&["shell", &id]));
    terminal.prompt();
    assert!(server.osb(&["sandbox", "kill", &id]).output().expect("runs").status.success());
    let (status, rest) = terminal.end();
    assert_eq!(status.code(), Some(125), "{rest}");
}

#[test]
fn one_command_at_a_terminal_in_a_sandbox_of_its_own() {
    let server = Server::start().expect("a server");
    let mut terminal = Terminal::start(&server.osb(&["run", "-it", "--", "bash", "--norc"]));
    terminal.prompt();
    terminal.type_in("stty size; id -u\n");
    let text = terminal.until("\r\n0\r\n");
    assert!(text.contains("30 100"), "{text}");
    terminal.type_in("exit 6\n");
    let (status, rest) = terminal.end();
    assert_eq!(status.code(), Some(6), "{rest}");
    let mut terminal = Terminal::start(&server.osb(&["run", "-it", "--", "bash", "--norc"]));
    terminal.prompt();
    terminal.signal(Signal::TERM);
    assert_eq!(terminal.end().0.code(), Some(143));
    let left = server.osb(&["sandbox", "list", "-o", "json"]).output().expect("runs");
    let left: serde_json::Value = serde_json::from_slice(&left.stdout).expect("JSON");
    let left = left["items"].as_array().or(left.as_array()).expect("a list");
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_pipe_is_no_terminal_and_works_as_one_where_it_may() {
    let (server, id) = with_sandbox();
    let refused = server.osb(&["run", "-it", "--", "bash"]).output().expect("runs");
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not a terminal"));
    let mut child = server.osb(&["shell", &id]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    child.stdin.take().expect("piped").write_all(b"echo from a pipe; exit 3\n").expect("taken");
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    assert_eq!((text.as_str(), child.wait().expect("ends").code()), ("from a pipe\n", Some(3)));
}
