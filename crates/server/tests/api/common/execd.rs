//! A stand-in for execd: an HTTP server on a unix socket that also ends CONNECT tunnels at loopback ports.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::task::JoinHandle;

type Body = BoxBody<Bytes, std::io::Error>;

pub struct Execd {
    /// Connections that are open now.
    pub open: Arc<AtomicUsize>,
    /// Connections ever accepted.
    pub accepted: Arc<AtomicUsize>,
    /// What it says runs in the sandbox.
    pub running: Arc<AtomicUsize>,
    _socket: Socket,
}

impl Execd {
    pub fn serve(path: PathBuf) -> Self {
        let open = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::new(AtomicUsize::new(0));
        let running = Arc::new(AtomicUsize::new(0));
        let (counter, total, busy) = (open.clone(), accepted.clone(), running.clone());
        let socket = Socket::serve(path, move |stream| {
            let (counter, busy) = (counter.clone(), busy.clone());
            counter.fetch_add(1, Ordering::SeqCst);
            total.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request| answer(request, busy.clone()));
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades()
                    .await;
                counter.fetch_sub(1, Ordering::SeqCst);
            });
        });
        Self { open, accepted, running, _socket: socket }
    }
}

/// A unix socket that is served until it is dropped.
pub struct Socket {
    task: JoinHandle<()>,
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path); // a test may have removed it
    }
}

impl Socket {
    /// Hands every connection to `connection`.
    pub fn serve(path: PathBuf, mut connection: impl FnMut(UnixStream) + Send + 'static) -> Self {
        let listener = UnixListener::bind(&path).expect("a socket");
        let task = tokio::spawn(async move {
            loop {
                connection(listener.accept().await.expect("accepts").0);
            }
        });
        Self { task, path }
    }
}

fn full(status: u16, text: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(text.into()).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}

async fn answer(request: Request<Incoming>, running: Arc<AtomicUsize>) -> Result<Response<Body>, std::io::Error> {
    if request.method() == Method::CONNECT {
        return Ok(connect(request).await);
    }
    Ok(match request.uri().path() {
        "/ping" => full(200, ""),
        "/v1/activity" => full(200, format!("{{\"running\":{}}}", running.load(Ordering::SeqCst))),
        "/endless" => {
            let ticks = futures_util::stream::unfold((), |()| async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Some((Ok(Frame::data(Bytes::from_static(b"data: tick\n\n"))), ()))
            });
            let mut response = Response::new(BoxBody::new(StreamBody::new(ticks)));
            response.headers_mut().insert("content-type", "text/event-stream".parse().expect("a value"));
            response
        }
        "/count" => {
            let mut body = request.into_body();
            let mut bytes = 0_u64;
            while let Some(frame) = body.frame().await {
                bytes += frame.map_err(std::io::Error::other)?.data_ref().map_or(0, |data| data.len() as u64);
            }
            full(200, bytes.to_string())
        }
        "/error" => full(502, "{\"code\":\"APP\",\"message\":\"mine\"}"),
        _ => {
            let mut text = format!("{} {}\n", request.method(), request.uri());
            for (name, value) in request.headers() {
                text.push_str(&format!("{name}: {}\n", value.to_str().expect("text")));
            }
            full(200, text)
        }
    })
}

async fn connect(request: Request<Incoming>) -> Response<Body> {
    let Some(authority) = request.uri().authority().map(ToString::to_string) else {
        return full(400, "");
    };
    let Ok(port) = TcpStream::connect(&authority).await else {
        return full(502, "");
    };
    let mut port = early_answer::Hearing::new(port);
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(request).await.expect("an upgrade");
        let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(upgraded), &mut port).await;
    });
    full(200, "")
}
