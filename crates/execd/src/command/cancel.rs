//! `DELETE /command` and the other ways in which a command is ended from outside.

use std::rc::Rc;
use std::time::Duration;

use http::StatusCode;
use protocol::execd::output::{CommandKind, EndedBy};

use super::{Cause, Command, Start};
use crate::daemon::Daemon;
use crate::error::{ApiError, Result};
use crate::http::{Answer, Query, empty};
use crate::reaper::Process;
use crate::{code, session, tree};

/// From TERM to KILL.
const GRACE: Duration = Duration::from_secs(3);

/// Ends a running command and answers when its tree is gone; a session is ended and forgotten.
///
/// # Errors
/// 400 without an id, for an unknown one and for a finished command; nothing is signalled then. The
/// published 500 becomes 400 and not another status, because its clients read the code and message of that.
pub async fn interrupt(daemon: Rc<Daemon>, query: &Query) -> Result<Answer> {
    let id = query.require("id")?;
    if let Some(command) = daemon.commands.get(id) {
        cancel(&command, Cause::By(EndedBy::Request)).await?;
        return Ok(empty());
    }
    if code::interrupt(&daemon, id).await? || session::remove(&daemon, id).await? {
        return Ok(empty());
    }
    let message = format!("no command, session or context has the id {id:?}");
    Err(ApiError::new(StatusCode::BAD_REQUEST, protocol::execd::code::CONTEXT_NOT_FOUND, message))
}

/// TERM to the tree, a grace, KILL. A second caller waits for what the first began and signals nothing.
///
/// # Errors
/// 400 when the command has ended, 500 when its tree does not end even by KILL.
pub async fn cancel(command: &Command, cause: Cause) -> Result<()> {
    let process = running(command)?;
    if command.cancelling.replace(true) {
        process.wait().await;
        return Ok(());
    }
    command.because(cause);
    all_gone(command, tree::end(process, command.tag, GRACE).await)?;
    if command.kind == CommandKind::Background {
        command.complete().await;
    }
    Ok(())
}

/// KILL to the tree at once.
///
/// # Errors
/// As [`cancel`].
pub async fn kill(command: &Command, cause: Cause) -> Result<()> {
    let process = running(command)?;
    command.because(cause);
    all_gone(command, tree::kill(process, command.tag).await)
}

fn running(command: &Command) -> Result<&Process> {
    match (&command.start, command.end()) {
        (Start::Process(process), None) => Ok(process),
        (_, end) => {
            let code = end.map_or(0, |end| end.code);
            let message =
                format!("command {} has already ended with exit code {code}; nothing was signalled", command.id);
            Err(ApiError::new(StatusCode::BAD_REQUEST, protocol::execd::code::RUNTIME_ERROR, message))
        }
    }
}

fn all_gone(command: &Command, gone: bool) -> Result<()> {
    if gone {
        return Ok(());
    }
    Err(ApiError::runtime(format!("processes of command {} are still there after SIGKILL", command.id)))
}
