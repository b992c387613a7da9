//! Sandboxes as people read them.

use std::collections::BTreeMap;

use protocol::execd::metrics::Metrics;
use protocol::lifecycle::Sandbox;
use serde_json::Value;

use crate::output::table;
use crate::units;

/// Labels that the table of sandboxes shows for each.
const LABELS_SHOWN: usize = 3;

/// A sandbox as one row of a table.
pub fn row(sandbox: &Sandbox, now: jiff::Timestamp) -> Vec<String> {
    let labels = sandbox.metadata.iter().flatten().take(LABELS_SHOWN).map(|(key, value)| format!("{key}={value}"));
    vec![
        sandbox.id.clone(),
        sandbox.status.state.clone(),
        stands_on(sandbox),
        units::relative(&sandbox.created_at, now),
        sandbox.expires_at.as_ref().map_or_else(|| "never".into(), |time| units::relative(time, now)),
        labels.collect::<Vec<_>>().join(","),
    ]
}

/// The image, or the snapshot that it was made from instead.
fn stands_on(sandbox: &Sandbox) -> String {
    let image = sandbox.image.as_ref().map(|image| image.uri.clone());
    image.or_else(|| sandbox.snapshot_id.as_ref().map(|id| format!("snapshot {id}"))).unwrap_or_default()
}

/// A sandbox with everything that people want to know of it.
pub fn detail(sandbox: &Sandbox) -> String {
    let now = jiff::Timestamp::now();
    let status = &sandbox.status;
    let when = |time: &String| format!("{time} ({})", units::relative(time, now));
    let joined = |map: &Option<BTreeMap<String, String>>| {
        map.as_ref()
            .filter(|map| !map.is_empty())
            .map(|map| map.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", "))
    };
    let receipt = sandbox.receipt.as_ref();
    let weaker = receipt.and_then(|receipt| receipt["weaker"].as_array()).filter(|list| !list.is_empty());
    table::facts(&[
        ("id", Some(sandbox.id.clone())),
        ("state", Some(status.state.clone())),
        ("reason", status.reason.clone()),
        ("message", status.message.clone()),
        ("exit", status.exit.as_ref().map(exit)),
        ("image", sandbox.image.as_ref().map(|image| image.uri.clone())),
        ("snapshot", sandbox.snapshot_id.clone()),
        ("entrypoint", Some(sandbox.entrypoint.join(" "))),
        ("created", Some(when(&sandbox.created_at))),
        ("ends", Some(sandbox.expires_at.as_ref().map_or_else(|| "never".into(), when))),
        ("labels", joined(&sandbox.metadata)),
        ("extensions", joined(&sandbox.extensions)),
        ("runtime", sandbox.runtime.clone()),
        ("isolation", receipt.and_then(isolation)),
        ("limits", receipt.and_then(limits)),
        ("volumes", receipt.and_then(volumes)),
        ("weaker", weaker.map(|list| list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("; "))),
    ])
}

fn exit(exit: &protocol::lifecycle::ExitStatus) -> String {
    let mut text = exit.kind.clone();
    for (name, number) in [("code", exit.code), ("signal", exit.signal)] {
        if let Some(number) = number {
            text.push_str(&format!(" {name} {number}"));
        }
    }
    if let Some(detail) = &exit.detail {
        text.push_str(&format!(": {detail}"));
    }
    text
}

/// On which kernel its programs run, where it is not the machine's.
fn isolation(receipt: &Value) -> Option<String> {
    let kind = receipt["isolation"]["kind"].as_str().filter(|kind| *kind != "namespaces")?;
    let details = ["version", "platform"].map(|name| receipt["isolation"][name].as_str());
    Some(details.into_iter().flatten().fold(kind.to_owned(), |text, detail| format!("{text} {detail}")))
}

/// The limits of a receipt in one line.
fn limits(receipt: &Value) -> Option<String> {
    let limits = receipt["limits"].as_object().filter(|limits| !limits.is_empty())?;
    let one = |(name, limit): (&String, &Value)| {
        let value = match (name.as_str(), limit["value"].as_u64()) {
            (_, None) => "none".to_owned(),
            ("memory" | "disk" | "swap", Some(bytes)) => units::size(bytes),
            (_, Some(value)) => value.to_string(),
        };
        format!("{name} {value} ({})", limit["by"].as_str().unwrap_or("?"))
    };
    Some(limits.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// The volumes of a receipt in one line.
fn volumes(receipt: &Value) -> Option<String> {
    let mounts = receipt["mounts"].as_array().filter(|mounts| !mounts.is_empty())?;
    let one = |mount: &Value| {
        let text = |name: &str| mount[name].as_str().unwrap_or("?");
        let read_only = if mount["readOnly"].as_bool() == Some(true) { ", read-only" } else { "" };
        format!("{} at {} ({}{read_only})", text("name"), text("mountPath"), text("kind"))
    };
    Some(mounts.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// What a sandbox uses, in one line.
pub fn usage(metrics: &Metrics) -> String {
    format!(
        "cpu {:.1} % of {} cores, memory {:.0} of {:.0} MiB",
        metrics.cpu_used_pct, metrics.cpu_count, metrics.mem_used_mib, metrics.mem_total_mib
    )
}

#[cfg(test)]
mod tests;
