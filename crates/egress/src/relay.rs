//! Moves bytes between two sockets without looking at them, and passes on how each side ends: an end of one direction as
//! such, a failure as a reset of both.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::Shutdown;
use rustix::pipe::{SpliceFlags, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

mod pipes;

pub use pipes::{Held, Pipes};

/// Rounds after which a busy direction lets others run.
const ROUNDS_AT_A_TIME: u32 = 16;

/// How much went one way.
#[derive(Debug, Default)]
pub struct Moved(AtomicU64);

impl Moved {
    /// Counts bytes.
    pub fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Moves everything from one socket to the other until the first says that it is done, and says so to the other.
///
/// # Errors
/// When either socket fails; the connection is of no use then.
pub async fn one_way(from: &TcpStream, to: &TcpStream, pipes: &Pipes, held: &Held, moved: &Moved) -> io::Result<()> {
    let mut lent = None;
    let mut round = 0;
    loop {
        // Nothing is taken that could not be handed on: a reader that stands still holds no pipe.
        to.writable().await?;
        let mut pipe = match lent.take() {
            Some(pipe) => pipe,
            None => {
                from.readable().await?;
                pipes.lend(held)?
            }
        };
        match from.try_io(Interest::READABLE, || into_pipe(from, &pipe)) {
            Ok(0) => break,
            Ok(bytes) => {
                pipe.content = bytes;
                push(to, &mut pipe).await?;
                moved.add(bytes);
                lent = Some(pipe);
            }
            // The pipe goes back while nothing comes.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        round += 1;
        if round % ROUNDS_AT_A_TIME == 0 {
            tokio::task::yield_now().await;
        }
    }
    match rustix::net::shutdown(to.as_fd(), Shutdown::Write) {
        // It is gone as a whole; the other direction finds out how.
        Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn into_pipe(from: &TcpStream, lent: &pipes::Lent<'_>) -> io::Result<usize> {
    let pipe = lent.pipe();
    Ok(splice(from, None, &pipe.write, None, pipe.size, SpliceFlags::NONBLOCK | SpliceFlags::MOVE)?)
}

async fn push(to: &TcpStream, lent: &mut pipes::Lent<'_>) -> io::Result<()> {
    while lent.content > 0 {
        to.writable().await?;
        let pipe = lent.pipe();
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        match to.try_io(Interest::WRITABLE, || Ok(splice(&pipe.read, None, to, None, lent.content, flags)?)) {
            Ok(bytes) => lent.content -= bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes every close of a socket a reset from now on, that of a killed process too: the other side must not take a
/// failure for an orderly end.
pub fn reset_on_close(socket: &TcpStream) {
    // Fails only for what is no socket.
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Makes the coming close of a socket an orderly one: what was written still arrives.
pub fn close_in_order(socket: &impl AsFd) {
    // Fails only for what is no socket.
    let _ = rustix::net::sockopt::set_socket_linger(socket, None);
}
