//! The way of a command's output: from its pipes into its journal and, where there is a client, to that.
//!
//! Invariants: a byte goes to the client and into the journal before the next one is read, so a slow client, or a
//! journal that waits for room, slows the process and not our memory. A client who left changes nothing for
//! the journal. The stream ends with the command's own process and not with what that left in the background.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::execd::output::{EndedBy, StreamName};
use protocol::execd::stream::OVERLONG_ERROR_NAME;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc::Permit;
use tokio::time::{Instant, Interval, interval_at, timeout_at};

use super::end::{Cause, End, Fault};
use super::journal::Follower;
use super::lines::{Cut, Lines, Overlong, escape};
use super::{Command, Start, buffers, cancel};
use crate::clock;
use crate::daemon::Daemon;
use crate::http::ByteSender;
use crate::reaper::Process;
use crate::resources;

/// Between two signs of life.
pub const PING_EVERY: Duration = Duration::from_secs(3);
/// After the process's end, a pipe that somebody still holds is empty when nothing comes for this long:
/// enough for a process substitution to say its last words, too short to notice.
const DRAIN_QUIET: Duration = Duration::from_millis(20);
/// A background process that keeps writing does not hold the stream for longer than this. What lay in the
/// pipe when the process ended is always sent.
const DRAIN_LIMIT: Duration = Duration::from_millis(200);

/// Reads that empty a full pipe, and one more.
const PIPE_READS: usize = 3;

/// What the end of the client's connection does to a foreground command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OnDisconnect {
    /// It goes on, its output goes into the journal; the published behaviour of commands.
    Continue,
    /// Its tree is ended.
    Cancel,
    /// Its tree is killed at once; the published behaviour of session runs.
    Kill,
}

/// The form of a foreground stream.
pub struct Published {
    /// Text of the `init` event; the command's id when absent.
    pub init: Option<String>,
    /// What a lost client does.
    pub on_disconnect: OnDisconnect,
    /// Cuts standard output into events.
    pub stdout: Box<dyn Cut>,
    /// Cuts standard error into events; without it both are one stream.
    pub stderr: Option<Box<dyn Cut>>,
    /// Runs when the process has ended, before the last event; may find a fault.
    pub close: Box<dyn FnOnce() -> Option<Fault>>,
}

impl Published {
    /// The form of `POST /command`.
    pub fn of_command(on_disconnect: OnDisconnect) -> Self {
        Self {
            init: None,
            on_disconnect,
            stdout: Box::new(Lines::stdout()),
            stderr: Some(Box::new(Lines::stderr())),
            close: Box::new(|| None),
        }
    }

    /// Whether standard error goes where standard output does.
    pub fn is_merged(&self) -> bool {
        self.stderr.is_none()
    }
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
        out.extend_from_slice(format!(r#"{{"type":"error","error":{{"ename":"{}","evalue":""#, end.name).as_bytes());
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
pub async fn announce(command: &Command, events: Events) {
    let mut out = Vec::new();
    Events::text("init", &command.id, &mut out);
    let end = match &command.start {
        Start::Process(_) => End::success(),
        Start::Failed(_) => command.end().unwrap_or_else(End::success),
    };
    events.end(&end, &mut out);
    events.send(out).await;
}

/// The client of a foreground command.
struct Client {
    events: Events,
    cuts: [Box<dyn Cut>; 2],
    /// Holds back a journal that would overwrite what the client has not got.
    follower: Follower,
    pings: Interval,
    overlong: Option<Overlong>,
    on_disconnect: OnDisconnect,
}

struct Source {
    pipe: Option<Receiver>,
    stream: StreamName,
    /// Bytes that lay in the pipe when the process ended and are not read yet.
    owed: u64,
}

impl Source {
    /// Waits until there is something to read or the pipe ended; for ever when it has ended before.
    async fn ready(&self) {
        match &self.pipe {
            // An error shows again in the read that follows.
            Some(pipe) => drop(pipe.readable().await),
            None => std::future::pending().await,
        }
    }

    /// Reads once; 0 when nothing is there now.
    fn read(&mut self, buffer: &mut [u8]) -> usize {
        let Some(pipe) = &self.pipe else { return 0 };
        match pipe.try_read(buffer) {
            Ok(length) if length > 0 => {
                self.owed = self.owed.saturating_sub(length as u64);
                return length;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => self.pipe = None,
        }
        self.owed = 0;
        0
    }

    fn note_owed(&mut self) {
        let waiting = self.pipe.as_ref().map(rustix::io::ioctl_fionread);
        self.owed = waiting.and_then(std::result::Result::ok).unwrap_or(0);
    }
}

/// Moves a command's output.
pub struct Pump {
    daemon: Rc<Daemon>,
    command: Rc<Command>,
    sources: [Source; 2],
}

impl Pump {
    /// Takes over the pipes of a command that was just started.
    pub fn new(daemon: Rc<Daemon>, command: Rc<Command>, stdout: Receiver, stderr: Option<Receiver>) -> Self {
        let source = |pipe, stream| Source { pipe, stream, owed: 0 };
        let sources = [source(Some(stdout), StreamName::Stdout), source(stderr, StreamName::Stderr)];
        Self { daemon, command, sources }
    }

    /// Keeps the output of a background command, up to the end of everybody who writes it. What processes that
    /// outlive the command write is kept, too, and never makes them wait.
    pub async fn background(mut self) {
        self.output(&mut None).await;
        self.drain(&mut None).await;
        self.close(None);
        self.command.journal.stop_waiting();
        while self.sources.iter().any(|source| source.pipe.is_some()) {
            let [stdout, stderr] = &self.sources;
            tokio::select! {
                () = stdout.ready() => {}
                () = stderr.ready() => {}
                () = self.command.sync.asked.notified() => {}
            }
            self.sync().await;
        }
        self.command.sync.over.set(true);
        self.command.sync.done.notify_waiters();
    }

    /// Sends everything to the client, too, up to the last event.
    pub async fn foreground(mut self, events: Events, published: Published) {
        let mut out = Vec::new();
        Events::text("init", published.init.as_ref().unwrap_or(&self.command.id), &mut out);
        if matches!(self.command.start, Start::Process(_)) {
            Events::ping(&mut out);
        }
        let is_there = events.send(out).await;
        let mut client = Some(Client {
            events,
            cuts: [published.stdout, published.stderr.unwrap_or_else(|| Box::new(Lines::stderr()))],
            follower: self.command.journal.follower(),
            pings: interval_at(Instant::now() + PING_EVERY, PING_EVERY),
            overlong: None,
            on_disconnect: published.on_disconnect,
        });
        if !is_there {
            self.lose(&mut client);
        }
        self.output(&mut client).await;
        self.drain(&mut client).await;
        self.close(Some(published.close));
        if let Some(client) = client {
            self.finish(client).await;
        }
        self.discard().await;
    }

    /// Moves output until the process has ended.
    async fn output(&mut self, client: &mut Option<Client>) {
        let command = Rc::clone(&self.command);
        let Start::Process(process) = &command.start else { return };
        while self.wait_for_output(client, process).await {
            self.move_once(client).await;
        }
    }

    /// Moves what lies in the pipes, for somebody who asks for the log.
    async fn sync(&mut self) {
        for _ in 0..PIPE_READS {
            if !self.move_once(&mut None).await {
                break;
            }
        }
        self.command.sync.done.notify_waiters();
    }

    /// Waits for output that can be sent; false when the process has ended. Sends pings meanwhile, and lets go
    /// of a client who left.
    async fn wait_for_output(&mut self, client: &mut Option<Client>, process: &Process) -> bool {
        loop {
            let [stdout, stderr] = &self.sources;
            let Some(there) = client else {
                tokio::select! {
                    () = stdout.ready() => return true,
                    () = stderr.ready() => return true,
                    () = self.command.sync.asked.notified() => {}
                    _ = process.wait() => return false,
                }
                self.sync().await;
                continue;
            };
            // Nothing is read, and no end is seen, before there is room to send it.
            let has_left = match there.events.sender.reserve().await {
                Err(_) => true,
                Ok(room) => tokio::select! {
                    () = there.events.sender.closed() => true,
                    () = stdout.ready() => return true,
                    () = stderr.ready() => return true,
                    _ = process.wait() => return false,
                    _ = there.pings.tick() => {
                        send_ping(room);
                        false
                    }
                },
            };
            if has_left {
                self.lose(client);
            }
        }
    }

    /// Reads once from each pipe, and moves what came; false when nothing was there.
    async fn move_once(&mut self, client: &mut Option<Client>) -> bool {
        let mut any = false;
        for index in 0..self.sources.len() {
            let mut buffer = buffers::take();
            let length = self.sources[index].read(&mut buffer);
            let data = Arc::new(buffer);
            if length > 0 {
                any = true;
                let stream = self.sources[index].stream;
                let append = self.command.journal.append(stream, &data, length);
                let send = deliver(client, index, &data[..length]);
                // The client gets it while the disk does.
                let ((), is_there) = tokio::join!(append, send);
                match client {
                    Some(there) if is_there => there.follower.at(self.command.journal.extent().next),
                    Some(_) => self.lose(client),
                    None => {}
                }
                self.end_overlong(client);
            }
            buffers::give(data);
        }
        any
    }

    /// Reads what the process left in its pipes.
    async fn drain(&mut self, client: &mut Option<Client>) {
        self.sources.iter_mut().for_each(Source::note_owed);
        let limit = Instant::now() + DRAIN_LIMIT;
        loop {
            while self.move_once(client).await {
                if self.sources.iter().all(|source| source.owed == 0) && Instant::now() >= limit {
                    return;
                }
            }
            let [stdout, stderr] = &self.sources;
            if stdout.pipe.is_none() && stderr.pipe.is_none() {
                return;
            }
            let more = async {
                tokio::select! {
                    () = stdout.ready() => {}
                    () = stderr.ready() => {}
                }
            };
            let quiet = Instant::now() + DRAIN_QUIET;
            if timeout_at(quiet.min(limit), more).await.is_err() {
                return;
            }
        }
    }

    /// The process has ended and its output is in the journal: the run is complete.
    fn close(&self, close: Option<Box<dyn FnOnce() -> Option<Fault>>>) {
        let command = &self.command;
        if command.end().is_some_and(|end| end.code != 0) {
            resources::look(&self.daemon, Some(command));
        }
        if let Some(fault) = close.and_then(|close| close()) {
            command.fault(fault);
        }
        command.finished_ms.set(Some(command.finished_ms.get().unwrap_or_else(clock::now_ms)));
        command.journal.close();
        self.daemon.commands.kept().add(command);
    }

    /// Sends the last events.
    async fn finish(&self, mut client: Client) {
        let (suffix, mut out) = (suffix(), Vec::new());
        if client.overlong.is_none() {
            client.cuts.iter_mut().for_each(|cut| cut.finish(&suffix, &mut out));
        }
        if let Some(end) = self.command.published_end() {
            client.events.end(&end, &mut out);
        }
        client.events.send(out).await;
    }

    /// Reads and drops until every writer is gone: what a background process still writes is nobody's, but it
    /// lives on.
    async fn discard(mut self) {
        let mut buffer = buffers::take();
        while self.sources.iter().any(|source| source.pipe.is_some()) {
            let [stdout, stderr] = &self.sources;
            tokio::select! {
                () = stdout.ready() => {}
                () = stderr.ready() => {}
            }
            for source in &mut self.sources {
                source.read(&mut buffer);
            }
        }
        buffers::give(Arc::new(buffer));
    }

    /// The client has gone: what that means for the command begins, and its output goes on.
    fn lose(&self, client: &mut Option<Client>) {
        let Some(client) = client.take() else { return };
        let command = Rc::clone(&self.command);
        let by = Cause::By(EndedBy::Disconnect);
        match client.on_disconnect {
            OnDisconnect::Continue => {}
            OnDisconnect::Cancel => {
                // A command that ended meanwhile needs nothing.
                tokio::task::spawn_local(async move { drop(cancel::cancel(&command, by).await) });
            }
            OnDisconnect::Kill => {
                tokio::task::spawn_local(async move { drop(cancel::kill(&command, by).await) });
            }
        }
    }

    fn end_overlong(&self, client: &Option<Client>) {
        let Some(Overlong { max_bytes }) = client.as_ref().and_then(|client| client.overlong.as_ref()) else { return };
        if self.command.fault.get().is_some() {
            return;
        }
        let why = format!("a line of the output is longer than {max_bytes} bytes; the run was killed");
        self.command.fault(Fault { name: OVERLONG_ERROR_NAME, why });
        let command = Rc::clone(&self.command);
        tokio::task::spawn_local(async move {
            drop(cancel::kill(&command, Cause::By(EndedBy::OutputLine)).await);
        });
    }
}

fn send_ping(room: Permit<'_, io::Result<Bytes>>) {
    let mut out = Vec::new();
    Events::ping(&mut out);
    room.send(Ok(Bytes::from(out)));
}

/// Sends the events of new bytes; false when the client has gone.
async fn deliver(client: &mut Option<Client>, index: usize, data: &[u8]) -> bool {
    let Some(client) = client else { return false };
    if client.overlong.is_some() {
        return true;
    }
    let mut out = Vec::new();
    client.overlong = client.cuts[index].feed(data, &suffix(), &mut out).err();
    client.events.send(out).await
}
