//! A server that starts on the records of an earlier one.

use std::time::Duration;

use crate::common::{Server, body_with, id};
use lifecycle::fake::Call;
use lifecycle::runtime::{ErrorKind, Exit, Observed, Runtime as _};
use serde_json::json;

#[tokio::test]
async fn running_and_paused_sandboxes_are_found_again_with_their_deadlines() {
    let server = Server::start().await;
    let running = server.create(json!({ "metadata": { "a": "b" } })).await;
    let paused = server.create(json!({ "timeout": null })).await;
    server.post(&format!("/v1/sandboxes/{paused}/pause"), json!({})).await;
    let before = server.get("/v1/sandboxes").await.json();
    let detail = server.get(&format!("/v1/sandboxes/{running}")).await.json();
    let creates = server.runtime.creates();
    let server = server.restart().await;
    assert_eq!(server.get("/v1/sandboxes").await.json(), before);
    assert_eq!(server.get(&format!("/v1/sandboxes/{running}")).await.json(), detail);
    assert_eq!(server.post(&format!("/v1/sandboxes/{paused}/resume"), json!({})).await.status, 202);
    assert_eq!(server.runtime.creates(), creates, "nothing was made again");
}

#[tokio::test]
async fn os_002_a_renewal_is_durable_and_the_deadline_that_counts_after_a_restart() {
    let server = Server::start().await;
    let short = server.create(json!({})).await;
    let long = server.create(json!({})).await;
    let soon = jiff::Timestamp::now() + Duration::from_millis(1000);
    let renew = async |server: &Server, id: &str, at: jiff::Timestamp| {
        let answer =
            server.post(&format!("/v1/sandboxes/{id}/renew-expiration"), json!({ "expiresAt": at.to_string() })).await;
        assert_eq!(answer.status, 200);
    };
    renew(&server, &short, soon).await;
    renew(&server, &long, soon).await;
    renew(&server, &long, jiff::Timestamp::now() + Duration::from_secs(3600)).await;
    let server = server.restart().await;
    server.reaches(&short, "gone").await;
    let late = jiff::Timestamp::now().duration_since(soon).as_millis();
    assert!((0..1000).contains(&late), "{late} ms after the deadline");
    assert_eq!(server.state(&long).await, "Running");
}

#[tokio::test]
async fn os_002_sandboxes_whose_deadline_passed_while_the_server_was_down_end_at_once() {
    let server = Server::start().await;
    let overdue = server.create(json!({})).await;
    let soon = jiff::Timestamp::now() + Duration::from_millis(50);
    server.post(&format!("/v1/sandboxes/{overdue}/renew-expiration"), json!({ "expiresAt": soon.to_string() })).await;
    let (runtime, dir) = server.stop().await;
    let left = soon.duration_since(jiff::Timestamp::now());
    tokio::time::sleep(Duration::try_from(left).unwrap_or_default()).await;
    let server = Server::again(server::Config::default(), runtime, dir).await;
    server.reaches(&overdue, "gone").await;
    assert_eq!(server.runtime.observe(&id(&overdue)).await.expect("answers"), Observed::Absent);
}

#[tokio::test]
async fn a_create_that_was_under_way_is_done_again() {
    let server = Server::start().await;
    server.runtime.hold();
    let created = server.post("/v1/sandboxes", body_with(json!({}))).await.json();
    let pending = created["id"].as_str().expect("an id").to_owned();
    let server = server.restart().await;
    assert_eq!(server.state(&pending).await, "Pending");
    server.runtime.release();
    server.reaches(&pending, "Running").await;
}

#[tokio::test]
async fn a_private_create_that_was_under_way_fails_with_its_cause() {
    let server = Server::start().await;
    server.runtime.hold();
    let private = json!({ "image": { "uri": "r.example/a:1", "auth": { "username": "u", "password": "planted" } } });
    let created = server.post("/v1/sandboxes", body_with(private)).await.json();
    let pending = created["id"].as_str().expect("an id").to_owned();
    let server = server.restart().await;
    server.reaches(&pending, "Failed").await;
    let answer = server.get(&format!("/v1/sandboxes/{pending}/endpoints/44772")).await;
    answer.is(400, "SANDBOX::SANDBOX_IMAGE_PULL_FAILED");
    assert!(answer.message().contains("credentials"), "{}", answer.message());
    let files = std::fs::read_dir(server.dir.path()).expect("a directory");
    for file in files.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()) {
        let bytes = std::fs::read(&file).expect("readable");
        assert!(!bytes.windows(7).any(|w| w == b"planted"), "the password is in {}", file.display());
    }
}

#[tokio::test]
async fn what_ended_while_the_server_was_down_is_told_and_never_guessed() {
    let server = Server::start().await;
    let ended = server.create(json!({})).await;
    let vanished = server.create(json!({})).await;
    let (runtime, dir) = server.stop().await;
    runtime.plant(&id(&ended), Observed::Ended(Exit::Exited { code: 4 }));
    runtime.vanish(&id(&vanished));
    let server = Server::again(server::Config::default(), runtime, dir).await;
    server.reaches(&ended, "Failed").await;
    server.reaches(&vanished, "Failed").await;
    let exit = async |id: &str| server.get(&format!("/v1/sandboxes/{id}")).await.json()["status"]["exit"].clone();
    assert_eq!(exit(&ended).await, json!({ "kind": "exited", "code": 4 }));
    assert_eq!(exit(&vanished).await["kind"], "unknown");
}

#[tokio::test]
async fn a_removal_that_was_under_way_is_finished() {
    let server = Server::start().await;
    let doomed = server.create(json!({})).await;
    server.runtime.fail_next(Call::Destroy, ErrorKind::Internal, "busy");
    // Nobody waits for the answer: the server stops while the removal is tried again.
    let path = format!("/v1/sandboxes/{doomed}");
    tokio::select! {
        _ = server.delete(&path) => {}
        () = async { server.reaches(&doomed, "Stopping").await; } => {}
    }
    let server = server.restart().await;
    server.reaches(&doomed, "gone").await;
    assert_eq!(server.runtime.observe(&id(&doomed)).await.expect("answers"), Observed::Absent);
}

#[tokio::test]
async fn sandboxes_that_nobody_remembers_are_removed() {
    let (runtime, dir) = Server::start().await.stop().await;
    runtime.plant(&id("orphan"), Observed::Running);
    let server = Server::again(server::Config::default(), runtime, dir).await;
    let gone = tokio::time::timeout(crate::common::PATIENCE, async {
        while server.runtime.observe(&id("orphan")).await.expect("answers") != Observed::Absent {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    gone.await.expect("the orphan goes");
}

#[tokio::test]
async fn what_was_thawed_behind_our_back_is_frozen_again() {
    let server = Server::start().await;
    let paused = server.create(json!({})).await;
    server.post(&format!("/v1/sandboxes/{paused}/pause"), json!({})).await;
    let (runtime, dir) = server.stop().await;
    runtime.plant(&id(&paused), Observed::Running);
    let server = Server::again(server::Config::default(), runtime, dir).await;
    let frozen = tokio::time::timeout(crate::common::PATIENCE, async {
        while server.runtime.observe(&id(&paused)).await.expect("answers") != Observed::Paused {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    frozen.await.expect("is frozen again");
    assert_eq!(server.state(&paused).await, "Paused");
}
