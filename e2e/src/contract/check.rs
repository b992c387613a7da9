//! Compares one finished exchange with the operation it used.

use serde_json::Value;

use super::document::{Api, Contract, Operation, Response};
use super::events;

/// Bytes of a body that were seen, and whether that was all of it.
#[derive(Clone, Debug, Default)]
pub struct Body {
    /// The first bytes, up to the recorder's bound.
    pub seen: Vec<u8>,
    /// Length in all.
    pub total: u64,
    /// The body ended as it should, rather than by a lost connection.
    pub ended: bool,
}

impl Body {
    /// The whole body, if all of it was seen.
    #[must_use]
    pub fn whole(&self) -> Option<&[u8]> {
        (self.ended && self.total == self.seen.len() as u64).then_some(&self.seen)
    }
}

/// One request and its answer.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    /// Upper case.
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// Request content type, lower case, without parameters.
    pub request_type: String,
    /// Request body.
    pub request: Body,
    /// Status of the answer.
    pub status: u16,
    /// Headers of the answer, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body of the answer.
    pub response: Body,
}

/// Something the contract does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What sort: the words that errata use.
    pub kind: &'static str,
    /// What exactly.
    pub detail: String,
}

/// How the exchange ended, for the coverage table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Below 400.
    Success,
    /// The caller's request was turned down.
    Refusal,
    /// The server failed.
    Fault,
}

/// What was found out about an exchange.
#[derive(Debug)]
pub struct Finding {
    /// Who answered: `api METHOD template`.
    pub operation: String,
    /// What was asked for, when somebody in front of it answered.
    pub asked: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// What was wrong with it.
    pub violations: Vec<Violation>,
}

/// A status by which a feature says that it is not there.
const NOT_IMPLEMENTED: u16 = 501;
/// First status that means that the server failed.
const FIRST_FAULT: u16 = 500;
/// First status that is not a success.
const FIRST_REFUSAL: u16 = 400;

/// Error codes by which the control plane answers for a port of a sandbox
/// before the request got there.
const PLATFORM_CODES: [&str; 8] =
    ["SANDBOX::", "MISSING_", "INVALID_API_KEY", "BACKEND_", "NETWORK::", "GENERAL::", "KUBERNETES::", "EGRESS::"];

/// Checks `exchange` against `contract`.
#[must_use]
pub fn check(contract: &Contract, exchange: &Exchange) -> Finding {
    let outcome = match exchange.status {
        NOT_IMPLEMENTED => Outcome::Refusal,
        status if status >= FIRST_FAULT => Outcome::Fault,
        status if status >= FIRST_REFUSAL => Outcome::Refusal,
        _ => Outcome::Success,
    };
    let mut violations = Vec::new();
    check_common(exchange, &mut violations);
    let operation = contract.find(&exchange.method, &exchange.path);
    let name_of = |found: &Operation| format!("{} {}", found.api.name(), found.name);
    let mut asked = None;
    let operation_name = match operation {
        Some(found) if answered_by_platform(found, exchange) => {
            check_error_body(exchange, &mut violations);
            asked = Some(name_of(found));
            format!("lifecycle {} /v1/sandboxes/{{sandbox_id}}/proxy/{{port}}/{{full_path}}", exchange.method)
        }
        Some(found) => {
            check_operation(found, exchange, &mut violations);
            name_of(found)
        }
        None => {
            if outcome == Outcome::Success {
                push(&mut violations, "undocumented-operation", format!("answered {}", exchange.status));
            } else {
                check_error_body(exchange, &mut violations);
            }
            format!("none {} {}", exchange.method, exchange.path)
        }
    };
    Finding { operation: operation_name, asked, outcome, violations }
}

fn push(violations: &mut Vec<Violation>, kind: &'static str, detail: impl Into<String>) {
    violations.push(Violation { kind, detail: detail.into() });
}

/// What holds for every answer, whoever gives it.
fn check_common(exchange: &Exchange, violations: &mut Vec<Violation>) {
    for (name, kind) in [("x-request-id", "request-id"), ("date", "date")] {
        let count = exchange.headers.iter().filter(|(n, _)| n == name).count();
        if count != 1 {
            push(violations, kind, format!("{name} appears {count} times"));
        }
    }
    if exchange.status == FIRST_FAULT {
        push(violations, "server-error", snippet(&exchange.response.seen));
    }
}

/// The control plane itself refused a call to a port (token, state, nothing
/// listening): then its own error rules apply, not the inner operation's.
fn answered_by_platform(operation: &Operation, exchange: &Exchange) -> bool {
    if operation.api == Api::Lifecycle || exchange.status < FIRST_REFUSAL {
        return false;
    }
    let Ok(body) = serde_json::from_slice::<Value>(&exchange.response.seen) else {
        return false;
    };
    body["code"].as_str().is_some_and(|code| PLATFORM_CODES.iter().any(|prefix| code.starts_with(prefix)))
}

fn check_operation(operation: &Operation, exchange: &Exchange, violations: &mut Vec<Violation>) {
    check_request(operation, exchange, violations);
    let documented = operation.responses.get(&exchange.status);
    let Some(response) = documented.or_else(|| operation.responses.get(&0)) else {
        push(violations, "undocumented-status", exchange.status.to_string());
        if exchange.status >= FIRST_REFUSAL {
            check_error_body(exchange, violations);
        }
        return;
    };
    for header in &response.headers {
        let wanted = header.to_lowercase();
        // These depend on the request, which the document does not say.
        let conditional = ["retry-after", "content-range", "content-disposition", "content-length"];
        let present = exchange.headers.iter().any(|(name, _)| *name == wanted);
        if !present && !conditional.contains(&wanted.as_str()) {
            push(violations, "missing-header", header.clone());
        }
    }
    if documented.is_none() || response.content.is_empty() {
        // Nothing documented about the body: an error still has our shape.
        let own_error = exchange.status >= FIRST_REFUSAL && documented.is_some();
        if own_error {
            check_error_body(exchange, violations);
        }
        if exchange.status < FIRST_REFUSAL && documented.is_some() && exchange.response.total > 0 {
            push(violations, "unexpected-body", snippet(&exchange.response.seen));
        }
        return;
    }
    check_content(operation, response, exchange, violations);
}

fn check_request(operation: &Operation, exchange: &Exchange, violations: &mut Vec<Violation>) {
    let (Some(validator), Some(body)) = (&operation.request, exchange.request.whole()) else {
        return;
    };
    if exchange.status >= FIRST_REFUSAL {
        return;
    }
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => {
            if let Err(error) = validator.validate(&value) {
                push(violations, "invalid-request-accepted", format!("{}: {error}", error.instance_path()));
            }
        }
        Err(_) if body.is_empty() => {}
        Err(error) => push(violations, "invalid-request-accepted", format!("not JSON: {error}")),
    }
}

fn check_content(operation: &Operation, response: &Response, exchange: &Exchange, violations: &mut Vec<Violation>) {
    let says_nothing = response.content.values().all(Option::is_none);
    if exchange.response.ended && exchange.response.total == 0 && says_nothing {
        return;
    }
    let media = media_type(&exchange.headers);
    let entry = response.content.get(&media).or_else(|| response.content.get("*/*"));
    let Some(schema) = entry else {
        let allowed: Vec<&str> = response.content.keys().map(String::as_str).collect();
        push(
            violations,
            "content-type",
            format!("{}: {media:?}, documented {}", exchange.status, allowed.join(" or ")),
        );
        return;
    };
    if media == "text/event-stream" {
        let shape =
            if operation.name.ends_with("/metrics/watch") { events::Shape::Metrics } else { events::Shape::Execution };
        for problem in events::check(shape, schema.as_ref(), &exchange.response) {
            push(violations, "stream", problem);
        }
        return;
    }
    if media != "application/json" {
        return;
    }
    let Some(body) = exchange.response.whole() else {
        return;
    };
    match (serde_json::from_slice::<Value>(body), schema) {
        (Ok(value), Some(schema)) => {
            for error in schema.iter_errors(&value) {
                push(violations, "body-schema", format!("{}: {}: {error}", exchange.status, error.instance_path()));
            }
        }
        (Ok(_), None) => {}
        (Err(error), _) => {
            push(violations, "body-schema", format!("{}: not JSON: {error}", exchange.status));
        }
    }
}

/// Every error of ours is JSON with a code and a message.
fn check_error_body(exchange: &Exchange, violations: &mut Vec<Violation>) {
    let Some(body) = exchange.response.whole() else {
        return;
    };
    let value: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let filled = |key: &str| value[key].as_str().is_some_and(|text| !text.is_empty());
    if !filled("code") || !filled("message") {
        push(violations, "error-shape", format!("{}: {}", exchange.status, snippet(body)));
    }
}

fn media_type(headers: &[(String, String)]) -> String {
    let value = headers.iter().find(|(name, _)| name == "content-type").map(|(_, v)| v.as_str());
    value.unwrap_or("").split(';').next().unwrap_or("").trim().to_lowercase()
}

/// The first characters of a body, for a person.
fn snippet(body: &[u8]) -> String {
    const SHOWN_CHARS: usize = 200;
    String::from_utf8_lossy(body).chars().take(SHOWN_CHARS).collect()
}
