//! What the sandbox's first process does with its volumes: cut them to what was asked for, and mount them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use lifecycle::volume::{Source, Volume};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::clone_whole;
use super::host::{Made, reach};
use crate::error::{Context, Failure, Kind, Result};
use crate::rootfs;
use crate::sys::{self, MountChange};

/// A volume with the detached mount of all of it.
pub struct Arriving {
    /// What was asked for.
    pub volume: Volume,
    /// Its whole.
    pub mount: OwnedFd,
}

/// Volumes that only have to be mounted.
#[derive(Default)]
pub(crate) struct Ready {
    /// Each with its place beneath the root; what lies deeper comes later.
    pub volumes: Vec<(Volume, PathBuf, Cut)>,
    /// Directories that were made within them.
    made: Made,
}

/// What is mounted of a volume.
pub(crate) struct Cut {
    /// A detached mount.
    pub mount: OwnedFd,
    /// Whether it is a directory, and not a file.
    pub is_directory: bool,
}

/// Cuts the volumes to what was asked for, in a place that goes with the host's tree.
pub(crate) fn prepare(place: &Path, arriving: Vec<Arriving>) -> Result<Ready> {
    let mut ready = Ready::default();
    for (index, Arriving { volume, mount }) in arriving.into_iter().enumerate() {
        let mount = match &volume.sub_path {
            None => mount,
            Some(sub_path) => part(&volume, mount, &place.join(format!("v{index}")), sub_path, &mut ready.made)?,
        };
        let cut = finish(&volume, mount)?;
        let target =
            Path::new(&volume.mount_path).strip_prefix("/").unwrap_or(Path::new(&volume.mount_path)).to_owned();
        ready.volumes.push((volume, target, cut));
    }
    ready.volumes.sort_by_key(|(_, target, _)| target.components().count());
    Ok(ready)
}

/// A path within a volume, which cannot lead out of it.
fn part(volume: &Volume, whole: OwnedFd, place: &Path, sub_path: &str, made: &mut Made) -> Result<OwnedFd> {
    let wrong = |problem: &str| {
        Failure::new(Kind::SubPath, format!("volume \"{}\": subPath \"{sub_path}\" {problem}", volume.name))
    };
    std::fs::create_dir(place).op("make a build directory")?;
    let whole = match rootfs::place(&whole, place) {
        Err(_) if !is_directory(&whole) => return Err(wrong("names a part of what is a file")),
        other => other?,
    };
    let found = reach(&whole, Path::new(sub_path), Some(made)).map_err(|errno| match errno {
        Errno::XDEV | Errno::LOOP => wrong("leads out of the volume"),
        Errno::NOTDIR => wrong("leads through what is no directory"),
        errno => Failure { kind: Kind::SubPath, ..Failure::errno(wrong("cannot be opened").message, errno) },
    })?;
    clone_whole(&found).op(format!("volume \"{}\": bind its subPath", volume.name))
}

/// Makes a mount inert, and read-only where that was asked for, with all that is mounted below.
fn finish(volume: &Volume, mount: OwnedFd) -> Result<Cut> {
    let read_only = if volume.read_only { sys::ATTR_RDONLY } else { 0 };
    let change = MountChange { set: sys::ATTR_NOSUID | sys::ATTR_NODEV | read_only, id_map: None };
    sys::change_tree(mount.as_fd(), change).op(format!("volume \"{}\": protect it", volume.name))?;
    let is_directory = is_directory(&mount);
    let is_file = file_type(&mount) == Some(libc::S_IFREG);
    if !is_directory && !is_file {
        let kind = match volume.source {
            Source::Host { .. } => Kind::HostPath,
            Source::Named(_) => Kind::SubPath,
        };
        let message = format!("volume \"{}\": only a directory or a plain file can be mounted", volume.name);
        return Err(Failure::new(kind, message));
    }
    Ok(Cut { mount, is_directory })
}

fn file_type(fd: &OwnedFd) -> Option<u32> {
    rustix::fs::fstat(fd).ok().map(|stat| stat.st_mode & libc::S_IFMT)
}

fn is_directory(fd: &OwnedFd) -> bool {
    file_type(fd) == Some(libc::S_IFDIR)
}

impl Ready {
    /// Mounts them beneath the root. Nothing in the image is followed that is a link.
    pub fn attach(&self, root: &OwnedFd) -> Result<()> {
        for (volume, target, cut) in &self.volumes {
            let during = |failure: Failure| failure.during(format!("volume \"{}\"", volume.name));
            let place = match cut.is_directory {
                true => rootfs::directory(root, target),
                false => file(root, target),
            };
            let place = place.map_err(during)?;
            rootfs::mount_onto(&cut.mount, &place).op(format!("mount it at {}", volume.mount_path)).map_err(during)?;
        }
        Ok(())
    }

    /// Leaves what was made within them.
    pub fn keep(&mut self) {
        self.made.keep();
    }
}

/// Opens a plain file beneath the root, making it and its directories where they are missing.
fn file(root: &OwnedFd, path: &Path) -> Result<OwnedFd> {
    match rootfs::open_beneath(root, path, OFlags::PATH) {
        Err(Errno::NOENT) => {}
        Ok(found) if file_type(&found) == Some(libc::S_IFREG) => return Ok(found),
        Ok(_) | Err(Errno::LOOP | Errno::NOTDIR) => {
            let message = format!("the image has no plain file at /{}", path.display());
            return Err(Failure::new(Kind::Image, message));
        }
        Err(errno) => return Err(Failure::errno(format!("open /{}", path.display()), errno)),
    }
    let op = || format!("make /{}", path.display());
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Failure::internal("a volume has no place"));
    };
    let held;
    let parent = match parent.as_os_str().is_empty() {
        true => root,
        false => {
            held = rootfs::directory(root, parent)?;
            &held
        }
    };
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o644)).op(op())?;
    rootfs::open_beneath(parent, Path::new(name), OFlags::PATH).op(op())
}
