//! Reads execd's status lines, which are hostile input: bounded, and believed only where the kernel agrees.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use protocol::execd::boot::StatusLine;
use rustix::io::Errno;

use crate::error::{Context, Result};

/// Longest status line kept; the rest of a longer one is dropped.
const LINE_BYTES: usize = 4096;

/// What execd has said so far.
pub struct StatusReader {
    fd: OwnedFd,
    partial: Vec<u8>,
    ready: bool,
    failure: Option<String>,
    end: Option<StatusLine>,
    open: bool,
    /// Whether this reader has been there from the start.
    heard: bool,
}

impl StatusReader {
    /// Reads from this pipe without ever blocking.
    pub fn new(fd: OwnedFd) -> Self {
        // A pipe of ours accepts the flag; if it did not, polls before each read would still keep us from blocking.
        let _ = rustix::io::ioctl_fionbio(&fd, true);
        Self { fd, partial: Vec::new(), ready: false, failure: None, end: None, open: true, heard: true }
    }

    /// A reader without a pipe: of a sandbox that was taken over.
    pub fn closed() -> Result<Self> {
        let (reader, _) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).op("make a pipe")?;
        Ok(Self { open: false, ready: true, heard: false, ..Self::new(reader) })
    }

    /// Whether the API answers and the main process was started.
    pub fn ready(&self) -> bool {
        self.ready
    }

    /// Why there is no main process, as a whole sentence.
    pub fn entrypoint_failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The first report of the main process's end.
    pub fn end(&self) -> Option<&StatusLine> {
        self.end.as_ref()
    }

    /// Whether everything that execd said was heard.
    pub fn heard(&self) -> bool {
        self.heard
    }

    /// Whether more may come.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Reads one portion of what is there now.
    pub fn read(&mut self) {
        let mut buffer = [0u8; LINE_BYTES];
        match rustix::io::read(&self.fd, &mut buffer) {
            Ok(0) => self.open = false,
            Ok(count) => self.take(&buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.open = false,
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte != b'\n' {
                if self.partial.len() < LINE_BYTES {
                    self.partial.push(*byte);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&self.partial).into_owned();
            self.partial.clear();
            match StatusLine::parse(&line) {
                Some(StatusLine::Ready) => self.ready = true,
                Some(StatusLine::HookFailed(why)) => self.failure = self.failure.take().or(Some(why)),
                Some(StatusLine::EntrypointFailed(why)) => {
                    let why = format!("start the main process: {why}");
                    self.failure = self.failure.take().or(Some(why));
                }
                Some(end) => self.end = self.end.take().or(Some(end)),
                None => {}
            }
        }
    }
}

impl AsFd for StatusReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
