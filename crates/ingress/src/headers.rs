//! Which headers pass, in both directions.

use std::net::SocketAddr;

use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue};
use protocol::headers as names;
use secrecy::{ExposeSecret as _, SecretString};

use crate::target::Target;
use crate::{Backend, EXECD_PORT};

/// Headers that belong to one connection, beside those that `Connection` lists.
const HOP_BY_HOP: [HeaderName; 10] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];

/// Headers that end at this server: they open it or the sandbox, or say who speaks to it.
const OURS: [HeaderName; 8] = [
    HeaderName::from_static(names::API_KEY),
    HeaderName::from_static(names::EXECD_ACCESS_TOKEN),
    HeaderName::from_static(names::SECURE_ACCESS),
    HeaderName::from_static(names::EGRESS_AUTH),
    HeaderName::from_static(names::ACCESS_RENEW),
    header::AUTHORIZATION,
    header::COOKIE,
    header::HOST,
];

const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Whether a caller's word about where a request came from counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarded {
    /// Replaced by what this server saw.
    Replace,
    /// Kept when present.
    Keep,
}

/// The headers that the backend sees.
pub(crate) fn for_backend(
    mut headers: HeaderMap,
    backend: &Backend,
    target: &Target<'_>,
    peer: Option<SocketAddr>,
    forwarded: Forwarded,
) -> HeaderMap {
    let host = headers.get(header::HOST).cloned();
    drop_hop_by_hop(&mut headers);
    for name in &OURS {
        headers.remove(name);
    }
    if forwarded == Forwarded::Replace {
        let said: Vec<HeaderName> = headers
            .keys()
            .filter(|name| {
                name.as_str().starts_with("x-forwarded-") || **name == header::FORWARDED || **name == REAL_IP
            })
            .cloned()
            .collect();
        for name in said {
            headers.remove(name);
        }
    }
    let mut set = |name: HeaderName, value: Option<HeaderValue>| {
        if let Some(value) = value
            && !headers.contains_key(&name)
        {
            headers.insert(name, value);
        }
    };
    set(FORWARDED_PROTO, Some(HeaderValue::from_static("http")));
    set(FORWARDED_HOST, host);
    set(FORWARDED_FOR, peer.and_then(|peer| HeaderValue::try_from(peer.ip().to_canonical().to_string()).ok()));
    set(FORWARDED_PREFIX, HeaderValue::try_from(target.prefix).ok());
    headers.insert(
        header::HOST,
        HeaderValue::try_from(format!("127.0.0.1:{}", backend.port)).expect("an address is a header value"),
    );
    if backend.port == EXECD_PORT {
        headers.insert(HeaderName::from_static(names::EXECD_ACCESS_TOKEN), secret_value(&backend.daemon.token));
    }
    headers
}

/// How a caller sees the port, for what an answer says of itself.
pub(crate) struct Prefix {
    pub(crate) text: String,
    /// Whether the call came by a link: a browser may show the answer as a page of its own.
    pub(crate) is_link: bool,
}

/// Headers of an application with which a page would reach beyond itself: they are for its whole origin, which here
/// is everybody's.
const OF_THE_ORIGIN: [HeaderName; 5] = [
    header::SET_COOKIE,
    header::STRICT_TRANSPORT_SECURITY,
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("service-worker-allowed"),
    header::ALT_SVC,
];

/// What makes a page that a link opens an origin of its own: it shares neither storage nor workers with other
/// sandboxes' pages, and does not count as the API's page. Further policies of the application's own narrow it.
const OWN_ORIGIN: HeaderValue =
    HeaderValue::from_static("sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts");

/// The headers that the caller sees.
pub(crate) fn for_caller(headers: &mut HeaderMap, prefix: &Prefix) {
    drop_hop_by_hop(headers);
    headers.remove(header::SERVER);
    // Only the platform says that an answer is its own.
    headers.remove(names::ERROR_SOURCE);
    if prefix.is_link {
        for name in &OF_THE_ORIGIN {
            headers.remove(name);
        }
        headers.append(header::CONTENT_SECURITY_POLICY, OWN_ORIGIN);
        // The address is the right to call: no other host may learn it.
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    }
    // A path of the application's own lies under the prefix here.
    let location = headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
    if let Some(path) = location.filter(|path| path.starts_with('/') && !path.starts_with("//"))
        && let Ok(moved) = HeaderValue::try_from(format!("{}{path}", prefix.text))
    {
        headers.insert(header::LOCATION, moved);
    }
}

/// A token as a header value that no log shows.
///
/// # Panics
/// The token holds what a header cannot: ours are base64.
pub fn secret_value(token: &SecretString) -> HeaderValue {
    let mut value = HeaderValue::try_from(token.expose_secret()).expect("base64 is a header value");
    value.set_sensitive(true);
    value
}

fn drop_hop_by_hop(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // Framing is this server's business: a caller must not be able to remove it.
        .filter(|name| *name != header::CONTENT_LENGTH)
        .collect();
    for name in listed.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}
