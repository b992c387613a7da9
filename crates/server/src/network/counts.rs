//! What left sandboxes and what was refused, counted for Prometheus. Labels are words of a fixed set: no sandbox, no host.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use http::header;
use protocol::egress::NetworkEvent;

use crate::app::App;
use crate::errors::ApiError;

/// Kinds and reasons of one family; both are words of ours, so that there are few.
type Family = BTreeMap<(String, String), u64>;

/// Counters since this server's start.
#[derive(Default)]
pub(crate) struct Counts(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    denied: Family,
    connections: u64,
    injected: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

impl Counts {
    /// Counts an event.
    pub(super) fn count(&self, event: &NetworkEvent) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (event.kind.as_str(), event.action.as_deref()) {
            (kind, Some("deny")) => {
                *inner.denied.entry((kind.to_owned(), event.reason.clone())).or_default() += 1;
            }
            ("connection", _) => inner.connections += 1,
            ("request", _) => inner.injected += 1,
            _ => {}
        }
        inner.sent_bytes += event.sent_bytes.unwrap_or_default();
        inner.received_bytes += event.received_bytes.unwrap_or_default();
    }

    /// In the text format of Prometheus (version 0.0.4).
    fn text(&self, stats: Option<&egress::Stats>) -> String {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, u64)]| {
            // Writing to memory does not fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let denied: Vec<(String, u64)> = inner
            .denied
            .iter()
            .map(|((kind, reason), count)| (format!("{{kind=\"{kind}\",reason=\"{reason}\"}}"), *count))
            .collect();
        let one = |value: u64| [(String::new(), value)];
        family(
            "egress_policy_denied_total",
            "counter",
            "Questions, connections and requests that were refused.",
            &denied,
        );
        family("egress_connections_total", "counter", "Connections that were let through.", &one(inner.connections));
        family("egress_injections_total", "counter", "Requests into which a credential was put.", &one(inner.injected));
        let bytes = [
            ("{direction=\"sent\"}".to_owned(), inner.sent_bytes),
            ("{direction=\"received\"}".to_owned(), inner.received_bytes),
        ];
        family("egress_bytes_total", "counter", "Bytes of connections that have ended.", &bytes);
        family("egress_up", "gauge", "Whether the egress process answers.", &one(u64::from(stats.is_some())));
        if let Some(stats) = stats {
            let flows: usize = stats.sandboxes.iter().map(|sandbox| sandbox.flows).sum();
            family(
                "egress_sandboxes",
                "gauge",
                "Sandboxes that may reach something.",
                &one(stats.sandboxes.len() as u64),
            );
            family("egress_flows", "gauge", "Connections at this moment.", &one(flows as u64));
        }
        text
    }
}

/// `GET /metrics`.
pub(crate) async fn metrics(
    State(app): State<Arc<App>>,
) -> Result<([(header::HeaderName, &'static str); 1], String), ApiError> {
    let stats = match &app.network.egress {
        Some(egress) => egress.control.stats().await.ok(),
        None => None,
    };
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, app.network.counts.text(stats.as_ref()) + &app.warm.text()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_by_kind_and_reason() {
        let counts = Counts::default();
        let denied = |kind: &str, reason: &str| NetworkEvent {
            kind: kind.into(),
            reason: reason.into(),
            action: Some("deny".into()),
            name: Some("secret-host.example".into()),
            ..NetworkEvent::default()
        };
        counts.count(&denied("question", "default"));
        counts.count(&denied("question", "default"));
        counts.count(&denied("connection", "not-public"));
        let closed = NetworkEvent { kind: "closed".into(), sent_bytes: Some(3), ..NetworkEvent::default() };
        counts.count(&closed);
        let text = counts.text(None);
        for line in [
            "egress_policy_denied_total{kind=\"question\",reason=\"default\"} 2",
            "egress_policy_denied_total{kind=\"connection\",reason=\"not-public\"} 1",
            "egress_bytes_total{direction=\"sent\"} 3",
            "egress_up 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("secret-host"), "{text}");
    }
}
