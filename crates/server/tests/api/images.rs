//! The image store over HTTP.

use crate::common::{Answer, KEY, Server};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

fn root_archive(content: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut directory = tar::Header::new_gnu();
    directory.set_entry_type(tar::EntryType::Directory);
    directory.set_mode(0o755);
    directory.set_size(0);
    archive.append_data(&mut directory, "etc/", &b""[..]).expect("appended");
    let mut file = tar::Header::new_gnu();
    file.set_mode(0o644);
    file.set_size(content.len() as u64);
    archive.append_data(&mut file, "etc/motd", content.as_bytes()).expect("appended");
    archive.into_inner().expect("an archive")
}

async fn import(server: &Server, query: &str, body: Vec<u8>) -> Answer {
    let request = Request::post(format!("/v1/images/import{query}"))
        .header("OPEN-SANDBOX-API-KEY", KEY)
        .body(Full::new(Bytes::from(body)));
    server.send(request.expect("a request")).await
}

fn last_line(answer: &Answer) -> Value {
    let text = std::str::from_utf8(&answer.body).expect("text");
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

/// Code and message of a failure, told at once or after some progress.
fn failure(answer: &Answer) -> (String, String) {
    let error = match answer.status.as_u16() {
        200 => last_line(answer)["error"].clone(),
        _ => answer.json(),
    };
    let text = |name: &str| error[name].as_str().expect("text").to_owned();
    (text("code"), text("message"))
}

fn uploads(server: &Server) -> usize {
    std::fs::read_dir(server.dir.path().join("uploads")).map_or(0, Iterator::count)
}

#[tokio::test]
async fn an_archive_is_imported_listed_and_removed() {
    let server = Server::with_images().await;
    let answer = import(&server, "?name=local/motd:1", root_archive("hello")).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    let image = last_line(&answer)["image"].clone();
    assert!(image["id"].as_str().is_some_and(|id| id.starts_with("sha256:")), "{image}");
    assert_eq!(uploads(&server), 0, "the upload is gone");
    let listed = server.get("/v1/images").await.json();
    assert_eq!(listed["items"], json!([image]));
    let name = image["references"][0].as_str().expect("a name").replace('/', "%2F");
    assert_eq!(server.delete(&format!("/v1/images/{name}")).await.status, 204);
    server.delete(&format!("/v1/images/{name}")).await.is(404, "IMAGE::NOT_FOUND");
    assert_eq!(server.get("/v1/images").await.json()["items"], json!([]));
    assert_eq!(server.post("/v1/images/prune", json!({})).await.status, 200);
}

#[tokio::test]
async fn what_is_no_image_is_refused_and_leaves_nothing() {
    let server = Server::with_images().await;
    let (code, message) = failure(&import(&server, "", b"nonsense".to_vec()).await);
    assert_eq!(code, "IMAGE::REFUSED");
    assert!(message.starts_with("the upload is neither"), "{message}");
    assert_eq!(uploads(&server), 0);
    assert_eq!(server.get("/v1/images").await.json()["items"], json!([]));
}

#[tokio::test]
async fn a_pull_that_fails_says_why() {
    let server = Server::with_images().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let closed = listener.local_addr().expect("bound");
    drop(listener);
    let answer = server.post("/v1/images/pull", json!({ "uri": format!("{closed}/a:1") })).await;
    let (code, message) = failure(&answer);
    assert_eq!(code, "IMAGE::REGISTRY_FAILED");
    assert!(message.contains(&closed.to_string()), "{message}");
    server.post("/v1/images/pull", json!({ "uri": "NOT VALID" })).await.is(400, "SANDBOX::INVALID_PARAMETER");
    assert_eq!(server.post("/v1/images/pull", json!({ "url": "x" })).await.status, 422);
}

#[tokio::test]
async fn a_server_without_a_store_says_so() {
    let server = Server::start().await;
    server.get("/v1/images").await.is(501, "IMAGE::NOT_SUPPORTED");
}
