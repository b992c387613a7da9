//! Connections that leave HTTP: WebSockets, of which the handshake is passed on, and tunnels of raw TCP. Then bytes
//! are relayed as they are, so that frames, subprotocols and close codes are the application's own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};

use crate::error::{Error, ErrorKind};
use crate::forward::{bounded, broken};
use crate::headers::for_caller;
use crate::{Backend, EXECD_PORT, Ports, connect};

/// The protocol to ask for with `Upgrade` where raw bytes of a port are wanted.
pub const TCP_UPGRADE: &str = "opensandbox-tcp";
/// How long the other direction may go on after one has ended: a close frame's answer, not a conversation.
const WEBSOCKET_LINGER: Linger = Linger::For(Duration::from_secs(1));
/// The same for raw TCP, where one side may end its part and wait for the other's; counted anew with every byte.
const TCP_LINGER: Linger = Linger::WhileMoving(Duration::from_secs(600));
/// Bytes of a WebSocket relayed at once in each direction.
const WEBSOCKET_BYTES: usize = 16 * 1024;
/// Bytes of a tunnel relayed at once in each direction: tunnels carry bulk.
const TCP_BYTES: usize = 128 * 1024;

/// What a request wants its connection to become. Other upgrades are not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    WebSocket,
    Tcp,
}

/// What the request asks for, if anything.
pub(crate) fn asked(headers: &HeaderMap) -> Option<Asked> {
    let names = |name, word: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|value: &HeaderValue| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|token| token.trim().eq_ignore_ascii_case(word))
    };
    if !headers.contains_key(header::UPGRADE) || !names(header::CONNECTION, "upgrade") {
        return None;
    }
    if names(header::UPGRADE, "websocket") {
        return Some(Asked::WebSocket);
    }
    names(header::UPGRADE, TCP_UPGRADE).then_some(Asked::Tcp)
}

impl Ports {
    /// Passes the handshake on; when the backend agrees, relays both directions until one ends.
    pub(crate) async fn websocket<H: Send + Sync + 'static>(
        self: &Arc<Self>,
        backend: &Backend,
        peer: Option<SocketAddr>,
        mut request: Request,
        hold: H,
    ) -> Result<Response, Error> {
        let caller = hyper::upgrade::on(&mut request);
        let (mut request, prefix, activity) = self.outgoing(backend, peer, request)?;
        ask_for(request.headers_mut(), "websocket");
        *request.body_mut() = Body::empty();
        let mut line = self.connect(backend).await?;
        let mut response = bounded(line.sender.send_request(request), &activity, backend)
            .await?
            .map_err(|error| broken(backend, &error))?;
        let agreed = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let port = agreed.then(|| hyper::upgrade::on(&mut response));
        let (mut head, body) = response.into_parts();
        for_caller(&mut head.headers, &prefix);
        let Some(port) = port else {
            return Ok(Response::from_parts(head, Body::new(body)));
        };
        ask_for(&mut head.headers, "websocket");
        self.relay(hold, async move {
            match tokio::try_join!(caller, port) {
                Ok((caller, port)) => between(caller, TokioIo::new(port), WEBSOCKET_LINGER, WEBSOCKET_BYTES).await,
                Err(error) => {
                    tracing::debug!(error = %protocol::error::chain(&error), "a websocket did not come about")
                }
            }
        });
        Ok(Response::from_parts(head, Body::empty()))
    }

    /// Connects to the port and relays raw bytes: `GET` on the port's own path with `Upgrade: opensandbox-tcp`.
    pub(crate) async fn tunnel<H: Send + Sync + 'static>(
        self: &Arc<Self>,
        backend: &Backend,
        mut request: Request,
        hold: H,
    ) -> Result<Response, Error> {
        if request.method() != Method::GET || backend.port == EXECD_PORT {
            let message = format!("Upgrade: {TCP_UPGRADE} takes a GET on a port other than {EXECD_PORT}");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let caller: OnUpgrade = hyper::upgrade::on(&mut request);
        let (port, _) = connect::open(backend, &self.stock).await?;
        self.relay(hold, async move {
            match caller.await {
                Ok(caller) => between(caller, port, TCP_LINGER, TCP_BYTES).await,
                Err(error) => tracing::debug!(error = %protocol::error::chain(&error), "a tunnel did not come about"),
            }
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        ask_for(response.headers_mut(), TCP_UPGRADE);
        Ok(response)
    }

    fn relay<H: Send + Sync + 'static>(&self, hold: H, work: impl Future<Output = ()> + Send + 'static) {
        let closing = self.closing.clone();
        self.relays.spawn(async move {
            tokio::select! {
                () = closing.cancelled() => {}
                () = work => {}
            }
            drop(hold);
        });
    }
}

fn ask_for(headers: &mut HeaderMap, protocol: &'static str) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(protocol));
}

/// How a relay goes on after one direction has ended.
#[derive(Clone, Copy)]
enum Linger {
    /// This long.
    For(Duration),
    /// As long as something comes within this time.
    WhileMoving(Duration),
}

/// Relays until both directions have ended; the second one gets `linger` after the first.
async fn between(caller: Upgraded, port: impl AsyncRead + AsyncWrite + Unpin, linger: Linger, bytes: usize) {
    let (from_caller, to_caller) = tokio::io::split(TokioIo::new(caller));
    let (from_port, to_port) = tokio::io::split(port);
    let moved = AtomicU64::new(0);
    let up = copy(from_caller, to_port, bytes, &moved);
    let down = copy(from_port, to_caller, bytes, &moved);
    tokio::pin!(up, down);
    // The rest is dropped with both ends: whoever is left sees the connection close.
    tokio::select! {
        end = &mut up => if end == End::Whole { last(down, linger, &moved).await },
        end = &mut down => if end == End::Whole { last(up, linger, &moved).await },
    }
}

async fn last(copy: impl Future<Output = End>, linger: Linger, moved: &AtomicU64) {
    tokio::pin!(copy);
    loop {
        let before = moved.load(Ordering::Relaxed);
        let (Linger::For(limit) | Linger::WhileMoving(limit)) = linger;
        let ended = tokio::time::timeout(limit, &mut copy).await.is_ok();
        if ended || matches!(linger, Linger::For(_)) || moved.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

/// How one direction ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its reader ended, and its writer was ended.
    Whole,
    /// Either side failed.
    Broken,
}

/// Copies until the reader ends or either side fails, then ends the writer.
async fn copy<R, W>(mut from: ReadHalf<R>, mut to: WriteHalf<W>, bytes: usize, moved: &AtomicU64) -> End
where
    R: AsyncRead + AsyncWrite + Unpin,
    W: AsyncRead + AsyncWrite + Unpin,
{
    let mut buffer = vec![0; bytes];
    let end = loop {
        match from.read(&mut buffer).await {
            Ok(0) => break End::Whole,
            Err(_) => break End::Broken,
            Ok(n) => {
                moved.fetch_add(n as u64, Ordering::Relaxed);
                if to.write_all(&buffer[..n]).await.is_err() || to.flush().await.is_err() {
                    break End::Broken;
                }
            }
        }
    };
    // The other side may have gone first.
    let _ = to.shutdown().await;
    end
}
