//! Checks the event streams of execd: framing, order, terminal event, schema.

use serde_json::Value;

use super::check::Body;

/// What a stream carries.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// Bare JSON objects parted by an empty line, `init` first, one terminal event last.
    Execution,
    /// One JSON object per line.
    Metrics,
}

/// Events of one stream that are compared with the schema: the first ones say
/// all there is about the shape, and a long output has millions.
const MAX_CHECKED_EVENTS: usize = 500;

/// Lists what is wrong with the part of the stream that was seen.
pub(crate) fn check(shape: Shape, schema: Option<&jsonschema::Validator>, body: &Body) -> Vec<String> {
    match shape {
        Shape::Execution => execution(schema, body),
        Shape::Metrics => metrics(schema, body),
    }
}

fn metrics(schema: Option<&jsonschema::Validator>, body: &Body) -> Vec<String> {
    let mut problems = Vec::new();
    let text = String::from_utf8_lossy(&body.seen);
    // The last piece may be cut off by the reader.
    let complete = text.rsplit_once('\n').map_or("", |(head, _)| head);
    for line in complete.lines().filter(|line| !line.is_empty()).take(MAX_CHECKED_EVENTS) {
        against(schema, line, &mut problems);
    }
    problems
}

fn execution(schema: Option<&jsonschema::Validator>, body: &Body) -> Vec<String> {
    let mut problems = Vec::new();
    let whole = body.whole().is_some();
    let text = String::from_utf8_lossy(&body.seen);
    let mut frames: Vec<&str> = text.split("\n\n").collect();
    let tail = frames.pop().unwrap_or("");
    if whole && !tail.is_empty() {
        problems.push(format!("bytes after the last frame: {:?}", first_chars(tail)));
    }
    let mut types = Vec::with_capacity(frames.len());
    for (index, frame) in frames.iter().enumerate() {
        if frame.contains('\n') {
            problems.push(format!("frame {index} spans lines: {:?}", first_chars(frame)));
        }
        if index < MAX_CHECKED_EVENTS {
            against(schema, frame, &mut problems);
        }
        let event: Value = serde_json::from_str(frame).unwrap_or(Value::Null);
        if !event["timestamp"].is_u64() {
            problems.push(format!("frame {index} has no timestamp: {:?}", first_chars(frame)));
        }
        types.push(event["type"].as_str().unwrap_or("?").to_owned());
    }
    order(&types, whole, &mut problems);
    problems
}

/// `init`, then output, then exactly one terminal event and nothing after it. Streams of code tell a failure by
/// `status` and `error`, and end with `execution_complete` all the same.
fn order(types: &[String], whole: bool, problems: &mut Vec<String>) {
    if let Some(first) = types.first()
        && first != "init"
    {
        problems.push(format!("first event is {first}, not init"));
    }
    let ends_after_errors = types.iter().any(|kind| kind == "status");
    let terminal = |kind: &String| kind == "execution_complete" || (kind == "error" && !ends_after_errors);
    let ends: Vec<usize> =
        types.iter().enumerate().filter(|(_, kind)| terminal(kind)).map(|(index, _)| index).collect();
    if ends.len() > 1 {
        problems.push(format!("{} terminal events", ends.len()));
    }
    if whole && ends.last() != Some(&(types.len().saturating_sub(1))) {
        problems.push("stream ended without a terminal event as its last".into());
    }
}

fn against(schema: Option<&jsonschema::Validator>, frame: &str, problems: &mut Vec<String>) {
    match serde_json::from_str::<Value>(frame) {
        Err(error) => problems.push(format!("not JSON ({error}): {:?}", first_chars(frame))),
        Ok(value) => {
            if let Some(Err(error)) = schema.map(|schema| schema.validate(&value)) {
                problems.push(format!("{}: {error}", error.instance_path()));
            }
        }
    }
}

fn first_chars(text: &str) -> String {
    const SHOWN_CHARS: usize = 80;
    text.chars().take(SHOWN_CHARS).collect()
}
