//! One attached client: what it asks for, and what it is sent.
//!
//! Two halves that do not wait for each other: the reader hands wishes to the shell, the writer follows the ring
//! with a cursor of its own. Replies to the client itself pass through a short queue, so that a client who asks
//! and does not read stops only itself.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use protocol::execd::pty::{
    CLOSE_FAILED, CLOSE_GONE, CLOSE_NORMAL, CLOSE_TAKEN_OVER, REPLAY, STDERR, STDOUT, ServerFrame, error_code,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::frames::{self, Wish, wish};
use super::ring::{Cursor, Piece, Stream};
use super::session::{Ended, Input, Run, Seat, exit_code};
use super::shell::{Mode, Size};
use crate::daemon::Daemon;
use crate::http::websocket::{Broken, Message, Reader, Writer};
use crate::reaper::Exit;

/// Between two pings, as published.
const PING_EVERY: Duration = Duration::from_secs(30);
/// Pings in a row without a sign of life after which the client is gone: 60 seconds, as published. Counted in pings
/// that were sent, so that a sandbox that was paused does not take its own silence for the client's.
const MAX_MISSED_PINGS: u32 = 2;
/// Replies that wait for the client.
const REPLIES: usize = 16;
/// Bytes of input that are handed on at once.
const INPUT_BYTES: usize = 64 * 1024;
/// For how long a client whose place was taken is told so, as published.
const EVICTION: Duration = Duration::from_millis(200);
/// For how long the client may answer the last message, so that it is not lost with the connection.
const LINGER: Duration = Duration::from_secs(2);

/// What a client asks for with its connection.
pub struct Attach {
    /// Where its output begins.
    pub since: u64,
    /// How a shell is connected that is started for it.
    pub mode: Mode,
    /// Size of its terminal, where it tells one.
    pub size: Option<Size>,
    /// It comes back: a shell is started only if there never was one, else it gets the last one's end.
    pub resume: bool,
}

/// What a client is told besides output.
enum Reply {
    Text(Vec<u8>),
    Pong(Vec<u8>),
}

/// Why the writer has stopped.
enum Stop {
    /// The last message was sent.
    Said,
    /// Another client took the place.
    Evicted,
    /// The connection is gone.
    Gone,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// Serves a client from its handshake to its end. `evicted` is there when it holds the terminal already; one
/// without it that is no viewer takes it over.
pub async fn serve(
    daemon: Rc<Daemon>,
    seat: Seat,
    evicted: Option<oneshot::Receiver<()>>,
    attach: Attach,
    upgrade: OnUpgrade,
) {
    let Ok(upgraded) = upgrade.await else { return };
    let (reader, writer) = tokio::io::split(TokioIo::new(upgraded));
    let (mut reader, mut writer) = (Reader::new(reader), Writer::new(writer));
    let evicted = match evicted {
        None if !seat.is_viewer() => Some(seat.take()),
        evicted => evicted,
    };
    let (replies, queue) = mpsc::channel(REPLIES);
    let signs = std::cell::Cell::new(0u64);
    let client = Client { seat, run: std::cell::RefCell::default(), signs, waits: std::cell::Cell::default() };
    let hearing = async {
        let end = client.hear(&mut reader, replies).await;
        client.seat.release();
        end
    };
    tokio::pin!(hearing);
    let heard = {
        let speaking = client.speak(&daemon, &mut writer, attach, evicted, queue);
        tokio::select! {
            biased; // the shell is there before the first input is looked at
            stop = speaking => match stop {
                Stop::Said => None,
                Stop::Evicted => Some(Broken::Protocol(CLOSE_TAKEN_OVER)),
                Stop::Gone => Some(Broken::Gone),
            },
            heard = &mut hearing => Some(heard),
        }
    };
    client.seat.release();
    match heard {
        None => {
            let _ = timeout(LINGER, hearing).await; // the client closes, or is left
        }
        Some(Broken::Protocol(CLOSE_TAKEN_OVER)) => {
            let farewell = async {
                let text = frames::error(error_code::TAKEN_OVER, "another client took over this terminal");
                writer.text(&text).await?;
                writer.close(CLOSE_TAKEN_OVER, error_code::TAKEN_OVER).await
            };
            if let Ok(Ok(())) = timeout(EVICTION, farewell).await {
                let _ = timeout(LINGER, hearing).await; // as above
            }
        }
        Some(Broken::Protocol(close_code)) => {
            let _ = timeout(EVICTION, writer.close(close_code, "")).await; // the client is leaving anyway
        }
        Some(Broken::Gone) => {}
    }
    crate::tidy::answered();
}

struct Client {
    seat: Seat,
    /// The shell whose output is sent.
    run: std::cell::RefCell<Option<Rc<Run>>>,
    /// Messages that came.
    signs: std::cell::Cell<u64>,
    /// The reader waits for the shell to take input, and hears no sign of life meanwhile.
    waits: std::cell::Cell<bool>,
}

impl Client {
    /// Obeys the client until it leaves; a client that closes is answered with a close.
    async fn hear<R: AsyncRead + Unpin>(&self, reader: &mut Reader<R>, replies: mpsc::Sender<Reply>) -> Broken {
        loop {
            let mut message = match reader.next().await {
                Ok(Message::Close) => return Broken::Protocol(CLOSE_NORMAL),
                Ok(message) => message,
                Err(broken) => return broken,
            };
            self.signs.set(self.signs.get() + 1);
            let reply = match message {
                Message::Ping(bytes) => Some(Reply::Pong(bytes)),
                _ => {
                    self.waits.set(true);
                    let reply = self.obey(wish(&mut message)).await;
                    self.waits.set(false);
                    reply.map(Reply::Text)
                }
            };
            if let Some(reply) = reply {
                let _ = replies.send(reply).await; // else the writer has said its last, and a close is waited for
            }
        }
    }

    /// Does what a message asks for; what it returns is said to the client.
    async fn obey(&self, wish: Wish) -> Option<Vec<u8>> {
        match &wish {
            Wish::Nothing => return None,
            Wish::Ping => return Some(frames::text(&ServerFrame::Pong)),
            Wish::Refused(why) => return Some(frames::error(error_code::INVALID_FRAME, why.as_str())),
            _ if self.seat.is_viewer() => {
                return Some(frames::error(
                    error_code::INVALID_FRAME,
                    "a viewer only reads; attach without mode=viewer",
                ));
            }
            _ if !self.seat.holds() => return None,
            _ => {}
        }
        let run = self.run.borrow().clone()?;
        match wish {
            Wish::Input(bytes) => {
                for chunk in bytes.chunks(INPUT_BYTES) {
                    if !self.seat.holds() {
                        break; // what another client types now must not be mixed with the rest
                    }
                    self.input(&run, Input::Bytes(chunk.to_vec())).await;
                }
            }
            Wish::Eof => drop(run.input(Input::Eof).await), // an end that comes twice is one
            Wish::Signal(signal) => run.signal(signal),
            Wish::Resize { cols, rows } => run.resize(Size { cols, rows }),
            Wish::Ping | Wish::Refused(_) | Wish::Nothing => {}
        }
        None
    }

    async fn input(&self, run: &Run, input: Input) {
        if !run.input(input).await && run.process.exit().is_none() {
            run.input_failed.set(true);
            self.seat.terminal().announce();
        }
    }

    /// Sends what there was, then what comes, until the shell, the session or the client's turn ends.
    async fn speak<W: AsyncWrite + Unpin>(
        &self,
        daemon: &Daemon,
        writer: &mut Writer<W>,
        attach: Attach,
        evicted: Option<oneshot::Receiver<()>>,
        queue: mpsc::Receiver<Reply>,
    ) -> Stop {
        let evicted = async {
            let is_told = match evicted {
                Some(evicted) => evicted.await.is_ok(),
                None => false,
            };
            if !is_told {
                std::future::pending::<()>().await; // it leaves by itself
            }
        };
        let speaking = async { self.follow(daemon, writer, attach, queue).await.err().unwrap_or(Stop::Said) };
        tokio::select! {
            biased;
            () = evicted => Stop::Evicted,
            stop = speaking => stop,
        }
    }

    async fn follow<W: AsyncWrite + Unpin>(
        &self,
        daemon: &Daemon,
        writer: &mut Writer<W>,
        attach: Attach,
        mut queue: mpsc::Receiver<Reply>,
    ) -> Result<(), Stop> {
        let terminal = self.seat.terminal();
        let mut progress = terminal.progress();
        let mut cursor = terminal.with_output(|ring| Cursor::new(ring, attach.since));
        self.find_run(daemon, &attach, writer).await?;
        if let Some(piece) = terminal.with_output(|ring| cursor.next(ring, ring.end())) {
            send(writer, piece).await?;
        }
        cursor.follow();
        self.seat.has_sent(cursor.at());
        let mode = self.run.borrow().as_ref().map_or(attach.mode, |run| run.mode).name().to_owned();
        let role = if self.seat.is_viewer() { "viewer" } else { "writer" }.to_owned();
        let session_id = terminal.id().to_owned();
        writer.text(&frames::text(&ServerFrame::Connected { session_id, mode, role })).await?;

        let mut pings = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut heard, mut missed) = (self.signs.get(), 0);
        loop {
            let closed = progress.borrow_and_update().closed; // before looking at what it announces
            if self.run.borrow().is_none() {
                *self.run.borrow_mut() = terminal.live_run();
            }
            let run = self.run.borrow().clone();
            let ended = run.as_ref().and_then(|run| run.ended.get());
            let until = ended.map_or(u64::MAX, |ended| ended.at);
            if let Ok(reply) = queue.try_recv() {
                say(writer, reply).await?;
            } else if let Some(piece) = terminal.with_output(|ring| cursor.next(ring, until)) {
                send(writer, piece).await?;
                self.seat.has_sent(cursor.at());
            } else if let Some(ended) = ended {
                return self.say_exit(writer, ended).await;
            } else if closed {
                self.seat.release();
                let text = frames::error(error_code::SESSION_GONE, "the session was deleted, or idle for too long");
                writer.text(&text).await?;
                return Ok(writer.close(CLOSE_GONE, error_code::SESSION_GONE).await?);
            } else if self.seat.holds() && run.is_some_and(|run| run.input_failed.replace(false)) {
                // Said once; it is noticed again when somebody writes again.
                let text = frames::error(error_code::STDIN_WRITE_FAILED, "the shell has closed its standard input");
                writer.text(&text).await?;
                return Ok(writer.close(CLOSE_FAILED, error_code::STDIN_WRITE_FAILED).await?);
            } else {
                tokio::select! {
                    _ = progress.changed() => {} // the sender lives with the terminal, which the seat holds
                    Some(reply) = queue.recv() => say(writer, reply).await?,
                    _ = pings.tick() => {
                        missed = if self.signs.get() == heard && !self.waits.get() { missed + 1 } else { 0 };
                        heard = self.signs.get();
                        if missed >= MAX_MISSED_PINGS {
                            return Err(Stop::Gone);
                        }
                        writer.ping().await?;
                    }
                }
            }
        }
    }

    async fn find_run<W: AsyncWrite + Unpin>(
        &self,
        daemon: &Daemon,
        attach: &Attach,
        writer: &mut Writer<W>,
    ) -> Result<(), Stop> {
        let terminal = self.seat.terminal();
        if self.seat.is_viewer() {
            *self.run.borrow_mut() = terminal.live_run();
            return Ok(());
        }
        let resumed = if attach.resume { terminal.last_run() } else { None };
        let found = match resumed {
            Some(run) => Ok(run),
            None => terminal.ensure_run(daemon, attach.mode, attach.size.unwrap_or(super::shell::DEFAULT_SIZE)),
        };
        match found {
            Ok(run) => {
                if let Some(size) = attach.size {
                    run.resize(size);
                }
                *self.run.borrow_mut() = Some(run);
                Ok(())
            }
            Err(why) => {
                self.seat.release();
                writer.text(&frames::error(error_code::START_FAILED, why)).await?;
                writer.close(CLOSE_FAILED, error_code::START_FAILED).await?;
                Err(Stop::Said)
            }
        }
    }

    /// The place is free before the client hears of the end: it may come again at once.
    async fn say_exit<W: AsyncWrite + Unpin>(&self, writer: &mut Writer<W>, ended: Ended) -> Result<(), Stop> {
        self.seat.release();
        let signal = match ended.exit {
            Exit::Code(_) => None,
            Exit::Signal { number, .. } => Some(frames::signal_name(number)),
        };
        let exit = ServerFrame::Exit { exit_code: exit_code(ended.exit), signal };
        writer.text(&frames::text(&exit)).await?;
        Ok(writer.close(CLOSE_NORMAL, "process exited").await?)
    }
}

async fn say<W: AsyncWrite + Unpin>(writer: &mut Writer<W>, reply: Reply) -> io::Result<()> {
    match reply {
        Reply::Text(text) => writer.text(&text).await,
        Reply::Pong(bytes) => writer.pong(&bytes).await,
    }
}

async fn send<W: AsyncWrite + Unpin>(writer: &mut Writer<W>, piece: Piece) -> io::Result<()> {
    match piece {
        Piece::Replay { offset, bytes } => writer.binary(&[&[REPLAY], &offset.to_be_bytes(), &bytes]).await,
        Piece::Live { stream: Stream::Out, bytes } => writer.binary(&[&[STDOUT], &bytes]).await,
        Piece::Live { stream: Stream::Err, bytes } => writer.binary(&[&[STDERR], &bytes]).await,
    }
}
