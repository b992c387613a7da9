//! HTTP with a program of a sandbox, whoever answers it.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::origin::BodyError;
use super::tls::Version;
use super::{
    HEAD_DEADLINE, HTTP2_CONNECTION_BYTES, HTTP2_HEADER_BYTES, HTTP2_STREAM_BYTES, HTTP2_STREAMS, MAX_HEADERS,
    READ_BUFFER_BYTES,
};

/// The body of an answer.
pub type Answer = UnsyncBoxBody<Bytes, BodyError>;

/// Serves a connection to its end; what it was changed into goes on by itself. No header is added to an answer.
///
/// # Errors
/// When it breaks off.
pub async fn serve<S, F>(client: S, version: Version, answer: impl Fn(Request<Incoming>) -> F) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    F: Future<Output = Response<Answer>> + Send + 'static,
{
    let service = hyper::service::service_fn(move |request| {
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let client = TokioIo::new(client);
    match version {
        Version::Http1 => {
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new())
                .header_read_timeout(HEAD_DEADLINE)
                .max_buf_size(READ_BUFFER_BYTES)
                .max_headers(MAX_HEADERS)
                .auto_date_header(false)
                .preserve_header_case(true);
            http.serve_connection(client, service).with_upgrades().await
        }
        Version::Http2 => {
            let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            http.timer(TokioTimer::new())
                .max_concurrent_streams(HTTP2_STREAMS)
                .initial_stream_window_size(HTTP2_STREAM_BYTES)
                .initial_connection_window_size(HTTP2_CONNECTION_BYTES)
                .auto_date_header(false)
                .max_header_list_size(HTTP2_HEADER_BYTES);
            http.serve_connection(client, service).await
        }
    }
}

/// A body of nothing.
pub fn empty() -> Answer {
    Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync()
}

/// An answer of this program, not of the host; it says so. `last_in` is the version of a connection that cannot go on
/// after it; HTTP/1.1 is told that.
pub fn own_answer(status: StatusCode, message: &str, last_in: Option<http::Version>) -> Response<Answer> {
    let text = format!("sandbox egress: {message}\n");
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(HeaderName::from_static("x-sandbox-egress"), HeaderValue::from_static("refused"));
    if last_in == Some(http::Version::HTTP_11) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
