//! `GET /v1/commands/{id}/stream`: output from an offset on, as server-sent events.
//!
//! Each event's SSE id is the offset from which to ask again, so that a client which reconnects by itself (with
//! `Last-Event-ID`) goes on without a gap. The reader keeps its place in the journal while it lives: a client
//! that does not read holds the command back, within the journal's bounds.

use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::HeaderMap;
use http::header::HeaderName;
use protocol::execd::output::OutputEvent;
use tokio::time::{Instant, sleep_until};

use super::Command;
use super::journal::{Fetched, Piece, Reader};
use super::list::unknown;
use super::pump::PING_EVERY;
use super::run::event_stream;
use super::show::unfinished_character;
use crate::daemon::Daemon;
use crate::error::{ApiError, Result, system_text};
use crate::http::{Answer, ByteSender, Query};

/// Bytes of output in one event. Many streams may be open at once, and each has about four times this in flight.
const PIECE_BYTES: usize = 32 * 1024;
/// Bytes of an event of that much output as base64, so that it is not made in steps.
const FRAME_BYTES: usize = PIECE_BYTES / 3 * 4 + 1024;
/// Sent to a reader for whom there is nothing, so that a dead connection is noticed.
const COMMENT: &[u8] = b": ping\n\n";
/// How a client that reconnects by itself says where it was.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// What of the output is sent, and how.
struct Wish {
    offset: u64,
    follow: bool,
    exact: bool,
}

/// Sends the output of a command from `offset` on.
///
/// # Errors
/// 404 for an unknown id, 400 for a parameter that cannot be used.
pub fn stream(daemon: &Daemon, id: &str, headers: &HeaderMap, query: &Query) -> Result<Answer> {
    let command = daemon.commands.get(id).ok_or_else(|| unknown(id))?;
    let wish = wish(&command, headers, query)?;
    let (sender, answer) = event_stream();
    let reader = command.journal.reader(wish.offset);
    tokio::task::spawn_local(async move {
        let sending = Sending { command, reader, sender, told: 0, told_full: false };
        sending.run(wish).await;
    });
    Ok(answer)
}

fn wish(command: &Command, headers: &HeaderMap, query: &Query) -> Result<Wish> {
    let choice = |name: &str, choices: [&str; 2], default: usize| match query.get(name).filter(|text| !text.is_empty())
    {
        None => Ok(default == 1),
        Some(text) if text == choices[0] => Ok(false),
        Some(text) if text == choices[1] => Ok(true),
        Some(text) => Err(ApiError::body(format!("{name}: {text:?} is not {} or {}", choices[0], choices[1]))),
    };
    let (name, text) = match (query.get("offset"), headers.get(LAST_EVENT_ID)) {
        (Some(text), _) => ("offset", text),
        (None, Some(id)) => ("Last-Event-ID", id.to_str().unwrap_or("?")),
        (None, None) => ("offset", ""),
    };
    let offset: u64 = match text {
        "" => 0,
        text => text.parse().map_err(|_| ApiError::body(format!("{name}: {text:?} is not a number from 0 on")))?,
    };
    let end = command.journal.extent().next;
    if offset > end {
        return Err(ApiError::body(format!("{name}: {offset} is beyond the end of the output, which is {end}")));
    }
    Ok(Wish {
        offset,
        follow: choice("follow", ["false", "true"], 1)?,
        exact: choice("encoding", ["text", "base64"], 0)?,
    })
}

struct Sending {
    command: Rc<Command>,
    reader: Reader,
    sender: ByteSender,
    /// Events beside the output that were sent or lie before the stream.
    told: usize,
    told_full: bool,
}

/// The client has gone.
struct Gone;

impl Sending {
    async fn run(mut self, wish: Wish) {
        // A client who left needs no end.
        let _ = self.send_all(wish).await;
    }

    async fn send_all(&mut self, wish: Wish) -> std::result::Result<(), Gone> {
        let begin = OutputEvent::Begin { offset: wish.offset, command: self.command.shown() };
        self.send(wish.offset, &begin).await?;
        let notices = self.command.notices.borrow().iter().filter(|notice| offset_of(notice) < wish.offset).count();
        self.told = notices;
        self.told_full = self.command.journal.extent().first_wait.is_some_and(|at| at < wish.offset);
        loop {
            self.send_notices().await?;
            // Asked before the bytes: what comes in between is seen at the next turn.
            let command = Rc::clone(&self.command);
            let news = command.journal.news();
            let is_complete = command.journal.extent().closed;
            match self.reader.fetch(PIECE_BYTES).await {
                Ok(Fetched::Bytes) => {
                    if self.send_piece(wish.exact, is_complete || !wish.follow).await? {
                        continue;
                    }
                }
                Ok(Fetched::Lost { from, to }) => {
                    self.send_lost(from, to, None).await?;
                    continue;
                }
                Ok(Fetched::Nothing) if is_complete => return self.send_end().await,
                Ok(Fetched::Nothing) if !wish.follow => {
                    let offset = self.reader.offset();
                    return self.send(offset, &OutputEvent::More { offset }).await;
                }
                Ok(Fetched::Nothing) => {}
                Err(error) => {
                    // The rest cannot be read: it is lost, and the end is still known.
                    let (from, to) = (self.reader.offset(), command.journal.extent().next);
                    return self.send_lost(from, to, Some(system_text(&error))).await;
                }
            }
            self.reader.release_buffer();
            let alive = Instant::now() + PING_EVERY;
            tokio::select! {
                () = news => {}
                () = self.sender.closed() => return Err(Gone),
                () = sleep_until(alive) => self.send_bytes(Bytes::from_static(COMMENT)).await?,
            }
        }
    }

    /// Sends the bytes that are ready; false when they are a begun character that may be finished yet.
    async fn send_piece(&mut self, exact: bool, is_all: bool) -> std::result::Result<bool, Gone> {
        let end = self.command.journal.extent().next;
        let piece = self.reader.piece();
        let is_last = piece.offset + piece.bytes.len() as u64 == end;
        let (event, length) = event_of(&piece, exact, is_all && is_last);
        if length == 0 {
            return Ok(false);
        }
        self.reader.consume(length);
        let frame = framed(self.reader.offset(), &event);
        // A slow client holds one copy of the bytes, not two.
        drop(event);
        self.send_bytes(frame).await?;
        self.reader.delivered();
        Ok(true)
    }

    async fn send_lost(&mut self, offset: u64, next: u64, why: Option<String>) -> std::result::Result<(), Gone> {
        let reason = why
            .or(self.command.journal.extent().gone)
            .unwrap_or_else(|| "newer output has taken the place in the spool".into());
        self.send(next, &OutputEvent::Lost { offset, next, reason }).await
    }

    /// Sends the events beside the output up to where the reader is.
    async fn send_notices(&mut self) -> std::result::Result<(), Gone> {
        let at = self.reader.offset();
        let first_wait = self.command.journal.extent().first_wait;
        if let Some(offset) = first_wait.filter(|offset| *offset <= at && !self.told_full) {
            self.told_full = true;
            self.send(at, &OutputEvent::SpoolFull { offset }).await?;
        }
        loop {
            let next = self.command.notices.borrow().get(self.told).cloned();
            let Some(notice) = next.filter(|notice| offset_of(notice) <= at) else { return Ok(()) };
            self.told += 1;
            self.send(at, &notice).await?;
        }
    }

    async fn send_end(&mut self) -> std::result::Result<(), Gone> {
        let Some(end) = self.command.command_end() else { return Ok(()) };
        let offset = self.reader.offset();
        self.send(offset, &OutputEvent::End { offset, end }).await
    }

    async fn send(&self, id: u64, event: &OutputEvent) -> std::result::Result<(), Gone> {
        self.send_bytes(framed(id, event)).await
    }

    async fn send_bytes(&self, bytes: Bytes) -> std::result::Result<(), Gone> {
        self.sender.send(Ok(bytes)).await.map_err(|_| Gone)
    }
}

/// An event as it is sent; `id` is the offset from which to ask again.
fn framed(id: u64, event: &OutputEvent) -> Bytes {
    let mut out = Vec::with_capacity(FRAME_BYTES);
    out.extend_from_slice(format!("id: {id}\ndata: ").as_bytes());
    // Wire types hold strings and numbers only: writing them into memory cannot fail.
    serde_json::to_writer(&mut out, event).expect("wire types can always be written as JSON");
    out.extend_from_slice(b"\n\n");
    out.shrink_to_fit();
    Bytes::from(out)
}

/// The event of a piece and how many of its bytes that holds. Without `is_all`, a character whose other bytes
/// may still come is left for later.
fn event_of(piece: &Piece<'_>, exact: bool, is_all: bool) -> (OutputEvent, usize) {
    let held = if exact || is_all || !piece.goes_on { 0 } else { unfinished_character(piece.bytes) };
    let bytes = &piece.bytes[..piece.bytes.len() - held];
    let (text, base64, lossy) = match (exact, std::str::from_utf8(bytes)) {
        (true, _) => (None, Some(STANDARD.encode(bytes)), false),
        (false, Ok(text)) => (Some(text.to_owned()), None, false),
        (false, Err(_)) => (Some(String::from_utf8_lossy(bytes).into_owned()), None, true),
    };
    let next = piece.offset + bytes.len() as u64;
    let event = OutputEvent::Output { stream: piece.stream, offset: piece.offset, next, text, base64, lossy };
    (event, bytes.len())
}

fn offset_of(event: &OutputEvent) -> u64 {
    match event {
        OutputEvent::Begin { offset, .. }
        | OutputEvent::Output { offset, .. }
        | OutputEvent::Lost { offset, .. }
        | OutputEvent::Resource { offset, .. }
        | OutputEvent::SpoolFull { offset, .. }
        | OutputEvent::More { offset }
        | OutputEvent::End { offset, .. } => *offset,
    }
}
