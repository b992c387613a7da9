//! Where recordings lie: those that sandboxes make, and those that they are answered from. Files of this server's, 0600, in
//! its data directory; nameless ones where nothing outlives this process. The egress process gets them as descriptors.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egress::Taping as How;
use http::StatusCode;
use jiff::Timestamp;
use lifecycle::spec::{SandboxId, Taping};
use protocol::error::code;

use crate::errors::ApiError;

/// Recordings that are kept for replay: each is looked through when they are listed for the first time.
pub(crate) const MAX_RECORDINGS: usize = 256;
/// First parts of the names of files.
const OF_SANDBOX: &str = "sandbox.";
const KEPT: &str = "kept.";
const ARRIVING: &str = "arriving.";

/// Where recordings lie.
pub(crate) struct Shelf {
    /// Without one they are files without a name, and end with this process.
    directory: Option<PathBuf>,
    nameless: Mutex<BTreeMap<String, Nameless>>,
}

struct Nameless {
    file: Arc<File>,
    since: Timestamp,
}

/// A file that is being written, and goes away unless it is kept.
pub(crate) struct Arriving {
    /// It.
    pub(crate) file: File,
    path: Option<PathBuf>,
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if let Some(path) = self.path.take()
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(path = %path.display(), %error, "an upload could not be removed");
        }
    }
}

impl Shelf {
    pub(crate) fn new(directory: Option<PathBuf>) -> Self {
        Self { directory, nameless: Mutex::default() }
    }

    /// What a sandbox is attached with: its recording, made where there is none yet, or the one that answers it.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) fn recording_of(
        &self,
        id: &SandboxId,
        taping: &Taping,
        limit_bytes: u64,
    ) -> io::Result<Option<(How, File)>> {
        match taping {
            Taping::None => Ok(None),
            Taping::Record => {
                let key = format!("{OF_SANDBOX}{id}");
                let file = match self.open(&key)? {
                    Some(file) => file,
                    None => self.make(&key)?,
                };
                Ok(Some((How::Record { limit_bytes }, file)))
            }
            Taping::Replay { recording } => {
                let file = self.kept(recording)?;
                let missing = || io::Error::new(io::ErrorKind::NotFound, "the recording that answers it is gone");
                Ok(Some((How::Replay, file.ok_or_else(missing)?)))
            }
        }
    }

    /// Whether a sandbox can be answered from this recording.
    ///
    /// # Errors
    /// 400 when there is none.
    pub(crate) fn check(&self, recording: &str) -> Result<(), ApiError> {
        match self.kept(recording) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => {
                let message =
                    format!("extensions.osb.network.replay: there is no recording \"{recording}\"; upload it first");
                Err(ApiError::bad_request(code::INVALID_PARAMETER, message))
            }
            Err(error) => Err(failed(&error)),
        }
    }

    /// What a sandbox has recorded until now, open for reading.
    pub(super) fn of_sandbox(&self, id: &SandboxId) -> io::Result<Option<File>> {
        self.open(&format!("{OF_SANDBOX}{id}"))
    }

    /// Removes what a sandbox has recorded; nothing to do where it did not.
    pub(crate) fn forget_sandbox(&self, id: &SandboxId) {
        if let Err(error) = self.remove(&format!("{OF_SANDBOX}{id}")) {
            tracing::warn!(sandbox_id = %id, %error, "a recording could not be removed");
        }
    }

    /// A recording that is kept for replay, open for reading.
    pub(super) fn kept(&self, id: &str) -> io::Result<Option<File>> {
        self.open(&format!("{KEPT}{id}"))
    }

    /// Ids of the recordings that are kept, and since when; the oldest first.
    pub(super) fn ids(&self) -> io::Result<Vec<(String, Timestamp)>> {
        let mut ids = Vec::new();
        match &self.directory {
            None => {
                let nameless = self.nameless();
                let kept =
                    nameless.iter().filter_map(|(key, one)| Some((key.strip_prefix(KEPT)?.to_owned(), one.since)));
                ids.extend(kept);
            }
            Some(directory) => {
                let entries = match std::fs::read_dir(directory) {
                    Ok(entries) => entries,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ids),
                    Err(error) => return Err(error),
                };
                for entry in entries {
                    let entry = entry?;
                    let name = entry.file_name();
                    let Some(id) = name.to_str().and_then(|name| name.strip_prefix(KEPT)) else { continue };
                    // One that is removed meanwhile is not there.
                    let Ok(changed) = entry.metadata().and_then(|facts| facts.modified()) else { continue };
                    ids.push((id.to_owned(), Timestamp::try_from(changed).unwrap_or_default()));
                }
            }
        }
        ids.sort_by(|one, other| (one.1, &one.0).cmp(&(other.1, &other.0)));
        Ok(ids)
    }

    /// A file for an upload.
    pub(super) fn arriving(&self) -> io::Result<Arriving> {
        let name = format!("{ARRIVING}{}", uuid::Uuid::new_v4().simple());
        match &self.directory {
            None => Ok(Arriving { file: nameless(&name)?, path: None }),
            Some(directory) => {
                let path = directory.join(name);
                Ok(Arriving { file: create(directory, &path)?, path: Some(path) })
            }
        }
    }

    /// Keeps an upload, under an id of its own.
    pub(super) fn keep(&self, mut arriving: Arriving) -> io::Result<String> {
        let id = format!("rec-{}", uuid::Uuid::new_v4().simple());
        let key = format!("{KEPT}{id}");
        match (&self.directory, &arriving.path) {
            (Some(directory), Some(path)) => {
                std::fs::rename(path, directory.join(key))?;
                arriving.path = None;
            }
            _ => {
                let file = Arc::new(arriving.file.try_clone()?);
                self.nameless().insert(key, Nameless { file, since: Timestamp::now() });
            }
        }
        Ok(id)
    }

    /// Removes a recording that is kept; whether there was one.
    pub(super) fn discard(&self, id: &str) -> io::Result<bool> {
        self.remove(&format!("{KEPT}{id}"))
    }

    /// Removes what a server that was killed has left: recordings of sandboxes that are not there any more, and uploads.
    pub(crate) fn sweep(&self, is_known: impl Fn(&str) -> bool) {
        let Some(directory) = &self.directory else { return };
        let Ok(entries) = std::fs::read_dir(directory) else {
            // It is made with the first recording.
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_left = name.starts_with(ARRIVING) || name.strip_prefix(OF_SANDBOX).is_some_and(|id| !is_known(id));
            if is_left && let Err(error) = std::fs::remove_file(entry.path()) {
                tracing::warn!(path = %entry.path().display(), %error, "a left recording could not be removed");
            }
        }
    }

    fn open(&self, key: &str) -> io::Result<Option<File>> {
        match &self.directory {
            None => self.nameless().get(key).map(|one| one.file.try_clone()).transpose(),
            Some(directory) => match File::options().read(true).write(true).open(directory.join(key)) {
                Ok(file) => Ok(Some(file)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            },
        }
    }

    fn make(&self, key: &str) -> io::Result<File> {
        match &self.directory {
            None => {
                let file = nameless(key)?;
                let kept = Arc::new(file.try_clone()?);
                self.nameless().insert(key.to_owned(), Nameless { file: kept, since: Timestamp::now() });
                Ok(file)
            }
            Some(directory) => create(directory, &directory.join(key)),
        }
    }

    fn remove(&self, key: &str) -> io::Result<bool> {
        match &self.directory {
            None => Ok(self.nameless().remove(key).is_some()),
            Some(directory) => match std::fs::remove_file(directory.join(key)) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(error) => Err(error),
            },
        }
    }

    fn nameless(&self) -> MutexGuard<'_, BTreeMap<String, Nameless>> {
        self.nameless.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a client is told that the files cannot be used.
pub(super) fn failed(error: &io::Error) -> ApiError {
    if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        let message = "the server's disk is full; free some and try again";
        return ApiError::new(StatusCode::INSUFFICIENT_STORAGE, code::RECORDING_LIMIT, message);
    }
    ApiError::internal(format!("the server's recordings cannot be used: {error}"))
}

fn create(directory: &Path, path: &Path) -> io::Result<File> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// A file in the directory for what is temporary, which is gone with its last holder.
fn nameless(name: &str) -> io::Result<File> {
    let path = std::env::temp_dir().join(format!("osb-{}-{name}", uuid::Uuid::new_v4().simple()));
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests;
