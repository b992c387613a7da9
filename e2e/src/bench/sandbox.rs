//! A sandbox, as a client of the public protocol sees it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use http_body_util::BodyExt as _;
use hyper::Method;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::client::{Connection, Payload};
use super::server::{Server, Warmth};

/// How long a state may take to arrive before the bench gives up.
const STATE: Duration = Duration::from_secs(20);

/// A sandbox that answers.
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// Path of its execd on the server.
    pub execd: String,
    headers: Vec<(String, String)>,
}

/// The body of a create, with limits under which 512 processes fit.
pub fn body() -> Value {
    json!({
        "image": { "uri": "host" },
        "entrypoint": ["sleep", "infinity"],
        "timeout": 3600,
        "resourceLimits": { "cpu": "2000m", "memory": "512Mi", "pids": "1024" },
    })
}

impl Sandbox {
    /// Creates one and waits until it answers: what the published clients do, without the ping that they add.
    ///
    /// # Errors
    /// The create fails.
    pub async fn create(connection: &mut Connection, key: &str) -> Result<Self> {
        Self::create_as(connection, key, body()).await
    }

    /// As [`Sandbox::create`], with a body of one's own.
    ///
    /// # Errors
    /// The create fails.
    pub async fn create_as(connection: &mut Connection, key: &str, body: Value) -> Result<Self> {
        let auth = [("open-sandbox-api-key", key)];
        let created = connection.json(Method::POST, "/v1/sandboxes", &auth, body).await?;
        let id = created["id"].as_str().context("a create answers an id")?.to_owned();
        let (execd, headers) = endpoint(connection, key, &id, 44772).await?;
        Ok(Self { id, execd, headers })
    }

    /// Starts a command; the answer is its stream.
    ///
    /// # Errors
    /// It is refused.
    pub async fn command(&self, connection: &mut Connection, command: &str) -> Result<Incoming> {
        self.post(connection, &json!({ "command": command })).await
    }

    /// As [`Sandbox::command`], with a body of one's own.
    ///
    /// # Errors
    /// It is refused.
    pub async fn post(&self, connection: &mut Connection, body: &Value) -> Result<Incoming> {
        connection.stream(&format!("{}/command", self.execd), &self.headers(), body).await
    }

    /// Runs a command to its end and returns what it wrote to its standard output.
    ///
    /// # Errors
    /// It does not end with 0.
    pub async fn run(&self, connection: &mut Connection, command: &str) -> Result<String> {
        let stream = super::client::whole(self.command(connection, command).await?).await?;
        let text = String::from_utf8_lossy(&stream);
        let mut output = String::new();
        let mut complete = false;
        for event in text.split("\n\n").filter(|event| !event.trim().is_empty()) {
            let event: Value = serde_json::from_str(event).with_context(|| format!("event {event}"))?;
            match event["type"].as_str() {
                Some("stdout") => output.push_str(event["text"].as_str().unwrap_or_default()),
                Some("execution_complete") => complete = true,
                Some("error") => bail!("`{command}` failed: {event}"),
                _ => {}
            }
        }
        ensure!(complete, "`{command}` has no end: {text}");
        Ok(output)
    }

    /// The headers that its execd asks for.
    pub fn headers(&self) -> Vec<(&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    /// Where a port of it is reached.
    ///
    /// # Errors
    /// The look-up fails.
    pub async fn port(
        &self,
        connection: &mut Connection,
        key: &str,
        port: u16,
    ) -> Result<(String, Vec<(String, String)>)> {
        endpoint(connection, key, &self.id, port).await
    }

    /// Asks for a change of state and waits until the state says so.
    ///
    /// # Errors
    /// It is refused or does not arrive.
    pub async fn turn(&self, connection: &mut Connection, key: &str, verb: &str, wanted: &str) -> Result<()> {
        let auth = [("open-sandbox-api-key", key)];
        let path = format!("/v1/sandboxes/{}", self.id);
        connection.ask(Method::POST, &format!("{path}/{verb}"), &auth, Payload::Empty).await?;
        let deadline = Instant::now() + STATE;
        loop {
            let state = connection.json(Method::GET, &path, &auth, Value::Null).await?;
            if state["status"]["state"] == wanted {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{verb} of {} led to {state}", self.id);
        }
    }

    /// Ends it; returns when nothing of it is left.
    ///
    /// # Errors
    /// The server does not say so.
    pub async fn delete(self, connection: &mut Connection, key: &str) -> Result<()> {
        let auth = [("open-sandbox-api-key", key)];
        connection.ask(Method::DELETE, &format!("/v1/sandboxes/{}", self.id), &auth, Payload::Empty).await?;
        Ok(())
    }
}

async fn endpoint(
    connection: &mut Connection,
    key: &str,
    id: &str,
    port: u16,
) -> Result<(String, Vec<(String, String)>)> {
    let auth = [("open-sandbox-api-key", key)];
    let answer =
        connection.json(Method::GET, &format!("/v1/sandboxes/{id}/endpoints/{port}"), &auth, Value::Null).await?;
    let endpoint = answer["endpoint"].as_str().context("an endpoint")?;
    let path = endpoint.find('/').map_or("", |slash| &endpoint[slash..]).to_owned();
    let headers = answer["headers"].as_object().context("an endpoint has headers")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok((path, headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), text(value))).collect()))
}

/// Reads a stream until the first output of the command; the rest can be read with [`drain`].
///
/// # Errors
/// The stream ends before.
pub async fn first_output(stream: &mut Incoming) -> Result<()> {
    const MARK: &[u8] = b"\"type\":\"stdout\"";
    let mut seen: Vec<u8> = Vec::new();
    while let Some(frame) = stream.frame().await {
        if let Ok(data) = frame?.into_data() {
            seen.extend_from_slice(&data);
            if seen.windows(MARK.len()).any(|window| window == MARK) {
                return Ok(());
            }
        }
    }
    bail!("the stream ended before any output: {}", String::from_utf8_lossy(&seen))
}

/// Reads a stream to its end.
///
/// # Errors
/// It breaks off.
pub async fn drain(mut stream: Incoming) -> Result<()> {
    while let Some(frame) = stream.frame().await {
        frame?;
    }
    Ok(())
}

/// A server with one connection: what most rows begin with.
pub struct Bed {
    /// The server.
    pub server: Server,
    /// A kept-alive connection to it.
    pub connection: Connection,
    /// Its key.
    pub key: String,
}

impl Bed {
    /// Starts a server and connects.
    ///
    /// # Errors
    /// It does not start.
    pub async fn make(bench: &super::Bench) -> Result<Self> {
        Self::around(Server::start(bench).await?).await
    }

    /// The same with a server that keeps ready what is asked for, as it does by default.
    ///
    /// # Errors
    /// It does not start.
    pub async fn make_warm(bench: &super::Bench) -> Result<Self> {
        Self::around(Server::start_with(bench, Warmth::Default).await?).await
    }

    async fn around(server: Server) -> Result<Self> {
        let connection = server.connect().await?;
        let key = server.key.clone();
        Ok(Self { server, connection, key })
    }

    /// A new sandbox.
    ///
    /// # Errors
    /// The create fails; the server's log is in the error.
    pub async fn sandbox(&mut self) -> Result<Sandbox> {
        let made = Sandbox::create(&mut self.connection, &self.key).await;
        made.with_context(|| format!("create a sandbox; the server's log:\n{}", self.server.log()))
    }
}
