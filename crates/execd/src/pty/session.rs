//! One terminal: its output, its shell, and who is attached.
//!
//! Invariants: all of it runs on one thread; the ring is the only owner of offsets; every change is announced by
//! `progress` after it was made, and whoever waits marks it as seen before looking, so that no change is missed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use protocol::execd::pty::TerminalStatus;
use rustix::process::{Signal, kill_process_group};
use rustix::termios::tcgetpgrp;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::pump;
use super::ring::{Ring, Stream};
use super::shell::{self, Mode, Shell, Size, Watched};
use crate::daemon::Daemon;
use crate::id;
use crate::reaper::{Exit, Process};
use crate::tree;

/// Clients that look on at one terminal.
pub const MAX_VIEWERS: usize = 16;
/// Chunks of input that wait for a shell that does not read.
const INPUT_CHUNKS: usize = 16;
/// The shell waits for its holder when that is so far behind: half of the ring.
const LEAD_BYTES: u64 = super::ring::CAPACITY_BYTES as u64 / 2;
/// A holder that takes nothing for so long is not waited for any more.
const PATIENCE: Duration = Duration::from_secs(2);

/// What clients wait for; see the module's invariants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Goes on with every change.
    pub changes: u64,
    /// The session is gone.
    pub closed: bool,
}

/// One life of a shell.
pub struct Run {
    /// How it is connected.
    pub mode: Mode,
    /// The shell.
    pub process: Process,
    /// Its end, once all of its output is in the ring.
    pub ended: Cell<Option<Ended>>,
    /// Its standard input broke while it runs.
    pub input_failed: Cell<bool>,
    input: mpsc::Sender<Input>,
    master: Option<Watched>,
}

/// The end of a shell, and the offset behind its last byte.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub exit: Exit,
    pub at: u64,
}

/// Something for a shell's standard input.
pub enum Input {
    Bytes(Vec<u8>),
    Eof,
}

/// The client that may write.
struct Holder {
    number: u64,
    evict: oneshot::Sender<()>,
}

/// A terminal and its session.
pub struct Terminal {
    id: String,
    tag: u64,
    cwd: String,
    command: Option<String>,
    output: RefCell<Ring>,
    progress: watch::Sender<Progress>,
    run: RefCell<Option<Rc<Run>>>,
    holder: RefCell<Option<Holder>>,
    numbers: Cell<u64>,
    viewers: Cell<usize>,
    clients: watch::Sender<usize>,
    /// Where the holder is, while the shell waits for it.
    followed: watch::Sender<Option<u64>>,
}

impl Terminal {
    /// A terminal without a shell.
    pub fn new(cwd: String, command: Option<String>) -> Self {
        Self::with_ring(cwd, command, Ring::default())
    }

    fn with_ring(cwd: String, command: Option<String>, ring: Ring) -> Self {
        Self {
            id: id::uuid(),
            tag: id::tag(),
            cwd,
            command,
            output: RefCell::new(ring),
            progress: watch::Sender::default(),
            run: RefCell::default(),
            holder: RefCell::default(),
            numbers: Cell::default(),
            viewers: Cell::default(),
            clients: watch::Sender::default(),
            followed: watch::Sender::default(),
        }
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Looks at the output.
    pub fn with_output<T>(&self, look: impl FnOnce(&Ring) -> T) -> T {
        look(&self.output.borrow())
    }

    /// Adds output and announces it.
    pub fn push(&self, stream: Stream, bytes: &[u8]) {
        self.output.borrow_mut().push(stream, bytes);
        self.announce();
    }

    /// Tells everybody who waits to look again.
    pub fn announce(&self) {
        self.progress.send_modify(|progress| progress.changes += 1);
    }

    /// What to wait on for changes.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// How many clients are attached, to wait on.
    pub fn clients(&self) -> watch::Receiver<usize> {
        self.clients.subscribe()
    }

    /// What status calls show.
    pub fn status(&self) -> TerminalStatus {
        let run = self.run.borrow();
        let ended = run.as_ref().and_then(|run| run.ended.get());
        let output = self.output.borrow();
        TerminalStatus {
            session_id: self.id.clone(),
            running: run.is_some() && ended.is_none(),
            output_offset: output.end(),
            replay_offset: output.start(),
            attached: self.holder.borrow().is_some(),
            viewers: self.viewers.get(),
            exit_code: ended.map(|ended| exit_code(ended.exit)),
        }
    }

    /// The shell, while it runs.
    pub fn live_run(&self) -> Option<Rc<Run>> {
        self.run.borrow().as_ref().filter(|run| run.ended.get().is_none()).map(Rc::clone)
    }

    /// The shell that runs, or ran last.
    pub fn last_run(&self) -> Option<Rc<Run>> {
        self.run.borrow().clone()
    }

    /// The shell; started when none runs.
    ///
    /// # Errors
    /// Why it cannot be started, for people.
    pub fn ensure_run(self: &Rc<Self>, daemon: &Daemon, mode: Mode, size: Size) -> Result<Rc<Run>, String> {
        if let Some(run) = self.live_run() {
            return Ok(run);
        }
        if self.progress.borrow().closed {
            return Err("the session is gone".into());
        }
        let Shell { process, input, outputs, master, slave } =
            shell::start(daemon, self.command.as_deref(), &self.cwd, mode, size, self.tag)?;
        let (sender, receiver) = mpsc::channel(INPUT_CHUNKS);
        let (ended, input_failed) = Default::default();
        let run = Rc::new(Run { mode, process, ended, input_failed, input: sender, master });
        *self.run.borrow_mut() = Some(Rc::clone(&run));
        tokio::task::spawn_local(pump::output(Rc::clone(self), Rc::clone(&run), outputs, slave));
        tokio::task::spawn_local(pump::input(Rc::clone(self), Rc::clone(&run), receiver, input));
        self.announce();
        Ok(run)
    }

    /// Waits while the holder is too far behind and still takes something: its slowness is the shell's, as with
    /// any terminal, but a holder that stands still is left to be told what it missed.
    pub async fn wait_for_holder(&self) {
        let mut followed = self.followed.subscribe();
        loop {
            let at = *followed.borrow_and_update();
            let end = self.output.borrow().end();
            if at.is_none_or(|at| end.saturating_sub(at) <= LEAD_BYTES) {
                return;
            }
            if timeout(PATIENCE, followed.changed()).await.is_err() {
                self.followed.send_replace(None);
                return;
            }
        }
    }

    /// Ends the session: clients are told, and everything that its shells have started is killed; false when that
    /// takes too long.
    pub async fn end(&self) -> bool {
        self.progress.send_modify(|progress| {
            progress.closed = true;
            progress.changes += 1;
        });
        let run = self.run.borrow().clone();
        let is_gone = match run {
            Some(run) => tree::kill(&run.process, self.tag).await,
            None => return true,
        };
        // What the shell has left behind, when that had ended before.
        is_gone && tree::kill_tagged(self.tag).await
    }
}

/// The published code: -1 for a signal.
pub fn exit_code(exit: Exit) -> i32 {
    match exit {
        Exit::Code(code) => code,
        Exit::Signal { .. } => -1,
    }
}

impl Run {
    /// Hands something to the shell's input; waits when that is full. False when it takes nothing any more.
    pub async fn input(&self, input: Input) -> bool {
        self.input.send(input).await.is_ok()
    }

    /// Signals the shell's group, and the job in the terminal's foreground.
    pub fn signal(&self, signal: Signal) {
        let shell = self.process.pid();
        let foreground = self.master.as_ref().and_then(|master| tcgetpgrp(master.get_ref()).ok());
        if !self.process.signal_group(signal) {
            return; // with the shell its terminal has gone: the number may be another's by now
        }
        if let Some(group) = foreground.filter(|group| *group != shell) {
            let _ = kill_process_group(group, signal); // it may have ended
        }
    }

    /// Tells the terminal its size; pipes have none.
    pub fn resize(&self, size: Size) {
        if let Some(master) = &self.master {
            shell::resize(master, size);
        }
    }
}

/// A client's place at a terminal; free again when it is dropped or released.
pub struct Seat {
    terminal: Rc<Terminal>,
    number: u64,
    is_viewer: bool,
    is_released: Cell<bool>,
}

impl Seat {
    /// A place that only looks on; `None` when there are [`MAX_VIEWERS`].
    pub fn viewer(terminal: &Rc<Terminal>) -> Option<Self> {
        let viewers = terminal.viewers.get();
        if viewers >= MAX_VIEWERS {
            return None;
        }
        terminal.viewers.set(viewers + 1);
        Some(Self::new(terminal, true))
    }

    /// The place that may write, while nobody holds it; the receiver is told when another takes it over.
    pub fn holder(terminal: &Rc<Terminal>) -> Option<(Self, oneshot::Receiver<()>)> {
        if terminal.holder.borrow().is_some() {
            return None;
        }
        let seat = Self::new(terminal, false);
        let evicted = seat.take();
        Some((seat, evicted))
    }

    /// A place from which [`Self::take`] will be called.
    pub fn candidate(terminal: &Rc<Terminal>) -> Self {
        Self::new(terminal, false)
    }

    fn new(terminal: &Rc<Terminal>, is_viewer: bool) -> Self {
        terminal.numbers.set(terminal.numbers.get() + 1);
        terminal.clients.send_modify(|clients| *clients += 1);
        let number = terminal.numbers.get();
        Self { terminal: Rc::clone(terminal), number, is_viewer, is_released: Cell::new(false) }
    }

    /// Becomes the holder, in another's place if need be.
    pub fn take(&self) -> oneshot::Receiver<()> {
        let (evict, evicted) = oneshot::channel();
        let before = self.terminal.holder.replace(Some(Holder { number: self.number, evict }));
        if let Some(before) = before {
            let _ = before.evict.send(()); // it may be leaving by itself
        }
        self.terminal.followed.send_replace(None);
        evicted
    }

    /// The terminal.
    pub fn terminal(&self) -> &Rc<Terminal> {
        &self.terminal
    }

    /// Whether it only looks on.
    pub fn is_viewer(&self) -> bool {
        self.is_viewer
    }

    /// Whether it is the one that may write.
    pub fn holds(&self) -> bool {
        self.terminal.holder.borrow().as_ref().is_some_and(|holder| holder.number == self.number)
    }

    /// Tells how far the holder has come, which the shell may be waiting for. A holder that was given up is
    /// followed again when it has caught up.
    pub fn has_sent(&self, at: u64) {
        if !self.holds() {
            return;
        }
        let has_caught_up = self.terminal.output.borrow().end().saturating_sub(at) <= LEAD_BYTES / 2;
        self.terminal.followed.send_if_modified(|followed| {
            let follows = followed.is_some() || has_caught_up;
            if follows {
                *followed = Some(at);
            }
            follows
        });
    }

    /// Leaves the place to others.
    pub fn release(&self) {
        if self.is_released.replace(true) {
            return;
        }
        if self.holds() {
            *self.terminal.holder.borrow_mut() = None;
            self.terminal.followed.send_replace(None);
        }
        if self.is_viewer {
            self.terminal.viewers.set(self.terminal.viewers.get() - 1);
        }
        self.terminal.clients.send_modify(|clients| *clients -= 1);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests;
