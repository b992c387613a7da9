//! Recordings between files of this machine and a server.

use std::io;
use std::path::{Path, PathBuf};

use protocol::recording::{Contents, Recording};
use tokio::io::AsyncWriteExt as _;

use crate::client::Client;
use crate::client::execd::piece;
use crate::commands::transfer::{Partial, pieces};
use crate::commands::{Context, Progress};
use crate::failure::Failure;

/// Sends a recording to the server.
///
/// # Errors
/// When the file cannot be read, or the server does not take it.
pub async fn send(ctx: &Context, client: &Client, path: &Path) -> Result<Recording, Failure> {
    let failed = |error: &io::Error| Failure::file("read", path, error);
    let file = tokio::fs::File::open(path).await.map_err(|error| failed(&error))?;
    let meta = file.metadata().await.map_err(|error| failed(&error))?;
    if !meta.is_file() {
        return Err(Failure::new("LOCAL_FILE", format!("{} is no regular file", path.display())));
    }
    let progress = Progress::bytes(&ctx.printer, &path.display().to_string(), meta.len());
    client.import_recording(pieces(file, progress.bar())).await
}

/// A file that a recording is written to: whole under its name, or not at all.
pub struct Saved {
    path: PathBuf,
    partial: Partial,
}

impl Saved {
    /// Makes sure that the file can be written, before anything is recorded for it.
    ///
    /// # Errors
    /// When it cannot.
    pub fn begin(path: &Path) -> Result<Self, Failure> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let partial = Partial::create(directory).map_err(|error| Failure::file("write", path, &error))?;
        Ok(Self { path: path.to_owned(), partial })
    }

    /// Writes what a sandbox has recorded until now, and says what that is.
    ///
    /// # Errors
    /// When it cannot be fetched or written.
    pub async fn fill(self, client: &Client, sandbox: &str) -> Result<Contents, Failure> {
        let Self { path, mut partial } = self;
        let failed = |error: io::Error| Failure::file("write", &path, &error);
        // Asked before: what is told is in the file.
        let contents = client.recorded(sandbox).await?;
        let mut answer = client.recorded_file(sandbox).await?;
        while let Some(bytes) = piece(&mut answer).await? {
            partial.file.write_all(&bytes).await.map_err(failed)?;
        }
        partial.file.flush().await.map_err(failed)?;
        partial.rename(&path).map_err(failed)?;
        Ok(contents)
    }
}
