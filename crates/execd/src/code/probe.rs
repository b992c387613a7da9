//! The port on which published clients expect a code runtime to listen.
//!
//! Before its first run the published code interpreter client opens a connection, from inside the sandbox, to the
//! port where a Jupyter server would be, and takes a refusal for "not ready". Contexts need no such server, so
//! execd itself accepts there and closes. It does not where the image has a Jupyter server of its own.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::daemon::Daemon;

/// Port of the published image.
const DEFAULT_PORT: u16 = 44771;
/// Pause after a refused `accept` (no descriptors left, say), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Accepts probes until execd ends. A port that is taken is left to whoever has it.
pub async fn answer_probes(daemon: &Daemon) {
    let env = &daemon.paths().env;
    if env.get("JUPYTER_HOST").is_some_and(|host| !host.is_empty()) {
        return;
    }
    let port = env.get("JUPYTER_PORT").and_then(|port| port.parse().ok()).unwrap_or(DEFAULT_PORT);
    let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await else { return };
    loop {
        if listener.accept().await.is_err() {
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}
