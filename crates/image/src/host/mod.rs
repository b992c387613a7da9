//! The `host` image: the machine's own programs, under a root directory that has nothing personal in it.
//!
//! `/usr` and its kin are not copied: the sandbox mounts them read-only ([`HostImage::binds`]). What
//! lies around them is a small skeleton layer: empty directories, the links of a merged `/usr`, and
//! an `/etc` that is generated or copied from an allow-list ([`etc`]). Only what every user of the
//! machine may read is ever copied.
//!
//! The layer's id is a fingerprint of what it was made from, so a machine that changed gets another
//! one, and a snapshot that stands on the old one is recognised as not restorable.

mod copy;
mod etc;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, OFlags, Uid};
use sha2::{Digest as _, Sha256};

use crate::layers::Area;
use crate::unpack::{LayerStats, UnpackError};
use crate::{Error, ImageConfig, LayerId, Platform};

/// Changes whenever the same machine would get another skeleton.
const FORMAT: &str = "osb host skeleton 1";
/// Directories of programs and libraries, as far as a machine has them.
const PROGRAMS: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Files whose change means that packages changed.
const PACKAGE_STATES: [&str; 4] =
    ["var/lib/dpkg/status", "var/lib/rpm/rpmdb.sqlite", "lib/apk/db/installed", "var/lib/pacman/local"];
/// The ordinary user of a `host` sandbox.
const USER: u32 = 1000;

/// What a sandbox of the `host` image stands on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostImage {
    /// The skeleton, in the directory of layers.
    pub layer: LayerId,
    /// Directories of the machine to mount at the same place: read-only, nosuid, nodev, not recursive, never id-mapped.
    pub binds: Vec<PathBuf>,
    /// Directories beneath the binds to cover with an empty one: what the machine's administrator put there by hand.
    pub masks: Vec<PathBuf>,
    /// How processes start.
    pub config: ImageConfig,
}

/// One thing of the skeleton, at a path relative to its root.
enum Item {
    Directory { path: PathBuf, mode: u32, owner: u32 },
    Link { path: PathBuf, target: PathBuf },
    Generated { path: PathBuf, mode: u32, content: String },
    Copied { path: PathBuf, mode: u32, from: PathBuf, size: u64, modified: (i64, i64) },
}

/// What the skeleton will have, parents before children.
struct Plan {
    items: Vec<Item>,
    paths: HashSet<PathBuf>,
    /// Whom the machine's system files belong to: root, or what root looks like in a user namespace.
    owner: u32,
}

impl Plan {
    fn new(machine: &Path) -> Result<Self, Error> {
        let usr = machine.join("usr");
        let metadata = std::fs::metadata(&usr).map_err(|e| Error::io("look at", &usr, e))?;
        Ok(Self { items: Vec::new(), paths: HashSet::new(), owner: metadata.uid() })
    }

    fn has(&self, path: &Path) -> bool {
        self.paths.contains(path)
    }

    /// Adds a thing, unless its place is taken.
    fn add(&mut self, item: Item) {
        if self.paths.insert(item.path().to_owned()) {
            self.items.push(item);
        }
    }
}

impl Item {
    fn path(&self) -> &Path {
        match self {
            Self::Directory { path, .. }
            | Self::Link { path, .. }
            | Self::Generated { path, .. }
            | Self::Copied { path, .. } => path,
        }
    }
}

/// Makes the skeleton layer of this machine, unless it is there already.
///
/// # Errors
/// The machine's files cannot be read, or the layer cannot be written.
pub fn build_skeleton(layers_root: &Path) -> Result<HostImage, Error> {
    build_from(Path::new("/"), layers_root)
}

fn build_from(machine: &Path, layers_root: &Path) -> Result<HostImage, Error> {
    let mut plan = Plan::new(machine)?;
    let binds = programs(machine, &mut plan)?;
    directories(&mut plan);
    etc::plan(machine, &mut plan)?;
    let items = plan.items;
    let layer = fingerprint(machine, &items, &binds)?;
    let failed = |e: UnpackError| Error::unpack(&layer, e);
    let area = Area::open(layers_root).map_err(failed)?;
    if !area.has(&layer).map_err(failed)? {
        let draft = area.begin().map_err(failed)?;
        let mut stats = LayerStats::default();
        for item in &items {
            stats.bytes += write(draft.root(), item).map_err(failed)?;
            stats.entries += 1;
        }
        draft.commit(&layer, &stats).map_err(failed)?;
    }
    let masks = match machine.join("usr/local").is_dir() {
        true => vec![PathBuf::from("/usr/local")],
        false => Vec::new(),
    };
    Ok(HostImage { layer, binds, masks, config: config() })
}

fn config() -> ImageConfig {
    let env = [("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("LANG", "C.UTF-8")];
    ImageConfig {
        platform: Platform::current(),
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        working_dir: Some("/workspace".to_owned()),
        user: None,
        entrypoint: Vec::new(),
        cmd: vec!["/bin/sh".to_owned()],
        labels: Vec::new(),
        exposed_ports: Vec::new(),
        stop_signal: None,
    }
}

/// Links of a merged `/usr` become links; real directories become mount points.
fn programs(machine: &Path, plan: &mut Plan) -> Result<Vec<PathBuf>, Error> {
    let mut binds = Vec::new();
    for name in PROGRAMS {
        let path = machine.join(name);
        let metadata = match std::fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(Error::io("look at", &path, e)),
        };
        if metadata.is_dir() {
            plan.add(Item::Directory { path: name.into(), mode: 0o755, owner: 0 });
            binds.push(Path::new("/").join(name));
        } else if metadata.is_symlink() {
            let target = std::fs::read_link(&path).map_err(|e| Error::io("read link", &path, e))?;
            plan.add(Item::Link { path: name.into(), target });
        }
    }
    Ok(binds)
}

fn directories(plan: &mut Plan) {
    let ordinary = [
        "dev",
        "etc",
        "home",
        "media",
        "mnt",
        "opt",
        "run",
        "srv",
        "var",
        "var/cache",
        "var/lib",
        "var/log",
        "var/spool",
    ];
    let special = [("proc", 0o555, 0), ("sys", 0o555, 0), ("root", 0o700, 0), ("home/sandbox", 0o755, USER)];
    // Any user of the sandbox may work in these; the sandbox has one tenant.
    let shared = [("tmp", 0o1777, 0), ("var/tmp", 0o1777, 0), ("run/lock", 0o1777, 0), ("workspace", 0o777, 0)];
    let directory = |(path, mode, owner): (&str, u32, u32)| Item::Directory { path: path.into(), mode, owner };
    ordinary
        .map(|path| (path, 0o755, 0))
        .into_iter()
        .chain(special)
        .chain(shared)
        .map(directory)
        .for_each(|item| plan.add(item));
    let links = [("var/run", "/run"), ("var/lock", "/run/lock"), ("etc/mtab", "/proc/self/mounts")];
    for (path, target) in links {
        plan.add(Item::Link { path: path.into(), target: target.into() });
    }
}

/// Hashes what the skeleton is made from and what it stands on.
fn fingerprint(machine: &Path, items: &[Item], binds: &[PathBuf]) -> Result<LayerId, Error> {
    let mut hasher = Sha256::new();
    let mut add = |parts: &[&[u8]]| {
        for part in parts {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    };
    add(&[FORMAT.as_bytes(), std::env::consts::ARCH.as_bytes(), &rustix::process::geteuid().as_raw().to_le_bytes()]);
    for name in PACKAGE_STATES.iter().copied().chain(["usr"]) {
        if let Ok(metadata) = std::fs::metadata(machine.join(name)) {
            add(&[
                name.as_bytes(),
                &metadata.mtime().to_le_bytes(),
                &metadata.mtime_nsec().to_le_bytes(),
                &metadata.len().to_le_bytes(),
            ]);
        }
    }
    for bind in binds {
        add(&[b"bind", bind.as_os_str().as_encoded_bytes()]);
    }
    for item in items {
        match item {
            Item::Directory { path, mode, owner } => {
                add(&[b"directory", path.as_os_str().as_encoded_bytes(), &mode.to_le_bytes(), &owner.to_le_bytes()]);
            }
            Item::Link { path, target } => {
                add(&[b"link", path.as_os_str().as_encoded_bytes(), target.as_os_str().as_encoded_bytes()])
            }
            Item::Generated { path, mode, content } => {
                add(&[b"generated", path.as_os_str().as_encoded_bytes(), &mode.to_le_bytes(), content.as_bytes()]);
            }
            Item::Copied { path, mode, size, modified: (seconds, nanoseconds), .. } => add(&[
                b"copied",
                path.as_os_str().as_encoded_bytes(),
                &mode.to_le_bytes(),
                &size.to_le_bytes(),
                &seconds.to_le_bytes(),
                &nanoseconds.to_le_bytes(),
            ]),
        }
    }
    Ok(LayerId::from_sha256(hasher.finalize().into()))
}

/// Writes one thing beneath the root; gives the bytes of its content.
fn write(root: BorrowedFd<'_>, item: &Item) -> Result<u64, UnpackError> {
    let failed = |operation: &'static str, path: &Path| {
        let path = path.display().to_string();
        move |e: rustix::io::Errno| UnpackError::system(operation, path, e)
    };
    match item {
        Item::Directory { path, mode, owner } => {
            rustix::fs::mkdirat(root, path, Mode::RWXU).map_err(failed("make directory", path))?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(root, path, flags, Mode::empty()).map_err(failed("open directory", path))?;
            if *owner != 0 && rustix::process::geteuid().is_root() {
                rustix::fs::fchown(&fd, Some(Uid::from_raw(*owner)), Some(Gid::from_raw(*owner)))
                    .map_err(failed("give away", path))?;
            }
            rustix::fs::fchmod(&fd, Mode::from_raw_mode(*mode)).map_err(failed("set the mode of", path))?;
            Ok(0)
        }
        Item::Link { path, target } => {
            rustix::fs::symlinkat(target, root, path).map(|()| 0).map_err(failed("make link", path))
        }
        Item::Generated { path, mode, content } => write_file(root, path, *mode, &mut content.as_bytes()),
        Item::Copied { path, mode, from, .. } => {
            let mut source =
                copy::open(from).map_err(|e| UnpackError::system("open", from.display().to_string(), e))?;
            write_file(root, path, *mode, &mut source)
        }
    }
}

fn write_file(root: BorrowedFd<'_>, path: &Path, mode: u32, content: &mut dyn io::Read) -> Result<u64, UnpackError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let shown = || path.display().to_string();
    let fd = rustix::fs::openat(root, path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| UnpackError::system("make", shown(), e))?;
    let mut file = File::from(fd);
    let bytes = io::copy(&mut io::Read::take(content, copy::MAX_FILE_BYTES), &mut file)
        .and_then(|bytes| file.flush().map(|()| bytes))
        .map_err(|e| UnpackError::system("write", shown(), e))?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))
        .map_err(|e| UnpackError::system("set the mode of", shown(), e))?;
    Ok(bytes)
}
