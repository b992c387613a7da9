//! Pipes that are lent to connections while bytes are in them.
//!
//! Bytes go from socket to socket through a pipe without being copied to user space. A large pipe moves two and a half
//! times as much per second of processor as a small one, and the kernel gives an unprivileged user only so many large
//! ones: so pipes are kept and lent, not owned by each connection, and one sandbox holds only so many large ones.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::pipe::PipeFlags;

/// Size of a large pipe: larger ones move hardly more per second of processor. The kernel's default of 64 MiB of pipes per
/// user is room for 256.
const LARGE_BYTES: usize = 256 * 1024;
/// Large pipes that are kept when nobody needs them: what a busy moment on a few cores uses. An empty pipe takes no
/// memory but its ring (8 KiB).
const KEPT: usize = 64;
/// Large pipes that one sandbox holds at a time; beyond it gets small ones, so that its slow readers do not take them all.
pub const LARGE_PER_SANDBOX: usize = 64;

/// The pipes of this process.
#[derive(Debug, Default)]
pub struct Pipes {
    free: Mutex<Vec<Pipe>>,
}

/// Counts the large pipes that one sandbox holds.
pub type Held = Arc<AtomicUsize>;

#[derive(Debug)]
pub struct Pipe {
    pub read: OwnedFd,
    pub write: OwnedFd,
    /// Bytes that it takes at most.
    pub size: usize,
}

impl Pipe {
    fn open() -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let size = rustix::pipe::fcntl_getpipe_size(&write)?;
        Ok(Self { read, write, size })
    }

    /// Refused once the user has too many: it stays as small as it is then.
    fn grow(mut self) -> Self {
        if let Ok(size) = rustix::pipe::fcntl_setpipe_size(&self.write, LARGE_BYTES) {
            self.size = size;
        }
        self
    }

    fn is_large(&self) -> bool {
        self.size >= LARGE_BYTES
    }
}

impl Pipes {
    /// An empty pipe: a large one if the sandbox may hold another.
    pub fn lend(&self, held: &Held) -> io::Result<Lent<'_>> {
        let may_be_large = held.fetch_add(1, Ordering::Relaxed) < LARGE_PER_SANDBOX;
        let free = || self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let pipe = match may_be_large.then(free).flatten() {
            Some(pipe) => Ok(pipe),
            None => Pipe::open().map(|pipe| if may_be_large { pipe.grow() } else { pipe }),
        };
        match pipe {
            Ok(pipe) => Ok(Lent { pipe: Some(pipe), content: 0, from: self, held: held.clone() }),
            Err(error) => {
                held.fetch_sub(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}

/// A pipe on loan. It goes back when it is dropped empty; one with bytes in it is closed.
#[derive(Debug)]
pub struct Lent<'a> {
    pipe: Option<Pipe>,
    /// Bytes in it.
    pub content: usize,
    from: &'a Pipes,
    held: Held,
}

impl Lent<'_> {
    pub fn pipe(&self) -> &Pipe {
        self.pipe.as_ref().expect("a pipe is there until it is dropped")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
        let Some(pipe) = self.pipe.take().filter(|pipe| self.content == 0 && pipe.is_large()) else { return };
        let mut free = self.from.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            free.push(pipe);
        }
    }
}
