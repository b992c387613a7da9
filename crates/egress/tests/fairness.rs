//! What one sandbox takes, another does not miss.

mod common;

use std::io::Write;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use common::{Inside, ORIGIN, Proxy, World, allow, policy, question, read_some};
use egress::Settings;
use egress::limits::{Limits, Rate};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

#[tokio::test]
async fn a_sandbox_at_its_limit_of_connections_waits_and_another_does_not() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 80, "good");
    let limits = Limits { flows: 8, ..Limits::default() };
    let proxy = Proxy::start_with(&world, Settings { limits, ..Settings::default() }).await;
    let (greedy, modest) = (Inside::new(), Inside::new());
    for inside in [&greedy, &modest] {
        proxy.attach(inside, &allow(&["good.example"])).await;
    }
    let address = greedy.address("good.example");
    let mut open: Vec<_> = (0..40).map(|_| greedy.connect(address, 80).expect("the kernel queues it")).collect();
    for stream in &mut open[..8] {
        assert_eq!(read_some(stream).expect("a banner"), "good");
    }
    open[30].set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
    read_some(&mut open[30]).expect_err("it waits in its own queue");
    assert_eq!(modest.banner(modest.address("good.example"), 80).expect("a banner"), "good");
    let flows = proxy.control.stats().await.expect("stats").sandboxes;
    assert_eq!(flows.iter().find(|stats| stats.sandbox == greedy.id).expect("attached").flows, 8);

    // Once some end, those that waited have their turn.
    open[30].set_read_timeout(Some(common::PATIENCE)).expect("a socket");
    let mut last = open.remove(30);
    drop(open);
    assert_eq!(read_some(&mut last).expect("a banner"), "good");
}

#[tokio::test]
async fn a_sandbox_that_floods_questions_slows_down_itself_alone() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    let limits = Limits { questions: Rate { per_second: 20, burst: 20 }, ..Limits::default() };
    let proxy = Proxy::start_with(&world, Settings { limits, ..Settings::default() }).await;
    let (greedy, modest) = (Inside::new(), Inside::new());
    for inside in [&greedy, &modest] {
        proxy.attach(inside, &allow(&["good.example"])).await;
    }
    let flood = greedy.namespace.run(|| std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket"));
    flood.connect("10.0.0.53:53").expect("connected");
    let question = question("good.example", RecordType::A);
    for _ in 0..2000 {
        // Its own buffer is full at some time.
        let _ = flood.send(&question);
    }
    let start = Instant::now();
    for _ in 0..5 {
        modest.address("good.example");
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_tunnel_of_new_names_is_slowed_down_and_old_names_are_not() {
    let world = World::new();
    for n in 0..30 {
        world.name(&format!("n{n}.many.example"), &[ORIGIN.into()]);
    }
    let limits = Limits { new_names: Rate { per_second: 1, burst: 10 }, ..Limits::default() };
    let proxy = Proxy::start_with(&world, Settings { limits, ..Settings::default() }).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["*.many.example"])).await;
    let codes: Vec<_> = (0..30).map(|n| inside.lookup(&format!("n{n}.many.example")).0).collect();
    assert!(codes[..10].iter().all(|code| *code == ResponseCode::NoError), "{codes:?}");
    assert!(codes[15..].contains(&ResponseCode::ServFail), "{codes:?}");
    inside.address("n0.many.example");
}

#[tokio::test]
async fn readers_that_stand_still_do_not_slow_down_another_sandbox() {
    let world = World::new();
    world.name("source.example", &[ORIGIN.into()]);
    world.serve(ORIGIN, 80, |mut stream| {
        let chunk = vec![b'x'; 64 * 1024];
        while stream.write_all(&chunk).is_ok() {}
    });
    world.origin(ORIGIN, 81, "good");
    let proxy = Proxy::start(&world).await;
    let (greedy, modest) = (Inside::new(), Inside::new());
    for inside in [&greedy, &modest] {
        proxy.attach(inside, &allow(&["source.example"])).await;
    }
    let address: IpAddr = greedy.address("source.example");
    let still: Vec<_> = (0..60).map(|_| greedy.connect(address, 80).expect("connected")).collect();
    let mut stream = modest.connect(modest.address("source.example"), 80).expect("connected");
    let start = Instant::now();
    let mut taken = 0;
    let mut buffer = vec![0; 1 << 20];
    while taken < 20 << 20 {
        taken += std::io::Read::read(&mut stream, &mut buffer).expect("bytes");
    }
    assert!(start.elapsed() < common::PATIENCE, "20 MiB in {:?}", start.elapsed());
    drop(still);
}

#[tokio::test]
async fn events_are_told_as_they_happen() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 80, "good");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    let mut watch = proxy.control.watch(None, 0).await.expect("a watch");
    proxy
        .attach(&inside, &policy(serde_json::json!({"egress": [{"action": "allow", "target": "good.example"}]})))
        .await;
    let mut stream = inside.connect(inside.address("good.example"), 80).expect("connected");
    read_some(&mut stream).expect("a banner");
    stream.write_all(b"12345").expect("sent");
    read_some(&mut stream).expect("an echo");
    drop(stream);
    let mut events = Vec::new();
    while !serde_json::to_string(&events).expect("JSON").contains("closed") {
        let more = tokio::time::timeout(common::PATIENCE, watch.next()).await.expect("in time").expect("events");
        events.extend(more.events);
    }
    let closed = serde_json::to_value(events.last().expect("an event")).expect("JSON");
    assert_eq!((&closed["sent_bytes"], &closed["received_bytes"]), (&5.into(), &9.into()), "{closed}");
    assert_eq!(closed["end"]["how"], "done");
    let numbers: Vec<u64> = events.iter().map(|event| event.number).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
}
