//! What holds for every answer: keys, request ids, codes, shapes.

use crate::common::{KEY, Server, body_with};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

fn request(method: Method, path: &str, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", "127.0.0.1");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(Bytes::new())).expect("a request")
}

#[tokio::test]
async fn every_route_wants_the_key_and_only_health_and_version_go_without() {
    let server = Server::start().await;
    for (method, path) in [
        (Method::GET, "/v1/sandboxes"),
        (Method::POST, "/sandboxes"),
        (Method::GET, "/v1/sandboxes/x"),
        (Method::GET, "/v1/sandboxes/x/endpoints/80"),
        (Method::GET, "/v1/capabilities"),
        (Method::GET, "/v1/pools"),
        (Method::POST, "/v1/metrics/events"),
        (Method::GET, "/no/such/route"),
        (Method::GET, "/healthy"),
        (Method::GET, "/v1/health"),
    ] {
        server.send(request(method.clone(), path, &[])).await.is(401, "MISSING_API_KEY");
        for wrong in ["", "test-ke", "test-key2", "Test-Key"] {
            let answer = server.send(request(method.clone(), path, &[("OPEN-SANDBOX-API-KEY", wrong)])).await;
            answer.is(401, "INVALID_API_KEY");
        }
    }
    for path in ["/health", "/version"] {
        assert_eq!(server.send(request(Method::GET, path, &[])).await.status, 200);
    }
    assert_eq!(server.get("/health").await.json(), json!({ "status": "healthy" }));
}

#[tokio::test]
async fn every_answer_has_the_request_id_and_one_date() {
    let server = Server::start().await;
    let key = ("OPEN-SANDBOX-API-KEY", KEY);
    for (path, headers) in [
        ("/health", vec![]),
        ("/v1/sandboxes", vec![]),
        ("/v1/sandboxes", vec![key]),
        ("/v1/nothing", vec![key]),
        ("/v1/sandboxes/x/proxy/80/", vec![]),
        ("/v1/sandboxes/x/proxy/80/", vec![key]),
    ] {
        let made = server.send(request(Method::GET, path, &headers)).await;
        let id = made.headers["x-request-id"].to_str().expect("text").to_owned();
        assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
        assert_eq!(made.headers.get_all("date").iter().count(), 1, "{path}");
        let mut headers = headers.clone();
        headers.push(("X-Request-ID", " abc "));
        let echoed = server.send(request(Method::GET, path, &headers)).await;
        assert_eq!(echoed.headers.get_all("x-request-id").iter().collect::<Vec<_>>(), ["abc"], "{path}");
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_answer_with_code_and_message() {
    let server = Server::start().await;
    server.get("/v1/nothing").await.is(404, "SANDBOX::ROUTE_NOT_FOUND");
    let wrong = server.call(Method::PUT, "/v1/sandboxes", None).await;
    wrong.is(405, "SANDBOX::METHOD_NOT_ALLOWED");
    assert!(wrong.headers["allow"].to_str().expect("text").contains("POST"));
    let slash = server.get("/v1/sandboxes/?page=2").await;
    assert_eq!(
        (slash.status.as_u16(), &slash.headers["location"]),
        (307, &"/v1/sandboxes?page=2".parse().expect("a value"))
    );
    for (method, path, code) in [(Method::GET, "/v1/pools", "SANDBOX::POOL_NOT_SUPPORTED")] {
        server.call(method, path, None).await.is(501, code);
    }
}

#[tokio::test]
async fn cors_reflects_the_origin_and_preflights_need_no_key() {
    let server = Server::start().await;
    let preflight = [
        ("Origin", "https://a.example"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "open-sandbox-api-key"),
    ];
    let answer = server.send(request(Method::OPTIONS, "/v1/sandboxes", &preflight)).await;
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"OK"[..]));
    assert_eq!(answer.headers["access-control-allow-origin"], "https://a.example");
    assert_eq!(answer.headers["access-control-allow-headers"], "open-sandbox-api-key");
    assert_eq!(answer.headers["access-control-max-age"], "600");
    let plain = server.send(request(Method::GET, "/health", &[("Origin", "https://a.example")])).await;
    assert_eq!(plain.headers["access-control-expose-headers"], "OPEN-SANDBOX-ORIGIN");
    let proxied =
        server.send(request(Method::GET, "/v1/sandboxes/x/proxy/80/", &[("Origin", "https://a.example")])).await;
    assert!(!proxied.headers.contains_key("access-control-allow-credentials"));
}

#[tokio::test]
async fn every_wrong_field_of_a_create_is_named() {
    let server = Server::start().await;
    for (changes, status, field) in [
        (json!({ "image": null }), 422, "image"),
        (json!({ "image": "host" }), 422, "image"),
        (json!({ "image": { "uri": 5 } }), 422, "image.uri"),
        (json!({ "snapshotId": "s", "image": null }), 404, "snapshotId"),
        (json!({ "snapshotId": "s" }), 422, "snapshotId"),
        (json!({ "templateId": "t", "image": null }), 422, "templateId"),
        (json!({ "entrypoint": null }), 400, "entrypoint"),
        (json!({ "entrypoint": [] }), 422, "entrypoint"),
        (json!({ "entrypoint": "sleep 5" }), 422, "entrypoint"),
        (json!({ "entrypoint": ["a", 5] }), 422, "entrypoint"),
        (json!({ "timeout": 59 }), 422, "timeout"),
        (json!({ "timeout": "60" }), 422, "timeout"),
        (json!({ "timeout": 1.5 }), 422, "timeout"),
        (json!({ "resourceLimits": null }), 422, "resourceLimits"),
        (json!({ "resourceLimits": { "cpu": 1 } }), 422, "resourceLimits.cpu"),
        (json!({ "resourceLimits": { "cpu": "lots" } }), 400, "resourceLimits.cpu"),
        (json!({ "resourceLimits": { "memory": "1.5Gi" } }), 400, "resourceLimits.memory"),
        (json!({ "resourceLimits": { "gpu": "1" } }), 400, "resourceLimits.gpu"),
        (json!({ "resourceLimits": { "wings": "2" } }), 400, "resourceLimits.wings"),
        (json!({ "env": { "A": 5 } }), 422, "env.A"),
        (json!({ "env": { "OPENSANDBOX_LIFECYCLE": "x" } }), 422, "env"),
        (json!({ "metadata": { "a b": "c" } }), 400, "metadata"),
        (json!({ "metadata": { "opensandbox.io/x": "c" } }), 400, "metadata"),
        (json!({ "metadata": { "a": 5 } }), 422, "metadata.a"),
        (json!({ "platform": { "os": "windows", "arch": "amd64" } }), 400, "platform"),
        (json!({ "platform": { "os": "linux" } }), 422, "platform"),
        (
            json!({ "networkPolicy": { "egress": [{ "action": "allow", "target": "a.example" }] } }),
            400,
            "networkPolicy",
        ),
        (json!({ "credentialProxy": { "enabled": true } }), 422, "credentialProxy"),
        (json!({ "secureAccess": "yes" }), 422, "secureAccess"),
        (json!({ "lifecycle": { "preStart": { "command": [] } } }), 422, "lifecycle"),
        (json!({ "volumes": [{ "name": "v", "mountPath": "/v", "host": { "path": "/etc" } }] }), 400, "volumes"),
        (json!({ "extensions": { "poolRef": "p" } }), 400, "extensions"),
        (json!({ "extensions": { "a": 5 } }), 422, "extensions.a"),
        (json!({ "resourceRequests": { "cpu": "1" } }), 400, "resourceRequests"),
        (json!({ "wings": 2 }), 422, "wings"),
    ] {
        let answer = server.post("/v1/sandboxes", body_with(changes.clone())).await;
        assert_eq!(answer.status, status, "{changes}: {:?}", answer.json());
        assert!(answer.message().contains(field), "{changes}: {}", answer.message());
        assert!(!answer.code().is_empty());
        if status == 422 {
            let detail = &answer.json()["detail"][0];
            assert_eq!(detail["loc"][0], "body", "{changes}: {detail}");
            assert!(detail["msg"].is_string() && detail["type"].is_string(), "{detail}");
        }
    }
    assert_eq!(server.get("/v1/sandboxes").await.json()["pagination"]["totalItems"], 0, "nothing was made");
}

#[tokio::test]
async fn os_011_host_mounts_are_refused_without_an_echo_of_the_host() {
    let server = Server::start().await;
    for path in ["/var/run/docker.sock", "/", "/etc", "/proc"] {
        let volume = json!([{ "name": "v", "mountPath": "/v", "host": { "path": path } }]);
        let answer = server.post("/v1/sandboxes", body_with(json!({ "volumes": volume }))).await;
        assert_eq!(answer.status, 400);
        assert_eq!(server.runtime.creates(), 0);
    }
}

#[tokio::test]
async fn bodies_that_are_no_json_or_too_large_are_told_so() {
    let server = Server::start().await;
    let raw = async |body: Vec<u8>| {
        let request =
            Request::post("/v1/sandboxes").header("OPEN-SANDBOX-API-KEY", KEY).body(Full::new(Bytes::from(body)));
        server.send(request.expect("a request")).await
    };
    for body in [&b""[..], b"{", b"[]", b"null", b"{} {}", b"\xff"] {
        let answer = raw(body.to_vec()).await;
        assert_eq!(answer.status, 422, "{body:?}");
        assert!(answer.json()["detail"][0]["loc"][0] == "body");
    }
    let answer = raw(vec![b' '; 3 * 1024 * 1024]).await;
    assert_eq!(answer.status, 413);
    assert!(!answer.code().is_empty());
}

#[tokio::test]
async fn reports_of_latencies_are_checked() {
    let server = Server::start().await;
    let report = |changes: Value| {
        let mut body = json!({ "eventType": "sandbox.create", "createDurationMs": 5, "success": true });
        for (name, value) in changes.as_object().expect("an object") {
            body[name] = value.clone();
        }
        body
    };
    assert_eq!(server.post("/v1/metrics/events", report(json!({ "image": "host" }))).await.status, 204);
    for wrong in [json!({ "eventType": "x" }), json!({ "createDurationMs": -1 }), json!({ "success": "yes" })] {
        assert_eq!(server.post("/v1/metrics/events", report(wrong.clone())).await.status, 422, "{wrong}");
    }
}

#[tokio::test]
async fn capabilities_say_what_sandboxes_can_have() {
    let server = Server::start().await;
    let body = server.get("/v1/capabilities").await.json();
    assert_eq!((&body["network"], &body["runtime"]["runtime"]), (&json!("none"), &json!("fake")));
    assert_eq!((&body["features"]["pause"], &body["features"]["snapshots"]), (&json!(true), &json!(true)));
}
