//! An answer on its way back: secrets that the host repeats are masked as they pass.

use std::collections::VecDeque;
use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flate2::write::{GzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::{self, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use vault::{RedactStream, Redactor};

use super::origin::BodyError;

/// Compressed bytes that are unpacked at a time: at most a thousand times as many come out.
const UNPACK_BYTES: usize = 4096;

/// How an answer is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Not at all.
    Identity,
    /// gzip (RFC 1952).
    Gzip,
    /// zlib (RFC 1950), which HTTP calls deflate.
    Deflate,
}

impl Encoding {
    /// Of an answer; `None` for one that cannot be looked into.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(header::CONTENT_ENCODING).iter();
        let Some(value) = values.next() else { return Some(Self::Identity) };
        if values.next().is_some() {
            return None;
        }
        match value.to_str().ok()?.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Some(Self::Identity),
            "gzip" | "x-gzip" => Some(Self::Gzip),
            "deflate" => Some(Self::Deflate),
            _ => None,
        }
    }
}

enum Unpacker {
    Gzip(GzDecoder<Vec<u8>>),
    Deflate(ZlibDecoder<Vec<u8>>),
}

impl Unpacker {
    fn push(&mut self, packed: &[u8]) -> std::io::Result<Vec<u8>> {
        let out = match self {
            Self::Gzip(decoder) => {
                decoder.write_all(packed)?;
                decoder.get_mut()
            }
            Self::Deflate(decoder) => {
                decoder.write_all(packed)?;
                decoder.get_mut()
            }
        };
        Ok(std::mem::take(out))
    }

    fn finish(&mut self) -> std::io::Result<Vec<u8>> {
        match self {
            Self::Gzip(decoder) => {
                decoder.try_finish()?;
                Ok(std::mem::take(decoder.get_mut()))
            }
            Self::Deflate(decoder) => {
                decoder.try_finish()?;
                Ok(std::mem::take(decoder.get_mut()))
            }
        }
    }
}

/// The body of an answer, masked.
pub struct Masked {
    inner: Incoming,
    redactors: Vec<Redactor>,
    /// Of each of them, in order: one masks what the one before let through.
    masks: Vec<RedactStream>,
    unpacker: Option<Unpacker>,
    packed: Bytes,
    ready: VecDeque<Frame<Bytes>>,
    is_over: bool,
}

impl Masked {
    /// Masks what these find.
    pub fn new(inner: Incoming, redactors: Vec<Redactor>, encoding: Encoding) -> Self {
        let unpacker = match encoding {
            Encoding::Identity => None,
            Encoding::Gzip => Some(Unpacker::Gzip(GzDecoder::new(Vec::new()))),
            Encoding::Deflate => Some(Unpacker::Deflate(ZlibDecoder::new(Vec::new()))),
        };
        let masks = redactors.iter().map(Redactor::stream).collect();
        Self { inner, redactors, masks, unpacker, packed: Bytes::new(), ready: VecDeque::new(), is_over: false }
    }

    fn mask(&mut self, bytes: Bytes) {
        let bytes = self.masks.iter_mut().fold(bytes, |bytes, masks| masks.push(bytes));
        if !bytes.is_empty() {
            self.ready.push_back(Frame::data(bytes));
        }
    }

    fn finish(&mut self, trailers: Option<HeaderMap>) -> Result<(), BodyError> {
        self.is_over = true;
        if let Some(unpacker) = &mut self.unpacker {
            let rest = unpacker.finish()?;
            self.mask(rest.into());
        }
        let held = self.masks.iter_mut().fold(Bytes::new(), |before, masks| {
            let passed = masks.push(before);
            let held = masks.finish();
            if passed.is_empty() { held } else { [passed, held].concat().into() }
        });
        if !held.is_empty() {
            self.ready.push_back(Frame::data(held));
        }
        if let Some(mut trailers) = trailers {
            self.redactors.iter().for_each(|redactor| redactor.headers(&mut trailers));
            self.ready.push_back(Frame::trailers(trailers));
        }
        Ok(())
    }
}

impl Body for Masked {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        loop {
            if let Some(frame) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if this.is_over {
                return Poll::Ready(None);
            }
            if !this.packed.is_empty() {
                let part = this.packed.split_to(this.packed.len().min(UNPACK_BYTES));
                let Some(unpacker) = &mut this.unpacker else { unreachable!("only an unpacker leaves packed bytes") };
                let bytes = unpacker.push(&part)?;
                this.mask(bytes.into());
                continue;
            }
            match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                None => this.finish(None)?,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if this.unpacker.is_some() => this.packed = data,
                    Ok(data) => this.mask(data),
                    Err(frame) => this.finish(frame.into_trailers().ok())?,
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty()
            && (self.is_over || (self.inner.is_end_stream() && self.masks.iter().all(|masks| masks.held() == 0)))
    }

    /// Masks keep the length, unpacking does not.
    fn size_hint(&self) -> SizeHint {
        if self.unpacker.is_some() { SizeHint::default() } else { self.inner.size_hint() }
    }
}

/// Asks the host for an answer that can be looked into.
pub fn ask_for_plain(headers: &mut HeaderMap) {
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}
