//! The token, the rooms that are still empty, ports, metrics.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::json;
use support::{Connection, Daemon};

/// A program on a port of the sandbox: answers each connection by `answer`, for so many connections.
fn serve(connections: usize, answer: impl Fn(&mut BufReader<std::net::TcpStream>) + Send + 'static) -> u16 {
    serve_on("127.0.0.1:0", connections, answer)
}

fn serve_on(
    address: &str,
    connections: usize,
    answer: impl Fn(&mut BufReader<std::net::TcpStream>) + Send + 'static,
) -> u16 {
    let listener = TcpListener::bind(address).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for _ in 0..connections {
            let (stream, _) = listener.accept().expect("a connection");
            answer(&mut BufReader::new(stream));
        }
    });
    port
}

/// The lines of a request's head.
fn head(stream: &mut BufReader<std::net::TcpStream>) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).expect("a request");
        match line.trim_end() {
            "" => return lines,
            line => lines.push(line.to_ascii_lowercase()),
        }
    }
}

/// Answers with the head of the request it got.
fn echo_head(stream: &mut BufReader<std::net::TcpStream>) {
    let lines = head(stream).join("\n");
    let length = lines.len();
    write!(
        stream.get_mut(),
        "HTTP/1.1 201 Created\r\nX-From: port\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{lines}"
    )
    .expect("sent");
}

/// A port on which nothing listens.
fn dead_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

#[test]
fn attack_34_every_route_wants_the_token() {
    let daemon = Daemon::with_token("s3cret");
    daemon.get("/ping").ok();
    let support::Target::Tcp(address, _) = daemon.target() else { panic!("TCP") };
    let stranger = support::Target::Tcp(address, None);
    for (method, path) in [
        ("GET", "/ping"),
        ("POST", "/command"),
        ("GET", "/files/info"),
        ("POST", "/files/upload"),
        ("GET", "/proxy/1/"),
        ("POST", "/v1/hooks/beforePause"),
        ("GET", "/v1/hardening"),
        ("GET", "/nope"),
    ] {
        let response = Connection::open(&stranger).request(method, path, &[], b"{}");
        response.refuses(401, "UNAUTHORIZED", "X-EXECD-ACCESS-TOKEN");
        assert_eq!(response.json()["error"], "Unauthorized: invalid or missing header X-EXECD-ACCESS-TOKEN");
    }
    let mut connection = Connection::open(&stranger);
    connection.write(format!("CONNECT 127.0.0.1:{} HTTP/1.1\r\nHost: x\r\n\r\n", dead_port()).as_bytes());
    assert_eq!(connection.head().status, 401);
}

#[test]
fn unknown_routes_are_404_and_those_of_the_server_503() {
    let daemon = Daemon::start();
    for (method, path) in
        [("GET", "/nope"), ("POST", "/ping"), ("GET", "/command"), ("GET", "/"), ("PUT", "/files/info")]
    {
        let response = daemon.connect().request(method, path, &[], b"");
        assert_eq!((response.status, response.text().as_str()), (404, "404 page not found"), "{method} {path}");
    }
    let of_the_server = daemon.connect().request("POST", "/v1/isolated/session", &[], b"{}");
    of_the_server.refuses(503, "SERVICE_UNAVAILABLE", "endpoint");
    assert_eq!(daemon.get("/v1/isolated/capabilities").ok().json()["available"], false);
}

#[test]
fn a_request_id_comes_back() {
    let daemon = Daemon::start();
    for path in ["/ping", "/files/info?path=/nope", "/nope"] {
        let response = daemon.connect().request("GET", path, &[("X-Request-ID", "r-1")], b"");
        assert_eq!(response.header("x-request-id"), Some("r-1"), "{path}");
    }
}

#[test]
fn the_proxy_forwards_method_path_query_body_and_hides_the_token() {
    let daemon = Daemon::with_token("s3cret");
    let port = serve(1, |stream| {
        let lines = head(stream);
        let mut body = [0; 4];
        stream.read_exact(&mut body).expect("the body");
        let text = format!("{}\n{}", lines.join("\n"), String::from_utf8_lossy(&body));
        write!(
            stream.get_mut(),
            "HTTP/1.1 418 Teapot\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{text}\r\n0\r\n\r\n",
            text.len()
        )
        .expect("sent");
    });
    let headers = [("X-Own", "yes"), ("Connection", "X-Hop"), ("X-Hop", "no")];
    let response = daemon.connect().request("PATCH", &format!("/proxy/{port}/a%20b/c?x=1&y=%2F"), &headers, b"body");
    assert_eq!(response.status, 418);
    let seen = response.text();
    assert!(seen.starts_with("patch /a%20b/c?x=1&y=%2f http/1.1\n"), "{seen}");
    for line in ["x-own: yes", "x-forwarded-for: 127.0.0.1", "x-forwarded-proto: http", "host: execd"] {
        assert!(seen.lines().any(|seen| seen == line), "{line} in {seen}");
    }
    assert!(seen.ends_with("\nbody"), "{seen}");
    assert!(!seen.contains("s3cret") && !seen.contains("x-hop: "), "{seen}");
}

#[test]
fn the_proxy_says_what_is_wrong_with_a_port() {
    let daemon = Daemon::start();
    for port in ["x", "0", "70000", ""] {
        assert_eq!(daemon.get(&format!("/proxy/{port}/")).status, 400, "{port}");
    }
    let dead = daemon.get(&format!("/proxy/{}/", dead_port()));
    assert_eq!((dead.status, dead.text().as_str()), (502, "Bad Gateway"));
}

#[test]
fn the_proxy_streams_an_answer_while_it_is_made() {
    let daemon = Daemon::start();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let port = serve(1, move |stream| {
        head(stream);
        write!(stream.get_mut(), "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nfirst").expect("sent");
        wait.lock().expect("one server").recv().expect("the test goes on");
        write!(stream.get_mut(), "second").expect("sent");
    });
    let mut connection = daemon.connect();
    connection.send("GET", &format!("/proxy/{port}/"), &[], b"");
    connection.head();
    assert_eq!(connection.chunk().expect("a piece"), b"first");
    go.send(()).expect("the server waits");
    assert_eq!(connection.chunk().expect("a piece"), b"second");
    assert_eq!(connection.chunk(), None);
}

#[test]
fn the_proxy_relays_an_upgrade_raw() {
    let daemon = Daemon::start();
    let port = serve(1, |stream| {
        let lines = head(stream);
        assert!(
            lines.contains(&"upgrade: websocket".to_owned()) && lines.contains(&"connection: upgrade".to_owned()),
            "{lines:?}"
        );
        write!(
            stream.get_mut(),
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nhello"
        )
        .expect("sent");
        let mut frame = [0; 5];
        stream.read_exact(&mut frame).expect("a frame");
        stream.get_mut().write_all(&frame).expect("sent");
    });
    let mut connection = daemon.connect();
    let headers = [("Connection", "keep-alive, Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "x")];
    connection.send_head("GET", &format!("/proxy/{port}/ws"), &headers, "");
    let head = connection.head();
    assert_eq!((head.status, head.header("upgrade")), (101, Some("websocket")));
    assert_eq!(connection.read_exact(5), b"hello");
    connection.write(b"\x81\x02abc");
    assert_eq!(connection.read_exact(5), b"\x81\x02abc");
    assert_eq!(connection.read_to_end(), b"");
}

#[test]
fn connect_is_a_raw_tunnel_in_both_directions() {
    let daemon = Daemon::with_token("s3cret");
    let port = serve(1, |stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("the client's half");
        all.reverse();
        stream.get_mut().write_all(&all).expect("sent");
    });
    let mut connection = daemon.connect();
    connection.send_head("CONNECT", &format!("127.0.0.1:{port}"), &[], "");
    assert_eq!(connection.head().status, 200);
    let sent: Vec<u8> = (0..1_000_000u32).map(|number| number as u8).collect();
    connection.write(&sent);
    connection.shutdown_write();
    let mut got = connection.read_to_end();
    got.reverse();
    assert!(got == sent, "{} of {} bytes came back", got.len(), sent.len());
}

#[test]
fn connect_reaches_a_program_that_listens_on_ipv6_only() {
    let daemon = Daemon::start();
    let port = serve_on("[::1]:0", 2, echo_head);
    let mut connection = daemon.connect();
    connection.send_head("CONNECT", &format!("127.0.0.1:{port}"), &[], "");
    assert_eq!(connection.head().status, 200);
    connection.write(b"GET /x HTTP/1.1\r\n\r\n");
    assert_eq!(connection.head().status, 201);
    assert_eq!(daemon.get(&format!("/proxy/{port}/y")).header("x-from"), Some("port"));
}

#[test]
fn connect_goes_nowhere_else() {
    let daemon = Daemon::start();
    for target in ["example.org:80", "10.0.0.1:80", "127.0.0.2:80", "127.0.0.1:0", "127.0.0.1"] {
        let mut connection = daemon.connect();
        connection.send_head("CONNECT", target, &[], "");
        let response = connection.response("CONNECT");
        assert_eq!(response.status, 400, "{target}: {}", response.text());
    }
    let port = dead_port();
    let mut connection = daemon.connect();
    connection.send_head("CONNECT", &format!("127.0.0.1:{port}"), &[], "");
    connection.response("CONNECT").refuses(502, "RUNTIME_ERROR", &port.to_string());
}

#[test]
fn metrics_are_plausible_and_quick() {
    let daemon = Daemon::start();
    daemon.get("/metrics").ok();
    let begun = Instant::now();
    let metrics = daemon.get("/metrics").ok().json();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    let number = |name: &str| metrics[name].as_f64().unwrap_or_else(|| panic!("{name} in {metrics}"));
    assert!(number("cpu_count") > 0.0 && (0.0..=100.0).contains(&number("cpu_used_pct")));
    assert!(number("mem_total_mib") > number("mem_used_mib") && number("mem_used_mib") > 0.0);
    assert!(metrics["timestamp"].is_i64());
}

#[test]
fn the_watch_sends_a_line_every_two_seconds() {
    let daemon = Daemon::start();
    let mut connection = daemon.connect();
    connection.send("GET", "/metrics/watch", &[], b"");
    assert_eq!(connection.head().header("content-type"), Some("text/event-stream"));
    let begun = Instant::now();
    for _ in 0..2 {
        let line = connection.chunk().expect("a line");
        assert!(line.ends_with(b"}\n") && !line.ends_with(b"\n\n"));
        serde_json::from_slice::<serde_json::Value>(&line).expect("JSON");
    }
    assert!(begun.elapsed() >= Duration::from_secs(2));
}

#[test]
fn os_090_limits_and_use_are_the_sandboxs_own() {
    let group = Group::new();
    let limit = 64 * 1024 * 1024;
    group.set("memory", "memory.limit_in_bytes", &limit.to_string());
    group.set("cpu", "cpu.cfs_period_us", "100000");
    group.set("cpu", "cpu.cfs_quota_us", "50000");
    let enter =
        format!("for place in {}; do echo $$ > $place/cgroup.procs; done; exec \"$@\"", group.places().join(" "));
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", &enter, "bash", env!("CARGO_BIN_EXE_execd")]);
    let daemon = Daemon::wrapped(shell, |_| {});
    let metrics = daemon.get("/metrics").ok().json();
    assert_eq!((&metrics["mem_total_mib"], &metrics["cpu_count"]), (&json!(64.0), &json!(0.5)));
    assert!(metrics["mem_used_mib"].as_f64().is_some_and(|used| used > 0.0 && used < 64.0), "{metrics}");
    let mut connection = daemon.connect();
    connection.send("POST", "/command", &[], br#"{"command":"while :; do :; done","timeout":4000}"#);
    connection.head();
    // The quota's worth of work is all of the sandbox's processor.
    let begun = Instant::now();
    while daemon.get("/metrics").ok().json()["cpu_used_pct"].as_f64().is_none_or(|used| used < 70.0) {
        assert!(begun.elapsed() < Duration::from_secs(4), "{}", daemon.get("/metrics").text());
    }
}

/// A group of our own in the v1 hierarchies of the test machine.
struct Group(String);

impl Group {
    fn new() -> Self {
        let group = Self(format!("execd-test-{}", std::process::id()));
        for place in group.places() {
            std::fs::create_dir_all(&place).expect("cgroup v1 with cpu and memory; these tests run as root");
        }
        group
    }

    fn places(&self) -> Vec<String> {
        ["cpu", "cpuacct", "memory"]
            .iter()
            .map(|controller| format!("/sys/fs/cgroup/{controller}/{}", self.0))
            .collect()
    }

    fn set(&self, controller: &str, file: &str, value: &str) {
        std::fs::write(format!("/sys/fs/cgroup/{controller}/{}/{file}", self.0), value).expect("a limit");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for place in self.places() {
            // A busy group means that a child of the daemon still ends.
            while std::fs::remove_dir(&place).is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy) {
                std::thread::yield_now();
            }
        }
    }
}
