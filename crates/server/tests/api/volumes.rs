//! Named volumes over the fake runtime: rows, references and what becomes of them.

use crate::common::{Server, body_with};
use lifecycle::fake::Call;
use lifecycle::runtime::ErrorKind;
use serde_json::{Value, json};

fn volumes(fields: Value) -> Value {
    let mut pvc = json!({ "claimName": "data" });
    for (key, value) in fields.as_object().expect("an object") {
        pvc[key] = value.clone();
    }
    json!({ "volumes": [{ "name": "v", "mountPath": "/v", "pvc": pvc }] })
}

async fn names(server: &Server) -> Vec<String> {
    let list = server.get("/v1/volumes").await.json();
    let items = list["items"].as_array().expect("items").clone();
    items.iter().map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
}

async fn running(server: &Server, fields: Value) -> String {
    let id = server.create(volumes(fields)).await;
    server.reaches(&id, "Running").await;
    id
}

#[tokio::test]
async fn volumes_are_made_shown_and_removed_by_themselves() {
    let server = Server::start().await;
    let made = server.post("/v1/volumes", json!({ "name": "one", "storage": "1Gi" })).await;
    assert_eq!(made.status, 201);
    assert_eq!(made.json()["sizeBytes"], 1 << 30);
    assert_eq!(server.runtime.volumes().get("one"), Some(&Some(1 << 30)));
    assert_eq!(server.post("/v1/volumes", json!({ "name": "one" })).await.code(), "VOLUME::ALREADY_EXISTS");
    assert_eq!(server.post("/v1/volumes", json!({ "name": "One" })).await.code(), "VOLUME::INVALID_PVC_NAME");
    assert_eq!(server.post("/v1/volumes", json!({ "name": "two", "storage": "x" })).await.status, 400);
    assert_eq!(server.post("/v1/volumes", json!({ "name": "two", "wings": 2 })).await.status, 422);
    assert_eq!(server.get("/v1/volumes/one").await.json()["name"], "one");
    assert_eq!(server.get("/v1/volumes/two").await.code(), "VOLUME::NOT_FOUND");
    assert_eq!(names(&server).await, ["one"]);
    assert_eq!(server.delete("/v1/volumes/one").await.status, 204);
    assert_eq!(server.delete("/v1/volumes/one").await.status, 404);
    assert!(names(&server).await.is_empty() && server.runtime.volumes().is_empty());
}

#[tokio::test]
async fn a_volume_is_shared_counted_and_stays() {
    let server = Server::start().await;
    let first = running(&server, json!({})).await;
    let second = running(&server, json!({})).await;
    let info = server.get("/v1/volumes/data").await.json();
    assert_eq!(info["createdBy"], first.as_str());
    assert_eq!(info["sandboxes"].as_array().expect("a list").len(), 2);
    let refused = server.delete("/v1/volumes/data").await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (409, "VOLUME::IN_USE"));
    for id in [first, second] {
        assert_eq!(server.delete(&format!("/v1/sandboxes/{id}")).await.status, 204);
    }
    assert_eq!(server.get("/v1/volumes/data").await.json()["sandboxes"], json!([]));
    assert_eq!(server.delete("/v1/volumes/data").await.status, 204);
}

#[tokio::test]
async fn a_volume_goes_with_the_sandbox_that_made_it_if_nobody_else_has_it() {
    let server = Server::start().await;
    let end = async |id: &str| server.delete(&format!("/v1/sandboxes/{id}")).await.status;
    let going = json!({ "deleteOnSandboxTermination": true });
    let id = running(&server, going.clone()).await;
    assert_eq!(end(&id).await, 204);
    assert!(server.runtime.volumes().is_empty() && names(&server).await.is_empty(), "gone when the answer comes");

    let maker = running(&server, going.clone()).await;
    let other = running(&server, going.clone()).await;
    assert_eq!(end(&maker).await, 204);
    assert_eq!(names(&server).await, ["data"], "another has it");
    assert_eq!(end(&other).await, 204);
    assert_eq!(names(&server).await, ["data"], "the other did not make it");
    let last = running(&server, going).await;
    assert_eq!(end(&last).await, 204);
    assert_eq!(names(&server).await, ["data"], "what was there before is not touched, whatever the flag says");
}

#[tokio::test]
async fn os_010_what_a_failed_create_made_is_undone_and_what_was_there_is_not_touched() {
    let server = Server::start().await;
    assert_eq!(server.post("/v1/volumes", json!({ "name": "before" })).await.status, 201);
    // Refused before anything is made.
    let bad = json!({ "volumes": [
        { "name": "a", "mountPath": "/a", "pvc": { "claimName": "fresh", "deleteOnSandboxTermination": true } },
        { "name": "b", "mountPath": "/b", "host": { "path": "/not/allowed" } },
    ]});
    assert_eq!(server.post("/v1/sandboxes", body_with(bad)).await.code(), "VOLUME::HOST_PATH_NOT_ALLOWED");
    let missing = json!({ "volumes": [
        { "name": "a", "mountPath": "/a", "pvc": { "claimName": "fresh" } },
        { "name": "b", "mountPath": "/b", "pvc": { "claimName": "nowhere", "createIfNotExists": false } },
    ]});
    let refused = server.post("/v1/sandboxes", body_with(missing)).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (400, "VOLUME::PVC_NOT_FOUND"));
    assert_eq!(names(&server).await, ["before"]);
    assert_eq!(server.get("/v1/sandboxes").await.json()["pagination"]["totalItems"], 0);
    // Failed on the way.
    server.runtime.fail_next(Call::Create, ErrorKind::HostPath, "a link leads out");
    let both = json!({ "volumes": [
        { "name": "a", "mountPath": "/a", "pvc": { "claimName": "fresh" } },
        { "name": "b", "mountPath": "/b", "pvc": { "claimName": "before", "deleteOnSandboxTermination": true } },
    ]});
    let id = server.create(both).await;
    assert_eq!(server.state(&id).await, "Failed");
    server.wait_until(async || names(&server).await == ["before"]).await;
    assert_eq!(server.runtime.volumes().into_keys().collect::<Vec<_>>(), ["before"]);
    assert_eq!(server.delete(&format!("/v1/sandboxes/{id}")).await.status, 204);
    assert_eq!(names(&server).await, ["before"]);
}

#[tokio::test]
async fn ex_027_a_name_is_free_as_soon_as_its_volume_is_gone() {
    let server = Server::start().await;
    for _ in 0..5 {
        let id = running(&server, json!({ "deleteOnSandboxTermination": true })).await;
        assert_eq!(server.delete(&format!("/v1/sandboxes/{id}")).await.status, 204);
        assert_eq!(server.post("/v1/volumes", json!({ "name": "data" })).await.status, 201);
        assert_eq!(server.delete("/v1/volumes/data").await.status, 204);
    }
}

#[tokio::test]
async fn another_size_than_a_volume_has_is_refused() {
    let server = Server::start().await;
    running(&server, json!({ "storage": "1Gi" })).await;
    running(&server, json!({ "storage": "1024Mi" })).await;
    running(&server, json!({})).await;
    let other = server.post("/v1/sandboxes", body_with(volumes(json!({ "storage": "2Gi" })))).await;
    assert_eq!((other.status.as_u16(), other.code().as_str()), (409, "VOLUME::CONFLICT"));
}

#[tokio::test]
async fn a_volume_that_could_not_be_made_leaves_no_row() {
    let server = Server::start().await;
    server.runtime.fail_next(Call::EnsureVolume, ErrorKind::Exhausted, "no space");
    assert_eq!(server.post("/v1/volumes", json!({ "name": "one" })).await.status, 500);
    assert!(names(&server).await.is_empty());
    assert_eq!(server.post("/v1/volumes", json!({ "name": "one" })).await.status, 201);
}

#[tokio::test]
async fn a_restart_finds_volumes_and_who_has_them_and_goes_on_removing() {
    let server = Server::start().await;
    let id = running(&server, json!({ "deleteOnSandboxTermination": true })).await;
    assert_eq!(server.post("/v1/volumes", json!({ "name": "going" })).await.status, 201);
    server.runtime.fail_next(Call::RemoveVolume, ErrorKind::Internal, "busy");
    assert_eq!(server.delete("/v1/volumes/going").await.status, 500);
    assert_eq!(server.post("/v1/volumes", json!({ "name": "going" })).await.code(), "VOLUME::CONFLICT");
    let server = server.restart().await;
    assert_eq!(server.get("/v1/volumes/data").await.json()["sandboxes"], json!([id]));
    server.wait_until(async || !server.runtime.volumes().contains_key("going")).await;
    assert_eq!(server.delete(&format!("/v1/sandboxes/{id}")).await.status, 204);
    assert!(names(&server).await.is_empty());
}
