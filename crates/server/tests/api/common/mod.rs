//! A real server over TCP, with the fake runtime behind it.

pub mod execd;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use lifecycle::fake::FakeRuntime;
use lifecycle::spec::SandboxId;
use secrecy::SecretString;
use serde_json::{Value, json};
use server::{Config, Database, Options};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub const KEY: &str = "test-key";
pub const SECRET: [u8; 32] = [7; 32];
/// Upper bound of every wait in these tests.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Server {
    pub address: SocketAddr,
    pub runtime: FakeRuntime,
    pub dir: Arc<tempfile::TempDir>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), server::Error>>,
}

impl Server {
    pub async fn start() -> Self {
        Self::with(Config::default()).await
    }

    pub async fn with(config: Config) -> Self {
        let dir = Arc::new(tempfile::tempdir().expect("a directory"));
        let runtime = FakeRuntime::new(dir.path());
        Self::again(config, runtime, dir).await
    }

    /// A server with an image store of its own, in `<dir>/images`.
    pub async fn with_images() -> Self {
        let dir = Arc::new(tempfile::tempdir().expect("a directory"));
        let runtime = FakeRuntime::new(dir.path());
        let unpacker =
            image::InProcess::open(&dir.path().join("layers"), image::unpack::Limits::default()).expect("a layer area");
        let images = image::Store::open(&dir.path().join("images"), Arc::new(unpacker)).await.expect("a store");
        Self::launch(Config::default(), runtime, dir, Some(images), None).await
    }

    /// A server that asks this egress process.
    pub async fn with_egress(egress: server::Egress) -> Self {
        let dir = Arc::new(tempfile::tempdir().expect("a directory"));
        let runtime = FakeRuntime::new(dir.path());
        Self::launch(Config::default(), runtime, dir, None, Some(egress)).await
    }

    /// A server on the records and the machine of an earlier one, that asks this egress process.
    pub async fn again_with_egress(runtime: FakeRuntime, dir: Arc<tempfile::TempDir>, egress: server::Egress) -> Self {
        Self::launch(Config::default(), runtime, dir, None, Some(egress)).await
    }

    /// A server on the records and the machine of an earlier one.
    pub async fn again(config: Config, runtime: FakeRuntime, dir: Arc<tempfile::TempDir>) -> Self {
        Self::launch(config, runtime, dir, None, None).await
    }

    async fn launch(
        config: Config,
        runtime: FakeRuntime,
        dir: Arc<tempfile::TempDir>,
        images: Option<image::Store>,
        egress: Option<server::Egress>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (stop, stopped) = oneshot::channel::<()>();
        let options = Options {
            egress,
            config,
            api_key: SecretString::from(KEY),
            secret: SECRET,
            database: Database::File(database(dir.path())),
            leased: false,
        };
        let shared: Arc<dyn lifecycle::runtime::Runtime> = Arc::new(runtime.clone());
        let task = tokio::spawn(server::serve(options, shared, images, listener, async {
            let _ = stopped.await;
        }));
        Self { address, runtime, dir, stop: Some(stop), task }
    }

    pub async fn stop(mut self) -> (FakeRuntime, Arc<tempfile::TempDir>) {
        let _ = self.stop.take().expect("stopped once").send(());
        tokio::time::timeout(PATIENCE, &mut self.task).await.expect("stops").expect("no panic").expect("no error");
        (self.runtime.clone(), self.dir.clone())
    }

    /// Stops and starts again with the same records.
    pub async fn restart(self) -> Self {
        let (runtime, dir) = self.stop().await;
        Self::again(Config::default(), runtime, dir).await
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        send(self.address, request).await
    }

    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.address.to_string())
            .header("OPEN-SANDBOX-API-KEY", KEY)
            .body(Full::new(body))
            .expect("a request");
        self.send(request).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.call(Method::POST, path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.call(Method::DELETE, path, None).await
    }

    /// Creates a sandbox and waits until it is no longer `Pending`.
    pub async fn create(&self, changes: Value) -> String {
        let answer = self.post("/v1/sandboxes?wait=20", body_with(changes)).await;
        assert_eq!(answer.status, 202, "{:?}", answer.json());
        answer.json()["id"].as_str().expect("an id").to_owned()
    }

    pub async fn state(&self, id: &str) -> String {
        let answer = self.get(&format!("/v1/sandboxes/{id}")).await;
        match answer.status.as_u16() {
            200 => answer.json()["status"]["state"].as_str().expect("a state").to_owned(),
            404 => "gone".to_owned(),
            other => panic!("{other}: {:?}", answer.json()),
        }
    }

    /// Polls until the sandbox is in this state.
    pub async fn reaches(&self, id: &str, state: &str) {
        let seen = tokio::time::timeout(PATIENCE, async {
            while self.state(id).await != state {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(seen.await.is_ok(), "{id} is {} and not {state}", self.state(id).await);
    }

    /// Polls until something holds.
    pub async fn wait_until(&self, holds: impl AsyncFn() -> bool) {
        let seen = tokio::time::timeout(PATIENCE, async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(seen.await.is_ok(), "it does not hold in time");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn database(dir: &Path) -> PathBuf {
    dir.join("osb.db")
}

pub fn id(text: &str) -> SandboxId {
    SandboxId::parse(text).expect("an id")
}

/// A create body that is fine, with changes; `null` removes a field.
pub fn body_with(changes: Value) -> Value {
    let mut body = json!({
        "image": { "uri": "host" },
        "entrypoint": ["tail", "-f", "/dev/null"],
        "resourceLimits": { "cpu": "1", "memory": "512Mi" },
        "timeout": 600,
    });
    for (name, value) in changes.as_object().expect("an object") {
        if value.is_null() {
            body.as_object_mut().expect("an object").remove(name);
        } else {
            body[name] = value.clone();
        }
    }
    body
}

/// The token that the server gives a sandbox.
pub fn token(id: &str) -> String {
    use base64::Engine as _;
    use hmac::{Hmac, KeyInit as _, Mac as _};
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&SECRET).expect("any key");
    mac.update(id.as_bytes());
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    pub fn code(&self) -> String {
        self.json()["code"].as_str().expect("a code").to_owned()
    }

    pub fn message(&self) -> String {
        self.json()["message"].as_str().expect("a message").to_owned()
    }

    #[track_caller]
    pub fn is(&self, status: u16, code: &str) {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{text}");
        assert_eq!(self.code(), code, "{text}");
    }
}

/// One request on a connection of its own.
pub async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    tokio::time::timeout(PATIENCE, async {
        let stream = TcpStream::connect(address).await.expect("connects");
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
        let connection = tokio::spawn(connection);
        let response = sender.send_request(request).await.expect("an answer");
        let (head, body) = response.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        drop(sender);
        let _ = connection.await;
        Answer { status: head.status, headers: head.headers, body }
    })
    .await
    .expect("the answer comes in time")
}
