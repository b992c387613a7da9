//! A long body into which values are put as it passes.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use vault::BodySubstitution;

use super::origin::BodyError;
use super::taping::Heard;

/// The pieces of a body, with values in them. Its length is not known.
pub struct Pieces {
    first: Option<Bytes>,
    /// Until its end, with what puts values into it.
    rest: Option<(Heard, BodySubstitution)>,
}

impl Pieces {
    /// `first` has its values; what `rest` brings gets them.
    pub fn new(first: Bytes, rest: Heard, substitution: BodySubstitution) -> Self {
        Self { first: Some(first), rest: Some((rest, substitution)) }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        loop {
            if let Some(first) = this.first.take().filter(|first| !first.is_empty()) {
                return Poll::Ready(Some(Ok(Frame::data(first))));
            }
            let Some((rest, substitution)) = &mut this.rest else { return Poll::Ready(None) };
            match ready!(Pin::new(rest).poll_frame(cx)) {
                None => {
                    this.first = this.rest.take().map(|(_, substitution)| substitution.finish());
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.first = Some(substitution.push(data)),
                    // Trailers of a request end it; few send any, and they are not for the vault.
                    Err(_trailers) => {}
                },
            }
        }
    }
}
