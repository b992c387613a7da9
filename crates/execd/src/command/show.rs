//! `GET /command/status/{id}` and `GET /command/{id}/logs`.

use std::io;
use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use protocol::execd::command::CommandStatus;
use protocol::execd::output::CommandKind;
use protocol::execd::{code, header};
use protocol::headers::COMMANDS_TAIL_CURSOR;

use super::journal::{Fetched, Journal, Reader};
use super::{Command, Start};
use crate::clock;
use crate::daemon::Daemon;
use crate::error::{ApiError, Result};
use crate::http::{Answer, ByteSender, Query, json, stream};

/// Bytes that a log answer reads at once.
const LOG_PIECE_BYTES: usize = 128 * 1024;

/// What is known about a command.
///
/// # Errors
/// 404 for an unknown or forgotten id, with the published code.
pub fn status(daemon: &Daemon, id: &str) -> Result<Answer> {
    let command = daemon.commands.get(id).ok_or_else(|| {
        ApiError::new(StatusCode::NOT_FOUND, code::INVALID_REQUEST_BODY, format!("no command has the id {id:?}"))
    })?;
    Ok(json(StatusCode::OK, &command.status()))
}

impl Command {
    fn status(&self) -> CommandStatus {
        let end = self.end().filter(|_| self.is_finished());
        let finished_ms = end.as_ref().map(|_| self.finished_ms.get().unwrap_or_else(clock::now_ms));
        CommandStatus {
            id: self.id.clone(),
            content: self.content.clone(),
            running: end.is_none(),
            exit_code: end.as_ref().map(|end| end.code),
            error: end.filter(|end| !end.detail.is_empty()).map(|end| end.detail.join("; ")),
            started_at: clock::rfc3339_ms(self.started_ms),
            finished_at: finished_ms.map(clock::rfc3339_ms),
        }
    }
}

/// Output of a background command from a byte offset on. While the command runs, the bytes of an
/// unfinished character wait for the next call; with `complete_lines=true` an unfinished line does too. Bytes
/// that are not kept any more are left out, and a header says which.
///
/// # Errors
/// 400 for a negative cursor, an unknown id or a foreground command, as published.
pub async fn logs(daemon: &Daemon, id: &str, query: &Query) -> Result<Answer> {
    let cursor: i64 = query.get("cursor").and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    let cursor =
        u64::try_from(cursor).map_err(|_| ApiError::body(format!("cursor: {cursor} is negative; start with 0")))?;
    let command = daemon.commands.get(id).ok_or_else(|| ApiError::body(format!("no command has the id {id:?}")))?;
    match (command.kind, &command.start) {
        (_, Start::Failed(_)) => {
            return Err(ApiError::body(format!("command {id} was not started: it has no log")));
        }
        (CommandKind::Background, Start::Process(_)) => {}
        (CommandKind::Foreground | CommandKind::Session, _) => {
            return Err(ApiError::body(format!("command {id} runs in the foreground: its output is in its stream")));
        }
    }
    command.sync().await;
    let extent = command.journal.extent(); // what comes after is for the next call
    let unit = match (extent.closed, query.get("complete_lines") == Some("true")) {
        (true, _) => Unit::Byte,
        (false, false) => Unit::Character,
        (false, true) => Unit::Line,
    };
    let from = if cursor < extent.oldest { extent.oldest } else { cursor };
    let failed = |error: std::io::Error| ApiError::runtime(format!("read the log of command {id}: {error}"));
    let end = whole_end(&command.journal, from, extent.next, unit).await.map_err(failed)?;
    let (sender, mut answer) = stream("text/plain; charset=utf-8", Some(end - from));
    let headers = answer.headers_mut();
    headers.insert(HeaderName::from_static(COMMANDS_TAIL_CURSOR), HeaderValue::from(end));
    if cursor < from {
        let lost = format!("{cursor}-{from}");
        headers.insert(HeaderName::from_static(header::OUTPUT_LOST), HeaderValue::try_from(lost).expect("digits"));
    }
    if end > from {
        let reader = command.journal.reader(from);
        tokio::task::spawn_local(send(reader, end, sender));
    }
    Ok(answer)
}

/// Sends the bytes up to `end`. Bytes that go meanwhile break the connection.
async fn send(mut reader: Reader, end: u64, sender: ByteSender) {
    while reader.offset() < end {
        let left = usize::try_from(end - reader.offset()).unwrap_or(usize::MAX);
        let piece = match reader.fetch(left.min(LOG_PIECE_BYTES)).await {
            Ok(Fetched::Bytes) => {
                let piece = reader.piece();
                Bytes::copy_from_slice(&piece.bytes[..piece.bytes.len().min(left)])
            }
            Ok(Fetched::Lost { .. } | Fetched::Nothing) => {
                let _ = sender.send(Err(io::ErrorKind::UnexpectedEof.into())).await; // nobody reads any more
                return;
            }
            Err(error) => {
                let _ = sender.send(Err(error)).await; // nobody reads any more
                return;
            }
        };
        reader.consume(piece.len());
        if sender.send(Ok(piece)).await.is_err() {
            return;
        }
        reader.delivered();
    }
}

/// What is never torn apart by an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Byte,
    Character,
    Line,
}

/// The offset up to which there are whole units between `from` and `end`; never below `from`.
async fn whole_end(journal: &Rc<Journal>, from: u64, end: u64, unit: Unit) -> io::Result<u64> {
    if end <= from {
        return Ok(from);
    }
    if unit == Unit::Byte {
        return Ok(end);
    }
    let mut upto = end;
    loop {
        // Backwards by pieces, so that a huge unfinished line costs no memory.
        let start = upto.saturating_sub(LOG_PIECE_BYTES as u64).max(from);
        let tail = journal.read(start, (upto - start) as usize).await?;
        match unit {
            Unit::Byte | Unit::Character => return Ok(upto - unfinished_character(&tail) as u64),
            Unit::Line => match memchr::memrchr(b'\n', &tail) {
                Some(at) => return Ok(start + at as u64 + 1),
                None if start == from => return Ok(from),
                None => upto = start,
            },
        }
    }
}

/// Bytes at the end that begin a character and do not finish it.
pub fn unfinished_character(text: &[u8]) -> usize {
    let back = text.iter().rev().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
    let Some(lead) = text.len().checked_sub(back + 1).map(|at| text[at]) else {
        return 0;
    };
    let wanted = match lead {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => return 0,
    };
    if back + 1 < wanted { back + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::unfinished_character;

    #[test]
    fn only_a_begun_character_is_held_back() {
        let cases: [(&[u8], usize); 7] = [
            (b"", 0),
            (b"a", 0),
            ("ä".as_bytes(), 0),
            (b"a\xC3", 1),
            (b"a\xE2\x82", 2),
            (b"\xF0\x9F\x98", 3),
            (b"\x80\x80\x80\x80", 0),
        ];
        for (text, expected) in cases {
            assert_eq!(unfinished_character(text), expected, "{text:?}");
        }
    }
}
