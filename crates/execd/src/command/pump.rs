//! The stream of a command: from its pipes to events, at the speed of the reader.
//!
//! Invariants: a slow reader slows the process, since nothing is read without room to send it. A reader
//! who left changes nothing for the process: its output is read and dropped. The stream ends with the
//! command's own process and not with what that left in the background.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use protocol::execd::stream::COMMAND_ERROR_NAME;
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Instant, interval_at, timeout_at};

use super::lines::{Lines, escape};
use super::{Command, End, Outcome, run};
use crate::clock;
use crate::http::ByteSender;
use crate::reaper::Process;

/// Between two signs of life.
const PING_EVERY: Duration = Duration::from_secs(3);
/// Bytes read from a pipe at once; also the size of the one buffer that all commands share.
const READ_BYTES: usize = 256 * 1024;
/// Bytes of events after which a batch is sent.
const BATCH_BYTES: usize = 256 * 1024;
/// After the process's end, a pipe that somebody still holds is empty when nothing comes for this long:
/// enough for a process substitution to say its last words, too short to notice.
const DRAIN_QUIET: Duration = Duration::from_millis(20);
/// A background process that keeps writing does not hold the stream for longer than this. What lay in the
/// pipe when the process ended is always sent.
const DRAIN_LIMIT: Duration = Duration::from_millis(200);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What the end of the client's connection does to a foreground command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OnDisconnect {
    /// It goes on, its output is dropped; the published behaviour.
    Continue,
    /// Its group is ended.
    Cancel,
}

/// Writes events into batches and sends them.
pub struct Events {
    sender: ByteSender,
    started: Instant,
}

impl Events {
    /// Begins a stream; its time starts now.
    pub fn new(sender: ByteSender) -> Self {
        Self { sender, started: Instant::now() }
    }

    fn text(kind: &str, text: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(format!(r#"{{"type":"{kind}","text":""#).as_bytes());
        escape(text, out);
        out.extend_from_slice(&suffix());
    }

    fn begin(command: &Command, out: &mut Vec<u8>) {
        Self::text("init", &command.id, out);
    }

    fn ping(out: &mut Vec<u8>) {
        Self::text("ping", "pong", out);
    }

    fn end(&self, end: &End, out: &mut Vec<u8>) {
        let timestamp = clock::now_ms();
        if end.detail.is_empty() {
            let time = match self.started.elapsed().as_millis() {
                0 => String::new(),
                ms => format!(r#""execution_time":{ms},"#),
            };
            out.extend_from_slice(
                format!("{{\"type\":\"execution_complete\",{time}\"timestamp\":{timestamp}}}\n\n").as_bytes(),
            );
            return;
        }
        out.extend_from_slice(
            format!(r#"{{"type":"error","error":{{"ename":"{COMMAND_ERROR_NAME}","evalue":""#).as_bytes(),
        );
        escape(&end.evalue, out);
        out.extend_from_slice(br#"","traceback":["#);
        for (index, detail) in end.detail.iter().enumerate() {
            out.extend_from_slice(if index == 0 { b"\"" } else { b",\"" });
            escape(detail, out);
            out.push(b'"');
        }
        out.extend_from_slice(format!("]}},\"timestamp\":{timestamp}}}\n\n").as_bytes());
    }

    /// False when the client has gone.
    async fn send(&self, out: Vec<u8>) -> bool {
        out.is_empty() || self.sender.send(Ok(Bytes::from(out))).await.is_ok()
    }
}

fn suffix() -> Vec<u8> {
    format!("\",\"timestamp\":{}}}\n\n", clock::now_ms()).into_bytes()
}

/// Sends the stream of a background command: its id, and that it was started or why not.
pub async fn background(command: &Command, events: Events) {
    let mut out = Vec::new();
    Events::begin(command, &mut out);
    let started = End { code: 0, evalue: String::new(), detail: Vec::new() };
    let end = match &command.outcome {
        Outcome::Started(_) => started,
        Outcome::Failed(_) => command.end().unwrap_or(started),
    };
    events.end(&end, &mut out);
    events.send(out).await;
}

struct Source {
    pipe: Option<Receiver>,
    lines: Lines,
    /// Bytes that lay in the pipe when the process ended and are not read yet.
    owed: u64,
}

impl Source {
    fn new(pipe: Receiver, lines: Lines) -> Self {
        Self { pipe: Some(pipe), lines, owed: 0 }
    }

    /// Waits until there is something to read or the pipe ended; for ever when it has ended before.
    async fn ready(&self) {
        match &self.pipe {
            // An error shows again in the read that follows.
            Some(pipe) => drop(pipe.readable().await),
            None => std::future::pending().await,
        }
    }

    /// Reads once and appends the events; false when nothing is there now.
    fn read(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(pipe) = &self.pipe else { return false };
        let read = with_scratch(|scratch| {
            let read = pipe.try_read(scratch);
            if let Ok(length) = read {
                self.lines.feed(&scratch[..length], &suffix(), out);
            }
            read
        });
        match read {
            Ok(0) => self.pipe = None,
            Ok(length) => self.owed = self.owed.saturating_sub(length as u64),
            Err(ref error) if error.kind() == io::ErrorKind::WouldBlock => self.owed = 0,
            Err(_) => self.pipe = None,
        }
        if self.pipe.is_none() {
            self.owed = 0;
        }
        matches!(read, Ok(length) if length > 0)
    }

    fn note_owed(&mut self) {
        let waiting = self.pipe.as_ref().map(rustix::io::ioctl_fionread);
        self.owed = waiting.and_then(std::result::Result::ok).unwrap_or(0);
    }
}

/// Frees the shared buffer; the next read makes it again.
pub fn release_buffers() {
    SCRATCH.take();
}

fn with_scratch<T>(action: impl FnOnce(&mut [u8]) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(READ_BYTES, 0);
        action(scratch)
    })
}

/// A foreground command on its way to its client.
pub struct Foreground<'a> {
    command: &'a Rc<Command>,
    sources: [Source; 2],
    events: Events,
}

/// Why the output phase ended.
enum Left {
    /// The process ended by itself or was ended.
    Process,
    /// The client went away.
    Client,
}

impl<'a> Foreground<'a> {
    /// Prepares the stream of a command that was just started.
    pub fn new(command: &'a Rc<Command>, stdout: Receiver, stderr: Receiver, events: Events) -> Self {
        Self { command, sources: [Source::new(stdout, Lines::stdout()), Source::new(stderr, Lines::stderr())], events }
    }

    /// Sends everything, up to the last event; returns when the stream is complete or its reader gone.
    pub async fn run(mut self, on_disconnect: OnDisconnect) {
        let mut out = Vec::new();
        Events::begin(self.command, &mut out);
        let command = self.command;
        let Outcome::Started(process) = &command.outcome else {
            self.finish(out).await;
            return;
        };
        Events::ping(&mut out);
        let left = match self.events.send(out).await {
            true => self.output(process).await,
            false => Left::Client,
        };
        match (left, on_disconnect) {
            (Left::Process, _) => {
                let sent = self.drain().await;
                if let Some(out) = sent {
                    self.finish(out).await;
                }
                // What a background process still writes is dropped, so that it lives on.
                tokio::task::spawn_local(discard(self.sources));
            }
            (Left::Client, OnDisconnect::Continue) => discard(self.sources).await,
            (Left::Client, OnDisconnect::Cancel) => {
                tokio::join!(run::end_abandoned(command), discard(self.sources));
            }
        }
    }

    async fn output(&mut self, process: &Process) -> Left {
        let mut pings = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        let [stdout, stderr] = &mut self.sources;
        loop {
            let Ok(room) = self.events.sender.reserve().await else {
                return Left::Client;
            };
            let mut out = Vec::new();
            tokio::select! {
                () = self.events.sender.closed() => return Left::Client,
                () = stdout.ready() => {}
                () = stderr.ready() => {}
                _ = pings.tick() => Events::ping(&mut out),
                _ = process.wait() => return Left::Process,
            }
            fill([stdout, stderr], &mut out);
            if !out.is_empty() {
                room.send(Ok(Bytes::from(out)));
            }
        }
    }

    /// Reads what the process left in its pipes. Returns the last unsent batch, or `None` without a reader.
    async fn drain(&mut self) -> Option<Vec<u8>> {
        self.sources.iter_mut().for_each(Source::note_owed);
        let limit = Instant::now() + DRAIN_LIMIT;
        loop {
            let [stdout, stderr] = &mut self.sources;
            let mut out = Vec::new();
            fill([stdout, stderr], &mut out);
            let done = stdout.pipe.is_none() && stderr.pipe.is_none();
            let owed = stdout.owed + stderr.owed > 0;
            if done || (!owed && Instant::now() >= limit) {
                return Some(out);
            }
            if !self.events.send(out).await {
                return None;
            }
            let [stdout, stderr] = &self.sources;
            let more = async {
                tokio::select! {
                    () = stdout.ready() => {}
                    () = stderr.ready() => {}
                }
            };
            let quiet = Instant::now() + DRAIN_QUIET;
            if !owed && timeout_at(quiet.min(limit), more).await.is_err() {
                return Some(Vec::new());
            }
        }
    }

    async fn finish(&mut self, mut out: Vec<u8>) {
        let suffix = suffix();
        for source in &mut self.sources {
            source.lines.finish(&suffix, &mut out);
        }
        if let Some(end) = self.command.end() {
            self.events.end(&end, &mut out);
        }
        self.events.send(out).await;
    }
}

/// Reads both streams in turn until they are empty or the batch is full.
fn fill(mut sources: [&mut Source; 2], out: &mut Vec<u8>) {
    loop {
        let mut any = false;
        for source in &mut sources {
            any |= source.read(out);
        }
        if !any || out.len() >= BATCH_BYTES {
            return;
        }
    }
}

/// Reads and drops until every writer is gone.
async fn discard(sources: [Source; 2]) {
    let drop_all = |source: Source| async move {
        let Some(pipe) = source.pipe else { return };
        while pipe.readable().await.is_ok() {
            match with_scratch(|scratch| pipe.try_read(scratch)) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    let [stdout, stderr] = sources;
    tokio::join!(drop_all(stdout), drop_all(stderr));
}
