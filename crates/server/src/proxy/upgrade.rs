//! WebSocket connections to a port: the handshake is checked and passed on, then bytes are relayed as they are,
//! so that frames, subprotocols and close codes are the application's own.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};

use super::Backend;
use super::forward::{bounded, broken, open, outgoing};
use super::headers::for_caller;
use crate::app::App;
use crate::errors::ApiError;

/// How long the other direction may go on after one has ended: a close frame's answer, not a conversation.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes relayed at once in each direction.
const RELAY_BYTES: usize = 16 * 1024;

/// Whether the request asks for a WebSocket. Other upgrades are not passed on.
pub(super) fn is_asked(headers: &HeaderMap) -> bool {
    let names = |name, word: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|value: &HeaderValue| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|token| token.trim().eq_ignore_ascii_case(word))
    };
    names(header::CONNECTION, "upgrade") && names(header::UPGRADE, "websocket")
}

/// Passes the handshake on; when the backend agrees, relays both directions until one ends.
pub(super) async fn relay(app: &Arc<App>, backend: &Backend, mut request: Request) -> Result<Response, ApiError> {
    let caller = hyper::upgrade::on(&mut request);
    let (mut request, prefix, activity) = outgoing(app, backend, request)?;
    ask_for_websocket(request.headers_mut());
    *request.body_mut() = Body::empty();
    let mut sender = open(app, backend).await?;
    let mut response =
        bounded(sender.send_request(request), &activity, backend).await?.map_err(|error| broken(backend, &error))?;
    let agreed = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let port = agreed.then(|| hyper::upgrade::on(&mut response));
    let (mut head, body) = response.into_parts();
    for_caller(&mut head.headers, &prefix);
    let Some(port) = port else {
        return Ok(Response::from_parts(head, Body::new(body)));
    };
    ask_for_websocket(&mut head.headers);
    let closing = app.closing.clone();
    app.relays.spawn(async move {
        tokio::select! {
            () = closing.cancelled() => {}
            () = run(caller, port) => {}
        }
    });
    Ok(Response::from_parts(head, Body::empty()))
}

fn ask_for_websocket(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
}

async fn run(caller: OnUpgrade, port: OnUpgrade) {
    let (caller, port) = match tokio::try_join!(caller, port) {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(error = %crate::wire::chain(&error), "a websocket did not come about");
            return;
        }
    };
    let (from_caller, to_caller) = tokio::io::split(TokioIo::<Upgraded>::new(caller));
    let (from_port, to_port) = tokio::io::split(TokioIo::<Upgraded>::new(port));
    let up = copy(from_caller, to_port);
    let down = copy(from_port, to_caller);
    tokio::pin!(up, down);
    // The rest is dropped with both ends: whoever is left sees the connection close.
    tokio::select! {
        () = &mut up => { let _ = tokio::time::timeout(LINGER, down).await; }
        () = &mut down => { let _ = tokio::time::timeout(LINGER, up).await; }
    }
}

/// Copies until the reader ends or either side fails, then ends the writer.
async fn copy<R: AsyncRead + Unpin, W: AsyncRead + AsyncWrite + Unpin>(mut from: ReadHalf<R>, mut to: WriteHalf<W>) {
    let mut buffer = vec![0; RELAY_BYTES];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(n) => {
                if to.write_all(&buffer[..n]).await.is_err() || to.flush().await.is_err() {
                    break;
                }
            }
        }
    }
    // The other side may have gone first.
    let _ = to.shutdown().await;
}
