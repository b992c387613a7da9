//! Blobs of any size into files, continued where a connection broke off.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::CONTENT_RANGE;
use reqwest::{Response, StatusCode};
use rustix::fs::FlockOperation;
use tokio::time::Instant;

use super::Session;
use crate::Error;
use crate::digest::{Digest, HashingReader};

/// Tries in a row that bring no new byte before a download is given up.
const ATTEMPTS: u32 = 4;
/// Time in which a download must bring [`MIN_WINDOW_BYTES`], or it is given up.
const WINDOW: Duration = Duration::from_secs(60);
/// A kilobyte a second: slower than any line, faster than a registry that only wants to be held.
const MIN_WINDOW_BYTES: u64 = 60_000;
/// Bytes that are gathered before they are written; a write is a hop to another thread.
const WRITE_BYTES: usize = 1 << 20;

/// A blob on its way: a file that survives the process, locked by whoever writes it.
pub(crate) struct Partial {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Partial {
    /// Opens or makes the file and waits until no other process writes it.
    pub(crate) async fn open(path: &Path) -> Result<Self, Error> {
        let path = path.to_owned();
        blocking("open a download", move || {
            let io = |operation: &'static str| {
                let path = path.clone();
                move |e| Error::io(operation, &path, e)
            };
            loop {
                let file = File::options()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(&path)
                    .map_err(io("open"))?;
                rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|e| io("lock")(e.into()))?;
                // Whoever had the lock may have finished and removed the file.
                if is_at(&file, &path).map_err(io("look at"))? {
                    let bytes = file.metadata().map_err(io("look at"))?.len();
                    return Ok(Self { path, file, bytes });
                }
            }
        })
        .await
    }

    /// Bytes that are here.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The whole file, from its beginning.
    pub(crate) fn reader(&self) -> Result<File, Error> {
        // A fresh description, so that the reader's position is its own.
        File::open(&self.path).map_err(|e| Error::io("open", &self.path, e))
    }

    /// Removes the file; the download is used up.
    pub(crate) fn remove(self) -> Result<(), Error> {
        std::fs::remove_file(&self.path).map_err(|e| Error::io("remove", &self.path, e))
    }

    /// Throws away what is here.
    pub(crate) fn restart(&mut self) -> Result<(), Error> {
        self.file.set_len(0).map_err(|e| Error::io("empty", &self.path, e))?;
        self.bytes = 0;
        Ok(())
    }

    async fn append(&mut self, data: Vec<u8>) -> Result<(), Error> {
        let file = self.file.try_clone().map_err(|e| Error::io("open", &self.path, e))?;
        let (path, offset, len) = (self.path.clone(), self.bytes, data.len() as u64);
        blocking("write a download", move || {
            let mut file = file;
            file.seek(SeekFrom::Start(offset))
                .and_then(|_| file.write_all(&data))
                .map_err(|e| Error::io("write", &path, e))
        })
        .await?;
        self.bytes += len;
        Ok(())
    }

    async fn digest(&self) -> Result<Digest, Error> {
        let (reader, path) = (self.reader()?, self.path.clone());
        blocking("verify a download", move || {
            let mut hashing = HashingReader::new(std::io::BufReader::with_capacity(WRITE_BYTES, reader));
            std::io::copy(&mut hashing, &mut std::io::sink()).map_err(|e| Error::io("read", &path, e))?;
            Ok(hashing.finish())
        })
        .await
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.bytes == 0 {
            // Nothing to go on from. An empty file that stays does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn is_at(file: &File, path: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let own = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(named) => Ok(own.ino() == named.ino() && own.dev() == named.dev()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

pub(crate) async fn blocking<T: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Abandoned { operation })?
}

impl Session {
    /// Completes a download and verifies it; `at` is told how many bytes are here.
    ///
    /// A connection that breaks is continued where it broke, as long as each try brings something.
    pub(crate) async fn download(
        &self,
        digest: &Digest,
        size: u64,
        partial: &mut Partial,
        at: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), Error> {
        if partial.bytes() > size {
            partial.restart()?;
        }
        let resumed = partial.bytes() > 0;
        at(partial.bytes());
        self.fill(digest, size, partial, at).await?;
        let mut found = partial.digest().await?;
        if found != *digest && resumed {
            // What an earlier process left may have been damaged by a power loss.
            partial.restart()?;
            self.fill(digest, size, partial, at).await?;
            found = partial.digest().await?;
        }
        if found == *digest {
            return Ok(());
        }
        partial.restart()?;
        Err(Error::DigestMismatch {
            what: format!("blob {digest}"),
            expected: digest.to_string(),
            found: found.to_string(),
        })
    }

    async fn fill(
        &self,
        digest: &Digest,
        size: u64,
        partial: &mut Partial,
        at: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), Error> {
        let mut fruitless = 0;
        let mut pace = Pace::new(partial.bytes());
        while partial.bytes() < size {
            let before = partial.bytes();
            let outcome = match self.blob(digest, (before > 0).then_some(before)).await {
                Ok(response) => self.receive(digest, size, response, partial, &mut pace, at).await,
                Err(error) => Err(error),
            };
            let source = match outcome {
                Ok(()) => None,
                Err(Error::Unreachable { source, .. }) => Some(source),
                Err(error) => return Err(error),
            };
            fruitless = if partial.bytes() > before { 0 } else { fruitless + 1 };
            if fruitless == ATTEMPTS {
                return Err(Error::Interrupted {
                    registry: self.registry(),
                    what: format!("blob {digest}"),
                    attempts: ATTEMPTS,
                    source,
                });
            }
            if fruitless > 0 {
                tokio::time::sleep(super::RETRY_PAUSE * fruitless).await;
            }
        }
        Ok(())
    }

    async fn receive(
        &self,
        digest: &Digest,
        size: u64,
        mut response: Response,
        partial: &mut Partial,
        pace: &mut Pace,
        at: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), Error> {
        match response.status() {
            StatusCode::PARTIAL_CONTENT if begins_at(&response, partial.bytes()) => {}
            // The registry does not continue: begin anew.
            StatusCode::OK => partial.restart()?,
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                return partial.restart();
            }
            StatusCode::NOT_FOUND => {
                return Err(self.protocol(
                    &format!("the request for blob {digest}"),
                    "404: the image is incomplete in its registry",
                ));
            }
            _ => {
                return Err(self.refusal(response, format!("the request for blob {digest}")).await);
            }
        }
        let mut gathered = Vec::with_capacity(WRITE_BYTES);
        loop {
            let chunk = response.chunk().await.map_err(|e| self.unreachable(e));
            if let Ok(Some(chunk)) = &chunk {
                if partial.bytes() + (gathered.len() + chunk.len()) as u64 > size {
                    return Err(Error::TooLarge { what: format!("blob {digest}"), limit_bytes: size });
                }
                gathered.extend_from_slice(chunk);
                let here = partial.bytes() + gathered.len() as u64;
                at(here);
                if !pace.keeps_up(here) {
                    return Err(self.too_slow(&format!("blob {digest}")));
                }
                if gathered.len() < WRITE_BYTES {
                    continue;
                }
            }
            partial.append(std::mem::replace(&mut gathered, Vec::with_capacity(WRITE_BYTES))).await?;
            if chunk?.is_none() {
                return Ok(());
            }
        }
    }
}

/// Tells a slow line from a registry that sends a byte now and then, over one connection or many.
struct Pace {
    since: Instant,
    bytes: u64,
}

impl Pace {
    fn new(bytes: u64) -> Self {
        Self { since: Instant::now(), bytes }
    }

    fn keeps_up(&mut self, bytes: u64) -> bool {
        if self.since.elapsed() < WINDOW {
            return true;
        }
        let brought = bytes.saturating_sub(self.bytes);
        *self = Self::new(bytes);
        brought >= MIN_WINDOW_BYTES
    }
}

/// Whether a partial answer is the part that was asked for.
fn begins_at(response: &Response, offset: u64) -> bool {
    response
        .headers()
        .get(CONTENT_RANGE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("bytes "))
        .and_then(|value| value.split('-').next())
        .and_then(|start| start.parse::<u64>().ok())
        == Some(offset)
}
