//! Snapshots and forks over the fake runtime: rows, states, refusals, and what becomes of them.

use crate::common::{Server, body_with, id};
use lifecycle::fake::Call;
use lifecycle::runtime::{ErrorKind, Observed};
use serde_json::{Value, json};

/// How long a caller waits who then goes: long enough for a snapshot to be begun.
const ASKER_STAYS: std::time::Duration = std::time::Duration::from_millis(500);

async fn running(server: &Server, changes: Value) -> String {
    let id = server.create(changes).await;
    server.reaches(&id, "Running").await;
    id
}

async fn take(server: &Server, sandbox: &str, body: Value) -> String {
    let taken = server.post(&format!("/v1/sandboxes/{sandbox}/snapshots"), body).await;
    assert_eq!(taken.status, 202, "{}", taken.message());
    taken.json()["id"].as_str().expect("an id").to_owned()
}

async fn snapshot(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/snapshots/{id}")).await.json()
}

async fn becomes(server: &Server, id: &str, state: &str) -> Value {
    server.wait_until(async || snapshot(server, id).await["status"]["state"] == state).await;
    snapshot(server, id).await
}

async fn ids(server: &Server, query: &str) -> Vec<String> {
    let list = server.get(&format!("/v1/snapshots{query}")).await.json();
    let items = list["items"].as_array().expect("items").clone();
    items.iter().map(|item| item["id"].as_str().expect("an id").to_owned()).collect()
}

#[tokio::test]
async fn a_snapshot_is_accepted_taken_found_and_removed() {
    let server = Server::start().await;
    let sandbox = running(&server, json!({})).await;
    server.runtime.hold_copies();
    let taken = server.post(&format!("/v1/sandboxes/{sandbox}/snapshots"), json!({ "name": "one" })).await;
    let body = taken.json();
    let one = body["id"].as_str().expect("an id").to_owned();
    assert_eq!(
        (taken.status.as_u16(), &taken.headers["location"]),
        (202, &format!("/v1/snapshots/{one}").parse().expect("a value"))
    );
    assert_eq!(
        (&body["status"]["state"], &body["status"]["reason"]),
        (&json!("Creating"), &json!("snapshot_accepted"))
    );
    assert_eq!((&body["sandboxId"], &body["name"]), (&json!(sandbox), &json!("one")));
    server.delete(&format!("/v1/snapshots/{one}")).await.is(409, "SNAPSHOT::INVALID_STATE");
    let early = server.post("/v1/sandboxes", body_with(json!({ "image": null, "snapshotId": one }))).await;
    early.is(409, "SNAPSHOT::NOT_READY");
    server.runtime.release_copies();
    let ready = becomes(&server, &one, "Ready").await;
    assert_eq!(ready["status"]["reason"], "snapshot_runtime_ready");
    assert_eq!((&ready["sizeBytes"], &ready["frozenMs"], &ready["image"]), (&json!(1), &json!(1), &json!("host")));
    let made = running(&server, json!({ "image": null, "entrypoint": null, "snapshotId": one })).await;
    let shown = server.get(&format!("/v1/sandboxes/{made}")).await.json();
    assert_eq!((&shown["snapshotId"], shown.get("image")), (&json!(one), None));
    assert_eq!(shown["entrypoint"], json!(["tail", "-f", "/dev/null"]));
    let refused = server.delete(&format!("/v1/snapshots/{one}")).await;
    refused.is(409, "SNAPSHOT::DELETE_CONFLICT");
    assert!(refused.message().contains(&made), "{}", refused.message());
    assert_eq!(server.delete(&format!("/v1/sandboxes/{made}")).await.status, 204);
    assert_eq!(server.delete(&format!("/v1/snapshots/{one}")).await.status, 204);
    assert!(server.runtime.snapshots().is_empty());
    server.get(&format!("/v1/snapshots/{one}")).await.is(404, "SNAPSHOT::NOT_FOUND");
    server.delete(&format!("/v1/snapshots/{one}")).await.is(404, "SNAPSHOT::NOT_FOUND");
    let gone = server.post("/v1/sandboxes", body_with(json!({ "image": null, "snapshotId": one }))).await;
    gone.is(404, "SNAPSHOT::NOT_FOUND");
}

#[tokio::test]
async fn ex_024_a_name_clash_is_told_at_once_and_every_bad_input_names_its_field() {
    let server = Server::start().await;
    let [first, second] = [running(&server, json!({})).await, running(&server, json!({})).await];
    let path = |sandbox: &str| format!("/v1/sandboxes/{sandbox}/snapshots");
    let one = take(&server, &first, json!({ "name": "same" })).await;
    becomes(&server, &one, "Ready").await;
    let clash = server.post(&path(&second), json!({ "name": "same" })).await;
    clash.is(409, "SNAPSHOT::RUNTIME_CREATE_CONFLICT");
    assert!(clash.message().starts_with("name: ") && clash.message().contains(&one), "{}", clash.message());
    for (body, field) in [
        (json!({ "name": "" }), "name"),
        (json!({ "name": "  " }), "name"),
        (json!({ "name": "a\u{7}" }), "name"),
        (json!({ "name": "x".repeat(254) }), "name"),
        (json!({ "name": 7 }), "name"),
        (json!({ "wings": 2 }), "wings"),
    ] {
        let refused = server.post(&path(&second), body.clone()).await;
        assert_eq!(refused.status, 422, "{body}");
        assert!(refused.message().contains(field), "{body}: {}", refused.message());
    }
    for body in [json!(null), json!({}), json!({ "name": null })] {
        let taken = take(&server, &second, body).await;
        becomes(&server, &taken, "Ready").await;
    }
    assert_eq!(server.delete(&format!("/v1/snapshots/{one}")).await.status, 204);
    let again = take(&server, &second, json!({ "name": "same" })).await;
    becomes(&server, &again, "Ready").await;
    server.post(&path("nobody"), json!({})).await.is(404, "SANDBOX::SANDBOX_NOT_FOUND");
}

#[tokio::test]
async fn a_list_is_filtered_and_paged_the_newest_first() {
    let server = Server::start().await;
    let [first, second] = [running(&server, json!({})).await, running(&server, json!({})).await];
    let mut taken = Vec::new();
    for (sandbox, name) in [(&first, "a"), (&first, "b"), (&second, "c")] {
        let id = take(&server, sandbox, json!({ "name": name })).await;
        becomes(&server, &id, "Ready").await;
        taken.push(id);
    }
    server.runtime.fail_next(Call::TakeSnapshot, ErrorKind::Exhausted, "the disk is full");
    let failed = take(&server, &second, json!({})).await;
    assert_eq!(becomes(&server, &failed, "Failed").await["status"]["reason"], "snapshot_no_space");
    taken.reverse();
    assert_eq!(ids(&server, "").await, [&[failed.clone()][..], &taken].concat());
    assert_eq!(ids(&server, &format!("?sandboxId={first}")).await, taken[1..]);
    assert_eq!(ids(&server, "?name=b").await, taken[1..2]);
    assert_eq!(ids(&server, "?state=Failed&state=Creating").await, [failed]);
    assert!(ids(&server, "?state=ready").await.is_empty(), "the letter case counts");
    assert_eq!(ids(&server, "?state=Ready&page=2&pageSize=2").await, taken[2..]);
    let page = server.get("/v1/snapshots?page=2&pageSize=3").await.json();
    let expected = json!({ "page": 2, "pageSize": 3, "totalItems": 4, "totalPages": 2, "hasNextPage": false });
    assert_eq!(page["pagination"], expected);
    for query in ["?page=0", "?pageSize=201", "?pageSize=x"] {
        assert_eq!(server.get(&format!("/v1/snapshots{query}")).await.status, 422, "{query}");
    }
}

#[tokio::test]
async fn ex_040_a_failure_leaves_a_reason_and_a_running_sandbox() {
    let server = Server::start().await;
    let sandbox = running(&server, json!({})).await;
    server.runtime.fail_next(Call::TakeSnapshot, ErrorKind::Internal, "the copy was cut off");
    // As a jailer leaves it whose worker was killed.
    server.runtime.plant(&id(&sandbox), Observed::Paused);
    let one = take(&server, &sandbox, json!({})).await;
    let failed = becomes(&server, &one, "Failed").await;
    assert_eq!(failed["status"]["message"], "the copy was cut off");
    let runtime = server.runtime.clone();
    server
        .wait_until(async || {
            use lifecycle::runtime::Runtime as _;
            runtime.observe(&id(&sandbox)).await.expect("seen") == Observed::Running
        })
        .await;
    assert_eq!(server.state(&sandbox).await, "Running");
    assert_eq!(server.delete(&format!("/v1/snapshots/{one}")).await.status, 204);
}

#[tokio::test]
async fn a_pause_waits_for_the_copy_and_a_delete_does_not() {
    let server = Server::start().await;
    let sandbox = running(&server, json!({})).await;
    server.runtime.hold_copies();
    let one = take(&server, &sandbox, json!({})).await;
    let busy = server.post(&format!("/v1/sandboxes/{sandbox}/snapshots"), json!({})).await;
    busy.is(409, "SNAPSHOT::RUNTIME_CREATE_CONFLICT");
    let path = format!("/v1/sandboxes/{sandbox}/pause");
    let (paused, ()) = tokio::join!(server.post(&path, json!({})), async {
        assert_eq!(server.state(&sandbox).await, "Running");
        server.runtime.release_copies();
    });
    assert_eq!((paused.status.as_u16(), server.state(&sandbox).await.as_str()), (202, "Paused"));
    becomes(&server, &one, "Ready").await;

    let two = take(&server, &sandbox, json!({})).await;
    assert_eq!(becomes(&server, &two, "Ready").await["status"]["state"], "Ready", "of a paused one, too");
    server.runtime.hold_copies();
    let three = take(&server, &sandbox, json!({})).await;
    assert_eq!(server.delete(&format!("/v1/sandboxes/{sandbox}")).await.status, 204);
    assert_eq!(becomes(&server, &three, "Failed").await["status"]["reason"], "snapshot_source_ended");
}

#[tokio::test]
async fn os_109_a_restart_finishes_or_fails_what_was_being_taken_and_removes_what_nobody_knows() {
    let server = Server::start().await;
    let sandbox = running(&server, json!({})).await;
    let ready = take(&server, &sandbox, json!({})).await;
    becomes(&server, &ready, "Ready").await;
    server.runtime.hold_copies();
    let cut_off = take(&server, &sandbox, json!({})).await;
    let server = server.restart().await;
    server.runtime.release_copies();
    let failed = snapshot(&server, &cut_off).await;
    assert_eq!(failed["status"]["reason"], "snapshot_recovery_missing_image", "{failed}");
    assert_eq!(snapshot(&server, &ready).await["status"]["state"], "Ready");
    assert_eq!(server.runtime.snapshots().len(), 1);
}

#[tokio::test]
async fn forks_stand_on_one_copy_that_goes_with_the_last() {
    let server = Server::start().await;
    let source = running(
        &server,
        json!({ "env": { "A": "1", "B": "1" }, "metadata": { "team": "x" }, "resourceLimits": { "memory": "64Mi" }, "timeout": 600 }),
    )
    .await;
    let body = json!({ "count": 3, "env": { "B": "2" }, "metadata": { "n": "1" } });
    let forked = server.post(&format!("/v1/sandboxes/{source}/fork?wait=20"), body).await;
    let answer = forked.json();
    assert_eq!((forked.status.as_u16(), &answer["accepted"], &answer["refused"]), (202, &json!(3), &json!(0)));
    let forks: Vec<String> = answer["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| {
            let sandbox = &item["sandbox"];
            assert_eq!((&sandbox["status"]["state"], &sandbox["metadata"]), (&json!("Running"), &json!({ "n": "1" })));
            sandbox["id"].as_str().expect("an id").to_owned()
        })
        .collect();
    assert!(ids(&server, "").await.is_empty(), "the copy is in no list");
    assert_eq!(server.runtime.snapshots().len(), 1);
    assert_eq!(server.delete(&format!("/v1/sandboxes/{source}")).await.status, 204);
    for fork in &forks {
        assert_eq!(server.runtime.snapshots().len(), 1);
        assert_eq!(server.delete(&format!("/v1/sandboxes/{fork}")).await.status, 204);
    }
    let runtime = server.runtime.clone();
    server.wait_until(async || runtime.snapshots().is_empty()).await;
}

#[tokio::test]
async fn a_fork_that_cannot_be_is_refused_before_its_source_stands_still() {
    let server = Server::start().await;
    let source = running(&server, json!({})).await;
    let path = format!("/v1/sandboxes/{source}/fork");
    for (body, status, field) in [
        (json!({ "count": 0 }), 400, "count"),
        (json!({ "count": 1001 }), 400, "count"),
        (json!({ "count": "many" }), 422, "count"),
        (json!({ "timeout": 5 }), 422, "timeout"),
        (json!({ "metadata": { "bad key!": "1" } }), 400, "metadata"),
        (json!({ "entrypoint": [] }), 422, "entrypoint"),
        (json!({ "image": { "uri": "host" } }), 422, "image"),
    ] {
        let refused = server.post(&path, body.clone()).await;
        assert_eq!(refused.status.as_u16(), status, "{body}: {}", refused.message());
        assert!(refused.message().contains(field), "{body}: {}", refused.message());
    }
    assert!(server.runtime.snapshots().is_empty());
    server.runtime.fail_next(Call::TakeSnapshot, ErrorKind::Exhausted, "the disk is full");
    let failed = server.post(&path, json!({})).await;
    failed.is(500, "SNAPSHOT::RUNTIME_CREATE_FAILED");
    assert!(failed.message().contains("the disk is full"), "{}", failed.message());
    server.post("/v1/sandboxes/nobody/fork", json!({})).await.is(404, "SANDBOX::SANDBOX_NOT_FOUND");
}

#[tokio::test]
async fn a_fork_whose_asker_leaves_keeps_no_copy() {
    let server = Server::start().await;
    let source = running(&server, json!({})).await;
    server.runtime.hold_copies();
    let path = format!("/v1/sandboxes/{source}/fork");
    let left = tokio::time::timeout(ASKER_STAYS, server.post(&path, json!({ "count": 2 }))).await;
    assert!(left.is_err(), "it was answered before the copy was made");
    server.runtime.release_copies();
    // Another is taken once that one is done; in the end it is the only one.
    let path = format!("/v1/sandboxes/{source}/snapshots");
    server.wait_until(async || server.post(&path, json!({})).await.status == 202).await;
    let runtime = server.runtime.clone();
    server.wait_until(async || runtime.snapshots().len() == 1).await;
    let (kept, asked) = (runtime.snapshots(), ids(&server, "").await);
    assert_eq!(kept.iter().map(ToString::to_string).collect::<Vec<_>>(), asked);
}
