//! The directory that holds everything of one installation: key, secret, database, images, sandboxes.
//!
//! Root uses `/var/lib/osb`, an ordinary user `$XDG_DATA_HOME/osb` or `~/.local/share/osb`; `OSB_DATA_DIR`
//! overrides both. What must be secret is 0600; a file is made whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Random bytes of an API key: 256 bits.
const KEY_BYTES: usize = 32;
/// How long a start waits for the API process of a supervisor that was just killed to let go of the lock.
const LOCK_WAIT: Duration = Duration::from_secs(3);
/// How often it looks: the kernel offers no wait with a deadline for `flock`.
const LOCK_POLL: Duration = Duration::from_millis(20);

/// First host id of the range that belongs to this program; its first slot is for its own processes.
/// systemd's ranges end below it, `/etc/subuid` customarily does too (`runtime_native` checks).
const OWN_IDS: u32 = 0x7000_0000;

/// Who runs the API process: somebody of its own when the supervisor is root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The user who started the supervisor.
    Same,
    /// An id that nobody else has, without capabilities.
    Own {
        /// User and group id.
        id: u32,
    },
}

impl Identity {
    /// The identity of the API process for the present user.
    pub fn of_api() -> Self {
        if rustix::process::geteuid().is_root() { Self::Own { id: OWN_IDS } } else { Self::Same }
    }

    /// The identity of the egress process for the present user.
    pub fn of_egress() -> Self {
        if rustix::process::geteuid().is_root() { Self::Own { id: OWN_IDS + 1 } } else { Self::Same }
    }
}

/// What a running server publishes of itself for the CLI of the same machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Published {
    /// Where it answers.
    pub url: String,
    /// Process id of the supervisor.
    pub pid: u32,
}

/// A prepared data directory, locked by this process.
pub struct DataDir {
    root: PathBuf,
    lock: File,
}

/// Where the data directory is.
///
/// # Errors
/// When the user has neither a home nor `XDG_DATA_HOME`.
pub fn locate() -> Result<PathBuf, Failure> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(path) = variable("OSB_DATA_DIR") {
        return std::path::absolute(&path).map_err(|error| Failure::file("resolve", &path, &error));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/osb"));
    }
    variable("XDG_DATA_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/share")))
        .map(|base| base.join("osb"))
        .ok_or_else(|| {
            Failure::new("NO_DATA_DIR", "neither HOME nor XDG_DATA_HOME is set")
                .hint("set OSB_DATA_DIR to a directory of yours")
        })
}

impl DataDir {
    /// Makes the directory and takes its lock.
    ///
    /// # Errors
    /// When another server holds it, or it cannot be made.
    pub fn open(root: &Path, api: Identity) -> Result<Self, Failure> {
        // Searchable, not readable: the API process passes through to its own parts.
        make_dir(root, 0o711)?;
        let path = root.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let lock = lock.map_err(|error| Failure::file("open", &path, &error))?;
        take(&lock, root)?;
        let dir = Self { root: root.to_owned(), lock };
        for part in ["server", "images"] {
            let path = dir.root.join(part);
            make_dir(&path, 0o700)?;
            if let Identity::Own { id } = api {
                give(&path, id).map_err(|error| Failure::file("give to the API process", &path, &error))?;
            }
        }
        Ok(dir)
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The locked file: whoever holds a duplicate keeps others out.
    pub fn lock(&self) -> &File {
        &self.lock
    }

    /// The API key, made at the first start.
    pub fn api_key(&self) -> Result<String, Failure> {
        let path = self.root.join("api-key");
        let text = read_or_make(&path, || random_key() + "\n")?;
        let key = text.trim();
        if key.is_empty() {
            return Err(Failure::new("EMPTY_API_KEY", format!("{} is empty", path.display()))
                .hint("put a key into it, or remove it and a new one is made at the next start"));
        }
        Ok(key.to_owned())
    }

    /// The secret from which the sandboxes' tokens are derived, made at the first start.
    pub fn secret(&self) -> Result<[u8; 32], Failure> {
        self.secret_in("secret", "remove it; tokens of sandboxes that live now become invalid")
    }

    /// The secret from which the keys of sandboxes' certificate authorities follow, made at the first start. The egress
    /// process has it and no other.
    pub fn authority_secret(&self) -> Result<[u8; 32], Failure> {
        self.secret_in("authority-secret", "remove it; sandboxes that live now cannot be given credentials again")
    }

    fn secret_in(&self, name: &str, hint: &str) -> Result<[u8; 32], Failure> {
        let path = self.root.join(name);
        let text = read_or_make(&path, || URL_SAFE_NO_PAD.encode(random::<32>()) + "\n")?;
        let bytes = URL_SAFE_NO_PAD.decode(text.trim()).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| {
            let message = format!("{} does not hold 32 bytes in base64url", path.display());
            Failure::new("BAD_SECRET", message).hint(hint)
        })
    }

    /// Tells the CLI of this machine where the server answers.
    pub fn publish(&self, published: &Published) -> Result<(), Failure> {
        let text = serde_json::to_string(published).expect("two plain fields serialize");
        write_whole(&self.root.join("server.json"), &text, 0o644)
    }

    /// Takes the published address back; a server that is gone is not offered.
    pub fn unpublish(&self) {
        // The CLI asks the address before it trusts it, so a file that stays does no harm.
        let _ = fs::remove_file(self.root.join("server.json"));
    }
}

/// Makes a directory for one embedded engine in `<root>/engines`: images, layers and id ranges are shared, sandboxes
/// are its own. The returned file holds its lock; a directory whose lock is free belongs to nobody any more.
///
/// # Errors
/// When it cannot be made.
pub fn make_embedded(root: &Path) -> Result<(PathBuf, File), Failure> {
    make_dir(root, 0o711)?;
    for part in ["images", "layers"] {
        make_dir(&root.join(part), 0o700)?;
    }
    let engines = root.join("engines");
    make_dir(&engines, 0o711)?;
    let name: String = random::<8>().iter().map(|byte| format!("{byte:02x}")).collect();
    let own = engines.join(name);
    make_dir(&own, 0o711)?;
    for part in ["images", "layers"] {
        let link = own.join(part);
        std::os::unix::fs::symlink(root.join(part), &link).map_err(|error| Failure::file("link", &link, &error))?;
    }
    let path = own.join("lock");
    let lock = File::create(&path).map_err(|error| Failure::file("make", &path, &error))?;
    take(&lock, &own)?;
    Ok((own, lock))
}

/// Directories of engines whose process is gone, with their locks taken: somebody must remove what is left in them.
///
/// # Errors
/// When the directory of engines cannot be read.
pub fn stale_engines(root: &Path) -> std::io::Result<Vec<(PathBuf, File)>> {
    let entries = match fs::read_dir(root.join("engines")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut stale = Vec::new();
    for entry in entries {
        let path = entry?.path();
        // One without a lock file is just being made, or was cut off while it was made and holds nothing yet.
        let Ok(lock) = File::open(path.join("lock")) else { continue };
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            stale.push((path, lock));
        }
    }
    Ok(stale)
}

/// Makes `id` the owner of a directory and all in it: an engine of `osb run` may have worked there as root.
fn give(path: &Path, id: u32) -> std::io::Result<()> {
    std::os::unix::fs::lchown(path, Some(id), Some(id))?;
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), id)?;
        }
    }
    Ok(())
}

fn take(lock: &File, root: &Path) -> Result<(), Failure> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(LOCK_POLL),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(Failure::new("ALREADY_RUNNING", format!("another server uses {}", root.display()))
                    .hint("use that one, stop it first, or give this one its own directory in OSB_DATA_DIR"));
            }
            Err(errno) => return Err(Failure::file("lock", &root.join("lock"), &errno.into())),
        }
    }
}

fn make_dir(path: &Path, mode: u32) -> Result<(), Failure> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|error| Failure::file("make directory", path, &error))?;
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|error| Failure::file("set the mode of", path, &error))
}

fn read_or_make(path: &Path, make: impl FnOnce() -> String) -> Result<String, Failure> {
    match File::open(path) {
        Ok(mut file) => {
            let mut text = String::new();
            file.read_to_string(&mut text).map_err(|error| Failure::file("read", path, &error))?;
            Ok(text)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let text = make();
            write_whole(path, &text, 0o600)?;
            Ok(text)
        }
        Err(error) => Err(Failure::file("open", path, &error)),
    }
}

/// A reader sees the old file or the whole new one.
fn write_whole(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let temporary = path.with_extension("new");
    // A leftover of a crash; `create_new` below must not meet it.
    let _ = fs::remove_file(&temporary);
    let written = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&temporary, path)).map_err(|error| Failure::file("write", path, &error))
}

/// A new API key.
pub fn random_key() -> String {
    URL_SAFE_NO_PAD.encode(random::<KEY_BYTES>())
}

/// Bytes from the kernel's generator.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel's random numbers are always there after boot");
    bytes
}
