//! Sandboxes over the API: made, found, changed, ended.

use std::time::Duration;

use crate::common::{Server, body_with, id};
use http::Method;
use lifecycle::fake::Call;
use lifecycle::runtime::{ErrorKind, Exit, Observed};
use serde_json::json;

#[tokio::test]
async fn a_create_answers_202_with_the_published_shape_before_it_is_made() {
    let server = Server::start().await;
    server.runtime.hold();
    let answer = server.post("/v1/sandboxes", body_with(json!({ "metadata": { "team": "a" } }))).await;
    assert_eq!(answer.status, 202);
    let body = answer.json();
    assert_eq!(body["status"]["state"], "Pending");
    assert_eq!(body["entrypoint"], json!(["tail", "-f", "/dev/null"]));
    assert_eq!(body["metadata"], json!({ "team": "a" }));
    for absent in ["image", "platform", "extensions", "receipt"] {
        assert!(body.get(absent).is_none(), "{absent}: {body}");
    }
    let at = |name: &str| body[name].as_str().expect("a time").parse::<jiff::Timestamp>().expect("RFC 3339");
    assert_eq!(at("expiresAt").duration_since(at("createdAt")).as_secs(), 600);
    let id = body["id"].as_str().expect("an id");
    let detail = server.get(&format!("/v1/sandboxes/{id}")).await.json();
    assert_eq!(detail["status"]["message"], "making it", "progress shows");
    server.runtime.release();
    server.reaches(id, "Running").await;
    let detail = server.get(&format!("/sandboxes/{id}")).await.json();
    assert_eq!(detail["receipt"]["mode"], "user");
    assert_eq!(detail["image"], json!({ "uri": "host" }));
}

#[tokio::test]
async fn without_a_timeout_there_is_no_end_and_nothing_to_renew() {
    let server = Server::start().await;
    let id = server.create(json!({ "timeout": null })).await;
    assert!(server.get(&format!("/v1/sandboxes/{id}")).await.json().get("expiresAt").is_none());
    let at = json!({ "expiresAt": "2999-01-01T00:00:00Z" });
    server.post(&format!("/v1/sandboxes/{id}/renew-expiration"), at).await.is(409, "SANDBOX::INVALID_EXPIRATION");
}

#[tokio::test]
async fn renewal_sets_an_absolute_time_and_refuses_the_past() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let renew = format!("/v1/sandboxes/{id}/renew-expiration");
    let renewed = server.post(&renew, json!({ "expiresAt": "2099-01-02T03:04:05.000006+01:00" })).await;
    assert_eq!(renewed.status, 200);
    assert_eq!(renewed.json()["expiresAt"], "2099-01-02T02:04:05.000006Z");
    let naive = server.post(&renew, json!({ "expiresAt": "2098-01-01T00:00:00" })).await;
    assert_eq!(naive.json()["expiresAt"], "2098-01-01T00:00:00Z");
    server.post(&renew, json!({ "expiresAt": "2001-01-01T00:00:00Z" })).await.is(400, "SANDBOX::INVALID_EXPIRATION");
    assert_eq!(server.post(&renew, json!({ "expiresAt": "soon" })).await.status, 422);
    assert_eq!(server.post(&renew, json!({})).await.status, 422);
    let kept = server.get(&format!("/v1/sandboxes/{id}")).await.json();
    assert_eq!(kept["expiresAt"], "2098-01-01T00:00:00Z");
}

#[tokio::test]
async fn a_deadline_is_kept_to_the_second() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let at = jiff::Timestamp::now() + Duration::from_millis(1200);
    server.post(&format!("/v1/sandboxes/{id}/renew-expiration"), json!({ "expiresAt": at.to_string() })).await;
    server.reaches(&id, "gone").await;
    let late = jiff::Timestamp::now().duration_since(at).as_millis();
    assert!((0..1000).contains(&late), "{late} ms after the deadline");
    assert_eq!(server.runtime_has(&id).await, Observed::Absent);
}

#[tokio::test]
async fn ex_029_the_deadline_keeps_running_while_paused() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    assert_eq!(server.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await.status, 202);
    let at = jiff::Timestamp::now() + Duration::from_millis(300);
    server.post(&format!("/v1/sandboxes/{id}/renew-expiration"), json!({ "expiresAt": at.to_string() })).await;
    server.reaches(&id, "gone").await;
}

#[tokio::test]
async fn pause_and_resume_are_complete_when_they_answer() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let at = |verb: &str| format!("/v1/sandboxes/{id}/{verb}");
    let paused = server.call(Method::POST, &at("pause"), None).await;
    assert_eq!((paused.status.as_u16(), paused.body.len()), (202, 0));
    assert_eq!(server.state(&id).await, "Paused");
    assert_eq!(server.runtime_has(&id).await, Observed::Paused);
    server.call(Method::POST, &at("pause"), None).await.is(409, "SANDBOX::SANDBOX_NOT_RUNNING");
    assert_eq!(server.call(Method::POST, &at("resume"), None).await.status, 202);
    assert_eq!(server.state(&id).await, "Running");
    server.call(Method::POST, &at("resume"), None).await.is(409, "SANDBOX::SANDBOX_NOT_PAUSED");
}

#[tokio::test]
async fn a_pause_that_fails_leaves_the_sandbox_running_and_says_why() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    server.runtime.fail_next(Call::Pause, ErrorKind::Internal, "the freezer is busy");
    let answer = server.call(Method::POST, &format!("/v1/sandboxes/{id}/pause"), None).await;
    answer.is(500, "SANDBOX::SANDBOX_PAUSE_FAILED");
    assert!(answer.message().contains("freezer is busy"));
    assert_eq!(server.state(&id).await, "Running");
}

#[tokio::test]
async fn os_022_deleting_twice_is_204_then_404() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let path = format!("/v1/sandboxes/{id}");
    let gone = server.delete(&path).await;
    assert_eq!((gone.status.as_u16(), gone.body.len()), (204, 0));
    assert_eq!(server.runtime_has(&id).await, Observed::Absent);
    server.delete(&path).await.is(404, "SANDBOX::SANDBOX_NOT_FOUND");
    server.get(&path).await.is(404, "SANDBOX::SANDBOX_NOT_FOUND");
}

#[tokio::test]
async fn a_sandbox_can_be_deleted_while_it_is_being_made() {
    let server = Server::start().await;
    server.runtime.hold();
    let created = server.post("/v1/sandboxes", body_with(json!({}))).await.json();
    let id = created["id"].as_str().expect("an id");
    assert_eq!(server.delete(&format!("/v1/sandboxes/{id}")).await.status, 204);
    server.runtime.release();
    assert_eq!(server.runtime_has(id).await, Observed::Absent);
}

#[tokio::test]
async fn a_removal_that_fails_is_tried_until_it_works() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    server.runtime.fail_next(Call::Destroy, ErrorKind::Internal, "device busy");
    assert_eq!(server.delete(&format!("/v1/sandboxes/{id}")).await.status, 204);
    assert_eq!(server.runtime_has(&id).await, Observed::Absent);
}

#[tokio::test]
async fn an_end_shows_its_reason_and_exit() {
    let server = Server::start().await;
    for (exit, state, reason, shown) in [
        (Exit::Exited { code: 0 }, "Terminated", "EXITED", json!({ "kind": "exited", "code": 0 })),
        (Exit::Exited { code: 3 }, "Failed", "EXITED_ERROR", json!({ "kind": "exited", "code": 3 })),
        (Exit::Signaled { signal: 9 }, "Failed", "SIGNALED", json!({ "kind": "signaled", "signal": 9 })),
    ] {
        let id = server.create(json!({})).await;
        server.runtime.end(&crate::common::id(&id), exit);
        server.reaches(&id, state).await;
        let status = server.get(&format!("/v1/sandboxes/{id}")).await.json()["status"].clone();
        assert_eq!((&status["reason"], &status["exit"]), (&json!(reason), &shown));
        server.post(&format!("/v1/sandboxes/{id}/resume"), json!({})).await.is(409, "SANDBOX::SANDBOX_NOT_PAUSED");
        let look_up = server.get(&format!("/v1/sandboxes/{id}/endpoints/44772")).await;
        look_up.is(409, "SANDBOX::SANDBOX_NOT_RUNNING");
        assert_eq!(server.delete(&format!("/v1/sandboxes/{id}")).await.status, 204);
    }
}

#[tokio::test]
async fn an_end_during_the_create_is_not_missed() {
    let server = Server::start().await;
    server.runtime.hold();
    let created = server.post("/v1/sandboxes", body_with(json!({}))).await.json();
    let text = created["id"].as_str().expect("an id");
    server.runtime.end(&id(text), Exit::Exited { code: 0 });
    // The report of the end is taken up before the create answers.
    server.get("/v1/sandboxes").await;
    server.runtime.release();
    server.reaches(text, "Running").await;
    server.runtime.end(&id(text), Exit::Exited { code: 0 });
    server.reaches(text, "Terminated").await;
}

#[tokio::test]
async fn lists_filter_by_state_and_metadata_and_page() {
    let server = Server::start().await;
    let mut ids = Vec::new();
    for n in 0..3 {
        let label = if n == 1 { "b" } else { "a" };
        ids.push(server.create(json!({ "metadata": { "team": label, "x/y": "1" } })).await);
    }
    server.post(&format!("/v1/sandboxes/{}/pause", ids[0]), json!({})).await;
    let list = async |query: &str| {
        let body = server.get(&format!("/v1/sandboxes{query}")).await.json();
        let found: Vec<String> = body["items"]
            .as_array()
            .expect("items")
            .iter()
            .map(|i| i["id"].as_str().expect("an id").to_owned())
            .collect();
        (found, body["pagination"].clone())
    };
    let newest_first: Vec<String> = ids.iter().rev().cloned().collect();
    assert_eq!(list("").await.0, newest_first);
    assert_eq!(list("?state=pAuSeD").await.0, vec![ids[0].clone()]);
    assert_eq!(list("?state=paused&state=Running").await.0, newest_first);
    assert_eq!(list("?state=Nonsense").await.0, Vec::<String>::new());
    assert_eq!(list("?metadata=team%3Da%26x%252Fy%3D1").await.0, vec![ids[2].clone(), ids[0].clone()]);
    assert_eq!(list("?metadata=team%3Da&state=paused").await.0, vec![ids[0].clone()]);
    let (found, pagination) = list("?page=2&pageSize=2").await;
    assert_eq!(found, vec![ids[0].clone()]);
    let expected = json!({ "page": 2, "pageSize": 2, "totalItems": 3, "totalPages": 2, "hasNextPage": false });
    assert_eq!(pagination, expected);
    assert_eq!(list("?page=9").await.0, Vec::<String>::new());
    assert_eq!(list("?metadata=team%3Dnobody").await.1["totalPages"], 0);
    server.get("/v1/sandboxes?metadata=team").await.is(400, "INVALID_METADATA_FORMAT");
    for bad in ["page=0", "page=x", "pageSize=0", "pageSize=201", "pageSize=-1"] {
        let answer = server.get(&format!("/v1/sandboxes?{bad}")).await;
        assert_eq!(answer.status, 422, "{bad}");
        let name = bad.split('=').next().expect("a name");
        assert_eq!(answer.json()["detail"][0]["loc"], json!(["query", name]));
    }
}

#[tokio::test]
async fn metadata_is_patched_and_null_deletes() {
    let server = Server::start().await;
    let id = server.create(json!({ "metadata": { "a": "1", "b": "2" } })).await;
    let path = format!("/v1/sandboxes/{id}/metadata");
    let patched = server.call(Method::PATCH, &path, Some(json!({ "a": null, "c": "3" }))).await;
    assert_eq!((patched.status.as_u16(), &patched.json()["metadata"]), (200, &json!({ "b": "2", "c": "3" })));
    let reserved = server.call(Method::PATCH, &path, Some(json!({ "opensandbox.io/x": "1" }))).await;
    reserved.is(400, "INVALID_METADATA_LABEL");
    assert_eq!(server.call(Method::PATCH, &path, Some(json!({ "a": 5 }))).await.status, 422);
    assert_eq!(server.call(Method::PATCH, &path, Some(json!(["a"]))).await.status, 422);
    let found = server.get("/v1/sandboxes?metadata=c%3D3").await.json();
    assert_eq!(found["pagination"]["totalItems"], 1);
}

#[tokio::test]
async fn diagnostics_come_with_and_without_scope() {
    let server = Server::start().await;
    let id = server.create(json!({ "env": { "MY_TOKEN": "planted", "PLAIN": "shown" } })).await;
    let at = |rest: &str| format!("/v1/sandboxes/{id}/diagnostics/{rest}");
    let logs = server.get(&at("logs?scope=Container")).await.json();
    assert_eq!(logs["content"], format!("console of {id}"));
    assert_eq!(logs["contentLength"], logs["content"].as_str().expect("text").len());
    assert_eq!(
        (&logs["kind"], &logs["scope"], &logs["delivery"]),
        (&json!("logs"), &json!("container"), &json!("inline"))
    );
    assert_eq!(server.get(&at("events?scope=all")).await.json()["warnings"].as_array().map(Vec::len), Some(1));
    server.get(&at("logs?scope=moon")).await.is(400, "DIAGNOSTICS_SCOPE_UNSUPPORTED");
    let text = server.get(&at("events?limit=1")).await;
    assert_eq!(text.headers["deprecation"], "true");
    let text = String::from_utf8(text.body.to_vec()).expect("text");
    assert!(text.contains("Running") && !text.contains("Pending"), "{text}");
    assert_eq!(server.get(&at("events?limit=0")).await.status, 422);
    for page in ["inspect", "summary"] {
        let text = String::from_utf8(server.get(&at(page)).await.body.to_vec()).expect("text");
        assert!(text.contains("shown") && !text.contains("planted"), "{text}");
    }
    server.get("/v1/sandboxes/nope/diagnostics/logs").await.is(404, "SANDBOX::SANDBOX_NOT_FOUND");
    server.runtime.end(&crate::common::id(&id), Exit::Exited { code: 1 });
    server.reaches(&id, "Failed").await;
    let kept = tokio::time::timeout(crate::common::PATIENCE, async {
        loop {
            let logs = server.get(&at("logs?scope=all")).await.json();
            if logs["content"] == format!("console of {id}") {
                return;
            }
        }
    });
    kept.await.expect("the console of an ended sandbox is kept");
}

#[tokio::test]
async fn os_115_a_failed_look_up_is_not_remembered() {
    let server = Server::start().await;
    server.get("/v1/sandboxes/later/endpoints/80").await.is(404, "SANDBOX::SANDBOX_NOT_FOUND");
    let id = server.create(json!({})).await;
    server.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await;
    let path = format!("/v1/sandboxes/{id}/endpoints/80");
    server.get(&path).await.is(409, "SANDBOX::SANDBOX_NOT_RUNNING");
    server.post(&format!("/v1/sandboxes/{id}/resume"), json!({})).await;
    assert_eq!(server.get(&path).await.status, 200);
}

#[tokio::test]
async fn ex_027_ids_are_new_and_labels_free_after_a_deletion() {
    let server = Server::start().await;
    let first = server.create(json!({ "metadata": { "name": "one" } })).await;
    server.delete(&format!("/v1/sandboxes/{first}")).await;
    let second = server.create(json!({ "metadata": { "name": "one" } })).await;
    assert_ne!(first, second);
}

#[tokio::test]
async fn ex_028_the_lifetime_counts_from_acceptance_and_no_answer_shows_a_past_end() {
    let server = Server::start().await;
    server.runtime.hold();
    let created = server.post("/v1/sandboxes", body_with(json!({ "timeout": 60 }))).await.json();
    let id = created["id"].as_str().expect("an id");
    server.runtime.release();
    server.reaches(id, "Running").await;
    let running = server.get(&format!("/v1/sandboxes/{id}")).await.json();
    let at = |body: &serde_json::Value, name: &str| {
        body[name].as_str().expect("a time").parse::<jiff::Timestamp>().expect("RFC 3339")
    };
    for body in [&created, &running] {
        assert_eq!(at(body, "expiresAt").duration_since(at(body, "createdAt")).as_secs(), 60);
        assert!(at(body, "expiresAt") > jiff::Timestamp::now());
    }
    assert_eq!(created["expiresAt"], running["expiresAt"], "a slow start does not move the end");
}

#[tokio::test]
async fn os_010_a_create_that_fails_leaves_nothing_but_its_record() {
    let server = Server::start().await;
    server.runtime.fail_next(Call::Create, ErrorKind::Exhausted, "no id range is free");
    let id = server.create(json!({})).await;
    assert_eq!(server.state(&id).await, "Failed");
    assert_eq!(server.runtime_has(&id).await, Observed::Absent);
    assert_eq!(server.delete(&format!("/v1/sandboxes/{id}")).await.status, 204);
    assert_eq!(server.state(&id).await, "gone");
}

#[tokio::test]
async fn os_015_health_and_reads_answer_while_creates_are_held() {
    let server = Server::start().await;
    server.runtime.hold();
    for _ in 0..50 {
        assert_eq!(server.post("/v1/sandboxes", body_with(json!({}))).await.status, 202);
    }
    let mut slowest = Duration::ZERO;
    for _ in 0..50 {
        for path in ["/health", "/v1/sandboxes"] {
            let started = std::time::Instant::now();
            assert_eq!(server.get(path).await.status, 200);
            slowest = slowest.max(started.elapsed());
        }
    }
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
    let stopped = std::time::Instant::now();
    server.stop().await;
    assert!(stopped.elapsed() < Duration::from_secs(5), "a stop works meanwhile");
}

impl Server {
    async fn runtime_has(&self, text: &str) -> Observed {
        use lifecycle::runtime::Runtime as _;
        self.runtime.observe(&id(text)).await.expect("the fake answers")
    }
}
