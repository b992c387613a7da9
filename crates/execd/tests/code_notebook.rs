//! Code contexts by a Jupyter server: a real one, and one that would lead astray.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use serde_json::{Value, json};
use support::code::{Context, daemon_with, wait_until};
use support::{Connection, Daemon, Target, jupyter};

const TOKEN: &str = "planted-jupyter-token";

/// A real Jupyter server of this test.
struct Server {
    child: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let environment = jupyter::environment();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
        let child = Command::new(environment.join("bin/jupyter-server"))
            .args([
                "--no-browser",
                "--allow-root",
                "--ServerApp.root_dir=/",
                "--ServerApp.port_retries=0",
                "--ServerApp.allow_remote_access=True",
            ])
            .args([format!("--port={port}"), format!("--IdentityProvider.token={TOKEN}")])
            .env("HOME", directory.path())
            .env("JUPYTER_RUNTIME_DIR", directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("jupyter-server is installed");
        Self { child, port, _directory: directory }
    }

    fn daemon(&self) -> Daemon {
        daemon_with(&[("JUPYTER_HOST", &format!("http://127.0.0.1:{}", self.port)), ("JUPYTER_TOKEN", TOKEN)])
    }

    fn sessions(&self) -> Value {
        let target = Target::Tcp(([127, 0, 0, 1], self.port).into(), None);
        let token = format!("Token {TOKEN}");
        Connection::open(&target).request("GET", "/api/sessions", &[("Authorization", &token)], b"").ok().json()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM); // it ends its kernels
        let _ = self.child.wait();
    }
}

#[test]
fn os_072_contexts_live_in_the_sessions_of_a_real_server() {
    let server = Server::start();
    let daemon = server.daemon(); // the server is still starting, and is waited for
    let python = Context::new(&daemon, "python");
    let ran = python.run("x = 20\nimport sys\nprint('hello'); print('err', file=sys.stderr)\nx + 1");
    assert_eq!((ran.stdout().as_str(), ran.text("stderr").as_str(), ran.result().as_str()), ("hello\n", "err\n", "21"));
    assert_eq!(python.run("get_ipython().__class__.__name__").result(), "'ZMQInteractiveShell'");
    assert_eq!(python.run("1 / 0").error_name(), "ZeroDivisionError");
    assert_eq!(python.run("input()").error_name(), "StdinNotImplementedError");
    assert_eq!(python.run("print('x' * 300_000)").stdout().len(), 300_001);

    let mut running = python.begin("print('on', flush=True)\nimport time\nwhile True: time.sleep(0.1)");
    running.until_stdout("on\n");
    python.interrupt();
    assert_eq!(running.end().error_name(), "KeyboardInterrupt");
    assert_eq!(python.run("x").result(), "20");

    let (name, words) = python.run("import os; os._exit(1)").error().expect("an error");
    assert!(name == "DeadKernelError" && words.contains("Jupyter server"), "{name} {words}");
    assert_eq!(python.run("x").error_name(), "NameError");

    let other = Context::new(&daemon, "python");
    assert_eq!(server.sessions().as_array().map(Vec::len), Some(2));
    other.delete();
    daemon.delete("/code/contexts?language=python").ok();
    assert_eq!(server.sessions(), json!([]));
    assert_eq!(Context::new(&daemon, "python").run("2").result(), "2", "again");
    // Languages that the server has no kernel for are the image's own.
    assert_eq!(Context::new(&daemon, "bash").run("echo own").stdout(), "own\n");
    daemon.delete("/code/contexts?language=python").ok();
}

#[test]
fn os_072_a_server_that_refuses_is_an_error_with_its_reason() {
    let server = Server::start();
    wait_until("the start of the server", || TcpStream::connect(("127.0.0.1", server.port)).is_ok());
    let host = format!("http://127.0.0.1:{}", server.port);
    let daemon = daemon_with(&[("JUPYTER_HOST", &host), ("JUPYTER_TOKEN", "wrong")]);
    daemon.post("/code/context", &json!({ "language": "python" })).refuses(500, "RUNTIME_ERROR", "it answers 403");
    let daemon = daemon_with(&[("JUPYTER_HOST", "https://127.0.0.1:1")]);
    daemon.post("/code/context", &json!({ "language": "python" })).refuses(500, "RUNTIME_ERROR", "JUPYTER_HOST");
}

/// Answers every connection with `answer`, and gives away what it was asked.
fn answering(answer: String) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let (sender, asked) = mpsc::channel();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { return };
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && connection.read_exact(&mut byte).is_ok() {
                head.push(byte[0]);
            }
            let _ = connection.write_all(answer.as_bytes());
            if sender.send(String::from_utf8_lossy(&head).into_owned()).is_err() {
                return;
            }
        }
    });
    (port, asked)
}

#[test]
fn os_073_the_token_goes_to_the_configured_origin_only() {
    let (elsewhere, asked_elsewhere) = answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}".into());
    let location = format!("http://127.0.0.1:{elsewhere}/api/kernelspecs");
    let redirect = format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
    let (port, asked) = answering(redirect);
    let daemon = daemon_with(&[("JUPYTER_HOST", &format!("http://127.0.0.1:{port}")), ("JUPYTER_TOKEN", TOKEN)]);
    let refusal = daemon.post("/code/context", &json!({ "language": "python" }));
    refusal.refuses(500, "RUNTIME_ERROR", "it answers 302 and redirects are not followed");
    assert!(!refusal.text().contains(TOKEN));
    assert!(asked.recv().expect("the origin is asked").contains(TOKEN), "the origin itself gets it");
    assert!(asked_elsewhere.try_recv().is_err(), "nobody else is asked");
    let shown = daemon.shell("env; cat /proc/$PPID/cmdline").stdout();
    assert!(!shown.contains(TOKEN), "commands do not see it");
}
