//! Bodies and whole answers.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::error::ApiError;

/// An answer of execd.
pub type Answer = Response<Body>;
/// The producing end of a streamed body; an error cuts the connection, so that no reader takes a part for the whole.
pub type ByteSender = mpsc::Sender<io::Result<Bytes>>;

/// Pieces that wait between a producer and the connection: one in flight, one being made.
const STREAM_DEPTH: usize = 1;

/// The body of an answer.
pub enum Body {
    /// All of it at once; `None` when it was sent.
    Whole(Option<Bytes>),
    /// Pieces as they come; `left` is known when the length was promised.
    Stream { pieces: mpsc::Receiver<io::Result<Bytes>>, left: Option<u64> },
    /// What a proxied program answers.
    Proxied(Incoming),
}

impl Drop for Body {
    fn drop(&mut self) {
        crate::tidy::answered();
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(bytes) => {
                Poll::Ready(bytes.take().filter(|bytes| !bytes.is_empty()).map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Stream { pieces, left } => {
                let piece = ready!(pieces.poll_recv(context));
                if let (Some(Ok(bytes)), Some(left)) = (&piece, left) {
                    *left = left.saturating_sub(bytes.len() as u64);
                }
                Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
            }
            Self::Proxied(incoming) => {
                let frame = ready!(Pin::new(incoming).poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Stream { left, .. } => *left == Some(0),
            Self::Proxied(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Stream { left: Some(left), .. } => SizeHint::with_exact(*left),
            Self::Stream { left: None, .. } => SizeHint::default(),
            Self::Proxied(incoming) => incoming.size_hint(),
        }
    }
}

/// 200 without content, as the published daemon answers.
pub fn empty() -> Answer {
    Response::new(Body::Whole(None))
}

/// An answer of plain text.
pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Body::Whole(Some(text.into())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// The answer for a route that does not exist.
pub fn not_found() -> Answer {
    text(StatusCode::NOT_FOUND, "404 page not found")
}

/// An answer of JSON.
pub fn json<T: Serialize>(status: StatusCode, value: &T) -> Answer {
    // Wire types hold strings and numbers only: writing them into memory cannot fail.
    let bytes = serde_json::to_vec(value).expect("wire types can always be written as JSON");
    let mut answer = Response::new(Body::Whole(Some(bytes.into())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// A streamed body with the end that fills it. Whoever drops the sender ends the body.
pub fn stream(content_type: &'static str, length: Option<u64>) -> (ByteSender, Answer) {
    let (sender, pieces) = mpsc::channel(STREAM_DEPTH);
    let mut answer = Response::new(Body::Stream { pieces, left: length });
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    (sender, answer)
}

/// The answer for a refusal.
pub fn refuse(error: ApiError) -> Answer {
    json(error.status, &protocol::error::ErrorBody::new(error.code, error.message))
}
