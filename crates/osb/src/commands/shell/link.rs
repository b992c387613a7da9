//! The connection to a terminal: what goes there, what comes, and taking it up again when it drops.
//!
//! The two directions do not wait for each other. `at` is the offset behind the last byte that was written here; it
//! is what a new connection begins with, so that nothing is shown twice.

use std::cell::Cell;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use protocol::execd::pty::{ClientFrame, REPLAY, REPLAY_HEAD_BYTES, STDERR, STDIN, STDOUT, ServerFrame, error_code};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_tungstenite::tungstenite::Message;

use super::keys::Leave;
use super::{Terms, tty};
use crate::client::execd::Execd;
use crate::client::terminal::Socket;
use crate::failure::Failure;
use crate::output::{Printer, output_failure};

/// Between two signs of life to the daemon, which answers each.
const PING_EVERY: Duration = Duration::from_secs(15);
/// A connection on which nothing comes for so long has dropped.
const SILENCE: Duration = Duration::from_secs(50);
/// First pause between two attempts to connect again; each is twice as long, up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(3);
/// For how long a connection that takes nothing is still read: it may tell why.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Code of the failure when another client has the terminal now.
pub const TAKEN_OVER: &str = error_code::TAKEN_OVER;

/// How the use of a terminal ended.
pub enum Ending {
    /// Its shell has ended, and all of its output is here.
    Exited { code: i32, signal: Option<String> },
    /// By the keys of this side.
    Left(Leave),
    /// By a signal to this side.
    Signal(u8),
}

/// How a connection ended.
enum Drop {
    Exited { code: i32, signal: Option<String> },
    Lost(String),
}

/// A terminal in use.
pub struct Link<'a> {
    execd: &'a Execd,
    id: &'a str,
    terms: &'a Terms,
    printer: &'a Printer,
    at: u64,
    /// Nothing has come yet; what a replay leaves out was not asked for.
    is_fresh: bool,
    winch: Signal,
    out: tokio::io::Stdout,
    err: tokio::io::Stderr,
}

/// What was sent of the input, for the case that the connection drops.
#[derive(Default)]
struct Sent {
    any: bool,
    over: bool,
}

impl<'a> Link<'a> {
    /// Begins at an offset.
    ///
    /// # Errors
    /// When the system refuses to tell of new sizes.
    pub fn new(
        execd: &'a Execd,
        id: &'a str,
        since: u64,
        terms: &'a Terms,
        printer: &'a Printer,
    ) -> Result<Self, Failure> {
        let winch = signal(SignalKind::window_change())
            .map_err(|error| Failure::new("CLIENT", format!("listen for signals: {error}")))?;
        let (out, err) = (tokio::io::stdout(), tokio::io::stderr());
        Ok(Self { execd, id, terms, printer, at: since, is_fresh: true, winch, out, err })
    }

    /// Connects, where the last connection has broken off.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses.
    pub async fn connect(&self) -> Result<Socket, Failure> {
        let mut query = vec![("since", self.at.to_string()), ("takeover", "1".to_owned()), ("resume", "1".to_owned())];
        if !self.terms.tty {
            query.push(("pty", "0".to_owned()));
        } else if let Some((cols, rows)) = tty::size() {
            query.extend([("cols", cols.to_string()), ("rows", rows.to_string())]);
        }
        self.execd.attach_terminal(self.id, &query).await
    }

    /// Runs to the end of the shell, over as many connections as that takes.
    ///
    /// # Errors
    /// The connection is lost for good, the session is gone, or the output cannot be written.
    pub async fn run(&mut self, mut socket: Socket, mut input: mpsc::Receiver<Vec<u8>>) -> Result<Ending, Failure> {
        let mut sent = Sent { any: false, over: !self.terms.input };
        loop {
            match self.one(socket, &mut input, &mut sent).await? {
                Drop::Exited { code, signal } => return Ok(Ending::Exited { code, signal }),
                Drop::Lost(why) => {
                    if !self.terms.tty && sent.any {
                        let message =
                            format!("the connection broke ({why}); how much of the input arrived is not known");
                        return Err(Failure::new("STREAM_BROKEN", message));
                    }
                    sleep(FIRST_PAUSE).await; // a server that accepts and closes is not asked without end
                    socket = self.connect_again(&why).await?;
                }
            }
        }
    }

    /// Uses one connection until it ends.
    async fn one(
        &mut self,
        socket: Socket,
        input: &mut mpsc::Receiver<Vec<u8>>,
        sent: &mut Sent,
    ) -> Result<Drop, Failure> {
        let (mut sink, mut stream) = socket.split();
        let Self { winch, terms, at, is_fresh, out, err, printer, .. } = self;
        let input_failed = Cell::new(false);
        let mut shown = Shown { at, is_fresh, out, err, printer, tty: terms.tty, input_failed: &input_failed };
        let outgoing = async {
            let mut pings = interval(PING_EVERY);
            // What had been said on the last connection, in case it was lost with that.
            let mut says_end = sent.over && terms.input;
            loop {
                let message = if std::mem::take(&mut says_end) {
                    text(&ClientFrame::plain("eof"))
                } else {
                    tokio::select! {
                        piece = input.recv(), if !sent.over => match piece {
                            Some(piece) => {
                                sent.any = true;
                                Message::binary([&[STDIN], piece.as_slice()].concat())
                            }
                            None => {
                                sent.over = true;
                                says_end = !terms.tty;
                                continue;
                            }
                        },
                        _ = winch.recv(), if terms.tty => match tty::size() {
                            Some((cols, rows)) => text(&ClientFrame::resize(cols, rows)),
                            None => continue,
                        },
                        _ = pings.tick() => Message::Ping(bytes::Bytes::new()),
                    }
                };
                if let Err(error) = sink.send(message).await {
                    return error.to_string();
                }
            }
        };
        let incoming = async {
            loop {
                let message = match timeout(SILENCE, stream.next()).await {
                    Err(_) => return Ok(Drop::Lost(format!("nothing came for {SILENCE:.0?}"))),
                    Ok(None) => return Ok(Drop::Lost("it was closed".into())),
                    Ok(Some(Err(error))) => return Ok(Drop::Lost(error.to_string())),
                    Ok(Some(Ok(message))) => message,
                };
                match message {
                    Message::Binary(bytes) => shown.show(&bytes).await?,
                    Message::Text(text) => {
                        if let Some(end) = shown.read(text.as_str())? {
                            return Ok(end);
                        }
                    }
                    Message::Close(_) => return Ok(Drop::Lost("the server closed it".into())),
                    Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
                }
            }
        };
        tokio::pin!(incoming);
        let ended = tokio::select! {
            ended = &mut incoming => ended,
            // What has come already is read to its end: it may tell why.
            why = outgoing => match timeout(LAST_WORDS, incoming).await {
                Ok(ended) => ended,
                Err(_) => Ok(Drop::Lost(why)),
            },
        };
        if input_failed.get() {
            sent.over = true;
            sent.any = false;
            input.close();
        }
        ended
    }

    async fn connect_again(&self, why: &str) -> Result<Socket, Failure> {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut is_told = false;
        loop {
            let failure = match self.connect().await {
                Ok(socket) => {
                    if is_told {
                        self.note("connected again");
                    }
                    return Ok(socket);
                }
                Err(failure) => failure,
            };
            let is_final = matches!(failure.status, Some(400 | 401 | 403 | 404 | 410 | 501));
            if is_final || self.terms.reconnect.is_some_and(|limit| begun.elapsed() + pause > limit) {
                let message = format!("the connection broke ({why}) and cannot be taken up again: {}", failure.message);
                return Err(Failure { message, ..failure });
            }
            if !is_told {
                is_told = true;
                let keys = if self.terms.tty && self.terms.input { ", Enter ~ . gives up" } else { "" };
                self.note(&format!("the connection broke ({why}); trying to take it up again{keys}"));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    fn note(&self, text: &str) {
        note(self.printer, self.terms.tty, text);
    }
}

/// Tells people something between the lines of a terminal.
fn note(printer: &Printer, tty: bool, text: &str) {
    if tty {
        printer.note(&format!("\r\n[osb: {text}]\r"));
    } else {
        printer.note(&format!("osb: {text}"));
    }
}

fn text(frame: &ClientFrame) -> Message {
    Message::text(serde_json::to_string(frame).expect("a frame has only text keys"))
}

/// What comes, and where it goes.
struct Shown<'a> {
    at: &'a mut u64,
    is_fresh: &'a mut bool,
    out: &'a mut tokio::io::Stdout,
    err: &'a mut tokio::io::Stderr,
    printer: &'a Printer,
    tty: bool,
    input_failed: &'a Cell<bool>,
}

impl Shown<'_> {
    /// Writes the bytes of a frame; none that was written before.
    async fn show(&mut self, frame: &[u8]) -> Result<(), Failure> {
        match frame.split_first() {
            Some((&STDOUT, bytes)) => {
                write(self.out, bytes, self.at).await?;
            }
            Some((&STDERR, bytes)) => {
                write(self.err, bytes, self.at).await?;
            }
            Some((&REPLAY, _)) if frame.len() >= REPLAY_HEAD_BYTES => {
                let (head, bytes) = frame.split_at(REPLAY_HEAD_BYTES);
                let offset = u64::from_be_bytes(head[1..].try_into().expect("eight bytes"));
                if offset > *self.at && !*self.is_fresh {
                    let lost = offset - *self.at;
                    note(self.printer, self.tty, &format!("{lost} bytes of output came too fast and are not shown"));
                }
                let known = usize::try_from(self.at.saturating_sub(offset)).unwrap_or(usize::MAX);
                *self.at = (*self.at).max(offset);
                write(self.out, bytes.get(known..).unwrap_or_default(), self.at).await?;
            }
            _ => {} // of a daemon that knows more
        }
        Ok(())
    }

    /// Reads a text frame; `Some` when it is the last.
    fn read(&mut self, text: &str) -> Result<Option<Drop>, Failure> {
        match serde_json::from_str(text) {
            Ok(ServerFrame::Connected { .. }) => *self.is_fresh = false,
            Ok(ServerFrame::Exit { exit_code, signal }) => return Ok(Some(Drop::Exited { code: exit_code, signal })),
            Ok(ServerFrame::Error { code, .. }) if code == error_code::STDIN_WRITE_FAILED => {
                self.input_failed.set(true);
            }
            // Of a daemon that knows less.
            Ok(ServerFrame::Error { code, .. }) if code == error_code::INVALID_FRAME => {}
            Ok(ServerFrame::Error { code, error }) => return Err(Failure::new(&code, error)),
            Ok(ServerFrame::Pong) | Err(_) => {}
        }
        Ok(None)
    }
}

/// Writes; `at` moves with each byte that was taken, also when this is dropped on its way.
async fn write(output: &mut (impl AsyncWrite + Unpin), mut bytes: &[u8], at: &mut u64) -> Result<(), Failure> {
    let written = async {
        while !bytes.is_empty() {
            let taken = output.write(bytes).await?;
            if taken == 0 {
                return Err(std::io::ErrorKind::WriteZero.into());
            }
            *at = at.saturating_add(taken as u64);
            bytes = &bytes[taken..];
        }
        output.flush().await
    };
    written.await.map_err(|error| output_failure(&error))
}
