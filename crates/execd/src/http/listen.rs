//! Accepting connections and serving them.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use super::Answer;
use super::route::route;
use crate::daemon::Daemon;
use crate::handed::Connections;

/// Connections at once; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 1024;
/// Bytes that a connection buffers in each direction: large enough for full speed, small enough for many.
const CONNECTION_BUFFER_BYTES: usize = 64 * 1024;
/// Pause after a refused `accept` (no descriptors left, say), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Where requests come from.
pub enum Listener {
    /// A unix socket.
    Unix(UnixListener),
    /// A TCP port.
    Tcp(TcpListener),
    /// Whoever started execd, who accepts elsewhere.
    Handed(Connections),
}

/// Serves until the process ends.
pub async fn serve(daemon: Rc<Daemon>, listener: Listener) {
    let slots = std::sync::Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = std::sync::Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        let daemon = Rc::clone(&daemon);
        let accepted = match &listener {
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                tokio::task::spawn_local(async move {
                    connection(stream, move |request| route(Rc::clone(&daemon), request)).await;
                    drop(slot);
                });
            }),
            Listener::Handed(connections) => match connections.next().await {
                Ok(Some(stream)) => {
                    tokio::task::spawn_local(async move {
                        connection(stream, move |request| route(Rc::clone(&daemon), request)).await;
                        drop(slot);
                    });
                    Ok(())
                }
                Ok(None) => return,
                Err(error) => Err(error),
            },
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                let _ = stream.set_nodelay(true); // only latency is at stake
                tokio::task::spawn_local(async move {
                    connection(stream, move |request| route(Rc::clone(&daemon), request)).await;
                    drop(slot);
                });
            }),
        };
        if accepted.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::ConnectionAborted) {
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// Bytes to and from somebody. Boxed wherever HTTP is spoken over it, so that the program holds that code once.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Serves one connection to its end.
pub async fn connection<A, F>(stream: impl Duplex + 'static, answer: A)
where
    A: Fn(Request<Incoming>) -> F + 'static,
    F: Future<Output = Answer> + 'static,
{
    serve_http(Box::new(stream), Box::new(move |request| Box::pin(answer(request)))).await;
}

type Answering = Pin<Box<dyn Future<Output = Answer>>>;

async fn serve_http(stream: Box<dyn Duplex>, answer: Box<dyn Fn(Request<Incoming>) -> Answering>) {
    let service = service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let served = http1::Builder::new()
        .max_buf_size(CONNECTION_BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    drop(served); // a broken connection concerns its client alone
}
