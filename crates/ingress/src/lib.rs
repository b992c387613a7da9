//! The way to what listens inside sandboxes: their daemons and their ports, over HTTP, WebSocket and raw TCP.
//!
//! Owns the grammar of paths to ports ([`target`]), signed links ([`links`]), which headers pass, connections and
//! their reuse. Refuses to know which sandboxes exist, in which state they are and who may call: its user finds
//! that out, names a [`Backend`] and hands a request to [`Ports::call`].
//!
//! execd itself answers for its own port, on its socket. Any other port is reached by a CONNECT tunnel that execd ends at
//! the port; those of a busy sandbox by sockets that were made in its network ([`Ports::add_sockets`]). Bodies are streamed both ways as they come, with
//! the back-pressure of both sides; nothing is collected. A caller that leaves closes the connection behind it.

mod connect;
mod error;
mod forward;
mod headers;
pub mod links;
mod pool;
mod relay;
mod stock;
pub mod target;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::HeaderValue;
use hyper::body::Incoming;
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use error::{Error, ErrorKind};
pub use headers::{Forwarded, secret_value};
pub use relay::TCP_UPGRADE;
pub use stock::Wanted;
use target::Target;

/// Port of execd's API (published).
pub const EXECD_PORT: u16 = 44772;

/// Where a sandbox's execd listens.
#[derive(Clone, Debug)]
pub enum Address {
    /// On this socket of the machine.
    Unix(PathBuf),
    /// At this address.
    Tcp(SocketAddr),
}

/// Whether connections to a backend are kept for the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// They are.
    Keep,
    /// Each call has its own.
    Never,
}

/// The execd of one sandbox, or of one isolated session in it.
pub struct Daemon {
    /// Which sandbox.
    pub id: Arc<str>,
    /// Where it listens.
    pub address: Address,
    /// The token that it wants.
    pub token: SecretString,
    /// Whether connections are kept.
    pub reuse: Reuse,
}

/// One port of one running sandbox.
#[derive(Clone)]
pub struct Backend {
    /// By whom it is reached.
    pub daemon: Arc<Daemon>,
    /// Which port.
    pub port: u16,
}

/// The connections to ports, shared by all calls.
pub struct Ports {
    pool: pool::Pool,
    stock: stock::Stock,
    /// What a caller says of where a request came from.
    forwarded: Forwarded,
    /// One task for each connection to a sandbox.
    tasks: TaskTracker,
    /// WebSockets and tunnels that are relayed.
    relays: TaskTracker,
    /// Set when everything ends.
    closing: CancellationToken,
}

impl Ports {
    /// No connections yet. Tasks run in `tasks` until `closing`. Of whom [`Wanted`] tells, [`Ports::add_sockets`] is
    /// hoped for.
    pub fn new(forwarded: Forwarded, tasks: TaskTracker, closing: CancellationToken) -> (Arc<Self>, Wanted) {
        let (stock, wanted) = stock::Stock::new();
        let (pool, relays) = (pool::Pool::default(), TaskTracker::new());
        (Arc::new(Self { pool, stock, forwarded, tasks, relays, closing }), wanted)
    }

    /// Takes TCP sockets over IPv4 of a sandbox's network, connected to nothing. Nobody else may hold them: who does
    /// could make a call on them wait.
    pub fn add_sockets(&self, id: &str, sockets: Vec<OwnedFd>) {
        self.stock.add(id, sockets);
    }

    /// Passes a call on to the port: an exchange, a WebSocket or a tunnel. `peer` is who
    /// calls; `hold` is dropped when the answer has ended, also that of a WebSocket or tunnel.
    ///
    /// # Errors
    /// The port cannot be reached, or broke off before its answer began.
    pub async fn call<H: Send + Sync + 'static>(
        self: &Arc<Self>,
        backend: &Backend,
        peer: Option<SocketAddr>,
        request: Request,
        hold: H,
    ) -> Result<Response, Error> {
        match relay::asked(request.headers()) {
            Some(relay::Asked::WebSocket) => self.websocket(backend, peer, request, hold).await,
            Some(relay::Asked::Tcp) => self.tunnel(backend, request, hold).await,
            None => self.forward(backend, peer, request, hold).await,
        }
    }

    /// Asks something on behalf of the platform itself, on a connection of its own; whoever calls bounds the time.
    ///
    /// # Errors
    /// As [`Ports::call`].
    pub async fn ask(
        self: &Arc<Self>,
        backend: &Backend,
        request: http::Request<Body>,
    ) -> Result<http::Response<Incoming>, Error> {
        let mut line = self.connect(backend).await?;
        line.sender.send_request(request).await.map_err(|error| forward::broken(backend, &error))
    }

    /// Closes the idle connections and the sockets of a sandbox.
    pub fn forget(&self, id: &str) {
        self.pool.forget(id);
        self.stock.forget(id);
    }

    /// Closes connections and sockets that were idle for too long, until the end.
    pub async fn expire(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.closing.cancelled() => return,
                () = tokio::time::sleep(pool::IDLE_LIMIT) => {
                    self.pool.expire();
                    self.stock.expire();
                }
            }
        }
    }

    /// Waits until no WebSocket and no tunnel is left; no new one is waited for.
    pub async fn relays_end(&self) {
        self.relays.close();
        self.relays.wait().await;
    }
}

/// Whether a path leads to a port.
pub fn is_port(path: &str) -> bool {
    Target::parse(path).is_some()
}

/// Marks an answer as one of the platform, not of the application.
pub fn mark_platform(headers: &mut http::HeaderMap) {
    headers.insert(protocol::headers::ERROR_SOURCE, HeaderValue::from_static("platform"));
}
