//! `CONNECT host:port`: raw bytes between the caller and a port of the sandbox.

use std::io;

use early_answer::Hearing;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use protocol::execd::code;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::TcpStream;

use super::{Answer, Body};
use crate::error::{ApiError, Result, system_text};

/// Bytes of relay buffer in each direction.
const RELAY_BYTES: usize = 64 * 1024;
/// Names under which a caller may mean the sandbox itself.
const LOOPBACK_NAMES: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];

/// Dials a port of the sandbox: IPv4 first, then IPv6, since some dev servers bind only that.
///
/// # Errors
/// 502 naming the port.
pub async fn dial(port: u16) -> Result<TcpStream> {
    let first = match TcpStream::connect(("127.0.0.1", port)).await {
        Ok(stream) => return Ok(nodelay(stream)),
        Err(error) => error,
    };
    if first.kind() == io::ErrorKind::ConnectionRefused
        && let Ok(stream) = TcpStream::connect(("::1", port)).await
    {
        return Ok(nodelay(stream));
    }
    let message = format!("nothing answers on port {port} of the sandbox: {}", system_text(&first));
    Err(ApiError::new(StatusCode::BAD_GATEWAY, code::RUNTIME_ERROR, message))
}

fn nodelay(stream: TcpStream) -> TcpStream {
    let _ = stream.set_nodelay(true); // only latency is at stake
    stream
}

/// Answers 200 and relays until both sides have ended.
///
/// # Errors
/// 400 for another host than the sandbox's loopback, 502 when nothing listens.
pub async fn connect(request: Request<Incoming>) -> Result<Answer> {
    let target = request.uri().authority().filter(|target| LOOPBACK_NAMES.contains(&target.host()));
    let Some(port) = target.and_then(http::uri::Authority::port_u16).filter(|port| *port != 0) else {
        return Err(ApiError::body(format!(
            "CONNECT reaches 127.0.0.1:PORT of the sandbox only, not {:?}",
            request.uri()
        )));
    };
    let mut upstream = Hearing::new(dial(port).await?);
    tokio::task::spawn_local(async move {
        if let Ok(upgraded) = hyper::upgrade::on(request).await {
            let mut client = TokioIo::new(upgraded);
            // Either side may break off; both see it as the end of their connection.
            let _ = copy_bidirectional_with_sizes(&mut client, &mut upstream, RELAY_BYTES, RELAY_BYTES).await;
        }
    });
    Ok(Response::new(Body::Whole(None)))
}
