//! Questions of a sandbox, over datagrams and TCP, well-formed and not.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr};

use common::{Inside, ORIGIN, Proxy, World, allow, policy, question};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{RData, RecordType};
use serde_json::json;

#[tokio::test]
async fn questions_over_tcp_are_answered_wherever_they_were_going() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["good.example"])).await;
    let mut stream = inside.connect([8, 8, 8, 8], 53).expect("connected");
    for _ in 0..2 {
        let question = question("good.example", RecordType::A);
        let length = u16::try_from(question.len()).expect("short").to_be_bytes();
        stream.write_all(&[&length, &question[..]].concat()).expect("sent");
        let mut length = [0; 2];
        stream.read_exact(&mut length).expect("a length");
        let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(Message::from_vec(&answer).expect("a message").answers.len(), 1);
    }
}

#[tokio::test]
async fn questions_over_ipv6_are_answered() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["good.example"])).await;
    let socket = inside.namespace.run(|| std::net::UdpSocket::bind("[::]:0").expect("a socket"));
    socket.set_read_timeout(Some(common::PATIENCE)).expect("a socket");
    socket.connect("[2001:4860:4860::8888]:53").expect("connected");
    socket.send(&question("good.example", RecordType::A)).expect("sent");
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).expect("an answer from whom it was asked");
    assert_eq!(Message::from_vec(&answer[..length]).expect("a message").answers.len(), 1);
}

#[tokio::test]
async fn only_what_a_sandbox_needs_is_answered() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    world.name("_svc._tcp.good.example", &[]);
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["good.example", "gone.example"])).await;
    let code = |name: &str, kind| {
        let answer = inside.ask(name, kind);
        (answer.metadata.response_code, answer.answers.len())
    };
    let address = inside.address("good.example");
    for kind in [RecordType::AAAA, RecordType::HTTPS, RecordType::SVCB] {
        assert_eq!(code("good.example", kind), (ResponseCode::NoError, 0), "{kind}");
    }
    assert_eq!(code("good.example", RecordType::TXT), (ResponseCode::NoError, 1));
    assert_eq!(code("_svc._tcp.good.example", RecordType::TXT), (ResponseCode::NoError, 1));
    assert_eq!(code("_svc._tcp.good.example", RecordType::A).0, ResponseCode::NXDomain);
    for kind in [RecordType::ANY, RecordType::NULL, RecordType::AXFR, RecordType::DNSKEY] {
        assert_eq!(code("good.example", kind), (ResponseCode::Refused, 0), "{kind}");
    }
    for kind in [RecordType::A, RecordType::TXT, RecordType::AAAA, RecordType::NULL] {
        assert_eq!(code("bad.example", kind), (ResponseCode::NXDomain, 0), "{kind}");
    }
    assert_eq!(inside.lookup("gone.example"), (ResponseCode::NXDomain, vec![]), "allowed, and does not exist");
    assert_eq!(inside.lookup("localhost"), (ResponseCode::NoError, vec![Ipv4Addr::LOCALHOST]));

    let IpAddr::V4(v4) = address else { panic!("a name has an IPv4 address") };
    let [a, b, c, d] = v4.octets();
    let pointer = inside.ask(&format!("{d}.{c}.{b}.{a}.in-addr.arpa"), RecordType::PTR);
    assert!(matches!(&pointer.answers[0].data, RData::PTR(name) if name.0.to_ascii() == "good.example."));
    assert_eq!(code("1.0.0.10.in-addr.arpa", RecordType::PTR).0, ResponseCode::NXDomain);
}

#[tokio::test]
async fn the_case_of_a_question_comes_back() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["good.example"])).await;
    let answer = inside.ask("GoOd.ExAmPlE", RecordType::A);
    assert_eq!(answer.queries[0].name().to_ascii(), "GoOd.ExAmPlE.");
    assert_eq!(answer.answers.len(), 1);
}

#[tokio::test]
async fn malformed_questions_get_an_error_or_nothing_and_hurt_nobody() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &policy(json!({"defaultAction": "allow"}))).await;
    let good = question("good.example", RecordType::A);
    let code = |bytes: &[u8]| inside.ask_bytes(bytes).expect("an answer")[3] & 0x0f;

    assert_eq!(code(&good[..20]), 1, "cut off");
    let mut two = good.clone();
    two[5] = 2;
    two.extend_from_slice(&good[12..]);
    assert_eq!(code(&two), 1, "two questions");
    let mut looped = good.clone();
    looped[12..14].copy_from_slice(&[0xc0, 0x0c]);
    assert_eq!(code(&looped), 1, "a name that points at itself");
    let mut notify = good.clone();
    notify[2] = 4 << 3;
    assert_eq!(code(&notify), 4, "another operation");
    let mut chaos = good.clone();
    let end = chaos.len();
    chaos[end - 1] = 3;
    assert_eq!(code(&chaos), 5, "another class");
    let mut nul = good.clone();
    nul[14] = 0;
    assert_eq!(code(&nul), 3, "a byte that no name has");
    let dotted = [&good[..12], b"\x0agood.examp\x02le\0", &good[good.len() - 4..]].concat();
    assert_eq!(code(&dotted), 3, "a dot within a label");

    // No answer at all: too short, and an answer itself.
    let socket = inside.namespace.run(|| std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket"));
    socket.connect("10.0.0.53:53").expect("connected");
    let mut response = good.clone();
    response[2] |= 0x80;
    for silent in [&b"x"[..], &[0; 11], &response] {
        socket.send(silent).expect("sent");
    }
    socket.set_read_timeout(Some(std::time::Duration::from_millis(200))).expect("a socket");
    socket.recv(&mut [0; 512]).expect_err("nothing comes back");
    inside.address("good.example");
}

#[tokio::test]
async fn encoded_addresses_are_not_asked_of_anybody() {
    let world = World::new();
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &policy(json!({"defaultAction": "allow"}))).await;
    for name in ["0x7f.1", "2130706433", "127.1", "169.254.169.254"] {
        assert_eq!(inside.lookup(name), (ResponseCode::NXDomain, vec![]), "{name}");
    }
    assert!(world.asked.lock().expect("a lock").is_empty());
}

#[tokio::test]
async fn when_no_resolver_answers_the_question_fails_and_no_address_is_given() {
    let world = World::new();
    let proxy = Proxy::start(&world).await;
    let settings =
        egress::Settings { resolvers: vec!["8.0.0.9:53".parse().expect("an address")], ..Default::default() };
    proxy.control.configure(settings).await.expect("configured");
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["good.example"])).await;
    assert_eq!(inside.lookup("good.example"), (ResponseCode::ServFail, vec![]));
    let stats = proxy.control.stats().await.expect("stats");
    assert_eq!(stats.sandboxes[0].names, 0);
}
