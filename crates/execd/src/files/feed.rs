//! A request's body on its way to file work off the event loop, in constant memory.

use std::io::{self, Read};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;

use super::off_loop;
use crate::error::{ApiError, Result};

/// Pieces between the connection and the work: one being written, one waiting.
const QUEUE: usize = 2;
/// After a refusal the rest of the body is still read, this much and this long, so that a client who only
/// then looks for the answer finds it.
const MAX_DRAIN_BYTES: usize = 64 * 1024 * 1024;
const MAX_DRAIN: Duration = Duration::from_secs(5);

/// What the connection hands over. Without an `End` the client broke off.
enum Piece {
    Data(Bytes),
    End,
}

/// The body as the work sees it.
pub struct Source {
    queue: mpsc::Receiver<Piece>,
    unread: Bytes,
    ended: bool,
    broken_off: bool,
}

impl Source {
    /// The next piece; `None` at the end, whichever it is.
    pub fn next(&mut self) -> Option<Bytes> {
        match self.queue.blocking_recv() {
            Some(Piece::Data(data)) => Some(data),
            Some(Piece::End) => {
                self.ended = true;
                None
            }
            None => {
                self.broken_off = !self.ended;
                None
            }
        }
    }

    /// Refuses a body whose end was looked for and did not come.
    ///
    /// # Errors
    /// 400.
    pub fn check_whole(&self) -> Result<()> {
        match self.broken_off {
            true => Err(ApiError::file("the connection broke off before the end of the upload")),
            false => Ok(()),
        }
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.unread.is_empty() {
            if self.ended {
                return Ok(0);
            }
            match self.next() {
                Some(data) => self.unread = data,
                None if self.ended => return Ok(0),
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection broke off")),
            }
        }
        let count = self.unread.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.unread[..count]);
        self.unread.advance(count);
        Ok(count)
    }
}

/// Runs `work` on a body as it arrives.
///
/// # Errors
/// Those of the work; 400 when the connection broke off before the end of the body, whatever the work says.
pub async fn feed(mut body: Incoming, work: impl FnOnce(&mut Source) -> Result<()> + Send + 'static) -> Result<()> {
    let (pieces, queue) = mpsc::channel(QUEUE);
    let mut source = Source { queue, unread: Bytes::new(), ended: false, broken_off: false };
    let working = tokio::task::spawn_local(off_loop(move || {
        let done = work(&mut source);
        source.check_whole()?; // else the work's own words are of no use
        done
    }));
    let mut fed = pass_on(&mut body, &pieces).await;
    if matches!(fed, Fed::WorkEnded) {
        let _ = tokio::time::timeout(MAX_DRAIN, drain(&mut body)).await; // a courtesy with a bound
        fed = Fed::Whole;
    }
    if matches!(fed, Fed::Whole) {
        let _ = pieces.send(Piece::End).await; // work that has ended has already decided
    }
    drop(pieces);
    working.await.map_err(|error| ApiError::runtime(format!("store the upload: {error}")))?
}

enum Fed {
    Whole,
    BrokenOff,
    WorkEnded,
}

async fn pass_on(body: &mut Incoming, pieces: &mpsc::Sender<Piece>) -> Fed {
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Fed::BrokenOff;
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if pieces.send(Piece::Data(data)).await.is_err() {
            return Fed::WorkEnded;
        }
    }
    Fed::Whole
}

async fn drain(body: &mut Incoming) {
    let mut drained = 0;
    while let Some(Ok(frame)) = body.frame().await {
        drained += frame.data_ref().map_or(0, Bytes::len);
        if drained > MAX_DRAIN_BYTES {
            return;
        }
    }
}
