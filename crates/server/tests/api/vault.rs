//! The credential vault as clients see it, with a real egress process in a thread of the test; what it does to requests needs
//! a kernel and an origin (`e2e/python`).

use std::os::fd::{AsFd as _, OwnedFd};
use std::thread::JoinHandle;

use crate::common::{KEY, Server, token};
use bytes::Bytes;
use egress::{Boot, Control, Memory};
use http::{Method, Request};
use http_body_util::Full;
use lifecycle::fake::Call;
use lifecycle::runtime::ErrorKind;
use serde_json::{Value, json};
use tokio::sync::watch;

const VALUE: &str = "planted-secret-value";

/// Egress processes, one after the other, as their supervisor has them.
struct Supervisor {
    memory: Memory,
    control: Control,
    restarts: watch::Sender<u64>,
    thread: Option<JoinHandle<()>>,
    /// The present one ends with this.
    socket: Option<OwnedFd>,
}

impl Supervisor {
    fn start() -> (Self, server::Egress) {
        Self::start_with(Memory::new().expect("a memory file"))
    }

    fn start_with(memory: Memory) -> (Self, server::Egress) {
        let (socket, thread) = begin(&memory);
        let control = Control::new(socket.try_clone().expect("a descriptor")).expect("a control");
        let (restarts, heard) = watch::channel(0);
        let egress = server::Egress { control: control.clone(), restarts: heard };
        (Self { memory, control, restarts, thread: Some(thread), socket: Some(socket) }, egress)
    }

    /// Another process in place of the present one.
    async fn restart(&mut self) {
        // The control has the last duplicate of the socket of the one that ends.
        let (socket, thread) = begin(&self.memory);
        let before = self.thread.replace(thread);
        self.socket = Some(socket.try_clone().expect("a descriptor"));
        self.control.replace(socket).expect("a control");
        let ended = tokio::task::spawn_blocking(move || before.map(JoinHandle::join));
        assert!(ended.await.expect("no panic").expect("it ran").is_ok());
        self.restarts.send_modify(|count| *count += 1);
    }

    /// What the next process finds is gone, as with the end of the supervisor.
    fn lose_memory(&mut self) {
        self.replace_memory(Memory::new().expect("a memory file"));
    }

    fn replace_memory(&mut self, memory: Memory) {
        self.memory = memory;
    }

    fn egress(&self) -> server::Egress {
        server::Egress { control: self.control.clone(), restarts: self.restarts.subscribe() }
    }
}

fn begin(memory: &Memory) -> (OwnedFd, JoinHandle<()>) {
    let (ours, theirs) = egress::pair().expect("a pair");
    egress::boot(ours.as_fd(), &Boot::default(), Some(memory)).expect("it listens");
    (
        ours,
        std::thread::spawn(move || {
            egress::run(theirs);
        }),
    )
}

fn with_proxy() -> Value {
    let rule = |target: &str| json!({ "action": "allow", "target": target });
    json!({
        "credentialProxy": { "enabled": true },
        "networkPolicy": { "defaultAction": "deny", "egress": [rule("api.example.com"), rule("*.example.org")] },
    })
}

fn token_credential(value: &str) -> Value {
    json!({ "name": "token", "source": { "type": "inline", "value": value } })
}

fn filled() -> Value {
    json!({
        "credentials": [token_credential(VALUE)],
        "bindings": [{
            "name": "api",
            "match": { "hosts": ["api.example.com"] },
            "auth": { "type": "apiKey", "name": "x-key", "credential": "token" },
        }],
    })
}

fn vault(id: &str) -> String {
    format!("/sandboxes/{id}/proxy/18080/credential-vault")
}

async fn patch(server: &Server, id: &str, body: Value) -> crate::common::Answer {
    server.call(Method::PATCH, &vault(id), Some(body)).await
}

#[tokio::test]
async fn a_vault_is_made_changed_read_and_deleted_as_published() {
    let (_supervisor, egress) = Supervisor::start();
    let server = Server::with_egress(egress).await;
    let id = server.create(with_proxy()).await;
    let pem = server.runtime.authority(&crate::common::id(&id)).expect("its programs trust it");
    assert!(pem.starts_with("-----BEGIN CERTIFICATE-----"));
    let at = vault(&id);
    server.get(&at).await.is(404, "SANDBOX::CREDENTIAL_VAULT_NOT_FOUND");
    assert_eq!(server.get(&at).await.message(), "credential vault not found");
    patch(&server, &id, json!({})).await.is(404, "SANDBOX::CREDENTIAL_VAULT_NOT_FOUND");
    server.delete(&at).await.is(404, "SANDBOX::CREDENTIAL_VAULT_NOT_FOUND");

    let made = server.post(&at, filled()).await;
    assert_eq!(made.status, 201, "{:?}", made.body);
    let credential = json!({ "name": "token", "sourceType": "inline", "revision": 1 });
    assert_eq!(made.json()["revision"], 1);
    assert_eq!(made.json()["credentials"], json!([credential]));
    assert_eq!(made.json()["bindings"][0]["auth"], json!({ "type": "apiKey", "name": "X-Key" }));
    let again = server.post(&at, filled()).await;
    again.is(409, "SANDBOX::CREDENTIAL_VAULT_CONFLICT");
    assert_eq!(again.message(), "credential vault already exists");

    patch(&server, &id, json!({ "expectedRevision": 5 })).await.is(409, "SANDBOX::CREDENTIAL_VAULT_CONFLICT");
    let changed = patch(&server, &id, json!({ "credentials": { "replace": [token_credential("other")] } })).await;
    assert_eq!((changed.status.as_u16(), &changed.json()["revision"]), (200, &2.into()));
    patch(&server, &id, json!({ "credentials": { "delete": ["token"] } }))
        .await
        .is(400, "SANDBOX::CREDENTIAL_VAULT_INVALID");

    let read = server.get(&at).await;
    assert_eq!((read.status.as_u16(), read.json()), (200, changed.json()));
    let list = server.get(&format!("{at}/credentials")).await.json();
    assert_eq!(
        list,
        json!({ "revision": 2, "credentials": [{ "name": "token", "sourceType": "inline", "revision": 2 }] })
    );
    assert_eq!(server.get(&format!("{at}/bindings")).await.json()["bindings"][0]["name"], "api");
    assert_eq!(server.get(&format!("{at}/credentials/token")).await.json()["revision"], 2);
    assert_eq!(server.get(&format!("{at}/bindings/%61pi")).await.json()["match"]["hosts"], json!(["api.example.com"]));
    for missing in ["credentials/none", "bindings/none", "credentials/%zz"] {
        server.get(&format!("{at}/{missing}")).await.is(404, "SANDBOX::CREDENTIAL_VAULT_NOT_FOUND");
    }
    assert_eq!(server.delete(&at).await.status, 204);
    server.get(&at).await.is(404, "SANDBOX::CREDENTIAL_VAULT_NOT_FOUND");
    assert_eq!(server.post(&at, filled()).await.json()["revision"], 1);
}

#[tokio::test]
async fn a_vault_needs_a_sandbox_that_was_made_for_it_and_the_order_of_checks_is_the_published_one() {
    let (_supervisor, egress) = Supervisor::start();
    let server = Server::with_egress(egress).await;
    let policy = json!({ "networkPolicy": {} });
    let plain = server.create(policy).await;
    assert_eq!(server.runtime.authority(&crate::common::id(&plain)), None);
    let broken = json!("no request");
    server.post(&vault(&plain), broken.clone()).await.is(412, "SANDBOX::CREDENTIAL_VAULT_NOT_READY");
    patch(&server, &plain, broken.clone()).await.is(412, "SANDBOX::CREDENTIAL_VAULT_NOT_READY");
    server.get(&vault(&plain)).await.is(404, "SANDBOX::CREDENTIAL_VAULT_NOT_FOUND");
    server.delete(&vault(&plain)).await.is(404, "SANDBOX::CREDENTIAL_VAULT_NOT_FOUND");
    let id = server.create(with_proxy()).await;
    server.post(&vault(&id), broken).await.is(400, "SANDBOX::CREDENTIAL_VAULT_INVALID");
    let large = json!({ "credentials": [token_credential(&"x".repeat(1 << 20))], "bindings": [] });
    server.post(&vault(&id), large).await.is(400, "SANDBOX::INVALID_REQUEST_BODY");
    let put = server.call(Method::PUT, &vault(&id), Some(json!({}))).await;
    put.is(405, "SANDBOX::METHOD_NOT_ALLOWED");
    assert_eq!(put.headers["allow"], "GET, POST, PATCH, DELETE");
    let read_only = server.delete(&format!("{}/credentials/token", vault(&id))).await;
    read_only.is(405, "SANDBOX::METHOD_NOT_ALLOWED");
    server.get(&format!("{}/nonsense", vault(&id))).await.is(404, "SANDBOX::ROUTE_NOT_FOUND");
    let without = async |path: &str, name: &str, value: &str| {
        let request = Request::get(path).header("host", server.address.to_string()).header(name, value);
        server.send(request.body(Full::new(Bytes::new())).expect("a request")).await.status.as_u16()
    };
    assert_eq!(without(&vault(&id), "accept", "*/*").await, 401);
    assert_eq!(without(&vault(&id), "OPENSANDBOX-EGRESS-AUTH", &token(&id)).await, 404);
    assert_eq!(without(&format!("{}/_active", vault(&id)), "accept", "*/*").await, 403, "before any other check");
}

#[tokio::test]
async fn a_create_with_the_proxy_needs_a_policy_and_a_network() {
    let (_supervisor, egress) = Supervisor::start();
    let server = Server::with_egress(egress).await;
    let proxy = json!({ "credentialProxy": { "enabled": true } });
    assert_eq!(server.post("/v1/sandboxes", crate::common::body_with(proxy)).await.status, 422);
    assert_eq!(server.get("/v1/capabilities").await.json()["features"]["credentialProxy"], true);
    let nowhere = Server::start().await;
    let refused = nowhere.post(
        "/v1/sandboxes",
        crate::common::body_with(json!({
            "credentialProxy": { "enabled": true }, "networkPolicy": {},
        })),
    );
    let refused = refused.await;
    refused.is(400, "SANDBOX::API_NOT_SUPPORTED");
    assert!(refused.message().starts_with("credentialProxy:"), "{}", refused.message());
    assert_eq!(nowhere.get("/v1/capabilities").await.json()["features"]["credentialProxy"], false);
}

#[tokio::test]
async fn a_policy_that_would_uncover_a_binding_is_refused_before_it_is_stored() {
    let (_supervisor, egress) = Supervisor::start();
    let server = Server::with_egress(egress).await;
    let id = server.create(with_proxy()).await;
    assert_eq!(server.post(&vault(&id), filled()).await.status, 201);
    let at = format!("/sandboxes/{id}/proxy/18080/policy");
    let before = server.get(&at).await.json();
    let deny = json!([{ "action": "deny", "target": "api.example.com" }]);
    for (method, body) in [
        (Method::POST, Some(json!({}))),
        (Method::PUT, Some(json!({ "egress": [] }))),
        (Method::PATCH, Some(deny)),
        (Method::DELETE, Some(json!(["api.example.com"]))),
    ] {
        let refused = server.call(method, &at, body).await;
        refused.is(400, "SANDBOX::CREDENTIAL_VAULT_INVALID");
        assert!(refused.message().starts_with("credential vault policy validation: "), "{}", refused.message());
        assert_eq!(server.get(&at).await.json(), before);
    }
    assert_eq!(server.call(Method::DELETE, &at, Some(json!(["*.example.org"]))).await.status, 200);
    let unreachable = json!({ "bindings": { "add": [{
        "name": "more", "match": { "hosts": ["*.example.org"] }, "auth": { "type": "bearer", "credential": "token" },
    }] } });
    patch(&server, &id, unreachable).await.is(400, "SANDBOX::CREDENTIAL_VAULT_INVALID");
    assert_eq!(server.delete(&vault(&id)).await.status, 204);
    assert_eq!(server.call(Method::POST, &at, Some(json!({}))).await.status, 200);
}

#[tokio::test]
async fn a_vault_outlives_the_egress_process_and_the_server() {
    let (mut supervisor, egress) = Supervisor::start();
    let server = Server::with_egress(egress).await;
    let id = server.create(with_proxy()).await;
    let made = server.post(&vault(&id), filled()).await.json();
    supervisor.restart().await;
    assert_eq!(until_served(&server, &id).await, made);
    assert_eq!(patch(&server, &id, json!({})).await.json()["revision"], 2);
    let pem = server.runtime.authority(&crate::common::id(&id));
    let (runtime, dir) = server.stop().await;
    let server = Server::again_with_egress(runtime, dir, supervisor.egress()).await;
    assert_eq!(until_served(&server, &id).await["revision"], 2);
    supervisor.restart().await;
    assert_eq!(until_served(&server, &id).await["revision"], 2);
    assert_eq!(server.runtime.authority(&crate::common::id(&id)), pem);
    let uncovering = server.call(Method::PUT, &format!("/v1/sandboxes/{id}/networkpolicy"), Some(json!({}))).await;
    uncovering.is(400, "SANDBOX::CREDENTIAL_VAULT_INVALID");
}

#[tokio::test]
async fn when_all_who_held_it_are_gone_the_vault_is_lost_and_says_so_until_it_is_deleted() {
    let (mut supervisor, egress) = Supervisor::start();
    let server = Server::with_egress(egress).await;
    let id = server.create(with_proxy()).await;
    assert_eq!(server.post(&vault(&id), filled()).await.status, 201);
    supervisor.lose_memory();
    supervisor.restart().await;
    let lost = async {
        while server.get(&vault(&id)).await.status == 503 {
            tokio::task::yield_now().await;
        }
        server.get(&vault(&id)).await
    };
    let lost = tokio::time::timeout(crate::common::PATIENCE, lost).await.expect("in time");
    lost.is(404, "SANDBOX::CREDENTIAL_VAULT_LOST");
    assert!(lost.message().contains("was lost"), "{}", lost.message());
    server.post(&vault(&id), filled()).await.is(412, "SANDBOX::CREDENTIAL_VAULT_NOT_READY");
    patch(&server, &id, json!({})).await.is(404, "SANDBOX::CREDENTIAL_VAULT_LOST");
    assert_eq!(server.delete(&vault(&id)).await.status, 204);
    server.get(&vault(&id)).await.is(404, "SANDBOX::CREDENTIAL_VAULT_NOT_FOUND");
    let opened = server.call(Method::PUT, &format!("/v1/sandboxes/{id}/networkpolicy"), Some(json!({}))).await;
    assert_eq!(opened.status, 200, "no binding holds the policy any more");
}

#[tokio::test]
async fn where_authorities_outlive_everybody_a_lost_vault_is_filled_again() {
    let memory = || Memory::new().expect("a memory file").for_authorities([5; 32]);
    let (mut supervisor, egress) = Supervisor::start_with(memory());
    let server = Server::with_egress(egress).await;
    let (filled_before, empty) = (server.create(with_proxy()).await, server.create(with_proxy()).await);
    assert_eq!(server.post(&vault(&filled_before), filled()).await.status, 201);
    let (runtime, dir) = server.stop().await;
    supervisor.replace_memory(memory());
    supervisor.restart().await;
    let server = Server::again_with_egress(runtime, dir, supervisor.egress()).await;
    let known = async {
        while server.get(&vault(&filled_before)).await.status == 503 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::common::PATIENCE, known).await.expect("in time");
    server.get(&vault(&filled_before)).await.is(404, "SANDBOX::CREDENTIAL_VAULT_LOST");
    for id in [&filled_before, &empty] {
        assert_eq!(server.post(&vault(id), filled()).await.status, 201);
        assert_eq!(server.get(&vault(id)).await.json()["revision"], 1);
    }
}

#[tokio::test]
async fn a_deleted_sandbox_and_one_that_could_not_be_made_are_forgotten() {
    let (supervisor, egress) = Supervisor::start();
    let server = Server::with_egress(egress).await;
    let id = server.create(with_proxy()).await;
    assert_eq!(server.post(&vault(&id), filled()).await.status, 201);
    assert_eq!(supervisor.control.stats().await.expect("stats").kept, std::slice::from_ref(&id));
    assert_eq!(server.delete(&format!("/v1/sandboxes/{id}")).await.status, 204);
    assert!(supervisor.control.stats().await.expect("stats").kept.is_empty());
    server.runtime.fail_next(Call::Create, ErrorKind::Internal, "no room");
    let failed = server.create(with_proxy()).await;
    assert_eq!(server.state(&failed).await, "Failed");
    let forgotten = async {
        while !supervisor.control.stats().await.expect("stats").kept.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::common::PATIENCE, forgotten).await.expect("in time");
}

#[tokio::test]
async fn bindings_must_be_scoped_and_secrets_encrypted_where_the_create_says_so() {
    let (_supervisor, egress) = Supervisor::start();
    let server = Server::with_egress(egress).await;
    let with = |name: &str, value: &str| {
        let mut body = with_proxy();
        body["env"] = json!({ format!("OPENSANDBOX_EGRESS_CREDENTIAL_VAULT_{name}"): value });
        body
    };
    let scoped = server.create(with("REQUIRE_SCOPED_MATCH", "true")).await;
    server.post(&vault(&scoped), filled()).await.is(400, "SANDBOX::CREDENTIAL_VAULT_INVALID");
    let mut body = with("REQUIRE_TLS", "on");
    body["env"]["OPENSANDBOX_EGRESS_CREDENTIAL_VAULT_TRUSTED_PROXY_CIDRS"] = json!("127.0.0.0/8, ::1");
    let trusting = server.create(body).await;
    let trusting_nobody = server.create(with("REQUIRE_TLS", "on")).await;
    let post = async |id: &str, proto: &str| {
        let request = Request::post(vault(id))
            .header("host", server.address.to_string())
            .header("OPEN-SANDBOX-API-KEY", KEY)
            .header("x-forwarded-proto", proto);
        server.send(request.body(Full::new(Bytes::from(filled().to_string()))).expect("a request")).await
    };
    post(&trusting, "http").await.is(426, "SANDBOX::CREDENTIAL_VAULT_NEEDS_TLS");
    assert_eq!(post(&trusting, "https").await.status, 201);
    post(&trusting_nobody, "https").await.is(426, "SANDBOX::CREDENTIAL_VAULT_NEEDS_TLS");
    assert_eq!(server.post(&vault(&trusting_nobody), filled()).await.status, 201, "from this machine itself");
    for (name, value) in [("REQUIRE_TLS", "perhaps"), ("TRUSTED_PROXY_CIDRS", "everybody")] {
        let refused = server.post("/v1/sandboxes", crate::common::body_with(with(name, value))).await;
        assert_eq!(refused.status, 400);
        assert!(refused.message().contains(name), "{}", refused.message());
    }
}

#[tokio::test]
async fn no_value_is_in_the_database_nor_anywhere_else_beneath_the_data_directory() {
    let (_supervisor, egress) = Supervisor::start();
    let server = Server::with_egress(egress).await;
    let id = server.create(with_proxy()).await;
    assert_eq!(server.post(&vault(&id), filled()).await.status, 201);
    server.post(&vault(&id), json!({ "credentials": [VALUE] })).await.is(400, "SANDBOX::CREDENTIAL_VAULT_INVALID");
    let told = server.get(&format!("/v1/sandboxes/{id}/diagnostics/inspect")).await;
    let told = String::from_utf8(told.body.to_vec()).expect("text");
    assert!(told.contains("Credential vault: revision 1, 1 credentials, 1 bindings, 1 hosts"), "{told}");
    let events = server.get(&format!("/v1/sandboxes/{id}/network/events")).await.json();
    let event = &events["events"][0];
    assert_eq!((&event["kind"], &event["reason"], &event["revision"]), (&"vault".into(), &"created".into(), &1.into()));
    assert!(!told.contains(VALUE) && !events.to_string().contains(VALUE));
    let (_, dir) = server.stop().await;
    let mut found = 0;
    let mut directories = vec![dir.path().to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if let Ok(bytes) = std::fs::read(&path) {
                found += 1;
                assert!(!bytes.windows(VALUE.len()).any(|window| window == VALUE.as_bytes()), "{}", path.display());
            }
        }
    }
    assert!(found > 0, "the database is there");
}

/// What the vault holds, once the egress process has heard of the sandbox.
async fn until_served(server: &Server, id: &str) -> Value {
    let served = async {
        loop {
            let answer = server.get(&vault(id)).await;
            if answer.status == 200 {
                return answer.json();
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::common::PATIENCE, served).await.expect("in time")
}
