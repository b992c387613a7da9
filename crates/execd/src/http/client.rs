//! HTTP/1.1 as a client, to programs of the sandbox and to our own workers.

use bytes::Bytes;
use early_answer::Hearing;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use super::Duplex;

/// A body of a request, of any kind: one type, so that the program holds the client once.
pub type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// Speaks HTTP/1.1 on a connection, which is served until it ends; then `ended` runs.
///
/// # Errors
/// What the client says of it.
pub async fn handshake<F>(stream: impl Duplex + 'static, ended: F) -> hyper::Result<SendRequest<Body>>
where
    F: Future<Output = ()> + 'static,
{
    let stream: Box<dyn Duplex> = Box::new(Hearing::new(stream));
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::task::spawn_local(async move {
        let _ = connection.with_upgrades().await; // its end shows in the answer
        ended.await;
    });
    Ok(sender)
}
