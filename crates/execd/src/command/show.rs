//! `GET /command/status/{id}` and `GET /command/{id}/logs`.

use http::{HeaderName, HeaderValue, StatusCode};
use protocol::execd::code;
use protocol::execd::command::CommandStatus;
use protocol::headers::COMMANDS_TAIL_CURSOR;

use super::{Command, Outcome};
use crate::clock;
use crate::daemon::Daemon;
use crate::error::{ApiError, Result};
use crate::http::{Answer, Query, json, stream};

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
        let end = self.end();
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
/// unfinished character wait for the next call; with `complete_lines=true` an unfinished line does too.
///
/// # Errors
/// 400 for a negative cursor, an unknown id or a foreground command, as published.
pub fn logs(daemon: &Daemon, id: &str, query: &Query) -> Result<Answer> {
    let cursor: i64 = query.get("cursor").and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    let cursor =
        u64::try_from(cursor).map_err(|_| ApiError::body(format!("cursor: {cursor} is negative; start with 0")))?;
    let command = daemon.commands.get(id).ok_or_else(|| ApiError::body(format!("no command has the id {id:?}")))?;
    let running = command.end().is_none(); // asked before the length: what came after is for the next call
    let log = match (&command.log, &command.outcome) {
        (Some(log), _) => log,
        (None, Outcome::Failed(_)) => {
            return Err(ApiError::body(format!("command {id} was not started: it has no log")));
        }
        (None, Outcome::Started(_)) => {
            return Err(ApiError::body(format!("command {id} runs in the foreground: its output is in its stream")));
        }
    };
    let unit = match (running, query.get("complete_lines") == Some("true")) {
        (false, _) => Unit::Byte,
        (true, false) => Unit::Character,
        (true, true) => Unit::Line,
    };
    let failed = |error: std::io::Error| ApiError::runtime(format!("read the log of command {id}: {error}"));
    let reader = log.reader().map_err(failed)?;
    let end = whole_end(&reader, cursor, unit).map_err(failed)?.max(cursor);
    let (sender, mut answer) = stream("text/plain; charset=utf-8", Some(end - cursor));
    answer.headers_mut().insert(HeaderName::from_static(COMMANDS_TAIL_CURSOR), HeaderValue::from(end));
    tokio::task::spawn_local(crate::files::send_range(reader, cursor, end - cursor, LOG_PIECE_BYTES, sender));
    Ok(answer)
}

/// What is never torn apart by an answer.
#[derive(Clone, Copy)]
enum Unit {
    Byte,
    Character,
    Line,
}

/// The offset up to which the log holds whole units; never below `from`, unless the log is shorter.
fn whole_end(file: &std::fs::File, from: u64, unit: Unit) -> std::io::Result<u64> {
    use std::os::unix::fs::FileExt;
    let length = file.metadata()?.len();
    if length <= from || matches!(unit, Unit::Byte) {
        return Ok(length);
    }
    let mut end = length;
    loop {
        // Backwards by pieces, so that a huge unfinished line costs no memory.
        let start = end.saturating_sub(LOG_PIECE_BYTES as u64).max(from);
        let mut tail = vec![0; (end - start) as usize];
        file.read_exact_at(&mut tail, start)?;
        match unit {
            Unit::Byte | Unit::Character => return Ok(end - unfinished_character(&tail) as u64),
            Unit::Line => match memchr::memrchr(b'\n', &tail) {
                Some(at) => return Ok(start + at as u64 + 1),
                None if start == from => return Ok(from),
                None => end = start,
            },
        }
    }
}

/// Bytes at the end that begin a character and do not finish it.
pub(super) fn unfinished_character(text: &[u8]) -> usize {
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
