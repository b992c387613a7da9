//! What the store keeps on disk, and the only code that reads and writes it.
//!
//! ```text
//! blobs/<hex>         configurations and manifests, by digest
//! partial/<hex>       downloads on their way, by digest and account, locked by their writer
//! layers/<hex>.json   what is known of an unpacked layer; the files are the unpacker's
//! images/<hex>.json   images, by configuration digest
//! names/<hex>.json    references, by the hash of their text
//! holds/<random>      layers that a running pull or import needs; locked while it lives
//! key                 secret with which grants are hashed
//! lock                held while records change
//! ```
//! Every file is written beside its place, flushed and renamed.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::digest::{Digest, hex};
use crate::{Error, ImageConfig, LayerId, Platform};

/// Bytes of the secret that grants are hashed with.
const KEY_BYTES: usize = 32;
/// Age at which a layer's time of last use is written anew, so that not every create writes.
const TOUCH_INTERVAL: Duration = Duration::from_secs(10);
/// Random bytes in a temporary name.
const RANDOM_BYTES: usize = 8;
/// End of the names of files that are being written.
const TEMPORARY_SUFFIX: &str = ".new";

/// An image, as recorded.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ImageRecord {
    pub(super) digest: Digest,
    pub(super) layers: Vec<LayerId>,
    pub(super) config: ImageConfig,
    pub(super) size_bytes: u64,
    pub(super) created_at: Option<String>,
    pub(super) pulled_at: jiff::Timestamp,
    /// An import without a name; it stays until it is removed by its id.
    pub(super) keeps_without_name: bool,
    /// Every byte of it came from a registry, which can be asked again.
    #[serde(default)]
    pub(super) is_fetched: bool,
}

/// A name and the images that it means, one per platform.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct NameRecord {
    pub(super) name: String,
    /// The latest first.
    pub(super) targets: Vec<Target>,
}

/// What a name means on one platform, and to whom.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Target {
    pub(super) platform: Platform,
    pub(super) image: Digest,
    /// Everybody may have it: it was imported, or its registry gave it without credentials.
    pub(super) public: bool,
    /// Hashes of the accounts that its registry accepted.
    pub(super) grants: BTreeSet<String>,
}

/// An unpacked layer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LayerRecord {
    pub(super) layer: LayerId,
    pub(super) bytes: u64,
    /// Everybody could have it.
    pub(super) public: bool,
    /// Hashes of the accounts that proved to have it.
    pub(super) grants: BTreeSet<String>,
}

impl LayerRecord {
    pub(super) fn allows(&self, grant: Option<&str>) -> bool {
        self.public || grant.is_some_and(|grant| self.grants.contains(grant))
    }
}

impl Target {
    pub(super) fn allows(&self, grant: Option<&str>) -> bool {
        self.public || grant.is_some_and(|grant| self.grants.contains(grant))
    }
}

/// The directory of the store.
#[derive(Debug)]
pub(super) struct Records {
    root: PathBuf,
    key: [u8; KEY_BYTES],
}

/// Proof that no other process changes records; letting go of it ends that.
#[derive(Debug)]
pub(super) struct Exclusive {
    _lock: OwnedFd,
}

/// Layers kept from a prune for as long as this lives.
#[derive(Debug)]
pub(super) struct Hold {
    path: PathBuf,
    _lock: File,
}

impl Drop for Hold {
    fn drop(&mut self) {
        // A hold that stays behind is unlocked, so the next prune takes it away.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Records {
    pub(super) fn open(root: &Path) -> Result<Self, Error> {
        for name in ["", "blobs", "partial", "layers", "images", "names", "holds"] {
            let path = root.join(name);
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .map_err(|e| Error::io("make directory", &path, e))?;
        }
        let mut records = Self { root: root.to_owned(), key: [0; KEY_BYTES] };
        let exclusive = records.lock()?;
        records.key = records.read_or_make_key()?;
        records.sweep_temporaries(&exclusive)?;
        Ok(records)
    }

    /// Waits until no other process or task changes records.
    pub(super) fn lock(&self) -> Result<Exclusive, Error> {
        let path = self.root.join("lock");
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| Error::io("open", &path, e))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|e| Error::io("lock", &path, e.into()))?;
        Ok(Exclusive { _lock: file.into() })
    }

    /// The hash under which an account is remembered for a repository; useless without the store's key.
    pub(super) fn grant(&self, repository: &str, username: &str, password: &str) -> String {
        use hmac::{KeyInit, Mac};
        let mut mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(&self.key).expect("any length of key is accepted");
        for part in [repository, username, password] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part.as_bytes());
        }
        hex(&mac.finalize().into_bytes())
    }

    /// Where a download is gathered. Each account has its own: what is here of a private blob
    /// must not complete the download of somebody who could not have begun it.
    pub(super) fn partial_path(&self, digest: &Digest, grant: Option<&str>) -> PathBuf {
        let name = match grant {
            None => digest.hex().to_owned(),
            Some(grant) => format!("{}-{grant}", digest.hex()),
        };
        self.root.join("partial").join(name)
    }

    pub(super) fn temporary_path(&self) -> Result<PathBuf, Error> {
        Ok(self.root.join("partial").join(format!("{}{TEMPORARY_SUFFIX}", random()?)))
    }

    pub(super) fn name(&self, name: &str) -> Result<Option<NameRecord>, Error> {
        read_json(&self.name_path(name))
    }

    pub(super) fn names(&self) -> Result<Vec<NameRecord>, Error> {
        self.all("names")
    }

    pub(super) fn write_name(&self, _: &Exclusive, record: &NameRecord) -> Result<(), Error> {
        write_json(&self.name_path(&record.name), record)
    }

    pub(super) fn remove_name(&self, _: &Exclusive, name: &str) -> Result<(), Error> {
        remove_file(&self.name_path(name)).map(drop)
    }

    pub(super) fn image(&self, digest: &Digest) -> Result<Option<ImageRecord>, Error> {
        read_json(&self.image_path(digest))
    }

    pub(super) fn images(&self) -> Result<Vec<ImageRecord>, Error> {
        self.all("images")
    }

    pub(super) fn write_image(&self, _: &Exclusive, record: &ImageRecord) -> Result<(), Error> {
        write_json(&self.image_path(&record.digest), record)
    }

    pub(super) fn remove_image(&self, _: &Exclusive, digest: &Digest) -> Result<(), Error> {
        remove_file(&self.image_path(digest))?;
        remove_file(&self.root.join("blobs").join(digest.hex())).map(drop)
    }

    pub(super) fn layer(&self, layer: &LayerId) -> Result<Option<LayerRecord>, Error> {
        read_json(&self.layer_path(layer))
    }

    pub(super) fn layers(&self) -> Result<Vec<LayerRecord>, Error> {
        self.all("layers")
    }

    pub(super) fn write_layer(&self, _: &Exclusive, record: &LayerRecord) -> Result<(), Error> {
        write_json(&self.layer_path(&record.layer), record)
    }

    pub(super) fn remove_layer(&self, _: &Exclusive, layer: &LayerId) -> Result<(), Error> {
        remove_file(&self.layer_path(layer)).map(drop)
    }

    /// Notes that a layer is wanted now.
    pub(super) fn touch_layer(&self, layer: &LayerId) -> Result<(), Error> {
        let path = self.layer_path(layer);
        if age(&path)?.is_none_or(|age| age < TOUCH_INTERVAL) {
            return Ok(());
        }
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_modified(SystemTime::now()))
            .map_err(|e| Error::io("touch", &path, e))
    }

    /// Time since a layer was last wanted; `None` when it is not recorded.
    pub(super) fn layer_idle(&self, layer: &LayerId) -> Result<Option<Duration>, Error> {
        age(&self.layer_path(layer))
    }

    pub(super) fn write_blob(&self, digest: &Digest, bytes: &[u8]) -> Result<(), Error> {
        write_file(&self.root.join("blobs").join(digest.hex()), bytes)
    }

    /// Keeps layers from a prune; they may not exist yet.
    pub(super) fn hold(&self, _: &Exclusive, layers: &[LayerId]) -> Result<Hold, Error> {
        let path = self.root.join("holds").join(random()?);
        let io = |operation: &'static str| {
            let path = path.clone();
            move |e| Error::io(operation, &path, e)
        };
        let mut lock = File::options().write(true).create_new(true).mode(0o600).open(&path).map_err(io("make"))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|e| io("lock")(e.into()))?;
        let text = serde_json::to_vec(layers).expect("a list of texts has a JSON form");
        lock.write_all(&text).map_err(io("write"))?;
        Ok(Hold { path, _lock: lock })
    }

    /// Layers that running pulls and imports need; holds of dead ones are taken away.
    pub(super) fn held(&self, _: &Exclusive) -> Result<BTreeSet<LayerId>, Error> {
        let mut held = BTreeSet::new();
        for path in self.list("holds")? {
            let Ok(file) = File::open(&path) else {
                continue;
            };
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => _ = remove_file(&path)?,
                Err(_) => held.extend(read_json::<Vec<LayerId>>(&path)?.unwrap_or_default()),
            }
        }
        Ok(held)
    }

    /// Removes downloads that nobody is writing; gives the bytes they had.
    pub(super) fn remove_partials(&self, older_than: Duration) -> Result<u64, Error> {
        let mut freed = 0;
        for path in self.list("partial")? {
            let Ok(file) = File::open(&path) else {
                continue;
            };
            let old = age(&path)?.is_some_and(|age| age >= older_than);
            if old && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                let bytes = file.metadata().map_or(0, |metadata| metadata.len());
                if remove_file(&path)? {
                    freed += bytes;
                }
            }
        }
        Ok(freed)
    }

    fn sweep_temporaries(&self, _: &Exclusive) -> Result<(), Error> {
        for directory in ["blobs", "layers", "images", "names"] {
            for path in self.list(directory)? {
                if path.as_os_str().as_encoded_bytes().ends_with(TEMPORARY_SUFFIX.as_bytes()) {
                    remove_file(&path)?;
                }
            }
        }
        Ok(())
    }

    fn read_or_make_key(&self) -> Result<[u8; KEY_BYTES], Error> {
        let path = self.root.join("key");
        match std::fs::read(&path) {
            Ok(bytes) => bytes.try_into().map_err(|_| {
                Error::malformed(
                    path.display().to_string(),
                    "it is not 32 bytes; remove it and pull private images again",
                )
            }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let mut key = [0; KEY_BYTES];
                getrandom::fill(&mut key).map_err(|e| Error::io("draw a key for", &path, io::Error::other(e)))?;
                write_file(&path, &key)?;
                Ok(key)
            }
            Err(e) => Err(Error::io("read", &path, e)),
        }
    }

    fn all<T: DeserializeOwned>(&self, directory: &str) -> Result<Vec<T>, Error> {
        let mut records = Vec::new();
        for path in self.list(directory)? {
            if path.extension().is_some_and(|extension| extension == "json") {
                records.extend(read_json(&path)?);
            }
        }
        Ok(records)
    }

    fn list(&self, directory: &str) -> Result<Vec<PathBuf>, Error> {
        let path = self.root.join(directory);
        let failed = |e| Error::io("list", &path, e);
        let mut paths = Vec::new();
        for item in std::fs::read_dir(&path).map_err(failed)? {
            paths.push(item.map_err(failed)?.path());
        }
        paths.sort();
        Ok(paths)
    }

    fn name_path(&self, name: &str) -> PathBuf {
        self.root.join("names").join(format!("{}.json", Digest::of(name.as_bytes()).hex()))
    }

    fn image_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("images").join(format!("{}.json", digest.hex()))
    }

    fn layer_path(&self, layer: &LayerId) -> PathBuf {
        self.root.join("layers").join(format!("{layer}.json"))
    }
}

fn random() -> Result<String, Error> {
    let mut bytes = [0; RANDOM_BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::io("draw a name from", Path::new("the kernel"), io::Error::other(e)))?;
    Ok(hex(&bytes))
}

fn age(path: &Path) -> Result<Option<Duration>, Error> {
    match std::fs::metadata(path).and_then(|metadata| metadata.modified()) {
        // A clock that was set back makes files of the future; they count as new.
        Ok(modified) => Ok(Some(modified.elapsed().unwrap_or_default())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("look at", path, e)),
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| {
            Error::malformed(path.display().to_string(), format!("{e}; remove the file and pull the image again"))
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("read", path, e)),
    }
}

fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), Error> {
    write_file(path, &serde_json::to_vec_pretty(value).expect("records have a JSON form"))
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let directory = path.parent().expect("files of the store lie in directories");
    let temporary = directory.join(format!("{}{TEMPORARY_SUFFIX}", random()?));
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        File::open(directory)?.sync_all()
    })();
    written.map_err(|e| {
        // The first error is the one that matters; a leftover is swept at the next start.
        let _ = std::fs::remove_file(&temporary);
        Error::io("write", path, e)
    })
}

/// Removes a file; tells whether it was there.
fn remove_file(path: &Path) -> Result<bool, Error> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("remove", path, e)),
    }
}
