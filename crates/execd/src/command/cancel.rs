//! `DELETE /command`: TERM to the group, a grace, KILL.

use std::rc::Rc;
use std::time::Duration;

use http::StatusCode;
use protocol::execd::code;
use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};

use super::{Command, Outcome};
use crate::daemon::Daemon;
use crate::error::{ApiError, Result};
use crate::http::{Answer, Query, empty};
use crate::reaper::Process;

/// From TERM to KILL.
const GRACE: Duration = Duration::from_secs(3);
/// How often the group is looked at meanwhile; its members send no event to us.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// From KILL to giving up: only a process stuck in the kernel takes longer.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// Ends a running command and answers when its group is gone.
///
/// # Errors
/// 400 without an id, for an unknown one and for a finished command; nothing is signalled then. The
/// published 500 becomes 400 and not another status, because its clients read the code and message of that.
pub async fn interrupt(daemon: Rc<Daemon>, query: &Query) -> Result<Answer> {
    let id = query.require("id")?;
    let command = daemon.commands.get(id).ok_or_else(|| {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            code::CONTEXT_NOT_FOUND,
            format!("no command, session or context has the id {id:?}"),
        )
    })?;
    cancel(&command).await?;
    Ok(empty())
}

/// See [`interrupt`]. A second caller waits for what the first began and signals nothing.
///
/// # Errors
/// 400 when the command has ended, 500 when it does not end even by KILL.
pub async fn cancel(command: &Command) -> Result<()> {
    let process = match (&command.outcome, command.end()) {
        (Outcome::Started(process), None) => process,
        (_, end) => {
            let code = end.map_or(super::NOT_STARTED, |end| end.code);
            let message =
                format!("command {} has already ended with exit code {code}; nothing was signalled", command.id);
            return Err(ApiError::new(StatusCode::BAD_REQUEST, code::RUNTIME_ERROR, message));
        }
    };
    if !command.cancelling.replace(true) {
        end_group(process).await;
    }
    if timeout(KILL_WAIT, process.wait()).await.is_err() {
        return Err(ApiError::runtime(format!("command {} did not end within {KILL_WAIT:?} of SIGKILL", command.id)));
    }
    Ok(())
}

async fn end_group(process: &Process) {
    let Some(hold) = process.hold() else { return };
    process.signal_group(Signal::TERM);
    process.signal_group(Signal::CONT); // a stopped process sees TERM only when it goes on
    let deadline = Instant::now() + GRACE;
    while Instant::now() < deadline {
        if process.exit().is_some() && !process.group_lives() {
            drop(hold);
            return;
        }
        if process.exit().is_some() {
            sleep(LOOK_EVERY).await;
        } else {
            let _ = timeout(LOOK_EVERY, process.wait()).await; // the loop looks again either way
        }
    }
    process.signal_group(Signal::KILL);
    drop(hold);
}
