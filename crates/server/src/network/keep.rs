//! Keeps the egress process in step with the rows: after its start, after each restart of either, and now and then.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use egress::SandboxStats;
use lifecycle::spec::Network as Shape;

use crate::app::App;

/// How often it is looked at without a reason: what is wrong then was missed by everything else.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Wait before a look that failed is tried again; it doubles up to [`LOOK_EVERY`].
const RETRY_FIRST: Duration = Duration::from_millis(200);

/// Keeps it so until the server ends.
pub(crate) async fn keep(app: Arc<App>) {
    let Some(mut restarts) = app.network.egress.as_ref().map(|egress| egress.restarts.clone()) else { return };
    let mut retry = RETRY_FIRST;
    loop {
        restarts.borrow_and_update();
        let wait = match compare(&app).await {
            Ok(()) => {
                retry = RETRY_FIRST;
                LOOK_EVERY
            }
            Err(why) => {
                tracing::warn!(error = why, "the egress process is not in step");
                retry = (retry * 2).min(LOOK_EVERY);
                retry / 2
            }
        };
        tokio::select! {
            () = app.closing.cancelled() => return,
            changed = restarts.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Tells the egress process what it does not know.
async fn compare(app: &App) -> Result<(), String> {
    let network = &app.network;
    let Some(control) = network.control() else { return Ok(()) };
    let said = |error: egress::ControlError| protocol::error::chain(&error);
    control.configure(network.config.settings()).await.map_err(said)?;
    let stats = control.stats().await.map_err(said)?;
    let mut attached: HashMap<String, SandboxStats> =
        stats.sandboxes.into_iter().map(|one| (one.sandbox.clone(), one)).collect();
    let mut failed = None;
    for sandbox in app.sandboxes.all() {
        let row = sandbox.row();
        let known = attached.remove(row.id.as_str());
        // One that is being made or ended is its driver's business.
        if !row.is_settled() || row.spec.network == Shape::None {
            continue;
        }
        let told = sandbox.bring_into_step(known).await;
        if let Err(why) = told {
            failed = Some(format!("sandbox {}: {why}", row.id));
        }
    }
    for stranger in attached.into_keys() {
        control.detach(&stranger).await.map_err(said)?;
    }
    // Asked before the rows were looked at: one that is being made has a row before it has an authority.
    for stranger in stats.kept.iter().filter(|id| app.sandboxes.get(id).is_none()) {
        control.forget(stranger).await.map_err(said)?;
    }
    failed.map_or(Ok(()), Err)
}
