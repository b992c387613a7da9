//! One interpreter: its process, its streams, and what is said with its driver.
//!
//! Every stream has a task of its own that reads until the end and is never interrupted in a read; what it read
//! waits in a short channel, so an interpreter that prints faster than its client reads is held back by its pipe.
//! Before an answer the driver writes the mark to both output streams. An answer is handed on only when both
//! streams have been handed on up to their marks, and what follows a mark waits for the answer. So text and
//! answers come in the order in which the cell made them, and the end of a cell is never seen before its output.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use protocol::execd::output::StreamName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver as Pipe;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::child::Child;
use super::language::{Channel, Language};
use super::lines::{Cutter, Line};
use super::marks::Marked;
use crate::command::output_pipe;
use crate::daemon::Daemon;
use crate::error::system_text;
use crate::id;
use crate::spawn::{Extra, Stdio};

/// Bytes of one read.
const READ_BYTES: usize = 32 * 1024;
/// Pieces that wait between a reader and the talk.
const DEPTH: usize = 2;
/// After an interpreter's end its processes are killed and its streams end; one that somebody keeps open all the
/// same is given up after this long.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// What an interpreter did.
#[derive(Debug)]
pub enum Happening {
    /// It printed.
    Text(StreamName, Vec<u8>),
    /// Its driver answered.
    Line(Line),
    /// It ended, for this reason; nothing comes after.
    Died(String),
}

/// A living interpreter, or one whose last words are still read.
pub struct Talk {
    language: Language,
    child: Child,
    streams: [Stream; 2],
    lines: mpsc::Receiver<Result<Line, String>>,
    line: Option<Line>,
    are_lines_over: bool,
    words: mpsc::Sender<Bytes>,
    /// Cells that it was sent.
    cells: u64,
    /// Set at the end: until then its streams are read.
    drain_until: Option<Instant>,
    broken: Option<String>,
}

struct Stream {
    name: StreamName,
    pieces: mpsc::Receiver<Bytes>,
    marked: Marked,
}

impl Talk {
    /// Starts an interpreter; its driver says [`Line::Ready`] when it is.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub fn start(
        daemon: &Rc<Daemon>,
        language: Language,
        cwd: &str,
        memory_bytes: Option<u64>,
    ) -> Result<Self, String> {
        let mark = format!("\u{2}osb-{}\u{3}", id::hex());
        let launch = language.launch(daemon, cwd, memory_bytes, &mark).map_err(|error| error.message)?;
        let (stdout, stdout_writer) = output_pipe().map_err(|error| error.message)?;
        let (stderr, stderr_writer) = output_pipe().map_err(|error| error.message)?;
        let failed = |error: io::Error| format!("make a socket for the interpreter: {}", system_text(&error));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let ours = UnixStream::from_std(ours).map_err(failed)?;
        let theirs = OwnedFd::from(theirs);
        if let Some(identity) = &launch.plan.identity {
            for output in [&stdout_writer, &stderr_writer] {
                let _ = fchown(output, Some(identity.uid), Some(identity.gid)); // as for commands
            }
        }
        let (stdin, extra) = match launch.channel {
            Channel::Third => (daemon.null().as_fd(), Some(theirs.as_fd())),
            Channel::Stdin => (theirs.as_fd(), None),
        };
        let stdio = Stdio { fds: [stdin, stdout_writer.as_fd(), stderr_writer.as_fd()].map(Some) };
        let child = Child::start(daemon, &launch.plan, &stdio, Extra { descriptor: extra, tag: None, terminal: false })
            .map_err(|error| error.to_string())?;
        let (reader, writer) = ours.into_split();
        let (words, unsaid) = mpsc::channel(DEPTH);
        tokio::task::spawn_local(say(writer, unsaid));
        words.try_send(launch.hello.into()).map_err(|_| "the interpreter's socket is gone".to_owned())?;
        let stream = |name, pipe| {
            let (sender, pieces) = mpsc::channel(DEPTH);
            tokio::task::spawn_local(read_pipe(pipe, sender));
            Stream { name, pieces, marked: Marked::new(mark.clone().into_bytes()) }
        };
        let streams = [stream(StreamName::Stdout, stdout), stream(StreamName::Stderr, stderr)];
        let (sender, lines) = mpsc::channel(DEPTH);
        tokio::task::spawn_local(read_lines(reader, sender));
        Ok(Self {
            language,
            child,
            streams,
            lines,
            line: None,
            are_lines_over: false,
            words,
            cells: 0,
            drain_until: None,
            broken: None,
        })
    }

    /// Sends a cell; it must have answered all before.
    pub fn say(&mut self, code: &str) {
        self.cells += 1;
        let words = self.language.cell(self.cells, code);
        if self.words.try_send(words.into()).is_err() {
            self.child.kill(); // it has answered all and yet reads nothing, or is gone: its end tells
        }
    }

    /// Interrupts what it runs.
    pub fn interrupt(&self) {
        match self.language.interrupt(self.cells) {
            // Where there is no room its words are not read; it is interrupted again soon.
            Some(words) => drop(self.words.try_send(words.into())),
            None => {
                self.child.interrupt();
                if let Some(words) = self.language.after_signal(self.cells) {
                    drop(self.words.try_send(words.into()));
                }
            }
        }
    }

    /// Whether its process has ended; [`Happening::Died`] follows then.
    pub fn has_ended(&self) -> bool {
        self.child.has_ended()
    }

    /// Kills it; [`Happening::Died`] follows.
    pub fn kill(&self) {
        self.child.kill();
    }

    /// Kills it with everything that it started, and waits for that.
    pub async fn end(self) {
        self.child.end().await;
    }

    /// The next thing that happens. It may be given up at any time: nothing is lost then.
    pub async fn next(&mut self) -> Happening {
        loop {
            if let Some(happening) = self.at_hand() {
                return happening;
            }
            let [stdout, stderr] = &mut self.streams;
            let drain_until = self.drain_until;
            tokio::select! {
                piece = stdout.pieces.recv(), if stdout.marked.wants() => stdout.take(piece),
                piece = stderr.pieces.recv(), if stderr.marked.wants() => stderr.take(piece),
                line = self.lines.recv(), if self.line.is_none() && !self.are_lines_over => match line {
                    Some(Ok(line)) => self.line = Some(line),
                    Some(Err(why)) => {
                        self.broken.get_or_insert(why);
                        self.are_lines_over = true;
                        self.child.kill();
                    }
                    None => self.are_lines_over = true,
                },
                () = self.child.wait(), if drain_until.is_none() => {
                    self.drain_until = Some(Instant::now() + DRAIN_LIMIT);
                    self.child.sweep(); // what it started would hold its streams open
                }
                () = sleep_until(drain_until.unwrap_or_else(Instant::now)), if drain_until.is_some() => {
                    self.streams.iter_mut().for_each(|stream| stream.marked.end());
                    self.are_lines_over = true;
                }
            }
        }
    }

    /// What can be handed on without waiting.
    fn at_hand(&mut self) -> Option<Happening> {
        for stream in &mut self.streams {
            let text = stream.marked.take();
            if !text.is_empty() {
                return Some(Happening::Text(stream.name, text));
            }
        }
        if self.streams.iter().all(|stream| stream.marked.allows_answer())
            && let Some(line) = self.line.take()
        {
            self.streams.iter_mut().for_each(|stream| stream.marked.pass());
            return Some(Happening::Line(line));
        }
        let has_ended = self.drain_until.is_some() && self.are_lines_over && self.line.is_none();
        if !has_ended {
            return None;
        }
        // Marks whose answer never came hold nothing back any more.
        self.streams.iter_mut().for_each(|stream| stream.marked.pass());
        self.streams.iter().all(|stream| stream.marked.is_done()).then(|| Happening::Died(self.last_words()))
    }

    fn last_words(&self) -> String {
        if let Some(why) = &self.broken {
            return format!("was ended because its driver's words could not be read: {why}");
        }
        self.child.last_words()
    }
}

impl Stream {
    fn take(&mut self, piece: Option<Bytes>) {
        match piece {
            Some(piece) => self.marked.feed(&piece),
            None => self.marked.end(),
        }
    }
}

/// Reads a pipe to its end.
pub async fn read_pipe(pipe: Pipe, pieces: mpsc::Sender<Bytes>) {
    loop {
        // No buffer is held while nothing comes.
        if pipe.readable().await.is_err() {
            return;
        }
        let mut buffer = Vec::with_capacity(READ_BYTES);
        match pipe.try_read_buf(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {
                buffer.shrink_to_fit();
                if pieces.send(buffer.into()).await.is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Reads the driver's lines to the end, or to the first that cannot be understood.
async fn read_lines(mut reader: OwnedReadHalf, lines: mpsc::Sender<Result<Line, String>>) {
    let mut cutter = Cutter::default();
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        buffer.reserve(READ_BYTES);
        match reader.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if let Err(why) = cutter.feed(&buffer) {
            let _ = lines.send(Err(why)).await;
            return;
        }
        buffer = Vec::new();
        while let Some(line) = cutter.next() {
            let line = Line::parse(&line);
            let is_end = line.is_err();
            if lines.send(line).await.is_err() || is_end {
                return;
            }
        }
    }
}

/// Writes what the interpreter is told.
async fn say(mut writer: OwnedWriteHalf, mut words: mpsc::Receiver<Bytes>) {
    while let Some(words) = words.recv().await {
        if writer.write_all(&words).await.is_err() {
            return;
        }
    }
}
