//! What a sandbox fetches is recorded and served again with the network off, with real namespaces, TLS and HTTP.

mod common;

use std::fs::File;
use std::os::fd::AsFd as _;
use std::time::Duration;

use common::web::{Answered, Client, Origin, body_of, long_body, request, serve, tls};
use common::{Inside, ORIGIN, OTHER, Proxy, World, allow, is_reset};
use egress::authority::Authority;
use egress::policy::Source;
use egress::recording::{Depth, Digest, Summary, survey};
use egress::{Beside, Demands, Expected, Operation, Secret, Settings, Taping};
use hickory_proto::op::ResponseCode;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

const HOST: &str = "api.example";
const SECRET: &str = "planted-s3cr3t-value";
const HTTP1: &[&str] = &["http/1.1"];
const BOTH: &[&str] = &["h2", "http/1.1"];
const LIMIT: u64 = 1 << 30;

/// A sandbox that is recorded or answered from a recording, and an origin.
struct Trial {
    world: World,
    inside: Inside,
    proxy: Proxy,
    trusted: String,
    origin: Origin,
    file: File,
    taping: Taping,
}

fn policy() -> Source {
    allow(&[HOST, "other.example", "unknown.example"])
}

impl Trial {
    async fn recorded() -> Self {
        Self::new(tempfile::tempfile().expect("a file"), Taping::Record { limit_bytes: LIMIT }).await
    }

    async fn new(file: File, taping: Taping) -> Self {
        let world = World::new();
        let authority = Authority::generate("internet").expect("an authority");
        for name in [HOST, "unknown.example"] {
            world.name(name, &[ORIGIN.into()]);
        }
        world.name("other.example", &[OTHER.into()]);
        let origin = serve(&world, (ORIGIN, 443), &authority, HOST, BOTH);
        let settings = Settings { upstream_ca_pem: vec![authority.pem().to_owned()], ..Settings::default() };
        let proxy = Proxy::start_with(&world, settings).await;
        let inside = Inside::new();
        let trusted = proxy.control.authority(&inside.id).await.expect("an authority");
        let trial = Self { world, inside, proxy, trusted, origin, file, taping };
        trial.attach().await;
        trial
    }

    async fn attach(&self) {
        let Self { inside, proxy, .. } = self;
        let expected = Expected { authority: self.trusted.clone(), hosts: Vec::new() };
        let beside = Beside { credentials: Some(&expected), recording: Some((self.taping, self.file.as_fd())) };
        let (names, policy) = (inside.names.as_fd(), policy());
        let attached = proxy.control.attach(&inside.id, &inside.listeners, names, 1, &policy, beside);
        attached.await.expect("attached");
    }

    /// Another sandbox, which is answered from what this one has recorded, in another world.
    async fn replayed(self) -> Self {
        let file = self.file.try_clone().expect("a duplicate");
        drop(self);
        Self::new(file, Taping::Replay).await
    }

    async fn client(&self, protocols: &[&str]) -> Client {
        let stream = tls(&self.inside, (HOST, 443), HOST, &self.trusted, protocols).await.expect("TLS");
        Client::over(stream).await
    }

    fn summary(&self) -> Summary {
        survey(&self.file, Depth::Everything).expect("a recording")
    }

    /// Waits until so many exchanges are over: the last bytes of an answer are read before it is written down.
    async fn until(&self, exchanges: u64) -> Summary {
        let begun = std::time::Instant::now();
        loop {
            let summary = self.summary();
            if summary.exchanges + summary.broken >= exchanges {
                return summary;
            }
            assert!(begun.elapsed() < common::PATIENCE, "{summary:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn events(&self) -> String {
        let events = self.proxy.control.verdicts(&self.inside.id, 0).await.expect("events");
        serde_json::to_string(&events).expect("JSON")
    }

    fn bytes(&self) -> Vec<u8> {
        use std::os::unix::fs::FileExt as _;
        let mut bytes = vec![0; usize::try_from(self.file.metadata().expect("facts").len()).expect("short")];
        self.file.read_exact_at(&mut bytes, 0).expect("all of it");
        bytes
    }
}

fn same(one: &Answered, other: &Answered) {
    assert_eq!(one.status, other.status);
    // How an answer is framed is between two ends of a connection.
    let headers = |answer: &Answered| {
        let mut headers = answer.headers.clone();
        headers.remove("transfer-encoding");
        headers
    };
    assert_eq!(headers(one), headers(other));
    assert_eq!(Digest::of(&one.body), Digest::of(&other.body));
    assert_eq!(one.trailers, other.trailers);
}

const REQUESTS: [(&str, &str, &str); 6] = [
    ("GET", "/", ""),
    ("GET", "/things?a=b", ""),
    ("POST", "/things", "body"),
    ("POST", "/things", "another body"),
    ("GET", "/trailers", ""),
    ("HEAD", "/header", ""),
];

#[tokio::test(flavor = "multi_thread")]
async fn what_was_recorded_is_served_again_byte_for_byte_and_nothing_is_dialled() {
    for protocols in [HTTP1, BOTH] {
        let trial = Trial::recorded().await;
        let mut client = trial.client(protocols).await;
        let mut first = Vec::new();
        for (method, path, body) in REQUESTS {
            let headers = [("te", "trailers"), ("cookie", "planted=cookie"), ("authorization", "Bearer decoy")];
            first.push(client.ask(HOST, (method, path), &headers, body).await.expect("an answer"));
        }
        let summary = trial.until(REQUESTS.len() as u64).await;
        assert_eq!((summary.exchanges, summary.broken, summary.full), (6, 0, None));
        let text = String::from_utf8_lossy(&trial.bytes()).into_owned();
        assert!(!text.contains("\"authorization\"") && !text.contains("\"cookie\""), "of requests");
        // Either HTTP is answered with what the other has recorded.
        for again in [HTTP1, BOTH] {
            let file = trial.file.try_clone().expect("a duplicate");
            let replay = Trial::new(file, Taping::Replay).await;
            let mut client = replay.client(again).await;
            for ((method, path, body), before) in REQUESTS.iter().zip(&first) {
                let answer = client.ask(HOST, (method, path), &[("te", "trailers")], *body).await.expect("an answer");
                same(&answer, before);
            }
            assert_eq!(replay.origin.connections(), 0, "nothing is dialled");
            assert_eq!(*replay.world.asked.lock().expect("a lock"), Vec::<String>::new(), "nobody is asked");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_in_the_recording_gets_502_and_an_event() {
    let trial = Trial::recorded().await;
    trial.client(BOTH).await.get(HOST, "/known").await;
    trial.until(1).await;
    let replay = trial.replayed().await;
    for protocols in [HTTP1, BOTH] {
        let mut client = replay.client(protocols).await;
        let answer = client.get(HOST, "/unknown?token=private").await;
        assert_eq!((answer.status.as_u16(), answer.headers["x-sandbox-egress"].as_bytes()), (502, &b"refused"[..]));
        assert!(
            answer.text().contains("not in the recording: GET https://api.example:443/unknown"),
            "{}",
            answer.text()
        );
        assert_eq!(client.ask(HOST, ("GET", "/known"), &[], "a body").await.expect("an answer").status, 502);
        assert_eq!(client.get(HOST, "/known").await.status, 200, "the connection goes on");
    }
    let events = replay.events().await;
    for word in ["\"replay\"", "not in the recording", "\"path\":\"/unknown\"", "\"host\":\"api.example\""] {
        assert!(events.contains(word), "{word}: {events}");
    }
    assert!(!events.contains("private"), "{events}");
    // Names, ports and addresses that it does not have.
    assert_eq!(replay.inside.lookup("other.example").0, ResponseCode::NXDomain);
    let stream = tls(&replay.inside, (HOST, 8443), HOST, &replay.trusted, HTTP1).await.expect("TLS");
    assert_eq!(Client::over(stream).await.get(&format!("{HOST}:8443"), "/").await.status, 502);
    assert!(is_reset(&replay.inside.banner(ORIGIN, 443).expect_err("nothing is dialled")));
    assert!(is_reset(&replay.inside.banner(replay.inside.address(HOST), 22).expect_err("nobody speaks first")));
    assert_eq!(replay.origin.connections(), 0);
    assert_eq!(*replay.world.asked.lock().expect("a lock"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_body_is_recorded_and_served_in_constant_memory() {
    const LONG: usize = 64 << 20;
    let trial = Trial::recorded().await;
    let address = std::net::SocketAddr::from((ORIGIN, 80));
    let listener = trial.world.internet.run(|| std::net::TcpListener::bind(address).expect("an address"));
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let Ok((mut stream, _)) = listener.accept() else { return };
        let _ = stream.read(&mut [0; 4096]);
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n");
        let mut number = 0_u64;
        for _ in 0..LONG / (1 << 16) {
            let piece: Vec<u8> = (0..1 << 13)
                .flat_map(|_| {
                    number += 1;
                    number.to_le_bytes()
                })
                .collect();
            if stream.write_all(&piece).is_err() {
                return;
            }
        }
    });
    let peak_before = peak_kib(trial.proxy.child.id());
    let first = fetch(&trial.inside);
    let grown = peak_kib(trial.proxy.child.id()) - peak_before;
    println!("recorded {LONG} bytes, and grew by {grown} KiB");
    assert!(grown < 8 * 1024, "{grown} KiB");
    assert_eq!(trial.until(1).await.exchanges, 1);
    let replay = trial.replayed().await;
    let peak_before = peak_kib(replay.proxy.child.id());
    let second = fetch(&replay.inside);
    let grown = peak_kib(replay.proxy.child.id()) - peak_before;
    println!("served {LONG} bytes, and grew by {grown} KiB");
    assert!(grown < 8 * 1024, "{grown} KiB");
    assert_eq!(first.1, LONG as u64);
    assert_eq!(first, second);
}

/// A plain request for a host: the SHA-256 of its body, and its length.
fn fetch(inside: &Inside) -> (Digest, u64) {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    let mut stream = inside.connect(inside.address(HOST), 80).expect("connected");
    write!(stream, "GET /long HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n").expect("sent");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while {
        line.clear();
        reader.read_line(&mut line).expect("a head") > 2
    } {}
    let mut hash = egress::recording::Hash::default();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match reader.read(&mut buffer).expect("a body") {
            0 => return (hash.finish(), hash.bytes()),
            length => hash.push(&buffer[..length]),
        }
    }
}

/// Most memory that a process has had.
fn peak_kib(pid: u32) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("its peak");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn long_requests_are_told_apart_by_their_bodies() {
    let trial = Trial::recorded().await;
    for protocols in [HTTP1, BOTH] {
        let mut client = trial.client(protocols).await;
        let is_h2 = matches!(client, Client::H2(_));
        let asked = request(is_h2, HOST, ("POST", "/count"), &[], long_body(5 << 20));
        let answer = client.send(asked).await.expect("an answer").into_body().collect().await.expect("whole");
        assert_eq!(answer.to_bytes(), (5 << 20).to_string());
    }
    assert_eq!(trial.until(2).await.broken, 0);
    let replay = trial.replayed().await;
    for (bytes, status) in [(5 << 20, 200), (4 << 20, 502)] {
        let mut client = replay.client(BOTH).await;
        let asked = request(true, HOST, ("POST", "/count"), &[], long_body(bytes));
        assert_eq!(client.send(asked).await.expect("an answer").status(), status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_broke_off_is_recorded_as_broken_and_never_served() {
    let trial = Trial::recorded().await;
    for protocols in [HTTP1, BOTH] {
        trial.client(protocols).await.ask(HOST, ("GET", "/cut"), &[], "").await.expect_err("cut");
    }
    // And one that the program did not take to its end.
    let mut client = trial.client(HTTP1).await;
    let asked = request(false, HOST, ("GET", "/events"), &[], body_of(&[]));
    let answer = client.send(asked).await.expect("an answer");
    drop((answer, client));
    let summary = trial.until(3).await;
    assert_eq!((summary.exchanges, summary.broken), (0, 3));
    let replay = trial.replayed().await;
    assert_eq!(replay.inside.lookup(HOST).0, ResponseCode::NXDomain, "nothing of it is whole");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_value_of_the_vault_is_in_a_recording_whoever_tells_it() {
    use std::io::Write as _;
    let trial = Trial::recorded().await;
    let vault = json!({
        "credentials": [{ "name": "key", "source": { "type": "inline", "value": SECRET } }],
        "bindings": [{
            "name": "api",
            "match": { "hosts": [HOST], "paths": ["/bound", "/gzip", "/split", "/trailers", "/header"] },
            "auth": { "type": "bearer", "credential": "key" },
        }],
    });
    let mut secret = Secret::default();
    secret.write_all(vault.to_string().as_bytes()).expect("memory");
    let operation = Operation::new().expect("random bytes");
    let (control, id) = (&trial.proxy.control, &trial.inside.id);
    control.create_vault(id, operation, &secret, Demands::default()).await.expect("filled");
    let paths = ["/bound", "/gzip", "/split", "/trailers", "/header"];
    for protocols in [HTTP1, BOTH] {
        let mut client = trial.client(protocols).await;
        for path in paths {
            let headers = [("authorization", "Bearer decoy"), ("te", "trailers")];
            let answer = client.ask(HOST, ("GET", path), &headers, "").await.expect("an answer");
            assert_eq!(answer.status, 200);
            assert!(!answer.text().contains(SECRET));
        }
        // The host has heard it, and tells it where no credential is put in.
        let told = client.ask(HOST, ("POST", "/unbound"), &[], SECRET).await.expect("an answer");
        assert!(told.text().contains("[REDACTED]") && !told.text().contains(SECRET), "{}", told.text());
    }
    let heads = trial.origin.heads();
    assert_eq!(heads.iter().filter(|head| head.contains(&format!("Bearer {SECRET}"))).count(), 2 * paths.len());
    trial.until(2 * (paths.len() as u64 + 1)).await;
    let text = String::from_utf8_lossy(&trial.bytes()).into_owned();
    assert!(!text.contains(SECRET) && !text.contains("decoy"));
    assert!(text.contains("[REDACTED]"));
    // It is served without a vault.
    let replay = trial.replayed().await;
    let answer = replay.client(BOTH).await.get(HOST, "/bound").await;
    assert!(answer.text().contains("[REDACTED]"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_goes_on_after_the_egress_process_was_killed() {
    let mut trial = Trial::recorded().await;
    for kill in 0..20 {
        let mut client = trial.client(if kill % 2 == 0 { HTTP1 } else { BOTH }).await;
        assert_eq!(client.get(HOST, &format!("/{kill}")).await.status, 200);
        let before = trial.until(kill + 1).await.exchanges;
        let asking = tokio::spawn(async move { client.ask(HOST, ("GET", "/events"), &[], "").await });
        // In the middle of an answer, at another place each time.
        tokio::time::sleep(Duration::from_micros(437 * kill)).await;
        trial.proxy.kill_and_restart(&trial.world).await;
        assert!(asking.await.expect("no panic").is_err());
        trial.attach().await;
        let summary = trial.summary();
        assert!(!summary.is_torn);
        assert_eq!(summary.exchanges, before, "what was whole is there, and nothing else");
    }
    let replay = trial.replayed().await;
    let mut client = replay.client(BOTH).await;
    for kill in 0..20 {
        assert_eq!(client.get(HOST, &format!("/{kill}")).await.status, 200);
    }
    assert_eq!(client.get(HOST, "/events").await.status, 502);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_recorded_passes_and_is_told() {
    let trial = Trial::recorded().await;
    trial.world.serve(ORIGIN, 22, |mut stream| {
        use std::io::{Read as _, Write as _};
        let mut heard = [0; 64];
        let length = stream.read(&mut heard).unwrap_or(0);
        let _ = stream.write_all(&heard[..length]);
    });
    use std::io::{Read as _, Write as _};
    let mut ssh = trial.inside.connect(trial.inside.address(HOST), 22).expect("connected");
    ssh.write_all(b"SSH-2.0-x\r\n").expect("sent");
    let mut heard = [0; 11];
    ssh.read_exact(&mut heard).expect("passed");
    // A WebSocket.
    let mut client = trial.client(HTTP1).await;
    let headers = [("connection", "Upgrade"), ("upgrade", "websocket")];
    let answer = client.send(request(false, HOST, ("GET", "/upgrade"), &headers, body_of(&[]))).await;
    assert_eq!(answer.expect("an answer").status(), 101);
    let summary = trial.summary();
    assert_eq!((summary.exchanges, summary.broken), (0, 0));
    let noted: Vec<(&str, u16)> = summary.not_recorded.keys().map(|(_, host, port)| (host.as_str(), *port)).collect();
    assert!(noted.contains(&(HOST, 22)) && noted.contains(&(HOST, 443)), "{noted:?}");
    let events = trial.events().await;
    assert!(events.contains("\"not_recorded\"") && events.contains("no HTTP is spoken"), "{events}");
    // The policy stands.
    assert_eq!(trial.inside.lookup("denied.example").0, ResponseCode::NXDomain);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_its_limit_it_is_full_and_requests_are_answered_as_ever() {
    let file = tempfile::tempfile().expect("a file");
    let trial = Trial::new(file, Taping::Record { limit_bytes: 4096 }).await;
    let mut client = trial.client(BOTH).await;
    for n in 0..40 {
        assert_eq!(client.get(HOST, &format!("/{n}")).await.status, 200);
    }
    let summary = trial.summary();
    assert!(summary.full.is_some() && summary.exchanges > 0 && summary.bytes < 8192, "{summary:?}");
    let events = trial.events().await;
    assert_eq!(events.matches("the recording is full").count(), 1, "{events}");
    let value: Value = serde_json::from_str(&events).expect("JSON");
    assert!(value["events"].as_array().is_some_and(|events| !events.is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_recording_is_refused() {
    use std::io::Write as _;
    let trial = Trial::recorded().await;
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(b"osb-recording 1\nnonsense").expect("written");
    let Trial { inside, proxy, .. } = &trial;
    for taping in [Taping::Replay, Taping::Record { limit_bytes: LIMIT }] {
        let beside = Beside { credentials: None, recording: Some((taping, file.as_fd())) };
        let names = inside.names.as_fd();
        let attached = proxy.control.attach(&inside.id, &inside.listeners, names, 1, &policy(), beside).await;
        assert!(attached.expect_err("refused").to_string().contains("read a recording"));
    }
}
