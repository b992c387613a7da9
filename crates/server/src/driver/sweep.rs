//! Ends that nobody reported, and sandboxes that nobody remembers.

use std::sync::Arc;
use std::time::Duration;

use lifecycle::state::State;

use crate::app::App;

/// Between two rounds of looking at every sandbox; ends are normally reported at once.
const ROUND: Duration = Duration::from_secs(30);
/// Wait after a failed call to the runtime.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);

/// Tells drivers of ends as the runtime reports them, until the server ends.
pub(crate) async fn ends(app: Arc<App>) {
    loop {
        let id = tokio::select! {
            () = app.closing.cancelled() => return,
            id = app.runtime.next_end() => id,
        };
        if let Some(sandbox) = app.sandboxes.get(id.as_str()) {
            sandbox.look();
        }
    }
}

/// Looks at every sandbox in rounds and removes what the runtime has and nobody knows, until the server ends.
pub(crate) async fn rounds(app: Arc<App>) {
    loop {
        let wait = match orphans(&app).await {
            Ok(()) => ROUND,
            Err(error) => {
                tracing::warn!(error = %error, "the runtime could not list its sandboxes");
                PAUSE_AFTER_ERROR
            }
        };
        tokio::select! {
            () = app.closing.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        for sandbox in app.sandboxes.all() {
            if matches!(sandbox.state(), State::Running | State::Paused) {
                sandbox.look();
            }
        }
    }
}

/// Destroys sandboxes that nobody remembers. A row is stored and registered before its sandbox is made, and
/// leaves the registry after the sandbox is gone: what is listed and not registered afterwards is nobody's.
///
/// An engine whose sandboxes are leased removes none: they end with their own engines, and others may be alive
/// on the same machine.
async fn orphans(app: &App) -> Result<(), lifecycle::runtime::RuntimeError> {
    if app.leased {
        return Ok(());
    }
    let listed = app.runtime.list().await?;
    // In this order: what is taken out of a stock is registered before the stock forgets it.
    for id in listed.iter().filter(|id| !app.warm.knows(id) && !app.sandboxes.contains(id)) {
        tracing::warn!(sandbox_id = %id, "removing a sandbox that nobody remembers");
        if let Err(error) = app.runtime.destroy(id, Duration::ZERO).await {
            tracing::warn!(sandbox_id = %id, error = %error, "an orphan could not be removed");
        }
    }
    Ok(())
}
