//! Ports of a sandbox: tunnels of raw TCP and signed links.

use protocol::lifecycle::Endpoint;
use reqwest::header::{CONNECTION, HeaderMap, UPGRADE};
use reqwest::{Method, StatusCode, Upgraded};

use super::sandboxes::{path, with_query};
use super::{Client, Patience, chain, header_map};
use crate::failure::Failure;

/// What to ask for with `Upgrade` where raw bytes of a port are wanted.
const TCP_UPGRADE: &str = "opensandbox-tcp";

/// What a link opens.
pub struct LinkRequest<'a> {
    /// Which port.
    pub port: u16,
    /// The last second in which it opens, counted from 1970.
    pub expires: u64,
    /// Only what is this path or lies below it.
    pub below: Option<&'a str>,
}

/// The way to one port.
#[derive(Clone)]
pub struct Port {
    client: Client,
    url: String,
    headers: HeaderMap,
}

impl Client {
    /// The way to a port of a sandbox.
    pub async fn port(&self, id: &str, port: u16) -> Result<Port, Failure> {
        let endpoint = self.endpoint(id, port).await?;
        let mut headers = header_map(endpoint.headers.unwrap_or_default())?;
        if self.server_proxy
            && let Some(key) = &self.key
        {
            headers.insert(protocol::headers::API_KEY, key.clone());
        }
        Ok(Port { client: self.clone(), url: self.with_scheme(&endpoint.endpoint), headers })
    }

    /// A URL that opens a port without any token.
    pub async fn link(&self, id: &str, link: &LinkRequest<'_>) -> Result<String, Failure> {
        let mut query = vec![("expires", link.expires.to_string()), ("version", "2".to_owned())];
        query.extend(link.below.map(|below| ("path", below.to_owned())));
        let request = self.request(Method::GET, &with_query(&path(id, &format!("/endpoints/{}", link.port)), &query));
        let endpoint: Endpoint = self.json(request, Patience::Usual).await?;
        Ok(self.with_scheme(&endpoint.endpoint))
    }

    /// An endpoint as a URL: it is spoken to as this server is.
    pub(super) fn with_scheme(&self, endpoint: &str) -> String {
        let scheme = self.base.split("://").next().unwrap_or("http");
        format!("{scheme}://{}", endpoint.trim_end_matches('/'))
    }
}

impl Port {
    /// A connection to the port.
    pub async fn connect(&self) -> Result<Upgraded, Failure> {
        let request = self.client.http.get(&self.url).headers(self.headers.clone());
        let request = request.header(CONNECTION, "Upgrade").header(UPGRADE, TCP_UPGRADE);
        let answer = self.client.send(request, Patience::Usual).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let message = "the server does not know tunnels; it may be older than this program";
            return Err(Failure::new("BAD_ANSWER", message));
        }
        answer.upgrade().await.map_err(|error| Failure::new("CONNECTION_FAILED", chain(&error)))
    }
}
