//! What clients are told of a sandbox's network where there is none or its egress process refuses; the rest needs a kernel
//! (`e2e/python`).

use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};

use crate::common::{Server, token};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use rustix::net::{RecvFlags, SendFlags};
use serde_json::{Value, json};
use tokio::sync::watch;

/// An egress process that refuses the requests of one name, as often as it is told to; all others it grants.
struct Refusing {
    refusals: Arc<Mutex<(&'static str, u32)>>,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Refusing {
    fn start(what: &'static str, times: u32) -> (Self, server::Egress) {
        let (ours, theirs) = egress::pair().expect("a pair");
        let refusals = Arc::new(Mutex::new((what, times)));
        let asked = Arc::<Mutex<Vec<Value>>>::default();
        let (left, heard) = (refusals.clone(), asked.clone());
        std::thread::spawn(move || {
            let mut buffer = Vec::new();
            while let Ok(Some((bytes, fds))) = packets::receive_bytes(theirs.as_fd(), &mut buffer, RecvFlags::empty()) {
                let request: Value = serde_json::from_slice(bytes).expect("a request");
                let reply = answer(&request, &mut left.lock().expect("no holder panics"));
                heard.lock().expect("no holder panics").push(request);
                packets::send(fds[0].as_fd(), &reply, &[], SendFlags::empty()).expect("an answer");
            }
        });
        let (_, restarts) = watch::channel(0);
        let control = egress::Control::new(ours).expect("a control");
        (Self { refusals, asked }, server::Egress { control, restarts })
    }

    fn asked(&self, what: &str) -> Vec<Value> {
        let asked = self.asked.lock().expect("no holder panics");
        asked.iter().filter(|request| request["do"] == what).cloned().collect()
    }
}

fn answer(request: &Value, refusals: &mut (&'static str, u32)) -> Value {
    if request["do"] == refusals.0 && refusals.1 > 0 {
        refusals.1 -= 1;
        return json!({ "is": "failed", "why": "system", "operation": "listen", "message": "no room" });
    }
    match request["do"].as_str() {
        Some("set_policy") => json!({ "is": "policy_set", "cut": 0 }),
        Some("stats") => {
            json!({ "is": "stats", "instance": 1, "version": "0", "sequence": 0, "sandboxes": [], "kept": [] })
        }
        _ => json!({ "is": "done" }),
    }
}

#[tokio::test]
async fn a_sandbox_that_the_egress_process_does_not_serve_is_failed_with_the_cause_and_removed() {
    let (process, egress) = Refusing::start("attach", 1);
    let server = Server::with_egress(egress).await;
    let answer = server.post("/v1/sandboxes?wait=20", crate::common::body_with(json!({}))).await.json();
    let (id, status) = (answer["id"].as_str().expect("an id"), &answer["status"]);
    assert_eq!(status["state"], "Failed", "{status}");
    assert!(status["message"].as_str().expect("words").contains("listen: no room"), "{status}");
    let id = crate::common::id(id);
    let removed = async {
        while server.runtime.reachable(&id).is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::common::PATIENCE, removed).await.expect("nothing of it is left");
    assert_eq!(process.asked("attach").len(), 1);
    let good = server.create(json!({})).await;
    assert!(server.runtime.reachable(&crate::common::id(&good)).is_some_and(|ranges| !ranges.is_empty()));
}

#[tokio::test]
async fn a_policy_that_cannot_be_put_in_force_leaves_the_one_before() {
    let (process, egress) = Refusing::start("set_policy", 0);
    let server = Server::with_egress(egress).await;
    let first = json!({ "defaultAction": "deny", "egress": [{ "action": "allow", "target": "a.test" }] });
    let id = server.create(json!({ "networkPolicy": first })).await;
    let at = format!("/v1/sandboxes/{id}/networkpolicy");
    process.refusals.lock().expect("no holder panics").1 = 1;
    let refused = server.call(http::Method::PUT, &at, Some(json!({ "defaultAction": "allow" }))).await;
    assert_eq!(refused.status, 500);
    assert!(refused.json()["message"].as_str().expect("words").contains("no room"), "{}", refused.json());
    assert_eq!(server.get(&at).await.json()["policy"], first);
    let revisions: Vec<u64> =
        process.asked("set_policy").iter().filter_map(|asked| asked["revision"].as_u64()).collect();
    assert_eq!(revisions, [1, 2], "the one before is put in force again, as a newer one");
    let taken = server.call(http::Method::PATCH, &at, Some(json!([{ "action": "deny", "target": "b.test" }]))).await;
    assert_eq!((taken.status.as_u16(), &taken.json()["mode"]), (200, &"enforcing".into()));
    assert_eq!(taken.json().get("reason"), None);
}

#[tokio::test]
async fn a_first_rule_says_that_it_closes_the_rest() {
    let (_process, egress) = Refusing::start("nothing", 0);
    let server = Server::with_egress(egress).await;
    let id = server.create(json!({})).await;
    let at = format!("/v1/sandboxes/{id}/networkpolicy");
    assert_eq!(server.get(&at).await.json()["mode"], "allow_all");
    let rule = json!([{ "action": "allow", "target": "a.test" }]);
    let first = server.call(http::Method::PATCH, &at, Some(rule)).await.json();
    assert!(first["reason"].as_str().is_some_and(|reason| reason.contains("denied from now on")), "{first}");
    let policy = server.get(&at).await.json()["policy"].clone();
    assert_eq!(policy, json!({ "defaultAction": "deny", "egress": [{ "action": "allow", "target": "a.test" }] }));
}

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
