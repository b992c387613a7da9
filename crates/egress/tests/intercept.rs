//! Credentials that a sandbox uses and never sees, with real namespaces, TLS and HTTP on both sides.

mod common;

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use common::web::{self, Client, Origin, body_of, long_body, request, serve, tls};
use common::{Inside, ORIGIN, OTHER, Proxy, World, allow};
use egress::authority::Authority;
use egress::limits::Limits;
use egress::{Beside, Demands, Expected, Operation, Secret, Settings};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const SECRET: &str = "s3cr3t-\"value\"/with+signs";
const HOST: &str = "api.example";
const HTTP1: &[&str] = &["http/1.1"];
const BOTH: &[&str] = &["h2", "http/1.1"];

/// A sandbox with a vault, an origin that it is bound to, and another that it is not.
struct Bound {
    world: World,
    inside: Inside,
    proxy: Proxy,
    /// Of the internet.
    authority: Authority,
    /// That the sandbox trusts, as PEM.
    trusted: String,
    origin: Origin,
}

fn secret_of(value: &Value) -> Secret {
    use std::io::Write as _;
    let mut secret = Secret::default();
    secret.write_all(value.to_string().as_bytes()).expect("memory");
    secret
}

fn operation() -> Operation {
    Operation::new().expect("random bytes")
}

fn vault(bindings: Value) -> Value {
    json!({
        "credentials": [{ "name": "key", "source": { "type": "inline", "value": SECRET } }],
        "bindings": bindings,
    })
}

fn bearer() -> Value {
    vault(json!([{
        "name": "api",
        "match": { "hosts": [HOST] },
        "auth": { "type": "bearer", "credential": "key" },
    }]))
}

impl Bound {
    async fn new(request: Value) -> Self {
        Self::with(request, Limits::default()).await
    }

    async fn with(request: Value, limits: Limits) -> Self {
        let world = World::new();
        let authority = Authority::generate("internet").expect("an authority");
        world.name(HOST, &[ORIGIN.into()]);
        world.name("other.example", &[OTHER.into()]);
        let origin = serve(&world, (ORIGIN, 443), &authority, HOST, BOTH);
        let upstream_ca_pem = vec![authority.pem().to_owned()];
        let settings = Settings { upstream_ca_pem, limits, ..Settings::default() };
        let proxy = Proxy::start_with(&world, settings).await;
        let inside = Inside::new();
        let trusted = proxy.control.authority(&inside.id).await.expect("an authority");
        let expected = Expected { authority: trusted.clone(), hosts: Vec::new() };
        let policy = allow(&[HOST, "other.example"]);
        let names = inside.names.as_fd();
        proxy
            .control
            .attach(&inside.id, &inside.listeners, names, 1, &policy, Beside::credentials(&expected))
            .await
            .expect("attached");
        let bound = Self { world, inside, proxy, authority, trusted, origin };
        bound.fill(request).await;
        bound
    }

    async fn fill(&self, request: Value) {
        let filled = self
            .proxy
            .control
            .create_vault(&self.inside.id, operation(), &secret_of(&request), Demands::default())
            .await;
        filled.expect("filled");
    }

    async fn client(&self, protocols: &[&str]) -> Client {
        let stream = tls(&self.inside, (HOST, 443), HOST, &self.trusted, protocols).await.expect("TLS");
        Client::over(stream).await
    }

    async fn events(&self) -> Value {
        let events = self.proxy.control.verdicts(&self.inside.id, 0).await.expect("events");
        serde_json::to_value(events).expect("JSON")
    }

    fn last_head(&self) -> String {
        self.origin.heads().pop().expect("a request")
    }
}

fn sent() -> String {
    format!("authorization: Bearer {SECRET}\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_is_put_in_and_taken_out_of_what_comes_back() {
    let bound = Bound::new(bearer()).await;
    for protocols in [HTTP1, BOTH] {
        let mut client = bound.client(protocols).await;
        let answer = client.ask(HOST, ("POST", "/v1/things?a=b"), &[("authorization", "Bearer decoy")], "body").await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 200);
        let head = bound.last_head();
        assert!(head.starts_with("POST /v1/things?a=b\n") && head.contains(&sent()), "{head}");
        assert!(!head.contains("decoy"), "{head}");
        let text = answer.text();
        assert!(text.contains("[REDACTED]") && text.ends_with("\nbody") && !text.contains(SECRET), "{text}");
        assert_eq!(answer.headers["content-length"], text.len().to_string().as_str());
        assert!(client.get(HOST, "/header").await.headers["x-told"].to_str().expect("text").contains("[REDACTED]"));
    }
    let events = bound.events().await.to_string();
    for word in ["\"injected\"", "\"binding\":\"api\"", "\"path\":\"/v1/things\"", "\"headers\":[\"authorization\"]"] {
        assert!(events.contains(word), "{word}: {events}");
    }
    assert!(!events.contains(SECRET) && !events.contains("s3cr3t"), "{events}");
}

#[tokio::test(flavor = "multi_thread")]
async fn os_087_what_an_origin_repeats_is_masked_in_every_form() {
    let bound = Bound::new(bearer()).await;
    for protocols in [HTTP1, BOTH] {
        let mut client = bound.client(protocols).await;
        let packed = client.get(HOST, "/gzip").await;
        assert!(packed.body.len() > 1_000_000 && !packed.text().contains("s3cr3t"));
        assert!(!packed.headers.contains_key("content-encoding"));
        let split = client.get(HOST, "/split").await.text();
        assert!(split.starts_with("[REDACTED]") && split.len() == SECRET.len() + 7, "{split}");
        let trailers = client.ask(HOST, ("GET", "/trailers"), &[("te", "trailers")], "").await.expect("an answer");
        assert_eq!(trailers.text(), "body");
        assert_eq!(trailers.trailers["x-told"], "[REDACTED]");
        let blocked = client.get(HOST, "/brotli").await;
        assert_eq!(blocked.status, 502, "what cannot be searched is not passed on");
        assert_eq!(client.get(HOST, "/count").await.status, 200, "the connection goes on");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ex_032_every_request_is_judged_by_itself_on_a_connection_that_stays_open() {
    let bound = Bound::new(vault(json!([{
        "name": "api",
        "match": { "hosts": [HOST], "methods": ["GET"], "paths": ["/v1/*"] },
        "auth": { "type": "apiKey", "name": "X-Key", "credential": "key" },
    }])))
    .await;
    for protocols in [HTTP1, BOTH] {
        let mut client = bound.client(protocols).await;
        for (method, path, is_bound) in
            [("GET", "/v1/a", true), ("GET", "/v2/a", false), ("POST", "/v1/a", false), ("GET", "/v1/b?c", true)]
        {
            client.ask(HOST, (method, path), &[], "").await.expect("an answer");
            let head = bound.last_head();
            assert_eq!(head.contains(&format!("x-key: {SECRET}\n")), is_bound, "{method} {path}: {head}");
        }
        let count = bound.origin.heads().len();
        for path in ["/v1/../v2/x", "/v1/%2e%2e/x", "/v1%2fx", "/v1/a%2f..%2f..%2fx", "/v2/../v1/x"] {
            client.ask(HOST, ("GET", path), &[], "").await.expect("an answer");
        }
        let went = bound.origin.heads().split_off(count);
        let has_key = |head: &&String| head.contains("x-key");
        let keyed: Vec<_> = went.iter().filter(has_key).filter_map(|head| head.lines().next()).collect();
        assert!(keyed.iter().all(|line| *line == "GET /v1/x"), "{went:?}");
    }
    // The vault is emptied while a connection is open.
    let mut client = bound.client(HTTP1).await;
    client.get(HOST, "/v1/a").await;
    bound.proxy.control.delete_vault(&bound.inside.id, operation()).await.expect("emptied");
    client.ask(HOST, ("GET", "/v1/a"), &[], "").await.expect_err("the connection is cut");
    assert_eq!(bound.origin.connections(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn os_083_a_host_that_cannot_be_verified_gets_nothing() {
    let bound = Bound::new(bearer()).await;
    let stranger = Authority::generate("stranger").expect("an authority");
    let other_name = serve(&bound.world, (ORIGIN, 8443), &bound.authority, "evil.example", BOTH);
    let self_made = serve(&bound.world, (ORIGIN, 9443), &stranger, HOST, BOTH);
    for (port, origin) in [(8443, other_name), (9443, self_made)] {
        let stream = tls(&bound.inside, (HOST, port), HOST, &bound.trusted, BOTH).await.expect("TLS");
        let answer = Client::over(stream).await.get(&format!("{HOST}:{port}"), "/").await;
        assert_eq!(answer.status, 502);
        assert!(answer.text().contains("could not be verified"), "{}", answer.text());
        assert_eq!(origin.heads(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_another_host_than_its_connection_gets_nothing() {
    let bound = Bound::new(bearer()).await;
    for protocols in [HTTP1, BOTH] {
        let mut client = bound.client(protocols).await;
        let answer = client.ask("evil.example", ("GET", "/"), &[], "").await.expect("an answer");
        assert_eq!(answer.status, 421, "{}", answer.text());
    }
    // And one whose TLS is for another host is reset, as for every host.
    tls(&bound.inside, (HOST, 443), "evil.example", &bound.trusted, HTTP1).await.expect_err("reset");
    assert_eq!(bound.origin.heads(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn os_088_only_bound_hosts_are_opened() {
    let bound = Bound::new(bearer()).await;
    let other = serve(&bound.world, (OTHER, 443), &bound.authority, "other.example", BOTH);
    let own = bound.authority.pem();
    let stream =
        tls(&bound.inside, ("other.example", 443), "other.example", own, BOTH).await.expect("its own certificate");
    let answer = Client::over(stream).await.get("other.example", "/").await;
    assert_eq!(answer.status, 200);
    assert!(!other.heads()[0].contains("authorization"));
    // The bound one shows the sandbox's.
    tls(&bound.inside, (HOST, 443), HOST, own, BOTH).await.expect_err("not the internet's authority");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_arrive_as_they_happen() {
    let bound = Bound::new(bearer()).await;
    for protocols in [HTTP1, BOTH] {
        let mut client = bound.client(protocols).await;
        let asked = request(matches!(client, Client::H2(_)), HOST, ("GET", "/events"), &[], body_of(&[]));
        let begun = Instant::now();
        let mut body = client.send(asked).await.expect("an answer").into_body();
        let mut told = Vec::new();
        while let Some(frame) = body.frame().await {
            let data = frame.expect("a frame").into_data().unwrap_or_default();
            told.push((begun.elapsed(), String::from_utf8_lossy(&data).into_owned()));
        }
        let text: String = told.iter().map(|(_, text)| text.as_str()).collect();
        assert!(text.starts_with("data: one\n\ndata: [REDACTED]") && text.ends_with("data: three\n\n"), "{text}");
        assert!(told[0].0 < Duration::from_millis(200), "{told:?}");
        assert!(told[1].0 < Duration::from_millis(500), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_bodies_pass_and_their_heads_have_the_credential() {
    let bound = Bound::new(bearer()).await;
    const BYTES: usize = 64 * 1024 * 1024;
    for protocols in [HTTP1, BOTH] {
        let mut client = bound.client(protocols).await;
        let is_h2 = matches!(client, Client::H2(_));
        let asked = request(is_h2, HOST, ("PUT", "/count"), &[], long_body(BYTES));
        let answer = client.send(asked).await.expect("an answer");
        assert_eq!(answer.into_body().collect().await.expect("whole").to_bytes(), BYTES.to_string());
        assert!(bound.last_head().contains(&sent()));
        let answer = client.ask(HOST, ("HEAD", "/header"), &[], "").await.expect("an answer");
        assert!(answer.headers["x-told"].to_str().expect("text").contains("[REDACTED]"));
    }
    let rss = std::fs::read_to_string(format!("/proc/{}/status", bound.proxy.child.id())).expect("it lives");
    let line = rss.lines().find(|line| line.starts_with("VmHWM:")).expect("a figure");
    let peak: u64 = line.split_ascii_whitespace().nth(1).expect("a figure").parse().expect("a number");
    assert!(peak < 24 * 1024 || cfg!(debug_assertions), "{peak} KiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_does_not_look_whole() {
    let bound = Bound::new(bearer()).await;
    for protocols in [HTTP1, BOTH] {
        let mut client = bound.client(protocols).await;
        let cut = client.ask(HOST, ("GET", "/cut"), &[], "").await;
        assert!(cut.is_err(), "{cut:?}");
    }
    // An early answer arrives although the body is not read.
    let mut client = bound.client(HTTP1).await;
    let asked = request(false, HOST, ("POST", "/early"), &[], long_body(32 * 1024 * 1024));
    let answer = client.send(asked).await.expect("an answer");
    assert_eq!(answer.status(), 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn placeholders_become_values_on_the_surfaces_that_are_named() {
    let bound = Bound::new(vault(json!([{
        "name": "api",
        "match": { "hosts": [HOST] },
        "auth": {
            "type": "passthrough",
            "substitutions": [
                { "credential": "key", "placeholder": "DECOY", "in": ["path", "query", "header", "body"] },
            ],
        },
    }])))
    .await;
    for protocols in [HTTP1, BOTH] {
        let mut client = bound.client(protocols).await;
        let json = [("content-type", "application/json"), ("x-key", "k=DECOY")];
        let answer = client.ask(HOST, ("POST", "/bot-DECOY/x?key=DECOY"), &json, "{\"a\":\"DECOY\"}").await;
        let answer = answer.expect("an answer");
        let head = bound.last_head();
        assert!(head.starts_with("POST /bot-s3cr3t-%22value%22%2Fwith%2Bsigns/x?key=s3cr3t-%22value"), "{head}");
        assert!(head.contains(&format!("x-key: k={SECRET}\n")), "{head}");
        let text = answer.text();
        assert!(!text.contains("DECOY") && !text.contains("s3cr3t"), "{text}");
        // A long one, with the placeholder over the border of two pieces.
        let filler = "y".repeat(600_000);
        let parts = [filler.as_str(), filler.as_str(), "DEC", "OY", filler.as_str()];
        let is_h2 = matches!(client, Client::H2(_));
        let asked = request(is_h2, HOST, ("POST", "/count"), &[], body_of(&parts));
        let answer = client.send(asked).await.expect("an answer").into_body().collect().await.expect("whole");
        assert_eq!(answer.to_bytes(), (3 * 600_000 + SECRET.len()).to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_socket_is_opened_with_the_credential_and_masked() {
    let bound = Bound::new(bearer()).await;
    let mut client = bound.client(HTTP1).await;
    let headers =
        [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-extensions", "permessage-deflate")];
    let asked = request(false, HOST, ("GET", "/upgrade"), &headers, body_of(&[]));
    let answer = client.send(asked).await.expect("an answer");
    assert_eq!(answer.status(), 101);
    let head = bound.last_head();
    assert!(head.contains(&sent()) && !head.contains("permessage-deflate"), "{head}");
    let mut stream = TokioIo::new(hyper::upgrade::on(answer).await.expect("upgraded"));
    let mut buffer = vec![0; "told Bearer \n".len() + SECRET.len()];
    stream.read_exact(&mut buffer).await.expect("what it was told");
    let text = String::from_utf8_lossy(&buffer).into_owned();
    assert!(text.starts_with("told [REDACTED]*") && text.ends_with("*\n"), "{text}");
    stream.write_all(b"ping").await.expect("sent");
    let mut buffer = [0; 4];
    stream.read_exact(&mut buffer).await.expect("an echo");
    assert_eq!(&buffer, b"ping");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_the_host_ended_is_made_again() {
    let bound = Bound::new(bearer()).await;
    let mut client = bound.client(HTTP1).await;
    assert_eq!(client.get(HOST, "/").await.status, 200);
    let answer = client.ask(HOST, ("GET", "/"), &[("x-end", "1")], "").await.expect("an answer");
    assert_eq!(answer.status, 200);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(client.get(HOST, "/").await.status, 200);
    assert_eq!(bound.origin.connections(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vault_that_is_filled_cuts_what_was_begun_without_it() {
    let bound = Bound::new(bearer()).await;
    bound.proxy.control.delete_vault(&bound.inside.id, operation()).await.expect("emptied");
    let own = bound.authority.pem();
    let stream = tls(&bound.inside, (HOST, 443), HOST, own, HTTP1).await.expect("not bound");
    let mut client = Client::over(stream).await;
    assert!(client.get(HOST, "/").await.text().contains("GET /"));
    assert!(!bound.last_head().contains("authorization"));
    bound.fill(bearer()).await;
    client.ask(HOST, ("GET", "/"), &[], "").await.expect_err("the connection is cut");
    assert!(
        web::Client::over(tls(&bound.inside, (HOST, 443), HOST, &bound.trusted, HTTP1).await.expect("TLS"))
            .await
            .get(HOST, "/")
            .await
            .text()
            .contains("[REDACTED]")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn other_protocols_of_a_bound_host_are_relayed() {
    let bound = Bound::new(bearer()).await;
    bound.world.origin(ORIGIN, 22, "SSH-2.0-x\r\n");
    let address = bound.inside.address(HOST);
    assert_eq!(bound.inside.banner(address, 22).expect("a banner"), "SSH-2.0-x\r\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn os_089_attack_31_two_hundred_kills_and_a_bound_host_gets_its_credential_or_nothing() {
    let mut bound = Bound::new(bearer()).await;
    let policy = allow(&[HOST]);
    let expected = Expected { authority: bound.trusted.clone(), hosts: vec![HOST.to_owned()] };
    let address = bound.inside.address(HOST);
    let mut slowest = Duration::ZERO;
    for kill in 0..200 {
        let mut open = Client::over(
            web::tls_to(&bound.inside, (address, 443), HOST, &bound.trusted, if kill % 2 == 0 { HTTP1 } else { BOTH })
                .await
                .expect("TLS"),
        )
        .await;
        let decoy = [("authorization", "Bearer decoy")];
        assert_eq!(open.ask(HOST, ("GET", "/"), &decoy, "").await.expect("an answer").status, 200);
        let asking = tokio::spawn(async move { open.ask(HOST, ("GET", "/events"), &decoy, "").await });
        // In the middle of an answer, at another place each time.
        tokio::time::sleep(Duration::from_micros(37 * kill)).await;
        let killed = Instant::now();
        bound.proxy.kill_and_restart(&bound.world).await;
        assert!(asking.await.expect("no panic").is_err(), "an answer that is cut does not look whole");
        let (inside, names) = (&bound.inside, bound.inside.names.as_fd());
        let attached = bound.proxy.control.attach(
            &inside.id,
            &inside.listeners,
            names,
            1,
            &policy,
            Beside::credentials(&expected),
        );
        attached.await.expect("attached");
        let stream = web::tls_to(&bound.inside, (address, 443), HOST, &bound.trusted, BOTH).await.expect("TLS");
        let answer = Client::over(stream).await.ask(HOST, ("GET", "/"), &decoy, "").await.expect("an answer");
        assert!(answer.text().contains("[REDACTED]"), "{}", answer.text());
        slowest = slowest.max(killed.elapsed());
    }
    println!("slowest way back: {slowest:?}");
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    let heads = bound.origin.heads();
    assert!(heads.len() >= 400);
    assert!(heads.iter().all(|head| head.contains(&sent()) && !head.contains("decoy")));
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_bound_hosts_beyond_the_limit_wait_for_their_turn() {
    let bound = Bound::with(bearer(), Limits { intercepted: 2, ..Limits::default() }).await;
    let first = bound.client(HTTP1).await;
    let _second = bound.client(BOTH).await;
    let waiting = tls(&bound.inside, (HOST, 443), HOST, &bound.trusted, HTTP1);
    tokio::pin!(waiting);
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut waiting).await.is_err(), "it waits");
    drop(first);
    let third = tokio::time::timeout(common::PATIENCE, waiting).await.expect("its turn").expect("TLS");
    assert_eq!(Client::over(third).await.get(HOST, "/").await.status, 200);
}
