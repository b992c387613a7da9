//! Reaching the internet by the operator's proxy only.

mod common;

use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex};

use common::{Inside, MACHINE, ORIGIN, OTHER, Proxy, World, is_reset, policy};
use egress::Settings;
use egress::upstream::UpstreamProxy;
use serde_json::json;

/// A proxy that takes one login and is itself every host that it is asked for; what it was asked.
fn proxy(world: &World) -> Arc<Mutex<Vec<String>>> {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let known = asked.clone();
    world.serve(OTHER, 3128, move |mut stream| {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|length| length == 1) {
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        known.lock().expect("a lock").push(head.clone());
        let answer: &[u8] = if !head.contains("Proxy-Authorization: Basic dXNlcjpwYXNz\r\n") {
            b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"
        } else if head.contains("refused.example") {
            b"HTTP/1.1 403 Forbidden\r\n\r\n"
        } else {
            b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nfirst words"
        };
        // Who is gone is not told.
        let _ = stream.write_all(answer);
        let mut reader = stream.try_clone().expect("a duplicate");
        let _ = std::io::copy(&mut reader, &mut stream);
    });
    asked
}

async fn start(world: &World, url: &str) -> Proxy {
    let direct = ["direct.example".to_owned(), "93.184.216.34".to_owned()];
    let upstream_proxy = Some(UpstreamProxy::parse(url, &direct).expect("a proxy"));
    Proxy::start_with(world, Settings { upstream_proxy, ..Settings::default() }).await
}

#[tokio::test]
async fn names_go_to_the_proxy_as_names_and_lose_no_byte() {
    let world = World::new();
    world.name("proxy.example", &[OTHER.into()]);
    world.name("direct.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 22, "direct");
    let asked = proxy(&world);
    let proxy = start(&world, "http://user:pass@proxy.example:3128").await;
    let inside = Inside::new();
    let rules = json!({ "egress": [
        { "action": "allow", "target": "nobody-resolves.example" },
        { "action": "allow", "target": "refused.example" },
        { "action": "allow", "target": "direct.example" },
        { "action": "allow", "target": "93.184.216.0/24" },
    ]});
    proxy.attach(&inside, &policy(rules)).await;

    assert_eq!(inside.banner(inside.address("nobody-resolves.example"), 22).expect("a banner"), "first words");
    let head = asked.lock().expect("a lock")[0].clone();
    assert!(head.starts_with("CONNECT nobody-resolves.example:22 HTTP/1.1\r\n"), "{head}");
    assert!(
        !world.asked.lock().expect("a lock").iter().any(|name| name.starts_with("nobody")),
        "the proxy resolves it"
    );
    assert!(is_reset(&inside.banner(inside.address("refused.example"), 22).expect_err("refused")));
    // An address goes to it as one, and some are reached directly.
    assert_eq!(inside.banner([93, 184, 216, 77], 22).expect("a banner"), "first words");
    assert!(asked.lock().expect("a lock").iter().any(|head| head.starts_with("CONNECT 93.184.216.77:22 ")));
    assert_eq!(inside.banner(inside.address("direct.example"), 22).expect("a banner"), "direct");
    assert_eq!(inside.banner(ORIGIN, 22).expect("a banner"), "direct");
    // What the policy does not allow is not asked of anybody.
    let count = asked.lock().expect("a lock").len();
    assert!(is_reset(&inside.banner(MACHINE, 22).expect_err("no rule")));
    assert_eq!(asked.lock().expect("a lock").len(), count);
    let events = proxy.control.verdicts(&inside.id, 0).await.expect("events");
    let text = serde_json::to_string(&events).expect("JSON");
    assert!(text.contains("the upstream proxy: it answered 403") && !text.contains("pass"), "{text}");
}

#[tokio::test]
async fn a_wrong_login_is_told() {
    let world = World::new();
    let _asked = proxy(&world);
    let proxy = start(&world, &format!("http://user:wrong@{OTHER}:3128")).await;
    let inside = Inside::new();
    proxy.attach(&inside, &policy(json!({ "defaultAction": "allow" }))).await;
    assert!(is_reset(&inside.banner(inside.address("any.example"), 22).expect_err("refused")));
    let events = proxy.control.verdicts(&inside.id, 0).await.expect("events");
    let text = serde_json::to_string(&events).expect("JSON");
    assert!(text.contains("another login (407)") && !text.contains("wrong"), "{text}");
}
