//! Reports ended sandboxes as their monitors announce them, by watching one directory.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use lifecycle::spec::SandboxId;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use crate::error::{Context, Failure, Result};

/// Announcements that may wait to be taken; when more come the reader waits and the kernel keeps them.
const QUEUE: usize = 1024;
/// Bytes read from the kernel at once: a few dozen announcements.
const BUFFER_BYTES: usize = 4096;

/// Watches the directory until the receiver is dropped. Must be called within a tokio runtime.
pub fn watch(exits: &Path) -> Result<mpsc::Receiver<SandboxId>> {
    let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).op("make an inotify descriptor")?;
    let wanted = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
    inotify::add_watch(&events, exits, wanted).map_err(|errno| unreachable(exits, errno))?;
    let events = crate::sys::watch(events).op("watch an inotify descriptor")?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        if let Err(errno) = forward(&events, &sender).await {
            tracing::error!(error = %errno, "ended sandboxes are no longer announced, only observed");
        }
    });
    Ok(receiver)
}

/// Why the directory cannot be watched. The usual reason is a data directory below one that is closed to others, as a
/// home directory is: whoever watches has no privileges.
fn unreachable(exits: &Path, errno: Errno) -> Failure {
    let mut failure = Failure::errno(format!("watch {}", exits.display()), errno);
    if errno == Errno::ACCESS {
        failure.message = format!(
            "{}: the process that answers requests runs without privileges and must be able to pass every directory \
             above this one; open them for it (chmod o+x) or choose another data directory (OSB_DATA_DIR)",
            failure.message
        );
    }
    failure
}

async fn forward(events: &AsyncFd<OwnedFd>, sender: &mpsc::Sender<SandboxId>) -> std::result::Result<(), Errno> {
    loop {
        let mut ready = tokio::select! {
            ready = events.readable() => ready.map_err(|_| Errno::IO)?,
            () = sender.closed() => return Ok(()),
        };
        let mut ids = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = inotify::Reader::new(events.get_ref(), &mut buffer);
        let drained = loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    tracing::warn!("announcements of ended sandboxes were lost; they are found by observing");
                }
                Ok(event) => {
                    ids.extend(event.file_name().and_then(|name| name.to_str().ok()).and_then(SandboxId::parse));
                }
                Err(Errno::AGAIN) => break true,
                Err(Errno::INTR) => break false,
                Err(errno) => return Err(errno),
            }
            if reader.is_buffer_empty() {
                break false;
            }
        };
        if drained {
            ready.clear_ready();
        }
        for id in ids {
            if sender.send(id).await.is_err() {
                return Ok(());
            }
        }
    }
}
