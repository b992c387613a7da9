//! `osb file watch`: changes as they happen, none missed when the connection drops, and a clean end.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::Server;

/// Longest wait for a line or an end.
const PATIENCE: Duration = Duration::from_secs(30);

/// The program as it watches, with its lines as they come.
struct Watching {
    child: Child,
    lines: Receiver<String>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

impl Watching {
    fn start(server: &Server, words: &[&str]) -> Self {
        let mut command = server.osb(&["file", "watch"]);
        let mut child =
            command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("is piped"));
        let (tell, lines) = channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line")
    }

    fn event(&self) -> Value {
        serde_json::from_str(&self.line()).expect("each line is a JSON object")
    }

    /// Lines up to one that holds this text.
    fn until(&self, text: &str) -> Vec<String> {
        let mut lines = vec![self.line()];
        while !lines.last().is_some_and(|line| line.contains(text)) {
            lines.push(self.line());
        }
        lines
    }

    /// Its exit code and what it said beside its events, once it has ended by itself or by this signal.
    fn end(mut self, signal: Option<Signal>) -> (Option<i32>, String) {
        if let Some(signal) = signal {
            kill_process(Pid::from_child(&self.child), signal).expect("it runs");
        }
        // The pipe closes when it ends; the lines that are left do not matter.
        while self.lines.recv_timeout(PATIENCE).is_ok() {}
        let mut said = String::new();
        self.child.stderr.take().expect("is piped").read_to_string(&mut said).expect("text");
        (self.child.wait().expect("ends").code(), said)
    }
}

/// A way to the daemon that can be cut.
struct Wire {
    address: String,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Wire {
    fn to(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("is bound").to_string();
        let open = Arc::new(Mutex::new(Vec::new()));
        let kept: Arc<Mutex<Vec<TcpStream>>> = open.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let there = TcpStream::connect(&target).expect("the daemon accepts");
                for (mut from, mut to) in [(&stream, &there), (&there, &stream)]
                    .map(|(from, to)| (from.try_clone().expect("a copy"), to.try_clone().expect("a copy")))
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to); // it is cut sooner or later
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                kept.lock().expect("nobody panicked").extend([stream, there]);
            }
        });
        Self { address, open }
    }

    fn cut(&self) {
        for stream in self.open.lock().expect("nobody panicked").drain(..) {
            let _ = stream.shutdown(Shutdown::Both); // one side has closed it already
        }
    }
}

fn directory(server: &Server) -> (String, std::path::PathBuf) {
    let path = server.home.path().join("watched");
    fs::create_dir(&path).expect("a directory");
    (path.to_str().expect("UTF-8").to_owned(), path)
}

#[test]
fn changes_are_told_for_people_and_as_lines_of_json() {
    let server = Server::start();
    let (id, (dir, path)) = (server.sandbox(), directory(&server));
    fs::create_dir(path.join("below")).expect("a directory");
    let people = Watching::start(&server, &[&id, &dir]);
    let programs = Watching::start(&server, &[&id, &dir, "--recursive", "-o", "json"]);
    assert_eq!(people.line(), format!("{:<10} {dir}/", "watching"));
    assert_eq!(programs.event()["type"], "watching");
    fs::write(path.join("below/deep"), "x").expect("a file");
    assert_eq!(programs.event()["path"], format!("{dir}/below/deep"));
    fs::write(path.join("new\u{1b}[31m"), "x").expect("a file");
    fs::rename(path.join("below"), path.join("moved")).expect("a move");
    let told = people.until("moved ");
    assert!(told.iter().all(|line| !line.contains("deep") && !line.contains('\u{1b}')), "{told:?}");
    assert_eq!(told.last(), Some(&format!("{:<10} {dir}/below -> {dir}/moved/", "moved")));
    let moved = std::iter::repeat_with(|| programs.event()).find(|event| event["type"] == "moved").expect("endless");
    assert!(moved["cursor"].is_string() && moved["from"] == format!("{dir}/below"), "{moved}");
    for watching in [people, programs] {
        assert_eq!(watching.end(Some(Signal::INT)), (Some(130), String::new()));
    }
}

#[test]
fn a_dropped_connection_is_made_again_and_nothing_is_missed() {
    let server = Server::start();
    let (id, (dir, path)) = (server.sandbox(), directory(&server));
    let daemon = server.memory.lock().expect("nobody panicked").execd.clone();
    let wire = Wire::to(daemon);
    server.memory.lock().expect("nobody panicked").execd = wire.address.clone();
    let watching = Watching::start(&server, &[&id, &dir]);
    watching.until("watching");
    fs::write(path.join("a"), "x").expect("a file");
    watching.until("closed");
    wire.cut();
    fs::create_dir(path.join("between")).expect("a directory");
    assert_eq!(watching.line(), format!("{:<10} {dir}/between/", "created"));
    wire.cut();
    fs::remove_dir(path.join("between")).expect("removed");
    assert_eq!(watching.line(), format!("{:<10} {dir}/between/", "deleted"));
    let (code, said) = watching.end(Some(Signal::TERM));
    assert_eq!((code, said.matches("the stream is lost").count()), (Some(143), 2), "{said}");
}

#[test]
fn lost_events_and_the_end_of_the_directory_are_said() {
    let server = Server::start();
    let (id, (dir, path)) = (server.sandbox(), directory(&server));
    let watching = Watching::start(&server, &[&id, &dir, "--cursor", "gone.7"]);
    assert!(watching.until("rescan")[1].contains("the cursor is of a watch that has ended"));
    fs::remove_dir(&path).expect("removed");
    watching.until("ended");
    let (code, said) = watching.end(None);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("events below {dir} were lost")), "{said}");
}

#[test]
fn what_cannot_be_watched_is_refused_at_once() {
    let server = Server::start();
    let id = server.sandbox();
    for (words, word) in [(&[&id[..], "/no/such/place"][..], "no such file"), (&["unknown", "/tmp"], "does not exist")]
    {
        let ran = server.run(&[&["file", "watch"], words].concat());
        assert!(ran.code == Some(1) && ran.stderr.contains(word), "{ran:?}");
    }
}
