//! Accepts connections, serves HTTP/1.1 on them, and ends them in good order.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::routes::Routes;

/// Connections served at the same time; each costs a descriptor here and up to one at a sandbox.
const MAX_CONNECTIONS: usize = 16_384;
/// Most bytes of a request's head; the published server's is 64 KiB.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most header fields of a request.
const MAX_HEADERS: usize = 128;
/// Wait after a failed accept: it fails for want of descriptors, and others must get a chance to close theirs.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// The connections of a server.
pub(crate) struct Connections {
    tasks: TaskTracker,
    /// No new request is taken.
    draining: CancellationToken,
    /// Everything ends now.
    ended: CancellationToken,
}

/// Accepts until `stop`.
pub(crate) async fn accept(
    listener: TcpListener,
    routes: Routes,
    keep_alive: Duration,
    stop: impl Future<Output = ()>,
) -> Connections {
    let connections =
        Connections { tasks: TaskTracker::new(), draining: CancellationToken::new(), ended: CancellationToken::new() };
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = async {
                let place = places.clone().acquire_owned().await.expect("never closed");
                (listener.accept().await, place)
            } => accepted,
        };
        let (stream, peer, place) = match accepted {
            (Ok((stream, peer)), place) => (stream, peer, place),
            (Err(error), _) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let (draining, ended) = (connections.draining.clone(), connections.ended.clone());
        let routes = routes.clone();
        connections.tasks.spawn(async move {
            let _place = place;
            tokio::select! {
                () = ended.cancelled() => {}
                () = serve_one(stream, peer, routes, keep_alive, draining) => {}
            }
        });
    }
    connections
}

impl Connections {
    /// Takes no further request, gives open ones `limit`, then ends them.
    pub(crate) async fn close(self, limit: Duration) {
        self.draining.cancel();
        self.tasks.close();
        if tokio::time::timeout(limit, self.tasks.wait()).await.is_err() {
            tracing::info!(open = self.tasks.len(), "ending requests that are still open");
            self.ended.cancel();
            self.tasks.wait().await;
        }
    }
}

async fn serve_one(
    stream: TcpStream,
    peer: SocketAddr,
    routes: Routes,
    keep_alive: Duration,
    draining: CancellationToken,
) {
    // Small answers and stream events must not wait for acknowledgements.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "set TCP_NODELAY");
    }
    let service = hyper::service::service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        let answer = routes.clone().answer(request.map(Body::new));
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(keep_alive)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD_BYTES);
    let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    tokio::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = draining.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        // Clients that go away are their own business.
        tracing::debug!(%peer, error = %protocol::error::chain(&error), "connection ended");
    }
}
