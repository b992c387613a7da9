//! `GET /v1/commands` and `GET /v1/commands/{id}`.

use http::StatusCode;
use protocol::execd::code;
use protocol::execd::output::{Command as Shown, CommandList, OutputExtent};

use super::Command;
use crate::clock;
use crate::daemon::Daemon;
use crate::error::{ApiError, Result};
use crate::http::{Answer, Query, json};

/// Commands in an answer unless the request says otherwise, and at most.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;
/// Bytes of a command's text in a list.
const MAX_LISTED_CONTENT: usize = 1024;

/// The commands that are remembered, the newest first; `state=running` or `state=finished` chooses.
///
/// # Errors
/// 400 for an unknown state or a bad limit.
pub fn list(daemon: &Daemon, query: &Query) -> Result<Answer> {
    let running = match query.get("state").filter(|state| !state.is_empty()) {
        None => None,
        Some("running") => Some(true),
        Some("finished") => Some(false),
        Some(other) => return Err(ApiError::body(format!("state: {other:?} is not running or finished"))),
    };
    let limit = match query.get("limit").filter(|limit| !limit.is_empty()) {
        None => DEFAULT_LIMIT,
        Some(text) => text
            .parse()
            .ok()
            .filter(|limit| (1..=MAX_LIMIT).contains(limit))
            .ok_or_else(|| ApiError::body(format!("limit: {text:?} is not a number from 1 to {MAX_LIMIT}")))?,
    };
    let chosen: Vec<_> = (daemon.commands.newest_first().into_iter())
        .filter(|command| running.is_none_or(|running| running == command.is_running()))
        .collect();
    let listed = |command: &std::rc::Rc<Command>| {
        let mut shown = command.shown();
        let cut = shown.content.floor_char_boundary(MAX_LISTED_CONTENT);
        shown.content.truncate(cut);
        shown
    };
    let commands = chosen.iter().take(limit).map(listed).collect();
    Ok(json(StatusCode::OK, &CommandList { commands, total: chosen.len() }))
}

/// One command.
///
/// # Errors
/// 404 for an unknown or forgotten id.
pub fn detail(daemon: &Daemon, id: &str) -> Result<Answer> {
    let command = daemon.commands.get(id).ok_or_else(|| unknown(id))?;
    Ok(json(StatusCode::OK, &command.shown()))
}

/// 404 for an id.
pub fn unknown(id: &str) -> ApiError {
    let message = format!("no command has the id {id:?}; GET /v1/commands lists those that are remembered");
    ApiError::new(StatusCode::NOT_FOUND, code::CONTEXT_NOT_FOUND, message)
}

impl Command {
    /// The command as clients of the lossless API see it.
    pub fn shown(&self) -> Shown {
        let extent = self.journal.extent();
        let end = self.command_end();
        let finished_ms = end.as_ref().map(|_| self.finished_ms.get().unwrap_or_else(clock::now_ms));
        Shown {
            id: self.id.clone(),
            kind: self.kind,
            session_id: self.session_id.clone(),
            content: self.content.clone(),
            running: end.is_none(),
            started_at: clock::rfc3339_ms(self.started_ms),
            finished_at: finished_ms.map(clock::rfc3339_ms),
            end,
            output: OutputExtent {
                oldest: extent.oldest,
                next: extent.next,
                overflow: self.journal.overflow(),
                waiting: extent.waiting,
                complete: extent.closed,
            },
        }
    }
}
