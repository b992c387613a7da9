//! `DELETE /code?id=`: interrupts what a context runs.

use crate::daemon::Daemon;
use crate::error::{ApiError, Result};

/// Interrupts the run that goes on in a context and answers when it has ended; a context that runs nothing is
/// left alone. False when no context has the id.
///
/// # Errors
/// 500 when the run does not end even by KILL.
pub async fn interrupt(daemon: &Daemon, id: &str) -> Result<bool> {
    let Some(context) = daemon.contexts.get(id) else { return Ok(false) };
    if context.interrupt().await {
        return Ok(true);
    }
    Err(ApiError::runtime(format!("the run in context {id} is still there after SIGKILL")))
}
