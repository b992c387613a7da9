//! The pulling half of the registry protocol.
//!
//! Written on `reqwest` because the client crate of the field cannot resume a blob, and hides the
//! requests that progress and grants are about (`docs/adr/0006-registry-client.md`).
//!
//! Nothing that a registry says is trusted: bodies are bounded, digests verified by the caller of
//! [`Session::manifest`], redirects to plain HTTP refused, and its messages cut before they are shown.

mod challenge;
mod download;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, RANGE, WWW_AUTHENTICATE};
use reqwest::{Response, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};

use crate::digest::Digest;
use crate::manifest::{self, MAX_MANIFEST_BYTES};
use crate::reference::is_loopback;
use crate::{Credentials, Error, Reference};
use challenge::Challenge;

pub(crate) use download::{Partial, blocking};

/// Time to open a connection. Registries answer in tens of milliseconds or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without a byte before a connection counts as dead.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a manifest, a configuration or a token, body and all; each has at most a few megabytes.
const SMALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Most redirects of one request: registry, storage, and its mirrors.
const MAX_REDIRECTS: usize = 5;
/// Tries of a request that the registry answers with a passing fault (5xx).
const ATTEMPTS: u32 = 3;
/// Pause before the second try; it doubles for the third.
const RETRY_PAUSE: Duration = Duration::from_millis(300);
/// Largest answer of a token endpoint, in bytes; real tokens have a few kilobytes.
const MAX_TOKEN_BYTES: u64 = 256 << 10;
/// Largest error body that is read, in bytes.
const MAX_ERROR_BYTES: u64 = 16 << 10;
/// Longest part of a registry's message that an error shows, in characters.
const MAX_MESSAGE_CHARS: usize = 200;

/// A conversation with one registry about one repository, for one account.
pub(crate) struct Session {
    http: reqwest::Client,
    base: String,
    reference: Reference,
    credentials: Option<Credentials>,
    plain_http_hosts: Arc<[String]>,
    /// The value of `Authorization` that the registry last asked for.
    authorization: tokio::sync::Mutex<Option<SecretString>>,
}

impl Session {
    pub(crate) fn new(
        reference: &Reference,
        credentials: Option<&Credentials>,
        plain_http_hosts: &[String],
    ) -> Result<Self, Error> {
        let plain: Arc<[String]> = plain_http_hosts.into();
        let host = match reference.registry() {
            "docker.io" => "registry-1.docker.io",
            other => other,
        };
        let scheme = if is_plain(host, &plain) { "http" } else { "https" };
        let http = client(host, &plain)
            .build()
            // A machine without certificate authorities can still use a registry of its own.
            .or_else(|error| match scheme {
                "http" => client(host, &plain).tls_certs_only([]).build(),
                _ => Err(error),
            })
            .map_err(|e| Error::NoCertificates { registry: reference.registry().to_owned(), source: Arc::new(e) })?;
        Ok(Self {
            http,
            base: format!("{scheme}://{host}/v2/{}", reference.repository()),
            reference: reference.clone(),
            credentials: credentials.cloned(),
            plain_http_hosts: plain,
            authorization: tokio::sync::Mutex::new(None),
        })
    }

    /// Fetches a manifest or index by tag or digest; the bytes are not verified.
    pub(crate) async fn manifest(&self, version: &str) -> Result<Vec<u8>, Error> {
        let operation = format!("the request for manifest {version}");
        let url = format!("{}/manifests/{version}", self.base);
        let fetch = async {
            let response = self.get(&url, &operation, None).await?;
            match response.status() {
                StatusCode::OK => self.body(response, &operation, MAX_MANIFEST_BYTES).await,
                StatusCode::NOT_FOUND => Err(Error::NotFound { reference: self.reference.to_string() }),
                _ => Err(self.refusal(response, operation.clone()).await),
            }
        };
        self.within(&operation, fetch).await
    }

    /// Fetches a small blob into memory and verifies it.
    pub(crate) async fn small_blob(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, Error> {
        let operation = format!("the request for blob {digest}");
        let fetch = async {
            let response = self.blob(digest, None).await?;
            match response.status() {
                StatusCode::OK => self.body(response, &operation, limit).await,
                _ => Err(self.refusal(response, operation.clone()).await),
            }
        };
        let bytes = self.within(&operation, fetch).await?;
        verify(&bytes, digest, "blob")?;
        Ok(bytes)
    }

    /// Bounds a request whose answer is small, however slowly it comes.
    async fn within<T>(&self, what: &str, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        match tokio::time::timeout(SMALL_TIMEOUT, work).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.too_slow(what)),
        }
    }

    fn too_slow(&self, what: &str) -> Error {
        Error::TooSlow { registry: self.registry(), what: what.to_owned() }
    }

    async fn blob(&self, digest: &Digest, from: Option<u64>) -> Result<Response, Error> {
        let url = format!("{}/blobs/{digest}", self.base);
        self.get(&url, &format!("the request for blob {digest}"), from).await
    }

    async fn get(&self, url: &str, operation: &str, from: Option<u64>) -> Result<Response, Error> {
        let mut pause = RETRY_PAUSE;
        for attempt in 1.. {
            let response = self.get_authorized(url, operation, from).await?;
            if !response.status().is_server_error() || attempt == ATTEMPTS {
                return Ok(response);
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        unreachable!("the last attempt returns")
    }

    /// Sends a request, and once more with the authorization that the registry asks for.
    async fn get_authorized(&self, url: &str, operation: &str, from: Option<u64>) -> Result<Response, Error> {
        let known = self.authorization.lock().await.clone();
        let response = self.send(url, from, known.as_ref()).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return self.admitted(response);
        }
        let challenge = response
            .headers()
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .filter_map(Challenge::parse)
            .max_by_key(Challenge::preference);
        let Some(challenge) = challenge else {
            return Err(self.protocol(operation, "401 and no way to authenticate that is known"));
        };
        let fresh = self.authenticate(&challenge).await?;
        *self.authorization.lock().await = Some(fresh.clone());
        let response = self.send(url, from, Some(&fresh)).await?;
        self.admitted(response)
    }

    fn admitted(&self, response: Response) -> Result<Response, Error> {
        match response.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.unauthorized()),
            StatusCode::TOO_MANY_REQUESTS => Err(Error::RateLimited { registry: self.registry() }),
            _ => Ok(response),
        }
    }

    async fn send(
        &self,
        url: &str,
        from: Option<u64>,
        authorization: Option<&SecretString>,
    ) -> Result<Response, Error> {
        let mut request = self.http.get(url).header(ACCEPT, manifest::ACCEPT);
        if let Some(from) = from {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        if let Some(value) = authorization {
            let mut value = HeaderValue::from_str(value.expose_secret())
                .map_err(|_| self.protocol("a login", "a token that is no header value"))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        request.send().await.map_err(|e| self.unreachable(e))
    }

    async fn authenticate(&self, challenge: &Challenge) -> Result<SecretString, Error> {
        let basic = self.credentials.as_ref().map(challenge::basic);
        match challenge {
            Challenge::Basic => basic.ok_or_else(|| self.unauthorized()),
            Challenge::Bearer { realm, service, scope } => {
                let url = self.token_url(realm, service.as_deref(), scope.as_deref())?;
                let mut request = self.http.get(url);
                if let Some(basic) = basic {
                    let mut value = HeaderValue::from_str(basic.expose_secret()).map_err(|_| self.unauthorized())?;
                    value.set_sensitive(true);
                    request = request.header(AUTHORIZATION, value);
                }
                let response = request.send().await.map_err(|e| self.unreachable(e))?;
                match response.status() {
                    StatusCode::OK => {}
                    StatusCode::TOO_MANY_REQUESTS => {
                        return Err(Error::RateLimited { registry: self.registry() });
                    }
                    status if status.is_client_error() => return Err(self.unauthorized()),
                    _ => return Err(self.refusal(response, "a login".to_owned()).await),
                }
                let body = self.body(response, "a login", MAX_TOKEN_BYTES).await?;
                challenge::token(&body).ok_or_else(|| self.protocol("a login", "an answer without a token"))
            }
        }
    }

    /// Where to get a token; credentials go there, so never from an encrypted registry to a plain address.
    fn token_url(&self, realm: &str, service: Option<&str>, scope: Option<&str>) -> Result<Url, Error> {
        let wrong = || self.protocol("a login", "a token address that is not acceptable");
        let mut url = Url::parse(realm).map_err(|_| wrong())?;
        let plain = url.scheme() == "http" && url.host_str().is_some_and(|host| is_plain(host, &self.plain_http_hosts));
        if url.scheme() != "https" && !plain {
            return Err(wrong());
        }
        let own = format!("repository:{}:pull", self.reference.repository());
        {
            let mut query = url.query_pairs_mut();
            if let Some(service) = service {
                query.append_pair("service", service);
            }
            query.append_pair("scope", scope.unwrap_or(&own));
        }
        Ok(url)
    }

    async fn body(&self, mut response: Response, operation: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.unreachable(e))? {
            if body.len() as u64 + chunk.len() as u64 > limit {
                return Err(Error::TooLarge { what: format!("the answer to {operation}"), limit_bytes: limit });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// An answer that is not what was asked for, with the registry's own words where it has some.
    async fn refusal(&self, response: Response, operation: String) -> Error {
        let status = response.status();
        let body = self.body(response, &operation, MAX_ERROR_BYTES).await.unwrap_or_default();
        let message = serde_json::from_slice::<serde_json::Value>(&body)
            .ok()
            .and_then(|value| value.pointer("/errors/0/message").and_then(|m| m.as_str()).map(str::to_owned));
        let detail = match message {
            Some(message) => format!("{status}: {:?}", message.chars().take(MAX_MESSAGE_CHARS).collect::<String>()),
            None => status.to_string(),
        };
        self.protocol(&operation, detail)
    }

    fn protocol(&self, operation: &str, detail: impl Into<String>) -> Error {
        Error::Registry { registry: self.registry(), operation: operation.to_owned(), detail: detail.into() }
    }

    fn unreachable(&self, error: reqwest::Error) -> Error {
        Error::Unreachable { registry: self.registry(), source: Arc::new(error.without_url()) }
    }

    fn unauthorized(&self) -> Error {
        Error::Unauthorized {
            registry: self.registry(),
            reference: self.reference.to_string(),
            authenticated: self.credentials.is_some(),
        }
    }

    fn registry(&self) -> String {
        self.reference.registry().to_owned()
    }
}

fn client(host: &str, plain_http_hosts: &Arc<[String]>) -> reqwest::ClientBuilder {
    let client = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(SILENCE_TIMEOUT)
        .redirect(redirects(plain_http_hosts.clone()))
        .user_agent(concat!("osb/", env!("CARGO_PKG_VERSION")));
    match is_loopback(host) {
        // A proxy of the environment has its own loopback.
        true => client.no_proxy(),
        false => client,
    }
}

/// Whether a host is spoken to without encryption: by its loopback name, or because the caller said so.
fn is_plain(host: &str, plain_http_hosts: &[String]) -> bool {
    is_loopback(host) || plain_http_hosts.iter().any(|plain| plain == host)
}

fn redirects(plain_http_hosts: Arc<[String]>) -> reqwest::redirect::Policy {
    reqwest::redirect::Policy::custom(move |attempt| {
        let url = attempt.url();
        let host = match (url.host_str(), url.port()) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            (Some(host), None) => host.to_owned(),
            (None, _) => String::new(),
        };
        if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error("too many redirects")
        } else if url.scheme() == "https" || is_plain(&host, &plain_http_hosts) {
            attempt.follow()
        } else {
            attempt.error("redirect to an unencrypted address")
        }
    })
}

pub(crate) fn verify(bytes: &[u8], expected: &Digest, what: &str) -> Result<(), Error> {
    let found = Digest::of(bytes);
    match found == *expected {
        true => Ok(()),
        false => Err(Error::DigestMismatch {
            what: format!("{what} {expected}"),
            expected: expected.to_string(),
            found: found.to_string(),
        }),
    }
}
