//! The events of a run, as the published clients read them.

use protocol::execd::output::StreamName;
use protocol::execd::stream::{StreamError, StreamEvent};
use tokio::time::Instant;

use super::lines::Forms;
use crate::clock;

/// Writes the events of one run, one after the other, into memory.
pub struct Events {
    /// What is not sent yet.
    pub out: Vec<u8>,
    started: Instant,
}

impl Events {
    /// Begins; the run's time starts now.
    pub fn new() -> Self {
        Self { out: Vec::new(), started: Instant::now() }
    }

    fn put(&mut self, kind: &str, fill: impl FnOnce(&mut StreamEvent)) {
        let mut event = StreamEvent { kind: kind.into(), timestamp: clock::now_ms(), ..StreamEvent::default() };
        fill(&mut event);
        // Wire types hold strings and numbers only: writing them into memory cannot fail.
        serde_json::to_writer(&mut self.out, &event).expect("wire types can always be written as JSON");
        self.out.extend_from_slice(b"\n\n");
    }

    fn text(&mut self, kind: &str, text: impl Into<String>) {
        let text = text.into();
        self.put(kind, |event| event.text = Some(text));
    }

    /// The first event, and the first sign of life.
    pub fn init(&mut self, id: &str) {
        self.text("init", id);
        self.ping();
    }

    /// A sign of life.
    pub fn ping(&mut self) {
        self.text("ping", "pong");
    }

    /// Output, as it came.
    pub fn output(&mut self, stream: StreamName, text: &[u8]) {
        let kind = match stream {
            StreamName::Stdout => "stdout",
            StreamName::Stderr => "stderr",
        };
        self.text(kind, String::from_utf8_lossy(text));
    }

    /// The value of a cell.
    pub fn result(&mut self, count: i64, forms: Forms) {
        self.put("execution_count", |event| event.execution_count = Some(count));
        self.display(forms);
    }

    /// Something shown in the middle of a cell.
    pub fn display(&mut self, forms: Forms) {
        self.put("result", |event| event.results = Some(forms));
    }

    /// What went wrong.
    pub fn error(&mut self, name: &str, value: &str, traceback: Vec<String>) {
        self.text("status", "error");
        let error = StreamError { ename: name.into(), evalue: value.into(), traceback: Some(traceback) };
        self.put("error", |event| event.error = Some(error));
    }

    /// The last event; it comes after errors, too, as published for code.
    pub fn complete(&mut self) {
        let ms = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.put("execution_complete", |event| event.execution_time = Some(ms).filter(|ms| *ms > 0));
    }
}
