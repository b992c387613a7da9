//! `/proxy/{port}/{path}`: HTTP and WebSocket to a port of the sandbox.

use http::header::{self, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use protocol::headers;
use tokio::io::copy_bidirectional_with_sizes;

use super::{Answer, Body, client, text, tunnel};
use crate::error::Result;

/// Bytes of relay buffer in each direction of an upgraded connection.
const RELAY_BYTES: usize = 64 * 1024;
/// Headers that belong to one hop and are not passed on.
const HOP_HEADERS: [HeaderName; 5] = [
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    HeaderName::from_static("proxy-connection"),
];

/// Forwards a request and relays the answer as it comes; an upgraded connection is relayed raw.
///
/// # Errors
/// None by itself: a bad port is 400 and a dead one 502, both as text, as published.
pub async fn forward(mut request: Request<Incoming>, port: &str, path: &str) -> Result<Answer> {
    let Some(port) = port.parse::<u16>().ok().filter(|port| *port != 0) else {
        return Ok(text(StatusCode::BAD_REQUEST, format!("{port:?} is not a port; use /proxy/PORT/PATH")));
    };
    let Ok(upstream) = tunnel::dial(port).await else {
        return Ok(text(StatusCode::BAD_GATEWAY, "Bad Gateway"));
    };
    let Some(uri) = upstream_uri(path, request.uri().query()) else {
        return Ok(text(StatusCode::BAD_REQUEST, "the path cannot be forwarded"));
    };
    *request.uri_mut() = uri;
    let upgrade = request.headers().get(header::UPGRADE).cloned();
    prepare(request.headers_mut(), port, upgrade.as_ref());
    let client_upgrade = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));

    let Ok(mut sender) = client::handshake(upstream, async {}).await else {
        return Ok(text(StatusCode::BAD_GATEWAY, "Bad Gateway"));
    };
    let Ok(mut response) = sender.send_request(request.map(BodyExt::boxed_unsync)).await else {
        return Ok(text(StatusCode::BAD_GATEWAY, "Bad Gateway"));
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client_upgrade) = client_upgrade
    {
        let server_upgrade = hyper::upgrade::on(&mut response);
        tokio::task::spawn_local(async move {
            if let (Ok(client), Ok(server)) = tokio::join!(client_upgrade, server_upgrade) {
                let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
                // Either side may break off; both see it as the end of their connection.
                let _ = copy_bidirectional_with_sizes(&mut client, &mut server, RELAY_BYTES, RELAY_BYTES).await;
            }
        });
        return Ok(response.map(|_| Body::Whole(None)));
    }
    remove_hop_headers(response.headers_mut());
    response.headers_mut().remove(header::CONNECTION);
    response.headers_mut().remove(header::TRANSFER_ENCODING);
    Ok(response.map(Body::Proxied))
}

fn upstream_uri(path: &str, query: Option<&str>) -> Option<Uri> {
    let path = if path.is_empty() { "/" } else { path };
    let path = query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    PathAndQuery::try_from(path).ok().map(Uri::from)
}

/// The token stays here: a program on a port must not learn what opens execd.
fn prepare(headers: &mut HeaderMap, port: u16, upgrade: Option<&HeaderValue>) {
    headers.remove(headers::EXECD_ACCESS_TOKEN);
    headers.remove(headers::SECURE_ACCESS);
    remove_hop_headers(headers);
    headers.remove(header::CONNECTION);
    if upgrade.is_some() {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
    if !headers.contains_key(header::HOST) {
        let host = format!("127.0.0.1:{port}");
        headers
            .insert(header::HOST, HeaderValue::from_str(&host).expect("an address and a number make a header value"));
    }
    let forwarded_for = HeaderName::from_static("x-forwarded-for");
    if !headers.contains_key(&forwarded_for) {
        headers.insert(forwarded_for, HeaderValue::from_static("127.0.0.1"));
    }
    headers.insert(HeaderName::from_static("x-forwarded-proto"), HeaderValue::from_static("http"));
}

/// Removes what `Connection` names, too.
fn remove_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .filter(|name| name != header::UPGRADE)
        .collect();
    for name in named.iter().chain(&HOP_HEADERS) {
        headers.remove(name);
    }
}
