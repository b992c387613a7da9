//! What an access to a port does to its sandbox: it renews it, keeps it awake and wakes it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::execd::Execd;
use crate::common::{Answer, KEY, PATIENCE, Server, body_with};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use lifecycle::fake::Call;
use lifecycle::runtime::ErrorKind;
use serde_json::{Value, json};
use tokio::net::TcpStream;

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
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(2500) {
        let many = (0..32).map(|_| ping(&server, &id, &[]));
        assert!(futures_util::future::join_all(many).await.iter().all(|answer| answer.status == 200));
        let now = deadline(&server, &id).await;
        if Some(&now) != seen.last() {
            seen.push(now);
        }
    }
    let most = begun.elapsed().as_secs() as usize + 1;
    let renewals = seen.len() - 1;
    assert!(renewals >= 2 && renewals <= most, "{renewals} renewals, at most {most} are due: {seen:?}");
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

/// Seconds without use after which sandboxes of these tests are paused: the least there is.
const IDLE: u32 = 5;

fn idle() -> Value {
    json!({ "extensions": { "access.idle.pause.seconds": IDLE.to_string() } })
}

async fn reason(server: &Server, id: &str) -> String {
    let found = server.get(&format!("/v1/sandboxes/{id}")).await.json();
    found["status"]["reason"].as_str().expect("a reason").to_owned()
}

/// How often the sandbox entered a state by this word.
async fn count(server: &Server, id: &str, word: &str) -> usize {
    let events = server.get(&format!("/v1/sandboxes/{id}/diagnostics/events")).await;
    String::from_utf8_lossy(&events.body).matches(word).count()
}

#[tokio::test]
async fn an_unused_sandbox_is_paused_and_one_wake_serves_all_that_come() {
    let server = Server::start().await;
    let begun = Instant::now();
    let (id, execd) = sandbox(&server, idle()).await;
    server.reaches(&id, "Paused").await;
    let after = begun.elapsed();
    assert!(after >= Duration::from_secs(IDLE.into()) && after < Duration::from_secs(8), "{after:?}");
    assert_eq!(reason(&server, &id).await, "IDLE_PAUSED");

    let looked = server.get(&format!("/v1/sandboxes/{id}/endpoints/44772")).await;
    assert_eq!((looked.status.as_u16(), server.state(&id).await.as_str()), (200, "Paused"), "looking does not wake");
    let skipped = ping(&server, &id, &[("OpenSandbox-Access-Renew", "skip")]).await;
    skipped.is(409, "SANDBOX::SANDBOX_NOT_RUNNING");
    assert_eq!(server.state(&id).await, "Paused");

    let many = (0..32).map(|_| ping(&server, &id, &[]));
    let answers = futures_util::future::join_all(many).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    assert_eq!(server.state(&id).await, "Running");
    assert_eq!(count(&server, &id, "RESUMING").await, 1);

    server.reaches(&id, "Paused").await;
    drop(execd);
    let server = server.restart().await;
    let _execd = Execd::serve(server.dir.path().join(format!("{id}.sock")));
    assert_eq!(server.state(&id).await, "Paused");
    assert_eq!(ping(&server, &id, &[]).await.status, 200, "it is woken after a restart, too");
}

#[tokio::test]
async fn what_goes_on_keeps_a_sandbox_awake() {
    let server = Server::start().await;
    let (id, execd) = sandbox(&server, idle()).await;
    let stream = TcpStream::connect(server.address).await.expect("connects");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
    let connection = tokio::spawn(connection);
    let request = Request::get(format!("/v1/sandboxes/{id}/proxy/44772/endless"))
        .header("OPEN-SANDBOX-API-KEY", KEY)
        .body(Full::new(Bytes::new()))
        .expect("a request");
    let mut answer = sender.send_request(request).await.expect("an answer");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(u64::from(IDLE) + 2) {
        answer.frame().await.expect("a frame").expect("whole");
    }
    assert_eq!(server.state(&id).await, "Running", "a stream goes on");
    execd.running.store(1, Ordering::SeqCst);
    drop(answer);
    connection.abort();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(u64::from(IDLE) + 2) {
        assert_eq!(reason(&server, &id).await, "RUNNING", "a command runs");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    execd.running.store(0, Ordering::SeqCst);
    server.reaches(&id, "Paused").await;
    assert_eq!(reason(&server, &id).await, "IDLE_PAUSED");
}

#[tokio::test]
async fn a_sandbox_that_was_paused_by_hand_is_not_woken() {
    let server = Server::start().await;
    let (asked, _asked) = sandbox(&server, idle()).await;
    let (unused, _unused) = sandbox(&server, idle()).await;
    assert_eq!(server.post(&format!("/v1/sandboxes/{asked}/pause"), json!({})).await.status, 202);
    server.reaches(&unused, "Paused").await;
    assert_eq!(server.post(&format!("/v1/sandboxes/{unused}/pause"), json!({})).await.status, 202);
    for id in [&asked, &unused] {
        assert_eq!(reason(&server, id).await, "PAUSED");
        ping(&server, id, &[]).await.is(409, "SANDBOX::SANDBOX_NOT_RUNNING");
        server.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await.is(409, "SANDBOX::SANDBOX_NOT_RUNNING");
        assert_eq!(server.post(&format!("/v1/sandboxes/{id}/resume"), json!({})).await.status, 202);
        assert_eq!(ping(&server, id, &[]).await.status, 200);
    }
}

#[tokio::test]
async fn a_wake_that_fails_is_told_and_not_tried_for_ever() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server, idle()).await;
    server.reaches(&id, "Paused").await;
    server.runtime.fail_next(Call::Resume, ErrorKind::Internal, "the freezer is stuck");
    let refused = ping(&server, &id, &[]).await;
    refused.is(503, "SANDBOX::SANDBOX_RESUME_FAILED");
    assert!(refused.message().contains("the freezer is stuck"), "{}", refused.message());
    ping(&server, &id, &[]).await.is(409, "SANDBOX::SANDBOX_NOT_RUNNING");
    assert_eq!(server.post(&format!("/v1/sandboxes/{id}/resume"), json!({})).await.status, 202);
    assert_eq!(ping(&server, &id, &[]).await.status, 200);
}

#[tokio::test]
async fn idle_times_out_of_range_are_refused_at_create() {
    let server = Server::start().await;
    for seconds in ["4", "86401", "", "5.0", "soon"] {
        let body = body_with(json!({ "extensions": { "access.idle.pause.seconds": seconds } }));
        let refused = server.post("/v1/sandboxes", body).await;
        refused.is(400, "SANDBOX::INVALID_PARAMETER");
        assert!(refused.message().contains("access.idle.pause.seconds"), "{}", refused.message());
    }
}
