//! A small client of the protocol: the lifecycle API here and in [`sandboxes`], the daemon inside a sandbox in
//! [`execd`].
//!
//! Streams bodies in constant memory, waits for every answer with a deadline, and turns every refusal into a
//! [`Failure`] with the server's code, message and request id. The API key goes to the server only, and no redirect
//! is followed, so that it cannot be sent on.

use std::error::Error as _;
use std::time::{Duration, Instant};

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::failure::Failure;
use crate::settings::Settings;

pub mod execd;
pub mod images;
pub mod network;
mod pools;
pub mod ports;
pub mod recordings;
pub mod sandboxes;
pub mod snapshots;
pub mod stream;
pub mod terminal;
pub mod vault;
mod volumes;

/// Largest JSON answer that is read, in bytes: a page of 200 sandboxes is below one mebibyte, a listing of a
/// directory with 100,000 entries below 32.
const MAX_JSON_BYTES: usize = 64 * 1024 * 1024;
/// Most of an unreadable error body that is shown, in bytes: enough for the sentence of a proxy.
const MAX_ERROR_TEXT: usize = 2048;
/// Largest error body that is read, in bytes.
const MAX_ERROR_BYTES: usize = 256 * 1024;
/// Longest wait for a connection; a machine that is there answers far sooner.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often an idle connection of a long stream is probed, so that a vanished peer is noticed.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// A connection to one server.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: Option<HeaderValue>,
    timeout: Duration,
    server_proxy: bool,
    verbose: bool,
}

/// How long a request may take until its answer begins.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// The configured request timeout.
    Usual,
    /// This long.
    For(Duration),
    /// As long as it takes: the request carries a body of any size.
    Unlimited,
}

impl Client {
    /// A client for the server that the settings name.
    ///
    /// # Errors
    /// A key that cannot be a header, or a TLS set-up that fails.
    pub fn new(settings: &Settings, verbose: bool) -> Result<Self, Failure> {
        let key = settings.api_key.as_ref().map(|key| key.value.as_str());
        Self::at(&settings.url(), key, settings.request_timeout.value, settings.use_server_proxy.value, verbose)
    }

    /// A client for a server at this address.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn at(
        url: &str,
        key: Option<&str>,
        timeout: Duration,
        server_proxy: bool,
        verbose: bool,
    ) -> Result<Self, Failure> {
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("osb/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_keepalive(KEEPALIVE);
        if is_loopback(url) {
            // A proxy of the environment cannot reach this machine's own loopback.
            builder = builder.no_proxy();
        }
        if url.starts_with("http://") {
            // Without TLS the machine's 150 certificates need not be read at every start.
            builder = builder.tls_certs_only([]);
        }
        let http =
            builder.build().map_err(|error| Failure::new("CLIENT", format!("set up HTTP: {}", chain(&error))))?;
        let key = key.map(|key| {
            let mut value = HeaderValue::from_str(key)
                .map_err(|_| Failure::usage("the API key holds characters that a header cannot carry"))?;
            value.set_sensitive(true);
            Ok::<_, Failure>(value)
        });
        Ok(Self {
            http,
            base: url.trim_end_matches('/').to_owned(),
            key: key.transpose()?,
            timeout,
            server_proxy,
            verbose,
        })
    }

    /// Whether a server answers there within this time.
    pub async fn answers(&self, within: Duration) -> bool {
        let request = self.http.get(format!("{}/health", self.base));
        matches!(self.send(request, Patience::For(within)).await, Ok(answer) if answer.status().is_success())
    }

    /// A request to the lifecycle API; `path` begins after `/v1`.
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}/v1{path}", self.base));
        match &self.key {
            Some(key) => request.header(protocol::headers::API_KEY, key),
            None => request,
        }
    }

    /// Sends a request and returns the answer if it is a success.
    async fn send(&self, request: RequestBuilder, patience: Patience) -> Result<Response, Failure> {
        let request = request.build().map_err(|error| Failure::new("CLIENT", chain(&error)))?;
        let label = format!("{} {}", request.method(), request.url());
        let started = Instant::now();
        let sent = self.http.execute(request);
        let limit = match patience {
            Patience::Usual => Some(self.timeout),
            Patience::For(limit) => Some(limit),
            Patience::Unlimited => None,
        };
        let answer = match limit {
            Some(limit) => tokio::time::timeout(limit, sent).await.map_err(|_| self.too_slow(&label, limit))?,
            None => sent.await,
        };
        let answer = answer.map_err(|error| self.unreachable(&label, &error))?;
        if self.verbose {
            let elapsed = started.elapsed();
            eprintln!(
                "{label}: {} in {elapsed:.1?}, request {}",
                answer.status(),
                request_id(&answer).unwrap_or_default()
            );
        }
        let is_success = answer.status().is_success() || answer.status() == StatusCode::SWITCHING_PROTOCOLS;
        if is_success { Ok(answer) } else { Err(refusal(answer, &label, self.key.is_some()).await) }
    }

    /// Sends a request and reads its JSON answer.
    async fn json<T: DeserializeOwned>(&self, request: RequestBuilder, patience: Patience) -> Result<T, Failure> {
        let answer = self.send(request, patience).await?;
        let id = request_id(&answer);
        let what = answer.url().path().to_owned();
        let bad = |message: String| Failure { request_id: id.clone(), ..Failure::new("BAD_ANSWER", message) };
        let body = tokio::time::timeout(self.timeout, read_bounded(answer, MAX_JSON_BYTES))
            .await
            .map_err(|_| bad(format!("{what}: the answer stopped half-way")))?
            .map_err(|error| bad(format!("{what}: {error}")))?;
        serde_json::from_slice(&body)
            .map_err(|error| bad(format!("{what}: the answer is not what it should be: {error}")))
    }

    fn too_slow(&self, label: &str, limit: Duration) -> Failure {
        Failure::new("REQUEST_TIMEOUT", format!("{label}: no answer within {limit:.0?}"))
            .hint("give --request-timeout a longer time, or look at the server's log")
    }

    fn unreachable(&self, label: &str, error: &reqwest::Error) -> Failure {
        let failed = |cause: &str| Failure::new("CONNECTION_FAILED", format!("{label}: {cause}"));
        if error.is_connect() {
            // The outer errors only say that it was the connecting that failed.
            let causes = std::iter::successors(error.source(), |&cause| cause.source());
            failed(&causes.last().map_or_else(|| error.to_string(), ToString::to_string)).hint(format!(
                "is a server at {}? start one with `osb server`, or name one with --domain (`osb config show` tells what is used)",
                self.base
            ))
        } else {
            failed(&chain(error))
        }
    }
}

/// Reads a body to its end, refusing what is larger than the bound.
async fn read_bounded(mut answer: Response, max_bytes: usize) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| chain(&error))? {
        if body.len() + chunk.len() > max_bytes {
            return Err(format!("the answer is larger than {max_bytes} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Turns an answer that is no success into a failure with the server's own words.
async fn refusal(answer: Response, label: &str, key_was_sent: bool) -> Failure {
    let status = answer.status();
    let request_id = request_id(&answer);
    let body = tokio::time::timeout(CONNECT_TIMEOUT, read_bounded(answer, MAX_ERROR_BYTES)).await;
    let body = body.ok().and_then(Result::ok).unwrap_or_default();
    let (code, message) = words(&body, status, label);
    let mut failure = Failure { request_id, status: Some(status.as_u16()), ..Failure::new(&code, message) };
    if status == StatusCode::UNAUTHORIZED {
        failure.hint = Some(if key_was_sent {
            "the server refuses this API key; `osb config show` tells where it comes from".into()
        } else {
            "give the server's key with --api-key, OPEN_SANDBOX_API_KEY or connection.api_key in the configuration \
             file; a local server's key is found by itself by the user who runs it"
                .into()
        });
    }
    failure
}

/// Code and message of an error body, whichever of the known shapes it has.
fn words(body: &[u8], status: StatusCode, label: &str) -> (String, String) {
    let fallback = format!("HTTP_{}", status.as_u16());
    if let Ok(value) = serde_json::from_slice::<Value>(body) {
        let text = |name: &str| value.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let message = text("message").or(text("error")).or(text("detail")).map(str::to_owned);
        let detail = value.get("detail").filter(|detail| detail.is_array()).map(validation);
        if let Some(message) = message.or(detail) {
            return (text("code").map_or(fallback, str::to_owned), message);
        }
    }
    let text = String::from_utf8_lossy(&body[..body.len().min(MAX_ERROR_TEXT)]);
    let text = text.trim();
    let reason = status.canonical_reason().unwrap_or("refused");
    if text.is_empty() {
        (fallback, format!("{label}: {} {reason}", status.as_u16()))
    } else {
        (fallback, format!("{label}: {} {reason}: {text}", status.as_u16()))
    }
}

/// The sentences of a validation failure: `field: message`, joined.
fn validation(detail: &Value) -> String {
    let one = |item: &Value| {
        let place = item.get("loc").and_then(Value::as_array).map(|parts| {
            let part = |part: &Value| part.as_str().map_or_else(|| part.to_string(), str::to_owned);
            parts.iter().map(part).collect::<Vec<_>>().join(".")
        });
        let message = item.get("msg").and_then(Value::as_str).unwrap_or("is not valid");
        place.map_or_else(|| message.to_owned(), |place| format!("{place}: {message}"))
    };
    detail.as_array().into_iter().flatten().map(one).collect::<Vec<_>>().join("; ")
}

fn request_id(answer: &Response) -> Option<String> {
    answer.headers().get(protocol::headers::REQUEST_ID).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// An error with its causes, each told once.
pub fn chain(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut cause: Option<&dyn std::error::Error> = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.contains(&part) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&part);
        }
        cause = error.source();
    }
    if text.is_empty() { error.to_string() } else { text }
}

fn is_loopback(url: &str) -> bool {
    let Ok(url) = reqwest::Url::parse(url) else { return false };
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback()),
        None => false,
    }
}

/// A header map from names and values of an answer; what cannot be a header is refused by name.
fn header_map(pairs: impl IntoIterator<Item = (String, String)>) -> Result<HeaderMap, Failure> {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        let bad = || Failure::new("BAD_ANSWER", format!("the server names a header `{name}` that cannot be sent"));
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
        let mut value = HeaderValue::from_str(&value).map_err(|_| bad())?;
        value.set_sensitive(true);
        map.insert(key, value);
    }
    Ok(map)
}

/// A path segment with everything escaped that would end it.
fn segment(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    // Dots alone would climb in the path, escaped or not.
    if matches!(escaped.as_str(), "." | "..") { "%00".into() } else { escaped }
}

#[cfg(test)]
mod tests;
