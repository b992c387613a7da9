//! Which images stay: what sandboxes stand on, and the operator's bounds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use image::{Bounds, LayerId};

use crate::app::App;
use crate::store;

/// Between two looks at images that may have become too old or too many.
const ROUND: Duration = Duration::from_secs(10 * 60);

/// The layers that must stay whatever nobody asks for: those of sandboxes, of such as wait, and of snapshots.
///
/// # Errors
/// The records cannot be read.
pub(crate) async fn in_use(app: &App) -> Result<BTreeSet<LayerId>, store::Error> {
    let snapshots = app.store.all_snapshots().await?;
    let of_snapshots = snapshots.into_iter().flat_map(|row| {
        let standing = row.taken.map(|taken| taken.standing.layers);
        standing.into_iter().flatten().chain(row.layers)
    });
    let sandboxes = app.sandboxes.all();
    let of_sandboxes = sandboxes.iter().flat_map(|sandbox| sandbox.row().layers.clone());
    let waiting = app.runtime.warm().map(|warm| warm.layers()).unwrap_or_default();
    Ok(of_sandboxes.chain(of_snapshots).chain(waiting).filter_map(|layer| layer.parse().ok()).collect())
}

/// Keeps images within the operator's bounds, until the server ends.
pub(crate) async fn keep(app: Arc<App>) {
    let bounds = app.config.images.bounds;
    let Some(store) = app.images.clone().filter(|_| bounds != Bounds::default()) else { return };
    loop {
        tokio::select! {
            () = app.closing.cancelled() => return,
            () = tokio::time::sleep(ROUND) => {}
        }
        let in_use = match in_use(&app).await {
            Ok(in_use) => in_use,
            Err(error) => {
                tracing::warn!(error = %protocol::error::chain(&error), "it is not known which images are in use; all stay");
                continue;
            }
        };
        match store.collect(&in_use, bounds).await {
            Ok(pruned) if pruned.images.is_empty() && pruned.layers.is_empty() => {}
            Ok(pruned) => tracing::info!(
                images = pruned.images.len(),
                layers = pruned.layers.len(),
                bytes = pruned.bytes,
                "images beyond images.max_size or images.unused_days are gone"
            ),
            Err(error) => {
                tracing::warn!(error = %protocol::error::chain(&error), "images could not be kept within their bounds")
            }
        }
    }
}
