//! The way of bytes between a terminal and its shell.
//!
//! After the shell's end everything that it wrote is read before the end is announced: a read that finds nothing
//! is the proof, because the kernel moves what it still holds of a terminal's output before it says so.

use std::future::pending;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::ring::{LIVE_BYTES, Ring, Stream};
use super::session::{Ended, Input, Run, Terminal};
use super::shell::{Mode, Watched};

/// After the shell's end, for how long its children may be silent before the output counts as ended.
const DRAIN_QUIET: Duration = Duration::from_millis(20);
/// Children that keep writing do not hold the end for longer than this.
const DRAIN_LIMIT: Duration = Duration::from_millis(200);
/// Reads of one source before others have their turn: a terminal gives 4 KiB at most in each.
const READS_AT_ONCE: usize = 8;
/// Bytes that can lie in a pipe or a terminal when the shell ends, generously.
const MAX_LEFT_BYTES: usize = 2 * 1024 * 1024;
/// A shell that has closed its input may be ending: so long is waited for that before the input counts as broken.
const INPUT_GRACE: Duration = Duration::from_secs(1);
/// What a terminal takes for the end of input.
const END_OF_TRANSMISSION: &[u8] = &[4];

struct Sources {
    open: Vec<(Stream, Watched)>,
    buffer: Vec<u8>,
}

enum Taken {
    Bytes(Stream, usize),
    /// Nothing now.
    Nothing,
    /// Nothing ever again.
    End,
}

impl Sources {
    /// Waits until some source can be read; forever when none is left.
    async fn ready(&self) -> usize {
        let one = async |index: usize| match self.open.get(index) {
            Some((_, fd)) => {
                let _ = fd.readable().await; // an error shows again when it is read
                index
            }
            None => pending().await,
        };
        tokio::select! {
            index = one(0) => index,
            index = one(1) => index,
        }
    }

    /// Reads once without waiting; a source that has ended goes.
    fn take(&mut self, index: usize) -> Taken {
        let (stream, fd) = &self.open[index];
        let taken = loop {
            match rustix::io::read(fd.get_ref(), &mut self.buffer) {
                Ok(0) => break Taken::End,
                Ok(length) => break Taken::Bytes(*stream, length),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break Taken::Nothing,
                Err(_) => break Taken::End, // EIO: no program has the terminal open any more
            }
        };
        if matches!(taken, Taken::End) {
            self.open.swap_remove(index);
        }
        taken
    }
}

/// Moves output into the ring until the shell has ended and nothing of its output is left.
pub async fn output(terminal: Rc<Terminal>, run: Rc<Run>, open: Vec<(Stream, Watched)>, slave: Option<OwnedFd>) {
    let mut sources = Sources { open, buffer: vec![0; LIVE_BYTES] };
    let exit = loop {
        terminal.wait_for_holder().await;
        tokio::select! {
            exit = run.process.wait() => break exit,
            index = sources.ready() => step(&terminal, &mut sources, index),
        }
        tokio::task::yield_now().await; // a flood leaves time for others
    };
    drop(slave);
    drain(&terminal, &mut sources).await;
    let at = terminal.with_output(Ring::end);
    run.ended.set(Some(Ended { exit, at }));
    terminal.announce();
}

/// Reads a source that is said to be ready, and tells the event loop when nothing more is there.
fn step(terminal: &Terminal, sources: &mut Sources, index: usize) {
    let fd = Rc::clone(&sources.open[index].1);
    for _ in 0..READS_AT_ONCE {
        let mut taken = Taken::Nothing;
        let outcome = fd.try_io(Interest::READABLE, |_| {
            taken = sources.take(index);
            if matches!(taken, Taken::Nothing) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        drop(outcome); // "would block" is what it is for
        match taken {
            Taken::Bytes(stream, length) => terminal.push(stream, &sources.buffer[..length]),
            Taken::Nothing | Taken::End => return,
        }
    }
}

async fn drain(terminal: &Terminal, sources: &mut Sources) {
    let deadline = Instant::now() + DRAIN_LIMIT;
    read_all(terminal, sources).await;
    while !sources.open.is_empty() && Instant::now() < deadline {
        tokio::select! {
            biased;
            index = sources.ready() => step(terminal, sources, index),
            () = sleep(DRAIN_QUIET) => return,
        }
        terminal.wait_for_holder().await;
    }
}

/// Reads until nothing is there.
async fn read_all(terminal: &Terminal, sources: &mut Sources) {
    let mut index = 0;
    let mut left = MAX_LEFT_BYTES;
    while index < sources.open.len() {
        terminal.wait_for_holder().await;
        match sources.take(index) {
            Taken::Bytes(stream, length) => {
                terminal.push(stream, &sources.buffer[..length]);
                left = left.saturating_sub(length);
                if left == 0 {
                    return;
                }
            }
            Taken::Nothing => index += 1,
            Taken::End => {}
        }
    }
}

/// Moves input to the shell until one of them has ended.
pub async fn input(terminal: Rc<Terminal>, run: Rc<Run>, mut receiver: mpsc::Receiver<Input>, fd: Watched) {
    let writing = async {
        while let Some(input) = receiver.recv().await {
            match input {
                Input::Bytes(bytes) => write(&fd, &bytes).await?,
                Input::Eof if run.mode == Mode::Pty => write(&fd, END_OF_TRANSMISSION).await?,
                Input::Eof => return Ok(()),
            }
        }
        Ok::<_, io::Error>(())
    };
    let outcome = tokio::select! {
        _ = run.process.wait() => return,
        outcome = writing => outcome,
    };
    drop(fd);
    if outcome.is_err() && timeout(INPUT_GRACE, run.process.wait()).await.is_err() {
        run.input_failed.set(true);
        terminal.announce();
    }
}

async fn write(fd: &Watched, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut guard = fd.writable().await?;
        let written = guard.try_io(|fd| Ok(rustix::io::retry_on_intr(|| rustix::io::write(fd.get_ref(), bytes))?));
        if let Ok(written) = written {
            bytes = &bytes[written?..];
        }
    }
    Ok(())
}
