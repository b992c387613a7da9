//! Look-ups of endpoints: what the published clients do right after a create.

use crate::common::{KEY, Server, body_with, token};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use lifecycle::fake::Call;
use lifecycle::runtime::ErrorKind;
use serde_json::json;

#[tokio::test]
async fn execd_and_policy_ports_always_resolve_with_the_prefix_as_called() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    for prefix in ["", "/v1"] {
        for (port, header) in
            [(44772, "X-EXECD-ACCESS-TOKEN"), (18080, "OPENSANDBOX-EGRESS-AUTH"), (8000, "OpenSandbox-Secure-Access")]
        {
            let found = server.get(&format!("{prefix}/sandboxes/{id}/endpoints/{port}?use_server_proxy=true")).await;
            let expected = json!({
                "endpoint": format!("{}{prefix}/sandboxes/{id}/proxy/{port}", server.address),
                "headers": { header: token(&id) },
            });
            assert_eq!((found.status.as_u16(), found.json()), (200, expected));
        }
    }
}

#[tokio::test]
async fn os_014_clients_are_told_the_outer_address_and_the_server_uses_the_inner_one() {
    let mut config = server::Config::default();
    config.server.eip = Some("outer.example:443".to_owned());
    let server = Server::with(config).await;
    let id = server.create(json!({})).await;
    let _execd = crate::common::execd::Execd::serve(server.dir.path().join(format!("{id}.sock")));
    for query in ["", "?use_server_proxy=true", "?expires=99999999999"] {
        let found = server.get(&format!("/v1/sandboxes/{id}/endpoints/44772{query}")).await.json();
        let endpoint = found["endpoint"].as_str().expect("an endpoint").to_owned();
        let path = endpoint.strip_prefix("outer.example:443").expect("the outer address");
        assert_eq!(server.get(&format!("{path}/ping")).await.status, 200, "whatever the outer address leads to");
    }
}

#[tokio::test]
async fn ports_and_parameters_out_of_form_are_refused() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let at = |rest: &str| format!("/v1/sandboxes/{id}/endpoints/{rest}");
    server.get(&at("0")).await.is(400, "SANDBOX::INVALID_PORT");
    server.get(&at("65536")).await.is(400, "SANDBOX::INVALID_PORT");
    assert_eq!(server.get(&at("http")).await.status, 422);
    assert_eq!(server.get(&at("80?use_server_proxy=maybe")).await.status, 422);
    for expires in ["1", "-1", "+99999999999", "soon", "", "18446744073709551616"] {
        server.get(&at(&format!("80?expires={expires}"))).await.is(400, "SANDBOX::INVALID_PARAMETER");
    }
    for refused in [
        "80?use_server_proxy=1&expires=99999999999",
        "18080?expires=99999999999",
        "80?version=2",
        "80?path=/x",
        "80?expires=99999999999&version=3",
        "80?expires=99999999999&version=1&method=GET",
        "80?expires=99999999999&method=get",
        "80?expires=99999999999&path=/a/../b",
    ] {
        server.get(&at(refused)).await.is(400, "SANDBOX::INVALID_PARAMETER");
    }
}

#[tokio::test]
async fn os_016_a_look_up_waits_for_the_create_and_one_that_succeeds_costs_no_poll() {
    let server = Server::start().await;
    server.runtime.hold();
    let created = server.post("/v1/sandboxes", body_with(json!({}))).await.json();
    let path = format!("/v1/sandboxes/{}/endpoints/44772", created["id"].as_str().expect("an id"));
    let waiting = server.get(&path);
    tokio::pin!(waiting);
    tokio::select! {
        early = &mut waiting => panic!("answered while Pending: {early:?}"),
        () = async { server.get("/v1/sandboxes").await; } => {}
    }
    server.runtime.release();
    assert_eq!(waiting.await.status, 200);
}

#[tokio::test]
async fn a_create_that_fails_reaches_the_look_up_with_its_cause_and_status() {
    let server = Server::start().await;
    for (kind, status, code) in [
        (ErrorKind::Image, 400, "SANDBOX::SANDBOX_IMAGE_PULL_FAILED"),
        (ErrorKind::Entrypoint, 400, "SANDBOX::INVALID_ENTRYPOINT"),
        (ErrorKind::Unsupported, 400, "SANDBOX::API_NOT_SUPPORTED"),
        (ErrorKind::Exhausted, 500, "SANDBOX::SANDBOX_START_FAILED"),
        (ErrorKind::Internal, 500, "SANDBOX::SANDBOX_START_FAILED"),
    ] {
        server.runtime.fail_next(Call::Create, kind, "there is no image \"nope\"");
        let id = server.create(json!({})).await;
        let look_up = Request::builder()
            .uri(format!("/v1/sandboxes/{id}/endpoints/44772"))
            .header("OPEN-SANDBOX-API-KEY", KEY)
            .header("X-Request-ID", "  mine  ")
            .body(Full::new(Bytes::new()))
            .expect("a request");
        let answer = server.send(look_up).await;
        answer.is(status, code);
        assert!(answer.message().contains("there is no image \"nope\""));
        assert_eq!(answer.headers["x-request-id"], "mine");
        let detail = server.get(&format!("/v1/sandboxes/{id}")).await.json();
        assert_eq!(detail["status"]["state"], "Failed");
        assert_eq!(detail["status"]["message"], "there is no image \"nope\"");
    }
}

#[tokio::test]
async fn held_look_ups_do_not_count_against_the_concurrency_limit() {
    let mut config = server::Config::default();
    config.server.limit_concurrency = 1;
    let server = Server::with(config).await;
    server.runtime.hold();
    let created = server.post("/v1/sandboxes", body_with(json!({}))).await.json();
    let path = format!("/v1/sandboxes/{}/endpoints/44772", created["id"].as_str().expect("an id"));
    let patient = async |path: &str| {
        loop {
            let answer = server.get(path).await;
            if answer.status != 503 {
                return answer;
            }
            assert_eq!(answer.code(), "SANDBOX::TOO_MANY_REQUESTS");
        }
    };
    let held = futures_util::future::join_all([patient(&path), patient(&path), patient(&path)]);
    tokio::pin!(held);
    tokio::select! {
        _ = &mut held => panic!("answered while Pending"),
        listed = patient("/v1/sandboxes") => assert_eq!(listed.status, 200),
    }
    server.runtime.release();
    assert!(held.await.iter().all(|answer| answer.status == 200));
}
