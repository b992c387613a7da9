//! HTTPS into which a credential is put, beside the same without anybody between.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use egress::authority::Authority;
use egress::{Beside, Demands, Expected, Operation, Secret, Settings};
use serde_json::json;

use super::common::web::{Client, serve, tls, tls_over};
use super::common::{Inside, ORIGIN, Proxy, World, allow};
use super::load::{memory, with_children};
use super::peer::{Peer, connect};
use super::{Options, Sample};

const HOST: &str = "api.example";
const PROTOCOLS: &[&str] = &["http/1.1"];
/// Connections, each of which asks one thing after another.
const CONNECTIONS: usize = 20;
/// Requests in a second over all of them: what the target names.
const PER_SECOND: usize = 1000;
/// Where mitmproxy listens.
const PEER_PORT: u16 = 8443;

/// Latency at so many requests in a second, and memory.
pub async fn measure(options: &Options) -> Vec<Sample> {
    let world = World::new();
    let authority = Authority::generate("internet").expect("an authority");
    world.name(HOST, &[ORIGIN.into()]);
    let origin = serve(&world, (ORIGIN, 443), &authority, HOST, PROTOCOLS);
    let settings = Settings { upstream_ca_pem: vec![authority.pem().to_owned()], ..Settings::default() };
    let proxy = Proxy::start_program(&world, &options.program, settings).await;
    let inside = Inside::new();
    let trusted = proxy.control.authority(&inside.id).await.expect("an authority");
    let expected = Expected { authority: trusted.clone(), hosts: Vec::new() };
    let names = inside.names.as_fd();
    let policy = allow(&[HOST]);
    let attached =
        proxy.control.attach(&inside.id, &inside.listeners, names, 1, &policy, Beside::credentials(&expected));
    attached.await.expect("attached");
    let (operation, vault) = (Operation::new().expect("random bytes"), vault());
    let filled = proxy.control.create_vault(&inside.id, operation, &vault, Demands::default());
    filled.await.expect("filled");
    let pid = proxy.child.id();
    let mut samples = Vec::new();
    let single = |what: &str, who, value| Sample { what: what.to_owned(), who, values: vec![value] };
    samples.push(single("idle PSS", "osb", memory(pid, "Pss")));

    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(Client::over(tls(&inside, (HOST, 443), HOST, &trusted, PROTOCOLS).await.expect("TLS")).await);
    }
    samples.extend(paced(clients, "osb", options.length).await);
    samples.push(single("PSS", "osb", memory(pid, "Pss")));
    samples.push(single("RSS", "osb", memory(pid, "Rss")));
    let head = origin.heads().pop().expect("requests");
    assert!(head.contains("s3cr3t"), "no credential was put in: {head}");

    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = connect(&world, SocketAddr::new(ORIGIN.into(), 443)).expect("connected");
        clients.push(Client::over(tls_over(stream, HOST, authority.pem(), PROTOCOLS).await.expect("TLS")).await);
    }
    samples.extend(paced(clients, "direct", options.length).await);

    let peer = Peer::mitmproxy(&world, &options.mitmdump, PEER_PORT);
    let pem = std::fs::read_to_string(peer.directory().join("mitmproxy-ca-cert.pem")).expect("its authority");
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = connect(&world, ([127, 0, 0, 1], PEER_PORT).into()).expect("connected");
        clients.push(Client::over(tls_over(stream, HOST, &pem, PROTOCOLS).await.expect("TLS")).await);
    }
    samples.extend(paced(clients, "mitmproxy", options.length).await);
    let all = with_children(peer.pid());
    samples.push(single("PSS", "mitmproxy", all.iter().map(|pid| memory(*pid, "Pss")).sum()));
    samples.push(single("RSS", "mitmproxy", all.iter().map(|pid| memory(*pid, "Rss")).sum()));
    let head = origin.heads().pop().expect("requests");
    assert!(head.contains("s3cr3t"), "no header was put in: {head}");
    samples
}

fn vault() -> Secret {
    use std::io::Write as _;
    let request = json!({
        "credentials": [{ "name": "key", "source": { "type": "inline", "value": "s3cr3t" } }],
        "bindings": [{
            "name": "api",
            "match": { "hosts": [HOST] },
            "auth": { "type": "bearer", "credential": "key" },
        }],
    });
    let mut secret = Secret::default();
    secret.write_all(request.to_string().as_bytes()).expect("memory");
    secret
}

/// Each client asks when its turn comes; one that is late asks at once, and its answers count from when it asked.
async fn paced(clients: Vec<Client>, who: &'static str, length: Duration) -> Vec<Sample> {
    let count = clients.len();
    let between = Duration::from_secs_f64(count as f64 / PER_SECOND as f64);
    let start = Instant::now();
    let ask = |(at, mut client): (usize, Client)| async move {
        let mut millis = Vec::new();
        let mut turn = start + between.mul_f64(at as f64 / count as f64);
        while start.elapsed() < length {
            tokio::time::sleep_until(turn.into()).await;
            let asked = Instant::now();
            let answer = client.get(HOST, "/v1/things").await;
            millis.push(asked.elapsed().as_secs_f64() * 1e3);
            assert_eq!(answer.status, 200);
            turn = (turn + between).max(asked);
        }
        millis
    };
    let tasks: Vec<_> = clients.into_iter().enumerate().map(|one| tokio::spawn(ask(one))).collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("a client ends"));
    }
    let rate = all.len() as f64 / start.elapsed().as_secs_f64();
    vec![
        Sample { what: "latency".to_owned(), who, values: all },
        Sample { what: "rate".to_owned(), who, values: vec![rate] },
    ]
}
