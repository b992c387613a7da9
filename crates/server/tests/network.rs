//! What clients are told of a sandbox's network where there is none; the rest needs a kernel (`e2e/python`).

mod common;

use common::Server;
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
