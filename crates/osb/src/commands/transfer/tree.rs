//! Directories as one archive each way, where the daemon has that: a small file costs no request of its own.
//!
//! What comes out of a sandbox is extracted beneath the target without following a link; links that may lead
//! out of it are not made. What goes in keeps such links as links when they stay inside, and as the file that
//! they lead to otherwise.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use archive::{Error, Extraction, Limits, Links, Made, Packing, Special};
use bytes::{Buf, Bytes};
use futures_util::{Stream, TryStreamExt};
use tokio::sync::mpsc;

use super::{Download, Upload, make_plain_directory};
use crate::client::execd::piece;
use crate::commands::{Outcome, Progress, Rows};
use crate::failure::Failure;

/// Pieces between the connection and the disk.
const QUEUE: usize = 4;

/// Names of what was moved, and why if it was not.
type Told = Vec<(String, Option<String>)>;

impl Download<'_> {
    /// Copies a directory; `None` where the daemon has no archives.
    pub(super) async fn archive(&self, remote: &str, local: &Path) -> Result<Option<Outcome>, Failure> {
        let Some(mut answer) = self.execd.download_archive(remote).await? else {
            return Ok(None);
        };
        make_plain_directory(local)?;
        let root = File::open(local).map_err(|error| Failure::file("open", local, &error))?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        let extracting = tokio::task::spawn_blocking(move || extract(&root, Pieces { receiver, unread: Bytes::new() }));
        let progress = Progress::bytes(&self.ctx.printer, remote, 0);
        let mut broken = None;
        loop {
            let next = match piece(&mut answer).await {
                Ok(None) => break,
                Ok(Some(bytes)) => {
                    progress.add(bytes.len() as u64);
                    Ok(bytes)
                }
                Err(failure) => {
                    broken = Some(failure);
                    Err(io::Error::from(io::ErrorKind::UnexpectedEof))
                }
            };
            // Whoever extracts has ended already, and says why below.
            if sender.send(next).await.is_err() || broken.is_some() {
                break;
            }
        }
        drop(sender);
        let (told, extracted) = extracting.await.map_err(|error| Failure::new("CLIENT", error.to_string()))?;
        drop(progress);
        if let Some(failure) = broken {
            return Err(failure);
        }
        extracted.map_err(|error| failure_of(local, &error))?;
        Ok(Some(rows(remote, told).finish(&self.ctx.printer)))
    }
}

impl Upload<'_> {
    /// Copies a directory; `None` where the daemon has no archives.
    pub(super) async fn archive(&self, local: &Path, remote: &str) -> Result<Option<Outcome>, Failure> {
        if !self.execd.has_archives().await? {
            return Ok(None);
        }
        let root = File::open(local).map_err(|error| Failure::file("open", local, &error))?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        let packing = tokio::task::spawn_blocking(move || pack(&root, sender));
        let progress = Progress::bytes(&self.ctx.printer, remote, 0);
        let bar = progress.bar();
        let body = stream(receiver).inspect_ok(move |bytes| bar.inc(bytes.len() as u64));
        let sent = self.execd.upload_archive(remote, &self.permission, body).await;
        let (told, packed) = packing.await.map_err(|error| Failure::new("CLIENT", error.to_string()))?;
        drop(progress);
        match packed {
            // The connection went away from under it: the answer says why.
            Err(Error::Stream(_)) | Ok(()) => sent?,
            Err(error) => return Err(failure_of(local, &error)),
        }
        Ok(Some(rows(remote, told).finish(&self.ctx.printer)))
    }
}

fn rows(remote: &str, told: Told) -> Rows {
    let mut rows = Rows::default();
    for (name, left_out) in told {
        let path = format!("{}/{name}", remote.trim_end_matches('/'));
        let outcome = match left_out {
            None => Ok("copied"),
            Some(reason) => Err(Failure::new("NOT_COPIED", format!("{path} {reason}, which is not copied"))),
        };
        rows.push("path", &path, outcome);
    }
    rows
}

fn failure_of(local: &Path, error: &Error) -> Failure {
    match error {
        Error::System { operation, subject, error } => {
            Failure::new("LOCAL_FILE", format!("{operation} {subject} in {}: {error}", local.display()))
        }
        Error::Stream(cause) => Failure::new("STREAM_BROKEN", format!("{error}: {cause}")),
        _ => Failure::new("BAD_ANSWER", error.to_string()),
    }
}

fn extract(root: &File, pieces: Pieces) -> (Told, Result<(), Error>) {
    let mut told = Told::new();
    let mut extraction = Extraction {
        limits: Limits::default(),
        links: Links::Inside,
        special: Special::LeaveOut,
        uid: None,
        gid: None,
        mode: None,
        told: &mut |name, made| {
            let left_out = match made {
                Made::Whole => None,
                Made::LeftOut(reason) => Some(reason.to_owned()),
            };
            told.push((String::from_utf8_lossy(name).into_owned(), left_out));
        },
    };
    let extracted = archive::extract(root.as_fd(), pieces, &mut extraction);
    (told, extracted)
}

fn pack(root: &File, sender: mpsc::Sender<io::Result<Bytes>>) -> (Told, Result<(), Error>) {
    let told = std::cell::RefCell::new(Told::new());
    let name_of = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let mut packing = Packing {
        links: Links::Inside,
        special: Special::LeaveOut,
        mode: None,
        left_out: &mut |name, reason| told.borrow_mut().push((name_of(name), Some(reason.to_owned()))),
        packed: &mut |name| told.borrow_mut().push((name_of(name), None)),
    };
    let pieces = archive::Pieces::new(|piece| {
        sender.blocking_send(Ok(piece.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    });
    let packed = archive::pack(root.as_fd(), &mut packing, pieces).map(drop);
    if packed.is_err() {
        // Cuts the request off, so that no part is taken for the whole; the error itself is told by the caller.
        let _ = sender.blocking_send(Err(io::Error::from(io::ErrorKind::UnexpectedEof)));
    }
    (told.into_inner(), packed)
}

/// An archive as it arrives, for a reader that blocks.
struct Pieces {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    unread: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.unread.is_empty() {
            match self.receiver.blocking_recv() {
                Some(bytes) => self.unread = bytes?,
                None => return Ok(0),
            }
        }
        let count = self.unread.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.unread[..count]);
        self.unread.advance(count);
        Ok(count)
    }
}

fn stream(receiver: mpsc::Receiver<io::Result<Bytes>>) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    })
}
