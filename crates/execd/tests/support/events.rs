//! Lossless output streams, read by a client of their own.

use std::io::BufRead;

use base64::Engine as _;
use serde_json::Value;

use super::{Connection, Daemon, Target};

/// An open `GET /v1/commands/{id}/stream`.
pub struct Events {
    connection: Connection,
    rest: Vec<u8>,
}

impl Events {
    /// Asks for the stream; `query` may be empty.
    pub fn open(target: &Target, id: &str, query: &str) -> Self {
        let mut connection = Connection::open(target);
        connection.send("GET", &format!("/v1/commands/{id}/stream?{query}"), &[], b"");
        let head = connection.head();
        assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
        Self { connection, rest: Vec::new() }
    }

    /// The next event; `None` at the end of the stream. Each carries its id, which must be where to go on.
    pub fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(at) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.rest.drain(..at + 2).collect();
                if event.starts_with(b":") {
                    continue;
                }
                let lines: Vec<String> = event.lines().map_while(Result::ok).collect();
                let id: u64 = lines[0].strip_prefix("id: ").expect("an id").parse().expect("a number");
                let event: Value = serde_json::from_str(lines[1].strip_prefix("data: ").expect("data")).expect("JSON");
                if let Some(next) = event["next"].as_u64() {
                    assert_eq!(next, id, "{event}");
                }
                return Some(event);
            }
            self.rest.extend_from_slice(&self.connection.chunk()?);
        }
    }

    /// All events that are left.
    pub fn all(mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.next()).collect()
    }

    /// The next event of a type.
    pub fn until(&mut self, kind: &str) -> Value {
        loop {
            let event = self.next().unwrap_or_else(|| panic!("an event {kind}"));
            if event["type"] == kind {
                return event;
            }
        }
    }
}

/// The bytes of an output event, whichever form they have.
pub fn bytes_of(event: &Value) -> Vec<u8> {
    match (event["text"].as_str(), event["base64"].as_str()) {
        (Some(text), None) => text.as_bytes().to_vec(),
        (None, Some(text)) => base64::engine::general_purpose::STANDARD.decode(text).expect("base64"),
        _ => panic!("one form of bytes: {event}"),
    }
}

/// The output of one stream, or of both.
pub fn output_of(events: &[Value], stream: Option<&str>) -> Vec<u8> {
    let output = events.iter().filter(|event| event["type"] == "output");
    output.filter(|event| stream.is_none_or(|stream| event["stream"] == stream)).flat_map(bytes_of).collect()
}

/// Reads a stream whole.
pub fn read(daemon: &Daemon, id: &str, query: &str) -> Vec<Value> {
    Events::open(&daemon.target(), id, query).all()
}
