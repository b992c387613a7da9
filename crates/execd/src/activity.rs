//! Whether something runs that somebody started: for whoever pauses sandboxes that nobody uses.

use protocol::execd::activity::Activity;

use crate::clock;
use crate::daemon::Daemon;

/// Answers `GET /v1/activity`.
pub fn activity(daemon: &Daemon) -> Activity {
    let isolated = daemon.isolated.get().map_or(0, |session| session.running());
    let running = daemon.commands.running().len()
        + daemon.terminals.running()
        + daemon.contexts.running()
        + usize::try_from(isolated).unwrap_or(usize::MAX);
    let quiet = daemon.commands.last_end_ms().map(|end| clock::now_ms().saturating_sub(end).max(0).unsigned_abs());
    Activity { running: running as u64, quiet_ms: quiet }
}
