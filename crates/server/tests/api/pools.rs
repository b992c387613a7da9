//! Pools and what waits by itself, over the fake runtime: who gets which sandbox, and what is left of the others.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Server, id};
use http::Method;
use lifecycle::fake::{Call, FakeRuntime};
use lifecycle::runtime::ErrorKind;
use serde_json::{Value, json};
use server::Config;

/// A server whose runtime keeps sandboxes ready; by itself none.
async fn server() -> Server {
    let mut config = Config::default();
    config.warm.max_memory_bytes = 0;
    config.warm.pool_wait = Duration::from_secs(1);
    with(config).await
}

async fn with(config: Config) -> Server {
    let dir = Arc::new(tempfile::tempdir().expect("a directory"));
    let runtime = FakeRuntime::new(dir.path());
    runtime.keep_warm();
    Server::again(config, runtime, dir).await
}

fn pool(name: &str, ready: u32, most: u32) -> Value {
    json!({
        "name": name,
        "template": { "image": { "uri": "host" } },
        "capacitySpec": { "bufferMin": ready, "bufferMax": ready, "poolMin": 0, "poolMax": most },
    })
}

async fn made(server: &Server, body: Value) {
    let answer = server.post("/v1/pools", body).await;
    assert_eq!(answer.status, 201, "{:?}", answer.json());
}

async fn status(server: &Server, name: &str) -> Value {
    server.get(&format!("/v1/pools/{name}")).await.json()["status"].clone()
}

async fn has(server: &Server, name: &str, field: &str, count: u64) {
    server.wait_until(async || status(server, name).await[field] == count).await;
}

async fn take(server: &Server, name: &str) -> crate::common::Answer {
    server.post("/v1/sandboxes?wait=20", json!({ "extensions": { "poolRef": name } })).await
}

async fn taken(server: &Server, name: &str) -> String {
    let answer = take(server, name).await;
    assert_eq!(answer.status, 202, "{:?}", answer.json());
    answer.json()["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn a_create_gets_one_that_waits_and_another_takes_its_place() {
    let server = server().await;
    made(&server, pool("p", 2, 5)).await;
    has(&server, "p", "available", 2).await;
    let waiting: HashSet<_> = server.runtime.waiting().into_iter().collect();
    let first = taken(&server, "p").await;
    assert!(waiting.contains(&id(&first)));
    has(&server, "p", "available", 2).await;
    assert_eq!(server.runtime.claims(), 1);
    let now = status(&server, "p").await;
    assert_eq!((&now["allocated"], &now["hits"], &now["misses"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!(server.get(&format!("/v1/sandboxes/{first}")).await.json()["allocation"]["poolRef"], "p");
    assert_eq!(server.delete(&format!("/v1/sandboxes/{first}")).await.status, 204);
    has(&server, "p", "allocated", 0).await;
}

#[tokio::test]
async fn ex_039_fifty_at_once_get_fifty_and_no_more_than_the_pool_may_hold() {
    let server = server().await;
    made(&server, pool("p", 5, 50)).await;
    has(&server, "p", "available", 5).await;
    let all = futures_util::future::join_all((0..50).map(|_| taken(&server, "p"))).await;
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 50);
    has(&server, "p", "allocated", 50).await;
    let refused = take(&server, "p").await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (429, "SANDBOX::POOL_CAPACITY_EXHAUSTED"));
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(status(&server, "p").await["total"], 50);
}

#[tokio::test]
async fn room_goes_to_whoever_waits_for_it() {
    let server = server().await;
    made(&server, pool("p", 0, 1)).await;
    let first = taken(&server, "p").await;
    let end = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        server.delete(&format!("/v1/sandboxes/{first}")).await
    };
    let (second, ended) = tokio::join!(taken(&server, "p"), end);
    assert_eq!(ended.status, 204);
    assert_ne!(first, second);
}

#[tokio::test]
async fn a_create_that_is_refused_gives_its_sandbox_back() {
    let server = server().await;
    made(&server, pool("p", 1, 5)).await;
    has(&server, "p", "available", 1).await;
    let request = |body: Value| {
        http::Request::builder()
            .method(Method::POST)
            .uri("/v1/sandboxes")
            .header("host", server.address.to_string())
            .header("OPEN-SANDBOX-API-KEY", crate::common::KEY)
            .header("Idempotency-Key", "once")
            .body(http_body_util::Full::new(bytes::Bytes::from(body.to_string())))
            .expect("a request")
    };
    let body = json!({ "extensions": { "poolRef": "p" } });
    assert_eq!(server.send(request(body.clone())).await.status, 202);
    has(&server, "p", "available", 1).await;
    let waiting = server.runtime.waiting();
    assert_eq!(server.send(request(body)).await.status, 202);
    let other = json!({ "extensions": { "poolRef": "p" }, "timeout": 60 });
    assert_eq!(server.send(request(other)).await.status, 422);
    assert_eq!(server.runtime.waiting(), waiting);
    assert_eq!(status(&server, "p").await["allocated"], 1);
}

#[tokio::test]
async fn what_cannot_wait_is_made_anew_and_counts() {
    let server = server().await;
    made(&server, pool("p", 1, 2)).await;
    has(&server, "p", "available", 1).await;
    let body = json!({
        "extensions": { "poolRef": "p" },
        "volumes": [{ "name": "v", "mountPath": "/v", "pvc": { "claimName": "data" } }],
    });
    let answer = server.post("/v1/sandboxes?wait=20", body).await;
    assert_eq!(answer.status, 202, "{:?}", answer.json());
    let now = status(&server, "p").await;
    assert_eq!((&now["allocated"], &now["available"], &now["misses"]), (&json!(1), &json!(1), &json!(1)));
    assert_eq!(server.runtime.claims(), 0);
}

#[tokio::test]
async fn a_refill_that_fails_is_told_and_tried_again() {
    let server = server().await;
    server.runtime.fail_next(Call::Prepare, ErrorKind::Image, "the image is not there");
    made(&server, pool("p", 1, 2)).await;
    server.wait_until(async || status(&server, "p").await["message"] == "the image is not there").await;
    has(&server, "p", "available", 1).await;
    assert_eq!(status(&server, "p").await["message"], Value::Null);
}

#[tokio::test]
async fn os_095_one_that_is_gone_is_replaced_and_never_handed_out() {
    let server = server().await;
    made(&server, pool("p", 1, 5)).await;
    has(&server, "p", "available", 1).await;
    let lost = server.runtime.waiting().remove(0);
    server.runtime.lose_waiting(&lost);
    server.wait_until(async || server.runtime.waiting().first().is_some_and(|id| *id != lost)).await;
    has(&server, "p", "available", 1).await;
    assert_ne!(taken(&server, "p").await, lost.as_str());
}

#[tokio::test]
async fn numbers_change_and_pools_go_without_what_somebody_has() {
    let server = server().await;
    made(&server, pool("p", 4, 9)).await;
    has(&server, "p", "available", 4).await;
    let mine = taken(&server, "p").await;
    let fewer = json!({ "capacitySpec": { "bufferMin": 0, "bufferMax": 1, "poolMin": 0, "poolMax": 1 } });
    let changed = server.call(Method::PUT, "/v1/pools/p", Some(fewer.clone())).await;
    assert_eq!((changed.status.as_u16(), &changed.json()["status"]["revision"]), (200, &json!("2")));
    has(&server, "p", "available", 0).await;
    let same = server.call(Method::PUT, "/v1/pools/p", Some(fewer)).await;
    assert_eq!(same.json()["status"]["revision"], "2", "the same numbers change nothing");
    assert_eq!(server.delete("/v1/pools/p").await.status, 204);
    assert_eq!(server.state(&mine).await, "Running");
    server.wait_until(async || server.runtime.waiting().is_empty()).await;
    assert_eq!(take(&server, "p").await.code(), "SANDBOX::POOL_NOT_FOUND");
}

#[tokio::test]
async fn pools_are_found_again_with_those_that_were_taken() {
    let server = server().await;
    made(&server, pool("p", 2, 3)).await;
    has(&server, "p", "available", 2).await;
    let mine = taken(&server, "p").await;
    let (runtime, dir) = server.stop().await;
    assert!(runtime.waiting().is_empty(), "a server that ends leaves none that wait");
    let server = Server::again(Config::default(), runtime, dir).await;
    has(&server, "p", "available", 2).await;
    let now = status(&server, "p").await;
    assert_eq!((&now["allocated"], &now["total"]), (&json!(1), &json!(3)));
    assert_eq!(server.state(&mine).await, "Running");
}

#[tokio::test]
async fn what_was_asked_for_waits_within_its_bound_and_nothing_before() {
    let mut config = Config::default();
    config.warm.max_memory_bytes = 3 * 4 * 1024 * 1024;
    let server = with(config).await;
    assert!(server.runtime.waiting().is_empty());
    let mut last = server.create(json!({})).await;
    server.wait_until(async || server.runtime.waiting().len() == 1).await;
    let waiting = server.runtime.waiting();
    last = {
        let next = server.create(json!({})).await;
        assert_ne!(next, last);
        next
    };
    assert_eq!(waiting, [id(&last)]);
    for _ in 0..8 {
        server.create(json!({})).await;
    }
    server.wait_until(async || server.runtime.waiting().len() == 3).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.runtime.waiting().len(), 3, "no more than the bound");
    let figures = String::from_utf8_lossy(&server.get("/metrics").await.body).into_owned();
    assert!(figures.contains("pool_sandboxes{pool=\"\",state=\"ready\"} 3"), "{figures}");
}

#[tokio::test]
async fn without_a_runtime_that_keeps_any_a_pool_is_refused() {
    let server = Server::start().await;
    let refused = server.post("/v1/pools", pool("p", 1, 2)).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (501, "SANDBOX::POOL_NOT_SUPPORTED"));
    assert_eq!(take(&server, "p").await.code(), "SANDBOX::UNSUPPORTED_POOL_REF");
    assert_eq!(server.get("/v1/pools").await.code(), "SANDBOX::POOL_NOT_SUPPORTED");
}
