//! Hears every event of every sandbox: counts it for `GET /metrics`, and tells refusals to the operator's webhook.

use std::sync::Arc;
use std::time::Duration;

use egress::verdicts::Event;

use super::told::{self, Position};
use super::webhook::Webhook;
use crate::app::App;

/// Wait before an egress process that does not answer is asked again, unless a new one is heard of.
const RETRY: Duration = Duration::from_secs(1);

/// Listens until the server ends.
pub(crate) async fn listen(app: Arc<App>) {
    let Some(egress) = &app.network.egress else { return };
    let webhook = app.network.config.deny_webhook.as_ref().map(|url| Webhook::start(url, &app));
    let mut restarts = egress.restarts.clone();
    let (mut instance, mut after) = (0, 0);
    loop {
        restarts.borrow_and_update();
        if let Ok(mut watch) = egress.control.watch(None, after).await {
            loop {
                let said = tokio::select! {
                    said = watch.next() => said,
                    () = app.closing.cancelled() => return,
                };
                let Some(said) = said else { break };
                if said.instance != instance && after != 0 {
                    // Numbers of the process before mean nothing to this one.
                    (instance, after) = (said.instance, 0);
                    break;
                }
                instance = said.instance;
                for event in &said.events {
                    after = after.max(event.sequence);
                    heard(&app, event, webhook.as_ref());
                }
            }
        }
        tokio::select! {
            changed = restarts.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY) => {}
            () = app.closing.cancelled() => return,
        }
    }
}

fn heard(app: &App, event: &Event, webhook: Option<&Webhook>) {
    let shown = told::shown(event, &Position::default());
    app.network.counts.count(&shown);
    if let Some(webhook) = webhook.filter(|_| shown.action.as_deref() == Some("deny")) {
        webhook.tell(&event.sandbox, &shown);
    }
}
