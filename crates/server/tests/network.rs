//! What clients are told of a sandbox's network where there is none; the rest needs a kernel (`e2e/python`).

mod common;

use bytes::Bytes;
use common::{Server, token};
use http::Request;
use http_body_util::Full;
use serde_json::json;

#[tokio::test]
async fn events_of_a_sandbox_without_a_way_out_are_a_conflict_and_of_an_unknown_one_not_found() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let at = |id: &str, query: &str| format!("/v1/sandboxes/{id}/network/events{query}");
    server.get(&at(&id, "")).await.is(409, "SANDBOX::NETWORK_POLICY_NOT_SUPPORTED");
    server.get(&at("no-such-sandbox", "")).await.is(404, "SANDBOX::SANDBOX_NOT_FOUND");
    for query in ["?limit=0", "?limit=513", "?after=x", "?after=1-2"] {
        assert_eq!(server.get(&at(&id, query)).await.status, 422, "{query}");
    }
}

#[tokio::test]
async fn the_header_of_the_policy_port_opens_that_port_and_no_other() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let call = async |port: u16, name: &str, value: &str| {
        let request = Request::get(format!("/sandboxes/{id}/proxy/{port}/policy"))
            .header("host", server.address.to_string())
            .header(name, value)
            .body(Full::new(Bytes::new()))
            .expect("a request");
        server.send(request).await.status.as_u16()
    };
    let token = token(&id);
    assert_eq!(call(18080, "OPENSANDBOX-EGRESS-AUTH", &token).await, 200);
    assert_eq!(call(18080, "OPENSANDBOX-EGRESS-AUTH", "nonsense").await, 401);
    assert_eq!(call(18080, "OpenSandbox-Secure-Access", &token).await, 200);
    for port in [8000, 44772] {
        assert_eq!(call(port, "OPENSANDBOX-EGRESS-AUTH", &token).await, 401, "{port}");
    }
}
