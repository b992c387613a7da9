//! The deny webhook: every refusal is posted to an address of the operator's, in the published form
//! (`hostname`, `timestamp`, `source`, `sandboxId`) with some fields more.

use std::sync::Arc;
use std::time::Duration;

use protocol::egress::NetworkEvent;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::app::App;

/// Refusals that wait for the webhook; more are dropped and counted in the log (as published).
const QUEUE: usize = 256;
/// How long one call may take (as published).
const DEADLINE: Duration = Duration::from_secs(5);
/// Waits before a call is tried again (as published): it is given up after the last.
const RETRIES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// Who says it (as published).
const SOURCE: &str = "opensandbox-egress";

/// Where refusals are told.
pub(super) struct Webhook(mpsc::Sender<Value>);

impl Webhook {
    /// Begins to tell an address.
    pub(super) fn start(url: &SecretString, app: &Arc<App>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (url, closing) = (url.clone(), app.closing.clone());
        app.tasks.spawn(async move {
            tokio::select! {
                () = post(url, waiting) => {}
                () = closing.cancelled() => {}
            }
        });
        Self(queue)
    }

    /// Tells a refusal, later.
    pub(super) fn tell(&self, sandbox: &str, event: &NetworkEvent) {
        if self.0.try_send(payload(sandbox, event)).is_err() {
            tracing::warn!(sandbox_id = sandbox, "the deny webhook is behind, a refusal was not told");
        }
    }
}

fn payload(sandbox: &str, event: &NetworkEvent) -> Value {
    let host = event.name.as_deref().or(event.dialled.as_deref()).or(event.address.as_deref()).unwrap_or_default();
    json!({
        "hostname": host,
        "timestamp": event.at,
        "source": SOURCE,
        "sandboxId": sandbox,
        "kind": event.kind,
        "port": event.port,
        "reason": event.reason,
        "message": event.message,
    })
}

async fn post(url: SecretString, mut waiting: mpsc::Receiver<Value>) {
    let client = match reqwest::Client::builder().timeout(DEADLINE).redirect(reqwest::redirect::Policy::none()).build()
    {
        Ok(client) => client,
        Err(error) => {
            tracing::error!(%error, "the deny webhook cannot be called");
            return;
        }
    };
    while let Some(payload) = waiting.recv().await {
        let mut retries = RETRIES.iter();
        loop {
            let problem = match client.post(url.expose_secret()).json(&payload).send().await {
                Ok(answer) if answer.status().is_success() => break,
                Ok(answer) if answer.status().is_client_error() => {
                    tracing::warn!(status = answer.status().as_u16(), "the deny webhook refused a call");
                    break;
                }
                Ok(answer) => format!("it answered {}", answer.status().as_u16()),
                // Its text would show the address, which may be secret.
                Err(error) if error.is_timeout() => "it does not answer".to_owned(),
                Err(_) => "it cannot be reached".to_owned(),
            };
            match retries.next() {
                Some(wait) => tokio::time::sleep(*wait).await,
                None => {
                    tracing::warn!(problem, "the deny webhook was not told of a refusal");
                    break;
                }
            }
        }
    }
}
