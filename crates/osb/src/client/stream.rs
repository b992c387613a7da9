//! Reads the event stream of an execution or of a watch as it comes.
//!
//! The stream is bare JSON objects, each followed by an empty line; other servers prefix them with `data:`. One
//! event is in memory at a time, and it has a bound.

use std::borrow::Cow;

use bytes::{Buf, BytesMut};
use protocol::execd::stream::StreamError;
use protocol::execd::watch::WatchEvent;
use reqwest::Response;

use super::chain;
use super::network::Told;
use crate::failure::Failure;

/// Largest event, in bytes: our daemon cuts output at 64 KiB; older ones send whole lines.
const MAX_EVENT_BYTES: usize = 32 * 1024 * 1024;

/// Code of the failure when the connection ends before its stream.
pub const STREAM_BROKEN: &str = "STREAM_BROKEN";

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The execution has this id.
    Init(String),
    /// Output.
    Stdout(String),
    /// Error output.
    Stderr(String),
    /// It ended with 0, after this many milliseconds.
    Complete(i64),
    /// It failed.
    Failed(StreamError),
    /// The daemon failed, with its code and message.
    Fault(String, String),
    /// Something that no command needs.
    Other,
}

/// The events of one execution, or of one watch.
pub struct EventStream {
    answer: Response,
    lines: Lines,
}

impl EventStream {
    /// Reads the events of this answer.
    pub fn new(answer: Response) -> Self {
        Self { answer, lines: Lines::default() }
    }

    /// The next event that has already arrived, without waiting.
    ///
    /// # Errors
    /// Bytes that are no events.
    pub fn arrived(&mut self) -> Result<Option<Event>, Failure> {
        self.lines.next_event()
    }

    /// The next event; `None` at the end of the stream.
    ///
    /// # Errors
    /// A broken connection, or bytes that are no events.
    pub async fn next(&mut self) -> Result<Option<Event>, Failure> {
        self.next_as(parse).await
    }

    /// The next event of a watch; `None` at the end of the stream.
    ///
    /// # Errors
    /// As [`EventStream::next`].
    pub async fn next_change(&mut self) -> Result<Option<WatchEvent>, Failure> {
        self.next_as(parse_change).await
    }

    /// The next of what is told of a sandbox's network; `None` at the end of the stream.
    ///
    /// # Errors
    /// As [`EventStream::next`].
    pub async fn next_told(&mut self) -> Result<Option<Told>, Failure> {
        self.next_as(parse_told).await
    }

    async fn next_as<T>(&mut self, parse: fn(&[u8]) -> Result<Option<T>, Failure>) -> Result<Option<T>, Failure> {
        loop {
            if let Some(event) = self.lines.next_as(parse)? {
                return Ok(Some(event));
            }
            match self.answer.chunk().await {
                Ok(Some(bytes)) => self.lines.push(&bytes)?,
                Ok(None) => return self.lines.finish_as(parse),
                Err(error) => {
                    return Err(Failure::new(STREAM_BROKEN, format!("the connection broke: {}", chain(&error))));
                }
            }
        }
    }
}

/// Bytes that become lines, and lines that become events.
#[derive(Default)]
pub struct Lines {
    buffer: BytesMut,
    /// How much of the buffer holds no line end.
    searched: usize,
}

impl Lines {
    /// Takes bytes as they arrive.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.buffer.len() + bytes.len() > MAX_EVENT_BYTES + bytes.len().min(MAX_EVENT_BYTES) {
            return Err(Failure::new("BAD_STREAM", format!("an event is larger than {MAX_EVENT_BYTES} bytes")));
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// The next whole event.
    pub fn next_event(&mut self) -> Result<Option<Event>, Failure> {
        self.next_as(parse)
    }

    fn next_as<T>(&mut self, parse: fn(&[u8]) -> Result<Option<T>, Failure>) -> Result<Option<T>, Failure> {
        while let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
            let end = self.searched + at;
            self.searched = 0;
            let event = parse(&self.buffer[..end]);
            self.buffer.advance(end + 1);
            if let Some(event) = event? {
                return Ok(Some(event));
            }
        }
        self.searched = self.buffer.len();
        Ok(None)
    }

    /// What is left when the stream ends without a last line end.
    fn finish_as<T>(&mut self, parse: fn(&[u8]) -> Result<Option<T>, Failure>) -> Result<Option<T>, Failure> {
        let rest = self.buffer.split();
        self.searched = 0;
        parse(&rest)
    }
}

/// The JSON of one line; `None` for lines that carry none.
fn object(line: &[u8]) -> Result<Option<&[u8]>, Failure> {
    let mut line = line.trim_ascii();
    if let Some(data) = line.strip_prefix(b"data:") {
        line = data.trim_ascii_start();
    }
    if !line.starts_with(b"{") {
        let is_framing = [&b":"[..], b"event:", b"id:", b"retry:"].iter().any(|word| line.starts_with(word));
        return if line.is_empty() || is_framing { Ok(None) } else { Err(bad(line, "no JSON object")) };
    }
    Ok(Some(line))
}

fn parse_change(line: &[u8]) -> Result<Option<WatchEvent>, Failure> {
    let Some(line) = object(line)? else { return Ok(None) };
    serde_json::from_slice(line).map(Some).map_err(|error| bad(line, &error.to_string()))
}

fn parse_told(line: &[u8]) -> Result<Option<Told>, Failure> {
    let Some(line) = object(line)? else { return Ok(None) };
    // Only events carry a cursor.
    let event = serde_json::from_slice(line).map(|event| Told::Event(Box::new(event)));
    let told = event.or_else(|error| serde_json::from_slice(line).map(Told::Notice).map_err(|_| error));
    told.map(Some).map_err(|error| bad(line, &error.to_string()))
}

/// An event from one line; `None` for lines that carry none.
fn parse(line: &[u8]) -> Result<Option<Event>, Failure> {
    let Some(line) = object(line)? else { return Ok(None) };
    let event: Wire<'_> = serde_json::from_slice(line).map_err(|error| bad(line, &error.to_string()))?;
    let text = event.text.unwrap_or_default().into_owned();
    Ok(Some(match event.kind.as_deref() {
        Some("init") => Event::Init(text),
        Some("stdout") => Event::Stdout(text),
        Some("stderr") => Event::Stderr(text),
        Some("execution_complete") => Event::Complete(event.execution_time.unwrap_or(0)),
        Some("error") => Event::Failed(event.error.unwrap_or_default()),
        Some(_) => Event::Other,
        None => match event.code {
            Some(code) => Event::Fault(code, event.message.unwrap_or_default()),
            None => return Err(bad(line, "it has no type")),
        },
    }))
}

/// The members of an event that matter here, or of the bare failure that older daemons append. Read in place: there
/// is one event for each line of output.
#[derive(serde::Deserialize)]
struct Wire<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(default)]
    execution_time: Option<i64>,
    #[serde(default)]
    error: Option<StreamError>,
    #[serde(default)]
    code: Option<String>,
    #[serde(default)]
    message: Option<String>,
}

fn bad(line: &[u8], why: &str) -> Failure {
    /// Most of a bad line that is shown, in bytes.
    const SHOWN: usize = 120;
    let start = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]).into_owned();
    Failure::new("BAD_STREAM", format!("the stream holds `{start}`, which is no event: {why}"))
}

#[cfg(test)]
mod tests;
