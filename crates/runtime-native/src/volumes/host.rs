//! Paths of the machine, opened beneath what the operator allows.
//!
//! A path is resolved by the kernel in one call that cannot leave the allowed directory, or, where a link of the machine is
//! absolute, resolved freely and then compared by what was really opened: its parents, found from the descriptor, must lead
//! to the allowed directory. Nothing is decided by a path that is used again later.

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use lifecycle::volume;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Failure, Kind, Result};

/// How often a look-up is repeated that met a rename on its way: each repetition needs another rename.
const LOOK_UPS: u32 = 64;
/// Parents of a directory that are looked at: as many as a path has bytes.
const MAX_DEPTH: usize = 4096;
/// Mode of directories that are made.
const MODE: u32 = 0o755;

/// What may be mounted of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostPaths {
    /// Absolute paths that are allowed, with all beneath.
    pub allowed: Vec<String>,
    /// Directories that are never shown, nor what holds them: those of this program.
    pub hidden: Vec<PathBuf>,
}

impl HostPaths {
    /// Whether a path is allowed by its text.
    pub fn allows(&self, path: &str) -> bool {
        self.allowed.iter().any(|allowed| volume::is_beneath(path, allowed))
    }
}

/// Directories that were made, which are removed again unless they are kept: those that are still empty.
#[derive(Debug, Default)]
pub struct Made(Vec<(OwnedFd, OsString)>);

impl Made {
    /// Leaves them.
    pub fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for (parent, name) in self.0.drain(..).rev() {
            // One in which somebody has put something stays.
            let _ = rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR);
        }
    }
}

/// The refusal of a path, without a word of what lies on the machine.
pub fn not_allowed(volume: &str) -> Failure {
    let message = format!(
        "volume \"{volume}\": its host path leads to where this server allows none (storage.allowed_host_paths)"
    );
    Failure::new(Kind::HostPath, message)
}

/// Opens a host path that must be a directory or a plain file.
///
/// # Errors
/// [`Kind::HostPath`] where it is not allowed, [`Kind::HostPathFailed`] where it cannot be opened or made.
pub fn open(volume: &str, path: &str, allowed: &HostPaths, mut made: Option<&mut Made>) -> Result<OwnedFd> {
    let mut failure = None;
    for prefix in allowed.allowed.iter().filter(|prefix| volume::is_beneath(path, prefix)) {
        match open_in(prefix, path, made.as_deref_mut()) {
            Ok(opened) if is_shown(&opened, &allowed.hidden) => return Ok(opened),
            Ok(_) | Err(Errno::XDEV) => failure = failure.or_else(|| Some(not_allowed(volume))),
            Err(errno) => {
                let found = Failure::errno(format!("volume \"{volume}\": open its host path"), errno);
                failure = Some(Failure { kind: Kind::HostPathFailed, ..found });
            }
        }
    }
    Err(failure.unwrap_or_else(|| not_allowed(volume)))
}

/// Opens a path beneath an allowed one; [`Errno::XDEV`] where it leads out.
fn open_in(prefix: &str, path: &str, made: Option<&mut Made>) -> std::result::Result<OwnedFd, Errno> {
    let rest = path.strip_prefix(prefix).unwrap_or_default().trim_start_matches('/');
    let top = match look_up(CWD, Path::new(prefix), ResolveFlags::NO_MAGICLINKS) {
        // The operator named it, so nobody else says where it is made.
        Err(Errno::NOENT) if made.is_some() => {
            fs::create_dir_all(prefix).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            look_up(CWD, Path::new(prefix), ResolveFlags::NO_MAGICLINKS)?
        }
        other => other?,
    };
    if rest.is_empty() {
        return Ok(top);
    }
    match reach(&top, Path::new(rest), made) {
        Err(Errno::XDEV) => {
            let opened = look_up(CWD, Path::new(path), ResolveFlags::NO_MAGICLINKS)?;
            if is_within(&opened, &top)? { Ok(opened) } else { Err(Errno::XDEV) }
        }
        other => other,
    }
}

/// Opens a relative path that cannot leave the directory, following links within it; makes missing directories if `made`
/// is there to take note of them.
pub fn reach(base: &OwnedFd, path: &Path, made: Option<&mut Made>) -> std::result::Result<OwnedFd, Errno> {
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let found = look_up(base, path, beneath);
    let (Err(Errno::NOENT), Some(made)) = (&found, made) else { return found };
    let mut at = PathBuf::new();
    for part in path.components() {
        let parent = if at.as_os_str().is_empty() { Path::new(".") } else { &at };
        let parent = look_up(base, parent, beneath)?;
        at.push(part);
        match rustix::fs::mkdirat(&parent, part.as_os_str(), Mode::from_raw_mode(MODE)) {
            Ok(()) => made.0.push((parent, part.as_os_str().to_owned())),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    look_up(base, path, beneath)
}

fn look_up(at: impl std::os::fd::AsFd, path: &Path, resolve: ResolveFlags) -> std::result::Result<OwnedFd, Errno> {
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(&at, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // Something was renamed while the kernel went up: it cannot tell whether it is still within.
            Err(Errno::AGAIN) if tries < LOOK_UPS => tries += 1,
            other => return other,
        }
    }
}

/// Whether an opened directory is another one or lies beneath it: its parents are asked for from the descriptor. Files
/// have none and are within nothing.
fn is_within(opened: &OwnedFd, top: &OwnedFd) -> std::result::Result<bool, Errno> {
    let identity = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    let wanted = identity(top)?;
    let mut at = opened.try_clone().map_err(|_| Errno::MFILE)?;
    for _ in 0..MAX_DEPTH {
        let here = identity(&at)?;
        if here == wanted {
            return Ok(true);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = match rustix::fs::openat(&at, "..", flags, Mode::empty()) {
            Err(Errno::NOTDIR) => return Ok(false),
            other => other?,
        };
        if identity(&parent)? == here {
            return Ok(false);
        }
        at = parent;
    }
    Ok(false)
}

/// Whether it is a directory or plain file that shows nothing of what is hidden. What cannot be found out counts as hidden.
fn is_shown(opened: &OwnedFd, hidden: &[PathBuf]) -> bool {
    let kind = rustix::fs::fstat(opened).map(|stat| stat.st_mode & libc::S_IFMT);
    match kind {
        Ok(libc::S_IFDIR) => hidden.iter().all(|path| {
            let Ok(hidden) = look_up(CWD, path, ResolveFlags::NO_MAGICLINKS) else { return !path.exists() };
            is_within(opened, &hidden) == Ok(false) && is_within(&hidden, opened) == Ok(false)
        }),
        Ok(libc::S_IFREG) => {
            let Ok(place) = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())) else { return false };
            let beneath = |path: &PathBuf| place.starts_with(fs::canonicalize(path).unwrap_or_else(|_| path.clone()));
            !hidden.iter().any(beneath)
        }
        _ => false,
    }
}

/// The name of the file system that something lies on.
pub fn file_system(opened: &OwnedFd) -> String {
    const KNOWN: [(u64, &str); 12] = [
        (0xEF53, "ext4"),
        (0x5846_5342, "xfs"),
        (0x9123_683E, "btrfs"),
        (0x0102_1994, "tmpfs"),
        (0x6969, "nfs"),
        (0xFF53_4D42, "cifs"),
        (0xFE53_4D42, "smb"),
        (0x6573_5546, "fuse"),
        (0x0102_1997, "9p"),
        (0x794C_7630, "overlay"),
        (0x2FC1_2FC1, "zfs"),
        (0x9FA0, "proc"),
    ];
    let Ok(stat) = rustix::fs::fstatfs(opened) else { return "unknown".to_owned() };
    // The field is signed on some machines; the numbers have 32 bits.
    let magic = stat.f_type as u64 & 0xFFFF_FFFF;
    KNOWN
        .iter()
        .find(|(known, _)| *known == magic)
        .map_or_else(|| format!("{magic:#x}"), |(_, name)| (*name).to_owned())
}
