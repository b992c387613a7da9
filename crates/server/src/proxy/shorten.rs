//! The short way to ports of busy sandboxes: sockets of their own networks, made by the runtime.

use std::sync::Arc;

use ingress::Wanted;
use lifecycle::spec::SandboxId;

use crate::app::App;

/// Gives the proxy sockets of the sandboxes for which it wants some, one after the other, until the end.
pub(crate) async fn shorten(app: Arc<App>, mut wanted: Wanted) {
    let Some(runtime) = app.runtime.sockets() else { return };
    loop {
        let id = tokio::select! {
            () = app.closing.cancelled() => return,
            id = wanted.recv() => id,
        };
        let Some(id) = id.as_deref().and_then(SandboxId::parse) else { return };
        match runtime.sockets(&id).await {
            Ok(sockets) => app.ports.add_sockets(id.as_str(), sockets),
            // Its ports are reached by its execd all the same.
            Err(error) => tracing::debug!(sandbox_id = %id, %error, "sockets in a sandbox's network could not be made"),
        }
    }
}
