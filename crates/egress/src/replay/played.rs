//! The body of a recorded answer, a piece at a time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::{Method, StatusCode};
use http_body::{Body, Frame, SizeHint};

use crate::intercept::BodyError;
use crate::recording::{Answered, Book, Digest, Hash};

/// What an answer says of the length of its body; it is framed as it was, so that no header is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// It has none: it answers HEAD, or its status says so.
    NoBody,
    /// A header tells it.
    Told,
    /// Nothing does: it is over when it ends.
    Untold,
}

impl Length {
    /// Of an answer to a request with this method.
    pub fn of(method: &Method, status: StatusCode, headers: &HeaderMap) -> Self {
        let has_none = *method == Method::HEAD || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        match headers.contains_key(header::CONTENT_LENGTH) {
            _ if has_none => Self::NoBody,
            true => Self::Told,
            false => Self::Untold,
        }
    }
}

/// The body of a recorded answer. What is not what it was breaks off.
pub struct Played {
    book: Arc<Book>,
    pieces: std::vec::IntoIter<Digest>,
    trailers: Option<HeaderMap>,
    length: Length,
    left: u64,
    hash: Hash,
    expected: Digest,
    is_over: bool,
}

impl Played {
    /// Of this answer.
    pub fn new(book: Arc<Book>, answer: Answered, trailers: HeaderMap, length: Length) -> Self {
        Self {
            book,
            pieces: answer.pieces.into_iter(),
            trailers: Some(trailers).filter(|trailers| !trailers.is_empty()),
            length,
            left: answer.bytes,
            hash: Hash::default(),
            expected: answer.sha256,
            is_over: false,
        }
    }

    fn next(&mut self) -> Result<Option<Frame<Bytes>>, BodyError> {
        if let Some(digest) = self.pieces.next() {
            let piece = self.book.piece(digest)?;
            self.hash.push(&piece);
            self.left = self.left.saturating_sub(piece.len() as u64);
            let is_last = self.pieces.len() == 0;
            if is_last && self.hash.finish() != self.expected {
                return Err("the recording's body is not what it was".into());
            }
            return Ok(Some(Frame::data(piece.into())));
        }
        self.is_over = true;
        Ok(self.trailers.take().map(Frame::trailers))
    }
}

impl Body for Played {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(self.get_mut().next().transpose())
    }

    fn is_end_stream(&self) -> bool {
        match self.length {
            Length::NoBody => true,
            Length::Told => self.pieces.len() == 0 && self.trailers.is_none(),
            // As one that comes from a host: it is asked for more until there is no more.
            Length::Untold => self.is_over,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self.length {
            Length::NoBody => SizeHint::with_exact(0),
            Length::Told => SizeHint::with_exact(self.left),
            Length::Untold => SizeHint::default(),
        }
    }
}
