//! From the records of the domain to what clients see, and from what they send to values.

use axum::body::Bytes;
use jiff::Timestamp;
use lifecycle::state::exit_status;
use protocol::error::code;
use protocol::lifecycle::{Allocation, ImageUri, PlatformSpec, Sandbox, SandboxStatus};
use serde::de::DeserializeOwned;

use crate::errors::ApiError;
use crate::store::Row;

/// How much of a sandbox an answer shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    /// Answer to a create: no image.
    Created,
    /// An item of a list.
    Item,
    /// One sandbox, with its receipt.
    Detail,
}

/// A sandbox as clients see it.
pub(crate) fn sandbox(row: &Row, view: View, runtime: &str) -> Sandbox {
    let spec = &row.spec;
    Sandbox {
        id: row.id.as_str().to_owned(),
        image: (view != View::Created && spec.origin.is_none()).then(|| ImageUri { uri: spec.image.clone() }),
        snapshot_id: spec.origin.as_ref().map(|origin| origin.id.to_string()),
        platform: spec.platform.as_ref().map(|p| PlatformSpec { os: p.os.clone(), arch: p.arch.clone() }),
        status: SandboxStatus {
            state: row.state.as_str().to_owned(),
            reason: Some(row.reason.clone()),
            message: Some(row.message.clone()),
            last_transition_at: Some(row.transition_at.to_string()),
            exit: row.exit.as_ref().map(exit_status),
        },
        metadata: (!spec.metadata.is_empty()).then(|| spec.metadata.clone()),
        extensions: (!spec.extensions.is_empty()).then(|| spec.extensions.clone()),
        entrypoint: spec.entrypoint.clone(),
        expires_at: row.expires_at.map(|at| at.to_string()),
        created_at: row.created_at.to_string(),
        allocation: spec.pool.as_ref().filter(|_| view != View::Created).map(|pool| Allocation {
            mode: "pool".to_owned(),
            pool_ref: pool.clone(),
            state: "allocated".to_owned(),
        }),
        runtime: (view == View::Detail).then(|| runtime.to_owned()),
        receipt: match view {
            View::Detail => row.receipt.as_ref().and_then(|receipt| serde_json::to_value(receipt).ok()),
            View::Created | View::Item => None,
        },
    }
}

/// Reads a JSON body; a wrong one is a 422 that names the field.
pub(crate) fn decode<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let loc = path_of(error.path());
        undecodable(loc, error.inner())
    })?;
    json.end().map_err(|error| undecodable(Vec::new(), &error))?;
    Ok(value)
}

fn undecodable(path: Vec<String>, error: &serde_json::Error) -> ApiError {
    let kind = if error.is_data() { "value_error" } else { "json_invalid" };
    let place = if path.is_empty() { String::new() } else { format!("{}: ", path.join(".")) };
    let mut loc = vec!["body".to_owned()];
    loc.extend(path);
    ApiError::invalid(code::INVALID_REQUEST_BODY, kind, &loc, format!("{place}{error}"))
}

fn path_of(path: &serde_path_to_error::Path) -> Vec<String> {
    use serde_path_to_error::Segment;
    path.iter()
        .filter_map(|segment| match segment {
            Segment::Seq { index } => Some(index.to_string()),
            Segment::Map { key } => Some(key.clone()),
            Segment::Enum { variant } => Some(variant.clone()),
            Segment::Unknown => None,
        })
        .collect()
}

/// Reads an RFC 3339 instant; without an offset it is UTC. Kept to microseconds, as it is stored.
pub(crate) fn instant(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    let parsed =
        text.parse::<Timestamp>().ok().or_else(|| jiff::tz::TimeZone::UTC.to_timestamp(text.parse().ok()?).ok())?;
    Some(micros(parsed))
}

/// The instant without what lies below a microsecond: what is stored equals what is shown.
pub(crate) fn micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}
