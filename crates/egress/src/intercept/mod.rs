//! Reads the requests of a sandbox's programs one by one: puts credentials into those for hosts that its vault binds, and
//! records those of a sandbox that is recorded. Other hosts are not opened.
//!
//! ```text
//! program ──TLS, a leaf of the sandbox's authority──▶ request ──▶ names this host? ──▶ vault ──▶ headers, path, body
//!                                                        │ no: 421, 403                             │
//!                                                        ▼                                           ▼
//! program ◀── masked headers, body, trailers ◀────────────────────── host, verified ◀── TLS ── request
//! ```
//!
//! One connection of a program is one connection to the host, with the same HTTP on both sides. The host is verified
//! before anything is asked of it; what cannot be verified, looked into or decided without doubt is refused.

mod answer;
mod exchange;
mod origin;
mod pieces;
pub mod request;
pub mod speaking;
pub mod streams;
pub mod taping;
pub mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_util::sync::CancellationToken;

use self::exchange::Exchange;
pub use self::origin::BodyError;
use self::origin::{Origin, OriginError, Purpose};
use self::streams::{Closing, Inside};
use self::tls::{Offer, Version};
use crate::authority::Authority;
use crate::flow::Flow;
use crate::sandbox::Sandbox;
use crate::verdicts::{End, Reason};

/// How long a program of the sandbox may take for TLS.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(20);
/// How long a program may take for the head of a request, the rest after the request before it included: longer than
/// clients keep an idle connection.
const HEAD_DEADLINE: Duration = Duration::from_secs(300);
/// Bytes that HTTP/1.1 reads ahead, each side; also the longest head.
const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Headers of a message.
const MAX_HEADERS: usize = 128;
/// Requests on one HTTP/2 connection at a time.
const HTTP2_STREAMS: u32 = 100;
/// Bytes that may be on the way for one of them, each side.
const HTTP2_STREAM_BYTES: u32 = 256 * 1024;
/// And for all of them.
const HTTP2_CONNECTION_BYTES: u32 = 1024 * 1024;
/// Bytes of headers of one.
const HTTP2_HEADER_BYTES: u32 = 64 * 1024;

/// Bytes of a path that an event tells.
const TOLD_PATH_BYTES: usize = 256;

/// As much of a path as is told.
pub fn told_path(path: &str) -> &str {
    let end = (0..=TOLD_PATH_BYTES.min(path.len())).rev().find(|end| path.is_char_boundary(*end)).unwrap_or(0);
    &path[..end]
}

/// A connection whose requests are read.
pub struct Meeting {
    /// Whose it is.
    pub sandbox: Arc<Sandbox>,
    /// Its flow; it has a name.
    pub flow: Arc<Flow>,
    /// Where the sandbox meant to go.
    pub to: SocketAddr,
    /// Who signs for the host.
    pub authority: Arc<Authority>,
    /// The sandbox's side.
    pub client: TcpStream,
    /// The host's side, of which nothing was read.
    pub upstream: TcpStream,
    /// What the program said first.
    pub first: Vec<u8>,
    /// Whether that is TLS.
    pub is_tls: bool,
}

/// Serves a connection to its end.
pub async fn serve(meeting: Meeting) -> End {
    let broken = |error: io::Error| End::Broken { message: error.to_string() };
    let Meeting { sandbox, flow, to, authority, client, upstream, first, is_tls } = meeting;
    let _slot = sandbox.intercept_slot().await;
    let closing = match Closing::of(&client) {
        Ok(closing) => closing,
        Err(error) => return broken(error),
    };
    let ended = CancellationToken::new();
    let _guard = ended.clone().drop_guard();
    let client = Inside::new(Bytes::from(first), client, flow.clone());
    let purpose = |offer| Purpose { sandbox: sandbox.clone(), flow: flow.clone(), to, offer, ended: ended.clone() };
    let served = if is_tls {
        sandbox.handshakes.take().await;
        let met = timeout(HANDSHAKE_DEADLINE, LazyConfigAcceptor::new(Default::default(), client)).await;
        let hello = match met {
            Ok(Ok(hello)) => hello,
            Ok(Err(error)) => return broken(error),
            Err(_late) => return broken(io::ErrorKind::TimedOut.into()),
        };
        let Some(offer) = Offer::of(hello.client_hello().alpn()) else {
            let message =
                "the program speaks neither HTTP/1.1 nor HTTP/2, and the host is bound to a credential".into();
            return End::Refused { reason: Reason::Vault { message } };
        };
        let origin = Origin::over(upstream, purpose(Some(offer))).await;
        let version = origin.as_ref().map_or_else(|_| offer.best(), Origin::version);
        let Some(name) = flow.name() else { return End::Detached };
        let config = authority.leaf(name).map_err(io::Error::other).and_then(|leaf| tls::server(leaf, version));
        let config = match config {
            Ok(config) => config,
            Err(error) => return broken(error),
        };
        let client = match timeout(HANDSHAKE_DEADLINE, hello.into_stream(config)).await {
            Ok(Ok(client)) => client,
            // Most often a program that does not trust the sandbox's authority: the alert says so.
            Ok(Err(error)) => return broken(error),
            Err(_late) => return broken(io::ErrorKind::TimedOut.into()),
        };
        speak(client, version, Exchange::new(sandbox.clone(), flow.clone(), to, true, origin)).await
    } else {
        let origin = Origin::over(upstream, purpose(None)).await;
        speak(client, Version::Http1, Exchange::new(sandbox.clone(), flow.clone(), to, false, origin)).await
    };
    match served {
        Ok(()) => {
            closing.in_order();
            End::Done
        }
        Err(message) => End::Broken { message },
    }
}

/// HTTP with a program of the sandbox.
async fn speak<S>(client: S, version: Version, exchange: Exchange) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let exchange = Arc::new(exchange);
    let of_requests = exchange.clone();
    let served = speaking::serve(client, version, move |request| {
        let exchange = of_requests.clone();
        async move { exchange.answer(request).await }
    })
    .await;
    // Protocols that the connection was changed to go on by themselves.
    let tunnelled = exchange.tunnels_end().await;
    match (served, tunnelled) {
        (Ok(()), Ok(())) => Ok(()),
        (Err(error), _) => Err(protocol::error::chain(&error)),
        (Ok(()), Err(error)) => Err(error.to_string()),
    }
}

impl From<OriginError> for Reason {
    fn from(error: OriginError) -> Self {
        match error {
            OriginError::Unreachable(message) | OriginError::Broken(message) => Self::Unreachable { message },
            error => Self::Vault { message: error.to_string() },
        }
    }
}
