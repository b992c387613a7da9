//! A body that passes through while its first bytes are kept.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};

use crate::contract::Body;

/// Bytes of a body that are kept for the check: far above any JSON answer, and
/// a bound for downloads and long outputs.
const MAX_KEPT_BYTES: usize = 4 << 20;

type Finish = Box<dyn FnOnce(Body) + Send + Sync>;

/// The passing body.
pub(super) struct Tee {
    inner: Incoming,
    seen: Body,
    finish: Option<Finish>,
}

/// A request body as far as it was seen.
pub(super) struct Watched(pub(super) Arc<Mutex<Body>>);

impl Tee {
    /// Passes `inner` and calls `finish` when it ends or is given up.
    pub(super) fn finish(inner: Incoming, finish: impl FnOnce(Body) + Send + Sync + 'static) -> Self {
        Self { inner, seen: Body::default(), finish: Some(Box::new(finish)) }
    }

    /// Passes `inner` and keeps what was seen where the caller finds it later.
    pub(super) fn watch(inner: Incoming) -> (Self, Watched) {
        let shared = Arc::new(Mutex::new(Body::default()));
        let store = Arc::clone(&shared);
        let body = Self::finish(inner, move |seen| {
            *store.lock().expect("no holder of a body panics") = seen;
        });
        (body, Watched(shared))
    }

    fn note(&mut self, data: &Bytes) {
        self.seen.total += data.len() as u64;
        let room = MAX_KEPT_BYTES - self.seen.seen.len();
        self.seen.seen.extend_from_slice(&data[..data.len().min(room)]);
    }

    fn end(&mut self, ended: bool) {
        if let Some(finish) = self.finish.take() {
            let mut seen = std::mem::take(&mut self.seen);
            seen.ended = ended;
            finish(seen);
        }
    }
}

impl HttpBody for Tee {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.note(data);
                }
                if self.inner.is_end_stream() {
                    self.end(true);
                }
            }
            Poll::Ready(Some(Err(_))) => self.end(false),
            Poll::Ready(None) => self.end(true),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Tee {
    fn drop(&mut self) {
        // A body without content is never polled.
        let ended = self.inner.is_end_stream();
        self.end(ended);
    }
}
