//! What a request of a sandbox's program must be, and what of it belongs to one hop only. Pure.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::Authority;
use http::{Method, StatusCode, Version};

use crate::name::Name;

/// Headers that are about one connection (RFC 9110, section 7.6.1, and what clients send in its stead).
const HOP_HEADERS: [HeaderName; 4] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TRANSFER_ENCODING,
    header::CONNECTION,
];

/// Why a request is not passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// It names no host, or several.
    #[error("a request names its host exactly once")]
    NoHost,
    /// It is for another host than its connection.
    #[error("the request is for {asked}, its connection for {connected}")]
    OtherHost {
        /// Whom it names.
        asked: String,
        /// Whom the connection is for.
        connected: String,
    },
    /// A method that makes a tunnel.
    #[error("CONNECT to a host is not possible: connect to it")]
    Connect,
}

impl BadRequest {
    /// What it is answered with.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::OtherHost { .. } => StatusCode::MISDIRECTED_REQUEST,
            Self::Connect => StatusCode::METHOD_NOT_ALLOWED,
            Self::NoHost => StatusCode::BAD_REQUEST,
        }
    }
}

/// The port of a request that names none: of `https` or of `http`.
pub fn default_port(is_tls: bool) -> u16 {
    if is_tls { 443 } else { 80 }
}

/// Holds the host that a request names against that of its connection: name and port.
///
/// # Errors
/// When they differ, so that what is meant for one host cannot be sent to another.
pub fn check_host(parts: &Parts, name: &Name, port: u16, default_port: u16) -> Result<(), BadRequest> {
    if parts.method == Method::CONNECT {
        return Err(BadRequest::Connect);
    }
    let mut fields = parts.headers.get_all(header::HOST).iter();
    let field = fields.next().map(read_authority).transpose()?;
    if fields.next().is_some() {
        return Err(BadRequest::NoHost);
    }
    let in_uri = parts.uri.authority().cloned();
    let asked = match (in_uri, field) {
        (Some(one), Some(other)) if !one.as_str().eq_ignore_ascii_case(other.as_str()) => {
            return Err(BadRequest::NoHost);
        }
        (Some(one), _) | (None, Some(one)) => one,
        (None, None) => return Err(BadRequest::NoHost),
    };
    let names_no_port = asked.as_str() == asked.host();
    let is_port = if names_no_port { port == default_port } else { asked.port_u16() == Some(port) };
    let is_name = Name::from_ascii(asked.host().trim_end_matches('.')).is_ok_and(|asked| asked == *name);
    let has_user = asked.as_str().contains('@');
    if is_port && is_name && !has_user {
        return Ok(());
    }
    let connected = if port == default_port { name.to_string() } else { format!("{name}:{port}") };
    Err(BadRequest::OtherHost { asked: asked.to_string(), connected })
}

fn read_authority(value: &HeaderValue) -> Result<Authority, BadRequest> {
    Authority::try_from(value.as_bytes()).map_err(|_| BadRequest::NoHost)
}

/// Takes out what is about one connection. `TE: trailers` stays: gRPC needs it.
pub fn remove_hop_headers(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect();
    let takes_trailers = headers
        .get_all(header::TE)
        .iter()
        .any(|value| value.to_str().is_ok_and(|value| value.split(',').any(|part| part.trim() == "trailers")));
    for name in HOP_HEADERS.iter().chain(&listed) {
        headers.remove(name);
    }
    headers.remove(header::TE);
    if takes_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// Whether a request asks for another protocol on its connection, and for which.
pub fn upgrade(parts: &Parts) -> Option<HeaderValue> {
    let is_listed = parts.headers.get_all(header::CONNECTION).iter().any(|value| {
        value.to_str().is_ok_and(|value| value.split(',').any(|name| name.trim().eq_ignore_ascii_case("upgrade")))
    });
    let asked = parts.headers.get(header::UPGRADE).filter(|_| is_listed && parts.version == Version::HTTP_11)?;
    // HTTP/2 without TLS is no protocol to change to: what follows would not be read request by request.
    (!asked.as_bytes().eq_ignore_ascii_case(b"h2c")).then(|| asked.clone())
}

#[cfg(test)]
mod tests;
