//! The configured Jupyter server, and plain HTTP with it.
//!
//! Its token goes to its own host and port only. Redirects are not followed: what answers one is told as it is.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::environment::Environment;
use crate::error::system_text;
use crate::http::client;

/// Bytes of an answer.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// Wait for one answer. Making a session waits for its kernel's process.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// Bytes of the nonce of a WebSocket handshake.
const NONCE_BYTES: usize = 16;

/// Where a Jupyter server is, and what opens it.
#[derive(Clone, PartialEq, Eq)]
pub struct Origin {
    host: String,
    port: u16,
    base: String,
    token: Option<HeaderValue>,
}

/// Why a request failed.
pub enum Failure {
    /// Nobody listens, or the connection broke.
    Unreachable(String),
    /// The server says no.
    Refused(String),
    /// It says that there is no such thing.
    Missing(String),
}

impl Failure {
    /// In words.
    pub fn text(self) -> String {
        match self {
            Self::Unreachable(text) | Self::Refused(text) | Self::Missing(text) => text,
        }
    }
}

impl Origin {
    /// Reads `JUPYTER_HOST` and `JUPYTER_TOKEN`; `None` where no server is configured.
    ///
    /// # Errors
    /// What is wrong with the setting.
    pub fn of(env: &Environment) -> Option<Result<Self, String>> {
        let text = env.get("JUPYTER_HOST").map(|text| text.trim()).filter(|text| !text.is_empty())?;
        Some(Self::parse(text, env.get("JUPYTER_TOKEN").map_or("", String::as_str)))
    }

    fn parse(text: &str, token: &str) -> Result<Self, String> {
        let malformed = |why: &str| Err(format!("JUPYTER_HOST: {text:?} {why}"));
        let Some(rest) = text.strip_prefix("http://") else {
            return malformed("does not begin with http://; a server in the same sandbox needs no TLS");
        };
        let (authority, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') || base.contains(['?', '#', ' ']) {
            return malformed("is not like http://host:port/path");
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() => match port.parse() {
                Ok(port) => (host, port),
                Err(_) => return malformed("has no port from 1 to 65535"),
            },
            _ => (authority, 80),
        };
        if host.is_empty() {
            return malformed("names no host");
        }
        let token = match token {
            "" => None,
            token => {
                let mut value = HeaderValue::try_from(format!("Token {token}"))
                    .map_err(|_| "JUPYTER_TOKEN: holds what no header may hold".to_owned())?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Self { host: host.to_owned(), port, base: base.trim_end_matches('/').to_owned(), token })
    }

    /// One request and its JSON.
    ///
    /// # Errors
    /// The server cannot be reached, or does not answer with success.
    pub async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let what = format!("{method} {path} of the Jupyter server at {}:{}", self.host, self.port);
        let asked = timeout(ANSWER_WAIT, self.answer(method, path, body, &what)).await;
        asked.unwrap_or_else(|_| Err(Failure::Refused(format!("{what}: no answer within {} s", ANSWER_WAIT.as_secs()))))
    }

    async fn answer(&self, method: Method, path: &str, body: Option<&Value>, what: &str) -> Result<Value, Failure> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut request = self.request(method, path, body);
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        let response = self.send(request, what).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| Failure::Refused(format!("{what}: read the answer: {error}")))?.to_bytes();
        if !status.is_success() {
            let text = format!("{what}: {}", refusal(status, &body));
            let is_missing = status == StatusCode::NOT_FOUND;
            return Err(if is_missing { Failure::Missing(text) } else { Failure::Refused(text) });
        }
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }

    fn request(&self, method: Method, path: &str, body: String) -> Request<client::Body> {
        let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
        let mut request = Request::new(body);
        *request.method_mut() = method;
        // Paths are ours: fixed words and ids that were checked.
        *request.uri_mut() = format!("{}{path}", self.base).parse().unwrap_or_default();
        let host = HeaderValue::try_from(format!("{}:{}", self.host, self.port));
        request.headers_mut().insert(HOST, host.unwrap_or_else(|_| HeaderValue::from_static("localhost")));
        if let Some(token) = &self.token {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
        }
        request
    }

    async fn send(&self, request: Request<client::Body>, what: &str) -> Result<Response<Incoming>, Failure> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, self.port)).await;
        let stream = stream.map_err(|error| Failure::Unreachable(format!("{what}: {}", system_text(&error))))?;
        let _ = stream.set_nodelay(true); // only latency is at stake
        let broken = |error: hyper::Error| Failure::Unreachable(format!("{what}: {error}"));
        let mut sender = client::handshake(stream, async {}).await.map_err(broken)?;
        sender.send_request(request).await.map_err(broken)
    }

    /// Opens a WebSocket.
    ///
    /// # Errors
    /// As [`Origin::ask`].
    pub async fn open(&self, path: &str) -> Result<TokioIo<hyper::upgrade::Upgraded>, Failure> {
        let what = format!("WebSocket {path} of the Jupyter server at {}:{}", self.host, self.port);
        let mut request = self.request(Method::GET, path, String::new());
        let nonce = STANDARD.encode(&crate::id::hex().as_bytes()[..NONCE_BYTES]);
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert("sec-websocket-version", HeaderValue::from_static("13"));
        headers.insert("sec-websocket-key", HeaderValue::try_from(nonce).expect("base64 makes a header value"));
        let opened = timeout(ANSWER_WAIT, async {
            let response = self.send(request, &what).await?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                return Err(Failure::Refused(format!("{what}: {}", refusal(response.status(), b""))));
            }
            let upgraded = hyper::upgrade::on(response).await;
            upgraded.map(TokioIo::new).map_err(|error| Failure::Unreachable(format!("{what}: {error}")))
        });
        opened.await.unwrap_or_else(|_| Err(Failure::Refused(format!("{what}: no answer in time"))))
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> String {
    if status.is_redirection() {
        return format!("it answers {} and redirects are not followed", status.as_u16());
    }
    let message =
        serde_json::from_slice::<Value>(body).ok().and_then(|body| Some(body.get("message")?.as_str()?.to_owned()));
    message.map_or_else(
        || format!("it answers {}", status.as_u16()),
        |text| format!("it answers {}: {text}", status.as_u16()),
    )
}

#[cfg(test)]
mod tests {
    use super::Origin;

    #[test]
    fn addresses_are_read_or_refused() {
        let parse = |text: &str| Origin::parse(text, "t").map(|origin| (origin.host, origin.port, origin.base));
        assert_eq!(parse("http://127.0.0.1:44771"), Ok(("127.0.0.1".into(), 44771, String::new())));
        assert_eq!(parse("http://jupyter/user/a/"), Ok(("jupyter".into(), 80, "/user/a".into())));
        for wrong in ["https://a", "a:1", "http://", "http://a:x", "http://u@a", "http://a/?b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
