//! What a sandbox can reach, with real namespaces, steering and processes.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown};

use common::{Inside, MACHINE, ORIGIN, OTHER, Proxy, World, allow, client_hello, is_reset, policy, read_some};
use egress::policy::Source;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use serde_json::json;

#[tokio::test]
async fn an_allowed_name_is_reached_and_a_denied_one_does_not_exist() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    world.name("bad.example", &[OTHER.into()]);
    world.origin(ORIGIN, 80, "good");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["good.example"])).await;

    let address = inside.address("good.example");
    assert_ne!(address, IpAddr::from(ORIGIN), "the address stands for the name");
    assert_eq!(inside.banner(address, 80).expect("a banner"), "good");
    assert_eq!(inside.lookup("bad.example"), (ResponseCode::NXDomain, vec![]));
    assert!(!world.asked.lock().expect("a lock").contains(&"bad.example".to_owned()), "nobody was asked");

    let events = proxy.control.verdicts(&inside.id, 0).await.expect("events");
    let text = serde_json::to_string(&events).expect("JSON");
    assert!(text.contains("\"name\":\"good.example\"") && text.contains("\"name\":\"bad.example.\""), "{text}");
}

#[tokio::test]
async fn names_that_share_an_address_are_told_apart_although_the_server_speaks_first() {
    let world = World::new();
    world.name("a.example", &[ORIGIN.into()]);
    world.name("b.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 22, "SSH-2.0-x\r\n");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    let rules = json!({"egress": [
        {"action": "allow", "target": "a.example"},
        {"action": "allow", "target": "b.example", "ports": [443]}]});
    proxy.attach(&inside, &policy(rules)).await;

    let (a, b) = (inside.address("a.example"), inside.address("b.example"));
    assert_eq!(inside.banner(a, 22).expect("a banner"), "SSH-2.0-x\r\n");
    assert!(is_reset(&inside.banner(b, 22).expect_err("the port is not allowed")));
}

#[tokio::test]
async fn a_literal_address_needs_a_rule_of_its_own() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 80, "good");
    world.origin(OTHER, 80, "other");
    world.origin("2a01::1".parse::<IpAddr>().expect("an address"), 80, "six");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["good.example", &OTHER.to_string(), "2a01::/32"])).await;

    let six: IpAddr = "2a01::1".parse().expect("an address");
    assert!(is_reset(&inside.banner(ORIGIN, 80).expect_err("only its name is allowed")));
    assert_eq!(inside.banner(OTHER, 80).expect("a banner"), "other");
    assert_eq!(inside.banner(six, 80).expect("a banner"), "six");
    let stranger: IpAddr = "2a02::1".parse().expect("an address");
    assert!(is_reset(&inside.banner(stranger, 80).expect_err("no rule")));
}

#[tokio::test]
async fn a_name_with_only_an_ipv6_address_is_reached() {
    let world = World::new();
    let six: IpAddr = "2a01::1".parse().expect("an address");
    world.name("six.example", &[six]);
    world.origin(six, 80, "six");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["six.example"])).await;
    assert_eq!(inside.banner(inside.address("six.example"), 80).expect("a banner"), "six");
    let quad = inside.ask("six.example", RecordType::AAAA);
    assert_eq!((quad.metadata.response_code, quad.answers.len()), (ResponseCode::NoError, 0));
}

#[tokio::test]
async fn a_name_that_leads_to_an_address_that_is_not_public_is_refused() {
    let world = World::new();
    let hidden = [
        IpAddr::from([10, 9, 0, 1]),
        IpAddr::from([169, 254, 169, 254]),
        IpAddr::from([168, 63, 129, 16]),
        IpAddr::from([127, 0, 0, 1]),
        MACHINE.into(),
        "::ffff:10.9.0.1".parse().expect("an address"),
        "64:ff9b::a09:1".parse().expect("an address"),
    ];
    world.origin([10, 9, 0, 1], 80, "private");
    world.origin([169, 254, 169, 254], 80, "metadata");
    world.origin([168, 63, 129, 16], 80, "metadata");
    let own = world.outside.run(|| std::net::TcpListener::bind((MACHINE, 80)).expect("the machine's own port"));
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &policy(json!({"defaultAction": "allow"}))).await;
    for (at, address) in hidden.into_iter().enumerate() {
        let name = format!("rebind{at}.example");
        world.name(&name, &[address]);
        assert!(is_reset(&inside.banner(inside.address(&name), 80).expect_err("not public")), "{address}");
        if !address.is_loopback() && address.is_ipv4() {
            assert!(is_reset(&inside.banner(address, 80).expect_err("not public")), "{address}");
        }
    }
    own.set_nonblocking(true).expect("a socket");
    assert!(own.accept().is_err(), "nobody came to the machine's own port");
}

#[tokio::test]
async fn an_answer_that_changes_between_question_and_dial_is_judged_again() {
    let world = World::new();
    world.name("swing.example", &[ORIGIN.into()]);
    world.origin([10, 9, 0, 1], 80, "private");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["swing.example"])).await;
    let address = inside.address("swing.example");
    world.name("swing.example", &[IpAddr::from([10, 9, 0, 1])]);
    // At first the remembered answer is dialled, where nobody listens; then the new one is found, and refused.
    let deadline = std::time::Instant::now() + common::PATIENCE;
    loop {
        assert!(is_reset(&inside.banner(address, 80).expect_err("nothing private is reached")));
        let events = proxy.control.verdicts(&inside.id, 0).await.expect("events");
        if serde_json::to_string(&events).expect("JSON").contains("\"kind\":\"private\"") {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "the new answer is never asked for");
    }
}

#[tokio::test]
async fn a_private_address_is_reached_by_the_rule_that_means_it() {
    let world = World::new();
    world.name("db.example", &[IpAddr::from([10, 9, 0, 1])]);
    world.origin([10, 9, 0, 1], 5432, "db");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["db.example", "10.9.0.0/16"])).await;
    assert_eq!(inside.banner(inside.address("db.example"), 5432).expect("a banner"), "db");
    assert_eq!(inside.banner([10, 9, 0, 1], 5432).expect("a banner"), "db");
}

#[tokio::test]
async fn a_connection_that_presents_another_name_is_refused() {
    let world = World::new();
    world.name("cdn.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 443, "");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["cdn.example"])).await;
    let address = inside.address("cdn.example");
    let say = |first: &[u8]| {
        let mut stream = inside.connect(address, 443).expect("connected");
        stream.write_all(first)?;
        read_some(&mut stream)
    };
    assert_eq!(say(&client_hello("CDN.example")).expect("an echo").len(), client_hello("cdn.example").len());
    assert!(is_reset(&say(&client_hello("evil.example")).expect_err("another name")));
    assert!(is_reset(&say(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n").expect_err("another host")));
    assert!(say(b"GET / HTTP/1.1\r\nHost: cdn.example\r\n\r\n").expect("an echo").starts_with("GET /"));
    assert_eq!(say(b"\x00\x01opaque").expect("an echo"), "\0\u{1}opaque");
}

#[tokio::test]
async fn a_client_that_says_little_is_not_kept_waiting_for_more() {
    let world = World::new();
    world.name("odd.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 7000, "");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["odd.example"])).await;
    let address = inside.address("odd.example");
    for word in ["HELLO", "GET /", "\r\n", "x"] {
        let mut stream = inside.connect(address, 7000).expect("connected");
        stream.write_all(word.as_bytes()).expect("sent");
        assert_eq!(read_some(&mut stream).expect("an echo"), word);
    }
}

#[tokio::test]
async fn a_denied_name_is_found_also_behind_an_address() {
    let world = World::new();
    world.origin(ORIGIN, 443, "");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    let rules = json!({"defaultAction": "allow", "egress": [{"action": "deny", "target": "*.ads.example"}]});
    proxy.attach(&inside, &policy(rules)).await;
    let say = |name: &str| {
        let mut stream = inside.connect(ORIGIN, 443).expect("connected");
        stream.write_all(&client_hello(name))?;
        read_some(&mut stream)
    };
    assert!(say("fine.example").is_ok());
    assert!(is_reset(&say("x.ads.example").expect_err("a denied name")));
}

#[tokio::test]
async fn without_a_policy_the_public_internet_is_reached() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 80, "good");
    world.origin([10, 9, 0, 1], 80, "private");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &Source::default()).await;
    assert_eq!(inside.banner(inside.address("good.example"), 80).expect("a banner"), "good");
    assert_eq!(inside.banner(ORIGIN, 80).expect("a banner"), "good");
    assert!(is_reset(&inside.banner([10, 9, 0, 1], 80).expect_err("private")));
    assert!(is_reset(&inside.banner(ORIGIN, 853).expect_err("DNS over TLS")));
}

#[tokio::test]
async fn a_connection_to_our_own_listener_is_reset() {
    let world = World::new();
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &policy(json!({"defaultAction": "allow"}))).await;
    assert!(is_reset(&inside.banner(Ipv4Addr::LOCALHOST, 1).expect_err("our own listener")));
    assert!(is_reset(&inside.banner(std::net::Ipv6Addr::LOCALHOST, 1).expect_err("our own listener")));
}

#[tokio::test]
async fn an_address_that_stands_for_no_name_is_reset() {
    let world = World::new();
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &policy(json!({"defaultAction": "allow"}))).await;
    assert!(is_reset(&inside.banner([28, 64, 1, 2], 80).expect_err("no name")));
}

#[tokio::test]
async fn when_the_origin_does_not_answer_the_connection_is_reset() {
    let world = World::new();
    world.name("down.example", &[ORIGIN.into()]);
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["down.example"])).await;
    let address = inside.address("down.example");
    assert!(is_reset(&inside.banner(address, 81).expect_err("nobody listens")));
}

#[tokio::test]
async fn half_a_close_passes_through_both_ways() {
    let world = World::new();
    world.name("count.example", &[ORIGIN.into()]);
    world.serve(ORIGIN, 80, |mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("the client's end");
        stream.write_all(format!("{} bytes", all.len()).as_bytes()).expect("an answer");
    });
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["count.example"])).await;
    let mut stream = inside.connect(inside.address("count.example"), 80).expect("connected");
    stream.write_all(&vec![b'x'; 3_000_000]).expect("sent");
    stream.shutdown(Shutdown::Write).expect("half closed");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer, then an orderly end");
    assert_eq!(answer, "3000000 bytes");
}

#[tokio::test]
async fn a_reset_passes_through_both_ways() {
    let world = World::new();
    world.name("rude.example", &[ORIGIN.into()]);
    let (told, heard) = std::sync::mpsc::channel();
    world.serve(ORIGIN, 80, |mut stream| {
        stream.write_all(b"some").expect("sent");
        read_some(&mut stream).expect("a word");
        rustix::net::sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO)).expect("a socket");
    });
    world.serve(ORIGIN, 81, move |mut stream| {
        let mut all = Vec::new();
        let _ = told.send(stream.read_to_end(&mut all).expect_err("the client resets").kind());
    });
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["rude.example"])).await;
    let address = inside.address("rude.example");
    let mut stream = inside.connect(address, 80).expect("connected");
    assert_eq!(read_some(&mut stream).expect("a word"), "some");
    stream.write_all(b"go").expect("sent");
    assert!(is_reset(&read_some(&mut stream).expect_err("a reset, not an end")));

    let mut stream = inside.connect(address, 81).expect("connected");
    stream.write_all(b"word").expect("sent");
    rustix::net::sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO)).expect("a socket");
    drop(stream);
    let kind = heard.recv_timeout(common::PATIENCE).expect("the origin saw an end");
    assert_eq!(kind, std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_client_that_resets_after_its_end_is_noticed_while_the_origin_is_silent() {
    let world = World::new();
    world.name("silent.example", &[ORIGIN.into()]);
    let (told, heard) = std::sync::mpsc::channel();
    world.serve(ORIGIN, 80, move |mut stream| {
        assert_eq!(stream.read_to_end(&mut Vec::new()).expect("the client's end"), 4);
        told.send(None).expect("the test waits");
        // Nothing is said or heard any more; only the reset ends this.
        let mut poll = [rustix::event::PollFd::new(&stream, rustix::event::PollFlags::empty())];
        rustix::event::poll(&mut poll, None).expect("an event");
        told.send(stream.take_error().expect("a socket").map(|error| error.kind())).expect("the test waits");
    });
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["silent.example"])).await;
    let mut stream = inside.connect(inside.address("silent.example"), 80).expect("connected");
    stream.write_all(b"word").expect("sent");
    stream.shutdown(Shutdown::Write).expect("half closed");
    assert_eq!(heard.recv_timeout(common::PATIENCE).expect("the end arrives"), None);
    rustix::net::sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO)).expect("a socket");
    drop(stream);
    let kind = heard.recv_timeout(common::PATIENCE).expect("the reset arrives");
    assert!(matches!(kind, Some(std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe)), "{kind:?}");
}

#[tokio::test]
async fn a_changed_policy_cuts_what_it_forbids_and_nothing_else() {
    let world = World::new();
    world.name("stays.example", &[ORIGIN.into()]);
    world.name("goes.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 80, "hello");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["stays.example", "goes.example", &ORIGIN.to_string()])).await;
    let open = |to: IpAddr| {
        let mut stream = inside.connect(to, 80).expect("connected");
        assert_eq!(read_some(&mut stream).expect("a word"), "hello");
        stream
    };
    let mut stays = open(inside.address("stays.example"));
    let mut goes = open(inside.address("goes.example"));
    let mut literal = open(ORIGIN.into());

    let cut = proxy.control.set_policy(&inside.id, 2, &allow(&["stays.example"])).await.expect("a new policy");
    assert_eq!(cut, 2);
    assert!(is_reset(&read_some(&mut goes).expect_err("cut")));
    assert!(is_reset(&read_some(&mut literal).expect_err("cut")));
    stays.write_all(b"still").expect("sent");
    assert_eq!(read_some(&mut stays).expect("an echo"), "still");
    assert_eq!(inside.lookup("goes.example").0, ResponseCode::NXDomain);
    let stale = proxy.control.set_policy(&inside.id, 1, &allow(&["goes.example"])).await;
    assert!(matches!(stale, Err(egress::ControlError::Failed(egress::Failure::Stale { in_force: 2 }))));
}

#[tokio::test]
async fn a_wrong_policy_changes_nothing_and_names_its_field() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["good.example"])).await;
    let wrong = policy(json!({"egress": [{"action": "allow", "target": "0x7f.1"}]}));
    match proxy.control.set_policy(&inside.id, 2, &wrong).await {
        Err(egress::ControlError::Failed(egress::Failure::Policy { field, .. })) => {
            assert_eq!(field, "networkPolicy.egress[0].target");
        }
        other => panic!("{other:?}"),
    }
    inside.address("good.example");
}

#[tokio::test]
async fn a_detached_sandbox_is_cut_and_its_sockets_are_free() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 80, "hello");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["good.example"])).await;
    let address = inside.address("good.example");
    let mut stream = inside.connect(address, 80).expect("connected");
    read_some(&mut stream).expect("a word");
    proxy.control.detach(&inside.id).await.expect("detached");
    assert!(is_reset(&read_some(&mut stream).expect_err("cut")));
    assert!(proxy.control.stats().await.expect("stats").sandboxes.is_empty());
    let Inside { namespace, listeners, .. } = inside;
    drop(listeners);
    namespace.run(|| {
        let listener = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
        let address = std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        rustix::net::bind(listener.expect("a socket"), &address).expect("nobody holds the port any more");
    });
}

#[tokio::test]
async fn a_program_that_knows_nothing_of_us_reaches_an_allowed_name() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    world.serve(ORIGIN, 80, |mut stream| {
        read_some(&mut stream).expect("a request");
        stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello").expect("an answer");
    });
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["good.example"])).await;
    let program = r#"
import ipaddress, socket, urllib.error, urllib.request
print(urllib.request.urlopen("http://good.example/").read().decode())
print(ipaddress.ip_address(socket.gethostbyname("good.example")).is_global)
try:
    urllib.request.urlopen("http://bad.example/")
except urllib.error.URLError as error:
    print(error.reason.errno == socket.EAI_NONAME)
"#;
    let directory = tempfile::tempdir().expect("a directory");
    let resolv_conf = directory.path().join("resolv.conf");
    std::fs::write(&resolv_conf, "nameserver 10.0.0.53\n").expect("written");
    let output = inside.namespace.run(|| {
        std::process::Command::new("unshare")
            .args(["-m", "sh", "-ec", "mount --bind \"$0\" /etc/resolv.conf && exec python3 -c \"$1\""])
            .arg(&resolv_conf)
            .arg(program)
            .output()
            .expect("it runs")
    });
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(out, "hello\nTrue\nTrue\n", "{err}");
}
