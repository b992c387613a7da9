//! A small client by plain HTTP, for tests that must see statuses and bytes.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// No answer of these tests takes longer; endpoint look-ups wait up to 24 s.
const REQUEST: Duration = Duration::from_secs(40);

/// Large transfers on a slow machine.
const TRANSFER: Duration = Duration::from_secs(120);

/// Talks to one server.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: String,
}

/// A status and the JSON that came with it.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The body; `null` if there was none, a string if it was no JSON.
    pub body: Value,
}

/// Where a sandbox's daemon is reached, with what headers.
#[derive(Clone, Debug)]
pub struct Endpoint {
    url: String,
    headers: Vec<(String, String)>,
}

/// What a finished command gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Execution {
    /// The id of its `init` event.
    pub id: String,
    /// Standard output in order.
    pub stdout: String,
    /// Standard error in order.
    pub stderr: String,
    /// The command's code: 0 by a completion, else the number of the error event.
    pub exit_code: Option<i32>,
}

impl Client {
    pub(crate) fn new(url: &str, key: &str) -> Self {
        let http =
            reqwest::Client::builder().timeout(REQUEST).build().expect("a client without TLS or proxy always builds");
        Self { http, base: format!("{url}/v1"), key: key.to_owned() }
    }

    /// One call of the lifecycle API.
    ///
    /// # Errors
    /// No answer came.
    pub async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
        let method = method.parse().context("a known method")?;
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .header("OPEN-SANDBOX-API-KEY", &self.key)
            .header("User-Agent", "e2e");
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await?;
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| if bytes.is_empty() { Value::Null } else { String::from_utf8_lossy(&bytes).into() });
        Ok(Answer { status, body })
    }

    /// Asks for a sandbox; gives its id and the deadline the answer promised.
    ///
    /// # Errors
    /// No answer, or none that accepts.
    pub async fn create(&self, body: &Value) -> Result<(String, Option<String>)> {
        let answer = self.call("POST", "/sandboxes", Some(body)).await?;
        if answer.status != 202 {
            bail!("create: {answer:?}");
        }
        let id = answer.body["id"].as_str().context("no id")?.to_owned();
        Ok((id, answer.body["expiresAt"].as_str().map(str::to_owned)))
    }

    /// The sandbox's detail.
    ///
    /// # Errors
    /// No answer, or not 200.
    pub async fn get(&self, id: &str) -> Result<Value> {
        let answer = self.call("GET", &format!("/sandboxes/{id}"), None).await?;
        anyhow::ensure!(answer.status == 200, "get {id}: {answer:?}");
        Ok(answer.body)
    }

    /// Every sandbox the server knows.
    ///
    /// # Errors
    /// No answer, or not 200.
    pub async fn list(&self) -> Result<Vec<String>> {
        let mut ids = Vec::new();
        for page in 1.. {
            let answer = self.call("GET", &format!("/sandboxes?pageSize=200&page={page}"), None).await?;
            anyhow::ensure!(answer.status == 200, "list: {answer:?}");
            let items = answer.body["items"].as_array().context("no items")?;
            ids.extend(items.iter().filter_map(|item| item["id"].as_str().map(str::to_owned)));
            if answer.body["pagination"]["hasNextPage"] != json!(true) {
                break;
            }
        }
        Ok(ids)
    }

    /// Deletes; an unknown sandbox is as good as deleted.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn delete(&self, id: &str) -> Result<()> {
        let answer = self.call("DELETE", &format!("/sandboxes/{id}"), None).await?;
        anyhow::ensure!(matches!(answer.status, 204 | 404), "delete {id}: {answer:?}");
        Ok(())
    }

    /// Waits (on the server) for the daemon of the sandbox.
    ///
    /// # Errors
    /// No answer, or the sandbox failed.
    pub async fn endpoint(&self, id: &str) -> Result<Endpoint> {
        let answer = self.call("GET", &format!("/sandboxes/{id}/endpoints/44772"), None).await?;
        anyhow::ensure!(answer.status == 200, "endpoint of {id}: {answer:?}");
        let endpoint = answer.body["endpoint"].as_str().context("no endpoint")?;
        let headers = answer.body["headers"].as_object().cloned().unwrap_or_default();
        Ok(Endpoint {
            url: format!("http://{endpoint}"),
            headers: headers
                .into_iter()
                .map(|(name, value)| (name, value.as_str().unwrap_or_default().to_owned()))
                .collect(),
        })
    }

    /// Runs a shell command and reads its stream to the end.
    ///
    /// # Errors
    /// No answer, a refusal, or a stream without a terminal event.
    pub async fn run(&self, at: &Endpoint, command: &str) -> Result<Execution> {
        self.post_command(at, &json!({ "command": command })).await
    }

    /// Starts a shell command in the background and returns its id.
    ///
    /// # Errors
    /// As [`Client::run`].
    pub async fn start(&self, at: &Endpoint, command: &str) -> Result<String> {
        Ok(self.post_command(at, &json!({ "command": command, "background": true })).await?.id)
    }

    /// All that a background command has written.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn logs(&self, at: &Endpoint, id: &str) -> Result<String> {
        let request = at.with_headers(self.http.get(format!("{}/command/{id}/logs?cursor=0", at.url)));
        let response = request.send().await?;
        let status = response.status();
        let text = response.text().await?;
        anyhow::ensure!(status.is_success(), "logs of {id}: {status} {text}");
        Ok(text)
    }

    /// Opens the lossless stream of a command at an offset, its bytes as base64; the caller reads the events.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn stream(&self, at: &Endpoint, id: &str, offset: u64) -> Result<reqwest::Response> {
        let url = format!("{}/v1/commands/{id}/stream?offset={offset}&follow=true&encoding=base64", at.url);
        let response = at.with_headers(self.http.get(url)).timeout(TRANSFER).send().await?;
        let status = response.status();
        if !status.is_success() {
            bail!("stream of {id} from {offset}: {status} {}", response.text().await?);
        }
        Ok(response)
    }

    /// Runs a program and returns its first piece of output, or nothing if it ends without.
    /// The stream is read to its end afterwards, so that the connection can be used again.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn first_output(&self, at: &Endpoint, argv: &[&str]) -> Result<String> {
        let request = at.with_headers(self.http.post(format!("{}/command", at.url)));
        let response = request.json(&json!({ "argv": argv })).send().await?;
        let status = response.status();
        let text = response.text().await?;
        anyhow::ensure!(status.is_success(), "command: {status} {text}");
        Ok(read_stream(&text)?.stdout)
    }

    /// Runs a shell command and counts the bytes of its stream without keeping them.
    ///
    /// # Errors
    /// No answer, a refusal, or a lost connection.
    pub async fn drain(&self, at: &Endpoint, command: &str) -> Result<u64> {
        let request = at.with_headers(self.http.post(format!("{}/command", at.url)));
        let request = request.timeout(TRANSFER).json(&json!({ "command": command }));
        count(request.send().await?.error_for_status()?).await
    }

    /// Uploads that many zero bytes as one file, without holding them.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn upload_zeros(&self, at: &Endpoint, path: &str, bytes: usize) -> Result<()> {
        const BOUNDARY: &str = "e2e-boundary";
        const CHUNK: usize = 256 << 10;
        let head = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"metadata\"; filename=\"metadata\"\r\n\
             Content-Type: application/json\r\n\r\n{}\r\n--{BOUNDARY}\r\nContent-Disposition: form-data; \
             name=\"file\"; filename=\"file\"\r\nContent-Type: application/octet-stream\r\n\r\n",
            json!({ "path": path })
        );
        let tail = format!("\r\n--{BOUNDARY}--\r\n");
        let length = head.len() + bytes + tail.len();
        let chunk = bytes::Bytes::from(vec![0; CHUNK]);
        let whole = (0..bytes / CHUNK).map(move |_| chunk.clone());
        let rest = bytes::Bytes::from(vec![0; bytes % CHUNK]);
        let pieces = std::iter::once(head.into())
            .chain(whole)
            .chain([rest, tail.into()])
            .map(Ok::<bytes::Bytes, std::io::Error>);
        let request = at
            .with_headers(self.http.post(format!("{}/files/upload", at.url)))
            .timeout(TRANSFER)
            .header("Content-Type", format!("multipart/form-data; boundary={BOUNDARY}"))
            .header("Content-Length", length)
            .body(reqwest::Body::wrap_stream(futures_util::stream::iter(pieces)));
        let response = request.send().await?;
        let status = response.status();
        anyhow::ensure!(status.is_success(), "upload: {status} {}", response.text().await?);
        Ok(())
    }

    /// Downloads a file and counts its bytes without keeping them.
    ///
    /// # Errors
    /// No answer, a refusal, or a lost connection.
    pub async fn download(&self, at: &Endpoint, path: &str) -> Result<u64> {
        let request = at.with_headers(self.http.get(format!("{}/files/download?path={path}", at.url)));
        count(request.timeout(TRANSFER).send().await?.error_for_status()?).await
    }

    async fn post_command(&self, at: &Endpoint, body: &Value) -> Result<Execution> {
        let request = at.with_headers(self.http.post(format!("{}/command", at.url))).json(body);
        let response = request.send().await?;
        let status = response.status();
        let text = response.text().await?;
        anyhow::ensure!(status.is_success(), "command: {status} {text}");
        read_stream(&text)
    }
}

impl Endpoint {
    fn with_headers(&self, mut request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request
    }
}

async fn count(mut response: reqwest::Response) -> Result<u64> {
    let mut total = 0;
    while let Some(chunk) = response.chunk().await? {
        total += chunk.len() as u64;
    }
    Ok(total)
}

fn read_stream(text: &str) -> Result<Execution> {
    let mut execution = Execution::default();
    let mut ended = false;
    for frame in text.split("\n\n").filter(|frame| !frame.is_empty()) {
        let event: Value = serde_json::from_str(frame).with_context(|| format!("frame {frame:?}"))?;
        let text = event["text"].as_str().unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "init" => execution.id = text.to_owned(),
            "stdout" => execution.stdout.push_str(text),
            "stderr" => execution.stderr.push_str(text),
            "execution_complete" => {
                execution.exit_code = Some(0);
                ended = true;
            }
            "error" => {
                let value = event["error"]["evalue"].as_str().unwrap_or_default();
                execution.exit_code = value.parse().ok();
                ended = true;
            }
            _ => {}
        }
    }
    anyhow::ensure!(ended, "the stream has no terminal event: {text:?}");
    Ok(execution)
}
