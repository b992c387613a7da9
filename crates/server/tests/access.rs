//! What an access to a port does to its sandbox: it renews it, keeps it awake and wakes it.

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::execd::Execd;
use common::{Answer, KEY, PATIENCE, Server, body_with};
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

/// A running sandbox whose execd answers.
async fn sandbox(server: &Server, changes: Value) -> (String, Execd) {
    let id = server.create(changes).await;
    let execd = Execd::serve(server.dir.path().join(format!("{id}.sock")));
    (id, execd)
}

async fn ping(server: &Server, id: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::get(format!("/v1/sandboxes/{id}/proxy/44772/ping")).header("OPEN-SANDBOX-API-KEY", KEY);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    server.send(request.body(Full::new(Bytes::new())).expect("a request")).await
}

async fn deadline(server: &Server, id: &str) -> jiff::Timestamp {
    let found = server.get(&format!("/v1/sandboxes/{id}")).await.json();
    found["expiresAt"].as_str().expect("a deadline").parse().expect("an instant")
}

/// Polls until the deadline is another one.
async fn renewed(server: &Server, id: &str, before: jiff::Timestamp) -> jiff::Timestamp {
    tokio::time::timeout(PATIENCE, async {
        loop {
            let now = deadline(server, id).await;
            if now != before {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("is renewed")
}

fn renewing(interval: Duration) -> server::Config {
    let mut config = server::Config::default();
    config.renew_intent.min_interval = interval;
    config
}

fn extend(seconds: u32) -> Value {
    json!({ "timeout": 60, "extensions": { "access.renew.extend.seconds": seconds.to_string() } })
}

#[tokio::test]
async fn an_access_moves_the_deadline_on_durably_and_never_back() {
    let server = Server::start().await;
    let (id, execd) = sandbox(&server, extend(300)).await;
    let first = deadline(&server, &id).await;
    let asked = jiff::Timestamp::now();
    assert_eq!(ping(&server, &id, &[]).await.status, 200);
    let second = renewed(&server, &id, first).await;
    let by = second.duration_since(asked);
    assert!((300..310).contains(&by.as_secs()), "{by}");
    drop(execd);
    let server = server.restart().await;
    assert_eq!(deadline(&server, &id).await, second, "it was stored");
    let far = asked + Duration::from_secs(100_000);
    let body = json!({ "expiresAt": far.to_string() });
    server.post(&format!("/v1/sandboxes/{id}/renew-expiration"), body).await;
    let far = deadline(&server, &id).await;
    let _execd = Execd::serve(server.dir.path().join(format!("{id}.sock")));
    ping(&server, &id, &[]).await;
    // The driver has seen the access before it answers this.
    server.call(http::Method::PATCH, &format!("/v1/sandboxes/{id}/metadata"), Some(json!({}))).await;
    assert_eq!(deadline(&server, &id).await, far);
}

#[tokio::test]
async fn many_accesses_at_once_renew_once_in_each_interval() {
    let server = Server::with(renewing(Duration::from_secs(1))).await;
    let (id, _execd) = sandbox(&server, extend(300)).await;
    let mut seen = vec![deadline(&server, &id).await];
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_millis(2500) {
        let many = (0..32).map(|_| ping(&server, &id, &[]));
        assert!(futures_util::future::join_all(many).await.iter().all(|answer| answer.status == 200));
        let now = deadline(&server, &id).await;
        if Some(&now) != seen.last() {
            seen.push(now);
        }
    }
    // One renewal at the start, one after each second.
    assert!((3..=4).contains(&seen.len()), "{seen:?}");
    let least = seen[1..].windows(2).map(|two| two[1].duration_since(two[0]).as_millis()).min();
    assert!(least >= Some(990), "{seen:?}");
}

#[tokio::test]
async fn who_skips_or_may_not_call_renews_nothing() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server, extend(300)).await;
    let before = deadline(&server, &id).await;
    assert_eq!(ping(&server, &id, &[("OpenSandbox-Access-Renew", "skip")]).await.status, 200);
    let request = Request::get(format!("/v1/sandboxes/{id}/proxy/44772/ping")).body(Full::new(Bytes::new()));
    assert_eq!(server.send(request.expect("a request")).await.status, 401);
    server.call(http::Method::PATCH, &format!("/v1/sandboxes/{id}/metadata"), Some(json!({}))).await;
    assert_eq!(deadline(&server, &id).await, before);
    ping(&server, &id, &[("OpenSandbox-Access-Renew", "Skip")]).await;
    renewed(&server, &id, before).await;
}

#[tokio::test]
async fn renewal_that_cannot_be_is_refused_at_create() {
    let server = Server::start().await;
    for (changes, field) in [
        (extend(299), "access.renew.extend.seconds"),
        (extend(86_401), "access.renew.extend.seconds"),
        (json!({ "extensions": { "access.renew.extend.seconds": "+300" } }), "access.renew.extend.seconds"),
        (json!({ "timeout": null, "extensions": { "access.renew.extend.seconds": "300" } }), "without a timeout"),
    ] {
        let refused = server.post("/v1/sandboxes", body_with(changes)).await;
        refused.is(400, "SANDBOX::INVALID_PARAMETER");
        assert!(refused.message().contains(field), "{}", refused.message());
    }
    let mut config = server::Config::default();
    config.renew_intent.enabled = false;
    let server = Server::with(config).await;
    server.post("/v1/sandboxes", body_with(extend(300))).await.is(400, "SANDBOX::API_NOT_SUPPORTED");
}
