//! A server for the program under test: the lifecycle API in a few lines, and the real daemon behind it.
//!
//! The daemon is the one that the program carries. Sandboxes all share it, since the tests are about the client.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

/// The key that the server asks for.
pub const KEY: &str = "test-key";
/// The token that the daemon asks for.
pub const TOKEN: &str = "test-token";

/// What the server knows.
#[derive(Default)]
pub struct Memory {
    /// Sandboxes by id, as the API shows them.
    pub sandboxes: BTreeMap<String, Value>,
    /// Every request: method, path with query, body.
    pub requests: Vec<(String, String, String)>,
    /// The daemon's address.
    pub execd: String,
    /// What the next look-ups of an endpoint answer, first to last.
    pub look_ups: Vec<(StatusCode, Value)>,
    /// How many sandboxes were made.
    pub made: usize,
}

type Shared = Arc<Mutex<Memory>>;

/// A running server with its daemon; both end with it.
pub struct Server {
    /// `127.0.0.1:port`.
    pub address: String,
    /// What the server knows.
    pub memory: Shared,
    /// A directory for the program under test: its home, and for files.
    pub home: tempfile::TempDir,
    execd: Child,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Server {
    /// Starts both.
    pub fn start() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let (execd, execd_address) = start_execd(&home);
        let memory = Arc::new(Mutex::new(Memory { execd: execd_address, ..Memory::default() }));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let (tell, told) = mpsc::channel();
        let app = router(memory.clone());
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            tell.send(listener.local_addr().expect("is bound").to_string()).expect("somebody waits");
            axum::serve(listener, app).await.expect("serves");
        });
        let address = told.recv().expect("is told");
        Self { address, memory, home, execd, runtime: Some(runtime) }
    }

    /// The program with these words, for this server.
    pub fn osb(&self, words: &[&str]) -> Command {
        let mut command = plain(self.home.path());
        command.env("OPEN_SANDBOX_DOMAIN", &self.address).env("OPEN_SANDBOX_API_KEY", KEY).args(words);
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, words: &[&str]) -> Ran {
        Ran::of(self.osb(words).output().expect("starts"))
    }

    /// Runs the program with this on its standard input.
    pub fn run_with_input(&self, words: &[&str], input: &[u8]) -> Ran {
        let mut command = self.osb(words);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        let mut stdin = child.stdin.take().expect("is piped");
        let input = input.to_vec();
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().expect("ends");
        let _ = writer.join(); // the program may end without reading all of it
        Ran::of(output)
    }

    /// A sandbox that runs.
    pub fn sandbox(&self) -> String {
        let mut memory = self.memory.lock().expect("nobody panicked");
        make(&mut memory, &json!({ "image": { "uri": "host" }, "entrypoint": ["tail"] }))
    }

    /// The bodies of the requests of this method to this path.
    pub fn bodies(&self, method: &str, path: &str) -> Vec<String> {
        let memory = self.memory.lock().expect("nobody panicked");
        let wanted = memory.requests.iter().filter(|(m, p, _)| m == method && p == path);
        wanted.map(|(_, _, body)| body.clone()).collect()
    }

    /// Every request as `METHOD path`.
    pub fn calls(&self) -> Vec<String> {
        let memory = self.memory.lock().expect("nobody panicked");
        memory.requests.iter().map(|(method, path, _)| format!("{method} {path}")).collect()
    }

    /// Ids of the sandboxes that exist.
    pub fn ids(&self) -> Vec<String> {
        self.memory.lock().expect("nobody panicked").sandboxes.keys().cloned().collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.execd.kill(); // it may have ended by itself
        let _ = self.execd.wait();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The program without any server, with this home.
pub fn plain(home: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_osb"));
    command.env_clear().env("HOME", home).env("OSB_DATA_DIR", home.join("data")).env("PATH", "/usr/bin:/bin");
    command.stdin(Stdio::null()).current_dir(home);
    command
}

/// How the program ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub bytes: Vec<u8>,
}

impl Ran {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            bytes: output.stdout,
        }
    }

    /// Standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Standard error as JSON.
    pub fn error(&self) -> Value {
        serde_json::from_str(&self.stderr).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

fn start_execd(home: &tempfile::TempDir) -> (Child, String) {
    let mut child = Command::new(concat!(env!("OUT_DIR"), "/execd"))
        .args(["--host", "127.0.0.1", "--port", "0", "--access-token", TOKEN])
        .current_dir(home.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the daemon starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("is piped")).read_line(&mut line).expect("it tells its address");
    (child, line.trim().to_owned())
}

fn router(memory: Shared) -> Router {
    Router::new()
        .route("/health", get(|| async { axum::Json(json!({ "status": "healthy" })) }))
        .route("/v1/sandboxes", post(create).get(list))
        .route("/v1/sandboxes/{id}", get(one).delete(remove))
        .route("/v1/sandboxes/{id}/metadata", axum::routing::patch(metadata))
        .route("/v1/sandboxes/{id}/pause", post(accepted))
        .route("/v1/sandboxes/{id}/resume", post(accepted))
        .route("/v1/sandboxes/{id}/renew-expiration", post(renew))
        .route("/v1/sandboxes/{id}/endpoints/{port}", get(endpoint))
        .route("/v1/sandboxes/{id}/diagnostics/{kind}", get(diagnostics))
        .fallback(|| async { refuse(StatusCode::NOT_FOUND, "SANDBOX::ROUTE_NOT_FOUND", "no such route") })
        .with_state(memory)
}

fn refuse(status: StatusCode, code: &str, message: &str) -> Response {
    (status, [("x-request-id", "request-1")], axum::Json(json!({ "code": code, "message": message }))).into_response()
}

/// Records a request and refuses one without the key.
fn admit(memory: &Shared, method: &Method, uri: &Uri, headers: &HeaderMap, body: &str) -> Result<(), Box<Response>> {
    let mut memory = memory.lock().expect("nobody panicked");
    memory.requests.push((method.to_string(), uri.to_string(), body.to_owned()));
    match headers.get("open-sandbox-api-key") {
        Some(key) if key == KEY => Ok(()),
        Some(_) => {
            Err(Box::new(refuse(StatusCode::UNAUTHORIZED, "INVALID_API_KEY", "the API key is not this server's")))
        }
        None => Err(Box::new(refuse(StatusCode::UNAUTHORIZED, "MISSING_API_KEY", "no API key was sent"))),
    }
}

fn make(memory: &mut Memory, request: &Value) -> String {
    memory.made += 1;
    let id = format!("box-{}", memory.made);
    let mut sandbox = json!({
        "id": id,
        "status": { "state": "Running", "reason": "RUNNING" },
        "entrypoint": request["entrypoint"],
        "createdAt": "2026-01-01T00:00:00Z",
    });
    for name in ["image", "metadata"] {
        if let Some(value) = request.get(name) {
            sandbox[name] = value.clone();
        }
    }
    memory.sandboxes.insert(id.clone(), sandbox);
    id
}

async fn create(State(memory): State<Shared>, method: Method, uri: Uri, headers: HeaderMap, body: String) -> Response {
    if let Err(refusal) = admit(&memory, &method, &uri, &headers, &body) {
        return *refusal;
    }
    let request: Value = serde_json::from_str(&body).expect("the client sends JSON");
    if request["image"]["uri"] == "refused" {
        return refuse(StatusCode::BAD_REQUEST, "SANDBOX::INVALID_PARAMETER", "image.uri: refused");
    }
    let mut memory = memory.lock().expect("nobody panicked");
    let id = make(&mut memory, &request);
    (StatusCode::ACCEPTED, axum::Json(memory.sandboxes[&id].clone())).into_response()
}

async fn list(State(memory): State<Shared>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    if let Err(refusal) = admit(&memory, &method, &uri, &headers, "") {
        return *refusal;
    }
    let memory = memory.lock().expect("nobody panicked");
    let items: Vec<_> = memory.sandboxes.values().cloned().collect();
    let pagination =
        json!({ "page": 1, "pageSize": 20, "totalItems": items.len(), "totalPages": 1, "hasNextPage": false });
    axum::Json(json!({ "items": items, "pagination": pagination })).into_response()
}

/// The sandbox of a request, or its refusal.
fn found(memory: &Shared, id: &str) -> Result<Value, Box<Response>> {
    let memory = memory.lock().expect("nobody panicked");
    memory.sandboxes.get(id).cloned().ok_or_else(|| {
        Box::new(refuse(StatusCode::NOT_FOUND, "SANDBOX::SANDBOX_NOT_FOUND", &format!("sandbox {id} does not exist")))
    })
}

async fn one(
    State(memory): State<Shared>,
    Path(id): Path<String>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    match admit(&memory, &method, &uri, &headers, "").and_then(|()| found(&memory, &id)) {
        Ok(sandbox) => axum::Json(sandbox).into_response(),
        Err(refusal) => *refusal,
    }
}

async fn remove(
    State(memory): State<Shared>,
    Path(id): Path<String>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    if let Err(refusal) = admit(&memory, &method, &uri, &headers, "").and_then(|()| found(&memory, &id)) {
        return *refusal;
    }
    memory.lock().expect("nobody panicked").sandboxes.remove(&id);
    StatusCode::NO_CONTENT.into_response()
}

async fn metadata(
    State(memory): State<Shared>,
    Path(id): Path<String>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: String,
) -> Response {
    match admit(&memory, &method, &uri, &headers, &body).and_then(|()| found(&memory, &id)) {
        Ok(sandbox) => axum::Json(sandbox).into_response(),
        Err(refusal) => *refusal,
    }
}

async fn accepted(
    State(memory): State<Shared>,
    Path(id): Path<String>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    match admit(&memory, &method, &uri, &headers, "").and_then(|()| found(&memory, &id)) {
        Ok(_) => StatusCode::ACCEPTED.into_response(),
        Err(refusal) => *refusal,
    }
}

async fn renew(
    State(memory): State<Shared>,
    Path(id): Path<String>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: String,
) -> Response {
    if let Err(refusal) = admit(&memory, &method, &uri, &headers, &body).and_then(|()| found(&memory, &id)) {
        return *refusal;
    }
    let request: Value = serde_json::from_str(&body).expect("the client sends JSON");
    axum::Json(json!({ "expiresAt": request["expiresAt"] })).into_response()
}

async fn endpoint(
    State(memory): State<Shared>,
    Path((id, port)): Path<(String, u16)>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    if let Err(refusal) = admit(&memory, &method, &uri, &headers, "").and_then(|()| found(&memory, &id)) {
        return *refusal;
    }
    let mut memory = memory.lock().expect("nobody panicked");
    if !memory.look_ups.is_empty() {
        let (status, body) = memory.look_ups.remove(0);
        return (status, axum::Json(body)).into_response();
    }
    let address = if port == 44772 { memory.execd.clone() } else { format!("127.0.0.1:{port}") };
    axum::Json(json!({ "endpoint": address, "headers": { "X-EXECD-ACCESS-TOKEN": TOKEN } })).into_response()
}

async fn diagnostics(
    State(memory): State<Shared>,
    Path((id, kind)): Path<(String, String)>,
    Query(query): Query<BTreeMap<String, String>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    if let Err(refusal) = admit(&memory, &method, &uri, &headers, "").and_then(|()| found(&memory, &id)) {
        return *refusal;
    }
    axum::Json(json!({ "sandboxId": id, "kind": kind, "scope": query["scope"], "content": "line one\nline two" }))
        .into_response()
}
