//! Named volumes on the disk: `volumes/NAME/files`, or `volumes/NAME/disk.ext4` for one with a size limit.
//!
//! A volume is made under another name and renamed, and renamed before it is removed: it exists whole or not at all. An
//! image is never mounted on the host. The first sandbox that has it attaches it to a loop device, which the kernel lets
//! go with the last mount; another that comes meanwhile finds that device and gets the same file system.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lifecycle::runtime::StoredVolume;
use lifecycle::volume::{MAX_BYTES, MAX_CLAIM_BYTES, MIN_BYTES, is_name};
use rustix::fs::{AtFlags, CWD, FlockOperation, flock};
use rustix::io::Errno;

use super::clone_one;
use crate::disk;
use crate::error::{Context, Failure, Kind, Result};
use crate::paths::Paths;
use crate::rootfs::open_directory;
use crate::sys::{self, LoopDevice};

/// What a volume without a size limit holds.
const FILES: &str = "files";
/// The image of one with a size limit.
const IMAGE: &str = "disk.ext4";
/// Held while an image is attached and mounted.
const LOCK: &str = "lock";
/// Begins the names of volumes that are being made or removed; no name of a volume begins so.
const UNFINISHED: &str = ".";

/// Makes a volume, unless it exists.
pub fn ensure(paths: &Paths, name: &str, bytes: Option<u64>) -> Result<()> {
    let place = place(paths, name)?;
    if place.is_dir() {
        return Ok(());
    }
    if bytes.is_some_and(|bytes| !(MIN_BYTES..=MAX_BYTES).contains(&bytes)) {
        return Err(Failure::new(Kind::Refused, "a volume's size limit is outside its range"));
    }
    let temporary = paths.volumes().join(format!("{UNFINISHED}new-{}", std::process::id()));
    let made = make(&temporary, bytes).and_then(|()| match fs::rename(&temporary, &place) {
        // Another worker was as quick.
        Err(_) if place.is_dir() => fs::remove_dir_all(&temporary).op("remove the second of two volumes"),
        other => other.op("name a volume"),
    });
    if made.is_err() {
        // The first error counts; a leftover is swept at the next start.
        let _ = fs::remove_dir_all(&temporary);
    }
    made.map_err(|failure| failure.during(format!("make volume \"{name}\"")))
}

fn make(at: &Path, bytes: Option<u64>) -> Result<()> {
    fs::create_dir(at).op("make its directory")?;
    File::create(at.join(LOCK)).op("make its lock")?;
    let Some(bytes) = bytes else {
        fs::create_dir(at.join(FILES)).op("make its directory")?;
        return fs::set_permissions(at.join(FILES), fs::Permissions::from_mode(0o755)).op("open its directory");
    };
    let image = at.join(IMAGE);
    format(&image, bytes)?;
    let root = disk::open_root(&mount(&image)?).op("open its file system")?;
    // A name that only a check of the file system would need, which makes it anew.
    rustix::fs::unlinkat(&root, "lost+found", AtFlags::REMOVEDIR).op("clear its file system")
}

/// A file system with a journal: it lives on when the machine does not.
fn format(path: &Path, bytes: u64) -> Result<()> {
    let file = File::create(path).op("make its image")?;
    file.set_len(bytes).op("make its image")?;
    let output = Command::new("mkfs.ext4")
        .args(["-q", "-F", "-m", "0", "-b", "4096", "-I", "256"])
        .args(["-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0"])
        .arg(path)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|error| {
        Failure::new(Kind::Unsupported, format!("run mkfs.ext4: {error}; install e2fsprogs for size limits"))
    })?;
    if !output.status.success() {
        return Err(Failure::internal(format!("mkfs.ext4: {}", String::from_utf8_lossy(&output.stderr).trim())));
    }
    Ok(())
}

/// Removes a volume; one that does not exist is no error. `force` removes a directory in which there are files of others.
pub fn remove(paths: &Paths, name: &str, force: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let gone = paths.volumes().join(format!("{UNFINISHED}gone-{}", std::process::id()));
    match fs::rename(place(paths, name)?, &gone) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other.op(format!("take volume \"{name}\" away"))?,
    }
    remove_unfinished(&gone, force)
}

fn remove_unfinished(path: &Path, force: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => force(path),
        other => other.op("remove a volume"),
    }
}

/// Every volume that exists.
pub fn list(paths: &Paths) -> Result<Vec<StoredVolume>> {
    let mut volumes = Vec::new();
    for entry in fs::read_dir(paths.volumes()).op("list volumes")? {
        let entry = entry.op("list volumes")?;
        let Some(name) = entry.file_name().to_str().filter(|name| is_name(name, MAX_CLAIM_BYTES)).map(str::to_owned)
        else {
            continue;
        };
        let bytes = fs::metadata(entry.path().join(IMAGE)).ok().map(|about| about.len());
        volumes.push(StoredVolume { name, bytes });
    }
    Ok(volumes)
}

/// Removes what killed workers left of volumes.
pub fn sweep(paths: &Paths, force: impl Fn(&Path) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(paths.volumes()).op("list volumes")? {
        let entry = entry.op("list volumes")?;
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED)
            && let Err(failure) = remove_unfinished(&entry.path(), &force)
        {
            eprintln!("osb jailer: remove what is left of a volume: {failure}");
        }
    }
    Ok(())
}

/// A volume as a detached mount.
pub fn open(paths: &Paths, name: &str) -> Result<OwnedFd> {
    let place = place(paths, name)?;
    if !place.join(IMAGE).exists() {
        return clone_one(&open_files(paths, name)?).op(format!("bind volume \"{name}\""));
    }
    let lock = File::open(place.join(LOCK)).op(format!("open the lock of volume \"{name}\""))?;
    flock(&lock, FlockOperation::LockExclusive).op(format!("lock volume \"{name}\""))?;
    mount(&place.join(IMAGE)).map_err(|failure| failure.during(format!("volume \"{name}\"")))
}

/// The directory of a volume without a size limit.
pub fn open_files(paths: &Paths, name: &str) -> Result<OwnedFd> {
    let files = place(paths, name)?.join(FILES);
    open_directory(CWD, &files).map_err(|errno| match errno {
        Errno::NOENT => Failure::internal(format!("volume \"{name}\" does not exist")),
        errno => Failure::errno(format!("open volume \"{name}\""), errno),
    })
}

/// The name is checked here as well: it becomes a path.
fn place(paths: &Paths, name: &str) -> Result<PathBuf> {
    match is_name(name, MAX_CLAIM_BYTES) {
        true => Ok(paths.volumes().join(name)),
        false => Err(Failure::new(Kind::Refused, "that is no name of a volume")),
    }
}

/// Mounts an image. Who calls holds its lock, or is the only one who knows it.
fn mount(image: &Path) -> Result<OwnedFd> {
    let device = match attached(image)? {
        Some(device) => device,
        None => {
            let file = File::options().read(true).write(true).open(image).op("open its image")?;
            sys::attach_loop(&file).op("attach its image to a loop device")?
        }
    };
    disk::mount(&device)
}

/// The loop device that an image is attached to, opened and so kept.
fn attached(image: &Path) -> Result<Option<LoopDevice>> {
    let image = fs::canonicalize(image).op("find its image")?;
    for entry in fs::read_dir("/sys/block").op("list block devices")? {
        let name = entry.op("list block devices")?.file_name().to_string_lossy().into_owned();
        let backing = || fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        let is_it = || backing().is_ok_and(|file| Path::new(file.trim_end_matches('\n')) == image);
        if !name.starts_with("loop") || !is_it() {
            continue;
        }
        let path = format!("/dev/{name}");
        let Ok(device) = File::options().read(true).write(true).open(&path) else { continue };
        // It may have been let go, and even taken for another image, before it was opened.
        if is_it() {
            return Ok(Some(LoopDevice { fd: device.into(), path }));
        }
    }
    Ok(None)
}
