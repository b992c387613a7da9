//! The lifecycle API.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use protocol::lifecycle::{
    BatchRequest, BatchResponse, CreateSandboxRequest, Endpoint, ListSandboxesResponse, RenewRequest, RenewResponse,
    Sandbox,
};
use reqwest::Method;
use serde_json::Value;

use super::execd::Execd;
use super::{Client, Patience, header_map, segment};
use crate::failure::Failure;

/// The port of the daemon inside every sandbox.
pub const EXECD_PORT: u16 = 44772;
/// Longest wait for the end of a sandbox: TERM, grace and the removal of what it wrote.
const DELETE_PATIENCE: Duration = Duration::from_secs(60);
/// How often a daemon that does not answer yet is asked, as the published clients do.
const PING_INTERVAL: Duration = Duration::from_millis(200);
/// Longest wait for one ping.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Added to the server's own bound of a held look-up (below 25 s), so that its answer arrives.
const LOOK_UP_PATIENCE: Duration = Duration::from_secs(30);

/// Which sandboxes a list shows.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Any of these states.
    pub states: Vec<String>,
    /// All of these labels.
    pub metadata: Vec<(String, String)>,
    /// Page, from 1.
    pub page: Option<u32>,
    /// Sandboxes on a page, 1 to 200.
    pub page_size: Option<u32>,
}

impl Client {
    /// Asks for a sandbox; the answer comes before it is made.
    pub async fn create(&self, request: &CreateSandboxRequest) -> Result<Sandbox, Failure> {
        self.json(self.request(Method::POST, "/sandboxes").json(request), Patience::Usual).await
    }

    /// Asks for many sandboxes; the answer comes before they are made.
    pub async fn create_many(&self, batch: &BatchRequest) -> Result<BatchResponse, Failure> {
        self.json(self.request(Method::POST, "/sandboxes/batch").json(batch), Patience::Usual).await
    }

    /// One page of sandboxes.
    pub async fn list(&self, filter: &Filter) -> Result<ListSandboxesResponse, Failure> {
        let mut query: Vec<(&str, String)> = filter.states.iter().map(|state| ("state", state.clone())).collect();
        if !filter.metadata.is_empty() {
            let mut pairs = reqwest::Url::parse("http://x/").expect("is a URL");
            pairs.query_pairs_mut().extend_pairs(&filter.metadata);
            query.push(("metadata", pairs.query().unwrap_or_default().to_owned()));
        }
        query.extend(filter.page.map(|page| ("page", page.to_string())));
        query.extend(filter.page_size.map(|size| ("pageSize", size.to_string())));
        self.json(self.request(Method::GET, &with_query("/sandboxes", &query)), Patience::Usual).await
    }

    /// One sandbox.
    pub async fn get(&self, id: &str) -> Result<Sandbox, Failure> {
        self.json(self.request(Method::GET, &path(id, "")), Patience::Usual).await
    }

    /// Ends a sandbox; returns when it is gone. `grace` lies between TERM and KILL; the server's default if absent.
    pub async fn delete(&self, id: &str, grace: Option<Duration>) -> Result<(), Failure> {
        let query: Vec<_> = grace.map(|grace| ("grace", grace.as_secs_f64().to_string())).into_iter().collect();
        let patience = Patience::For(self.timeout.max(DELETE_PATIENCE));
        self.send(self.request(Method::DELETE, &with_query(&path(id, ""), &query)), patience).await?;
        Ok(())
    }

    /// Freezes a sandbox.
    pub async fn pause(&self, id: &str) -> Result<(), Failure> {
        self.send(self.request(Method::POST, &path(id, "/pause")), Patience::Usual).await.map(drop)
    }

    /// Thaws a sandbox.
    pub async fn resume(&self, id: &str) -> Result<(), Failure> {
        self.send(self.request(Method::POST, &path(id, "/resume")), Patience::Usual).await.map(drop)
    }

    /// Moves the deadline of a sandbox to this time from now.
    pub async fn renew(&self, id: &str, lifetime: Duration) -> Result<RenewResponse, Failure> {
        let now = jiff::Timestamp::now();
        let expires_at = jiff::SignedDuration::try_from(lifetime)
            .ok()
            .and_then(|lifetime| now.checked_add(lifetime).ok())
            .ok_or_else(|| Failure::usage("the lifetime reaches past the end of the calendar"))?;
        let body = RenewRequest { expires_at: expires_at.to_string() };
        self.json(self.request(Method::POST, &path(id, "/renew-expiration")).json(&body), Patience::Usual).await
    }

    /// Sets labels; `None` removes one. Returns the sandbox.
    pub async fn patch_metadata(&self, id: &str, patch: &BTreeMap<String, Option<String>>) -> Result<Sandbox, Failure> {
        self.json(self.request(Method::PATCH, &path(id, "/metadata")).json(patch), Patience::Usual).await
    }

    /// How to reach a port of a sandbox. While the sandbox is being made the server holds the answer.
    pub async fn endpoint(&self, id: &str, port: u16) -> Result<Endpoint, Failure> {
        let query: &[_] = if self.server_proxy { &[("use_server_proxy", "true".to_owned())] } else { &[] };
        let request = self.request(Method::GET, &with_query(&path(id, &format!("/endpoints/{port}")), query));
        self.json(request, Patience::For(self.timeout.max(LOOK_UP_PATIENCE))).await
    }

    /// The daemon inside a sandbox.
    pub async fn execd(&self, id: &str) -> Result<Execd, Failure> {
        let endpoint = self.endpoint(id, EXECD_PORT).await?;
        let scheme = self.base.split("://").next().unwrap_or("http");
        let mut headers = header_map(endpoint.headers.unwrap_or_default())?;
        if self.server_proxy
            && let Some(key) = &self.key
        {
            headers.insert(protocol::headers::API_KEY, key.clone());
        }
        Ok(Execd::new(self.clone(), format!("{scheme}://{}", endpoint.endpoint.trim_end_matches('/')), headers))
    }

    /// The daemon inside a sandbox that has just been asked for, when it answers. `progress` hears what is being
    /// waited for.
    pub async fn ready(&self, id: &str, within: Duration, progress: &dyn Fn(&str)) -> Result<Execd, Failure> {
        let deadline = Instant::now() + within;
        let execd = loop {
            match self.execd(id).await {
                Err(failure) if failure.code == protocol::error::code::POD_IP_NOT_AVAILABLE => {
                    progress(&failure.message);
                    if Instant::now() >= deadline {
                        return Err(not_ready(id, within, &failure.message));
                    }
                }
                other => break other?,
            }
        };
        loop {
            let failure = match execd.ping(PING_TIMEOUT).await {
                Ok(()) => return Ok(execd),
                Err(failure) if matches!(failure.status, Some(401 | 403 | 404 | 409)) => return Err(failure),
                Err(failure) => failure,
            };
            if Instant::now() >= deadline {
                return Err(not_ready(id, within, &failure.message));
            }
            progress(&failure.message);
            tokio::time::sleep(PING_INTERVAL).await;
        }
    }

    /// A diagnostic text of a sandbox: `logs` or `events`.
    pub async fn diagnostics(&self, id: &str, kind: &str, scope: &str) -> Result<Value, Failure> {
        let query = [("scope", scope.to_owned())];
        let request = self.request(Method::GET, &with_query(&path(id, &format!("/diagnostics/{kind}")), &query));
        self.json(request, Patience::Usual).await
    }
}

fn not_ready(id: &str, within: Duration, last: &str) -> Failure {
    Failure::new("NOT_READY", format!("sandbox {id} is not ready after {within:.0?}: {last}"))
        .hint(format!("`osb sandbox get {id}` shows how far it is; --ready-timeout waits longer"))
}

/// The path of something of a sandbox.
pub(super) fn path(id: &str, rest: &str) -> String {
    format!("/sandboxes/{}{rest}", segment(id))
}

/// A path with its query.
pub(super) fn with_query(path: &str, pairs: &[(&str, String)]) -> String {
    if pairs.is_empty() {
        return path.to_owned();
    }
    let mut url = reqwest::Url::parse("http://x/").expect("is a URL");
    url.query_pairs_mut().extend_pairs(pairs);
    format!("{path}?{}", url.query().unwrap_or_default())
}
