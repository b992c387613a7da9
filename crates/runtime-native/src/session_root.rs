//! Builds the mounts of an isolated session, inside the sandbox, in a copy of its mount namespace.
//!
//! What the session may write to is opened first, then everything is made read-only, then the session's own places and
//! its workspaces are mounted over that. Every path is the sandbox's own: resolved in its root, without the links of
//! `/proc`, and mounted onto what was opened beneath the root without following a link.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lifecycle::isolated::{ALLOWED_SOURCES, Mount, MountKind, SessionId, SessionSpec, is_below};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, OpenTreeFlags, UnmountFlags, mount_change, open_tree, unmount};

use crate::disk;
use crate::error::{Context, Failure, Kind, Result};
use crate::rootfs::{self, attach, directory, filesystem, mount_onto, open_beneath, open_directory};
use crate::sys;

/// What covers the sessions' directory in every sandbox.
const COVER: &str = "/dev/mqueue";
/// Bytes and files of a session's `/run`, which is memory.
const RUN_OPTIONS: &[(&str, &str)] = &[("size", "16m"), ("nr_inodes", "4096"), ("mode", "0755")];
/// Directory in the session's own directory that is its `/tmp`.
const TMP: &str = "tmp";

/// What to build.
pub struct Shape<'a> {
    /// The session.
    pub id: &'a SessionId,
    /// Its mounts.
    pub spec: &'a SessionSpec,
    /// Bytes of `/dev/shm`.
    pub shm_bytes: u64,
    /// Bytes of each workspace in memory.
    pub ephemeral_bytes: u64,
}

/// The two sides of an overlay.
pub struct Sides {
    /// The sandbox's directory, writable.
    pub lower: OwnedFd,
    /// What the session wrote.
    pub upper: OwnedFd,
}

/// Something that will be mounted.
struct Prepared {
    /// Where, beneath the root.
    place: PathBuf,
    mount: OwnedFd,
    is_directory: bool,
}

/// Builds everything; gives the sides of the overlays, in the order of the mounts.
pub fn enter(shape: &Shape<'_>) -> Result<Vec<Sides>> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).op("make mounts private")?;
    let root = open_directory(CWD, Path::new("/")).op("open the sandbox's root")?;
    let area = open_area()?;
    let own = make(&area, shape.id.as_str(), 0o700)?;

    let mut prepared = Vec::new();
    let mut sides = Vec::new();
    for (index, mount) in shape.spec.mounts.iter().enumerate() {
        let (target, place) = workspace(&root, mount, shape.spec.owner)?;
        let mount = match mount.kind {
            MountKind::Rw => copy(&target)?,
            MountKind::Ro => read_only(copy(&target)?)?,
            MountKind::Overlay | MountKind::Ephemeral => {
                let at = make(&own, &index.to_string(), 0o700)?;
                let (mount, both) = overlay(&target, at, mount, shape)?;
                sides.push(both);
                mount
            }
        };
        prepared.push(Prepared { place, mount, is_directory: true });
    }
    for bind in &shape.spec.binds {
        let (target, _) = resolve(&root, &bind.source, OFlags::PATH)
            .map_err(|errno| named(errno, &format!("{}: cannot be bound", bind.source)))?;
        let real = path_of(&target)?;
        if !ALLOWED_SOURCES.iter().any(|allowed| real.to_str().is_some_and(|real| is_below(real, allowed))) {
            return Err(invalid(format!(
                "{}: leads to {}, which lies below none of {ALLOWED_SOURCES:?}",
                bind.source,
                real.display()
            )));
        }
        let stat = rustix::fs::fstat(&target).op(format!("look at {}", bind.source))?;
        let is_directory = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
        let mount = copy(&target)?;
        let mount = if bind.read_only { read_only(mount)? } else { mount };
        let place = if bind.dest == bind.source { relative(&real) } else { relative(Path::new(&bind.dest)) };
        prepared.push(Prepared { place, mount, is_directory });
    }
    let tmp = if shape.spec.own_tmp { make(&own, TMP, 0o1777)? } else { directory(&root, Path::new("tmp"))? };
    let tmp = copy(&tmp)?;
    // Shallow first: what lies deeper is seen in what lies above it.
    prepared.sort_by_key(|one| one.place.components().count());
    for name in ["run", "tmp"] {
        directory(&root, Path::new(name))?;
    }
    for one in prepared.iter().filter(|one| !one.place.starts_with("tmp") && !one.place.starts_with("run")) {
        place(&root, one)?;
    }
    unmount(COVER, UnmountFlags::DETACH).op("leave the sessions' directory")?;
    sys::set_tree_attributes(root.as_fd(), sys::ATTR_RDONLY).op("make the root read-only")?;

    let inert = sys::ATTR_NOSUID | sys::ATTR_NODEV;
    attach(&filesystem("proc", &[], inert | sys::ATTR_NOEXEC)?, &root, Path::new("proc"))?;
    rootfs::dev(&root, shape.shm_bytes, None)?;
    attach(&filesystem("tmpfs", RUN_OPTIONS, inert)?, &root, Path::new("run"))?;
    attach(&tmp, &root, Path::new("tmp"))?;
    for one in &prepared {
        let target = place(&root, one)?;
        mount_onto(&one.mount, &target).op(format!("mount onto /{}", one.place.display()))?;
    }
    rustix::process::chdir("/").op("enter the session's root")?;
    Ok(sides)
}

/// Hides what of the machine and of the session's own settings must not be seen or written; the last step.
pub fn protect() -> Result<()> {
    let root = open_directory(CWD, Path::new("/")).op("open the session's root")?;
    rootfs::protect(&root)
}

/// Removes what a session wrote; for a process in the sandbox's user namespace and a mount namespace of its own.
pub fn remove(id: &SessionId) -> Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).op("make mounts private")?;
    let area = open_area()?;
    // Not by way of /proc/self: this process is not in the PID namespace whose /proc it sees.
    rustix::process::fchdir(&area).op("enter the sessions' directory")?;
    match fs::remove_dir_all(id.as_str()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).op("remove what the session wrote"),
        _ => Ok(()),
    }
}

/// Uncovers and opens the directory of all sessions.
fn open_area() -> Result<OwnedFd> {
    unmount(COVER, UnmountFlags::DETACH).op("uncover the sessions' directory")?;
    let area = open_directory(CWD, Path::new(COVER)).op("open the sessions' directory")?;
    let device = |path: &str| fs::metadata(path).map(|meta| meta.dev()).op(format!("look at {path}"));
    if device(COVER)? == device("/dev")? {
        let message = "this sandbox was made by a version without isolated sessions; make a new one";
        return Err(Failure::new(Kind::Unsupported, message));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(area, ".", flags, Mode::empty()).op("open the sessions' directory")
}

fn make(at: &OwnedFd, name: &str, mode: u32) -> Result<OwnedFd> {
    match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(Failure::errno("make the session's directory", errno)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(at, name, flags, Mode::empty()).op("open the session's directory")?;
    rustix::fs::fchmod(&made, Mode::from_raw_mode(mode)).op("open the session's directory to its user")?;
    Ok(made)
}

/// Opens a workspace, making it where it is missing, and says where it really lies.
fn workspace(root: &OwnedFd, mount: &Mount, owner: Option<(u32, u32)>) -> Result<(OwnedFd, PathBuf)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let found = match resolve(root, &mount.path, flags) {
        Err(Errno::NOENT) => {
            make_workspace(root, &mount.path, owner)?;
            resolve(root, &mount.path, flags)
        }
        other => other,
    };
    let (target, place) = found.map_err(|errno| named(errno, &format!("{}: cannot be a workspace", mount.path)))?;
    let real = Path::new("/").join(&place);
    if place.as_os_str().is_empty() || ["/proc", "/sys", "/dev"].iter().any(|own| real.starts_with(own)) {
        return Err(invalid(format!("{}: leads to {}, which cannot be a workspace", mount.path, real.display())));
    }
    Ok((target, place))
}

fn make_workspace(root: &OwnedFd, path: &str, owner: Option<(u32, u32)>) -> Result<()> {
    let mut at = PathBuf::from("/");
    for part in Path::new(path).components().skip(1) {
        at.push(part);
        let shown = at.to_string_lossy().into_owned();
        if resolve(root, &shown, OFlags::PATH | OFlags::DIRECTORY).is_ok() {
            continue;
        }
        let (parent, _) =
            resolve(root, &at.parent().unwrap_or(&at).to_string_lossy(), OFlags::PATH | OFlags::DIRECTORY)
                .map_err(|errno| named(errno, &format!("{path}: cannot be made")))?;
        let name = part.as_os_str();
        rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))
            .map_err(|errno| named(errno, &format!("{path}: cannot be made")))?;
        if let Some((uid, gid)) = owner {
            let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
            // Else it is merely not writable for the user.
            let _ = rustix::fs::chownat(&parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
        }
    }
    Ok(())
}

/// Opens a path of the sandbox, following its links within its root but none of `/proc`.
fn resolve(root: &OwnedFd, path: &str, flags: OFlags) -> std::result::Result<(OwnedFd, PathBuf), Errno> {
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), within)?;
    let real = path_of(&found).map_err(|_| Errno::NOENT)?;
    Ok((found, relative(&real)))
}

fn path_of(fd: &OwnedFd) -> Result<PathBuf> {
    fs::read_link(name_of(fd)).op("read a path back")
}

/// A name by which the kernel finds an open directory.
fn name_of(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn relative(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

/// A writable copy of what lies there, with the mounts below it.
fn copy(target: &OwnedFd) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(target, "", flags).op("copy a directory of the sandbox")
}

fn read_only(mount: OwnedFd) -> Result<OwnedFd> {
    sys::set_tree_attributes(mount.as_fd(), sys::ATTR_RDONLY).op("make a mount read-only")?;
    Ok(mount)
}

/// An overlay of the sandbox's directory whose writes go to `at`, or to memory.
fn overlay(target: &OwnedFd, at: OwnedFd, mount: &Mount, shape: &Shape<'_>) -> Result<(OwnedFd, Sides)> {
    let at = if mount.kind == MountKind::Ephemeral {
        let bytes = shape.ephemeral_bytes.to_string();
        let memory =
            filesystem("tmpfs", &[("size", bytes.as_str()), ("mode", "0700")], sys::ATTR_NOSUID | sys::ATTR_NODEV)?;
        mount_onto(&memory, &at).op("place the session's memory")?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&memory, ".", flags, Mode::empty()).op("open the session's memory")?
    } else {
        at
    };
    let upper = make(&at, disk::UPPER, 0o755)?;
    let work = make(&at, disk::WORK, 0o755)?;
    // The top of an overlay is that of its upper side.
    let top = rustix::fs::fstat(target).op("look at a workspace")?;
    let (uid, gid) = (rustix::fs::Uid::from_raw(top.st_uid), rustix::fs::Gid::from_raw(top.st_gid));
    rustix::fs::fchown(&upper, Some(uid), Some(gid)).op("give the overlay its owner")?;
    rustix::fs::fchmod(&upper, Mode::from_raw_mode(top.st_mode & 0o7777)).op("give the overlay its mode")?;
    let mounted = rootfs::mount_overlay(&name_of(&upper), &name_of(&work), &[name_of(target)]);
    let mounted = mounted.map_err(|errno| match errno {
        Errno::INVAL => Failure::new(
            Kind::Unsupported,
            format!(
                "{}: mode overlay: this sandbox's file systems are stacked too deep for another overlay",
                mount.path
            ),
        ),
        errno => Failure::errno(format!("overlay {}", mount.path), errno),
    })?;
    let lower = copy(target)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lower = rustix::fs::openat(&lower, ".", flags, Mode::empty()).op("open a workspace")?;
    Ok((mounted, Sides { lower, upper }))
}

/// Opens the place of a mount beneath the root, making what is missing.
fn place(root: &OwnedFd, one: &Prepared) -> Result<OwnedFd> {
    if one.is_directory {
        return directory(root, &one.place);
    }
    match open_beneath(root, &one.place, OFlags::PATH) {
        Err(Errno::NOENT) => {
            if let Some(parent) = one.place.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                directory(root, parent)?;
            }
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            rustix::fs::openat2(root, &one.place, flags, Mode::from_raw_mode(0o644), within)
                .op(format!("make /{}", one.place.display()))?;
            open_beneath(root, &one.place, OFlags::PATH).op(format!("open /{}", one.place.display()))
        }
        other => other.op(format!("open /{}", one.place.display())),
    }
}

fn named(errno: Errno, what: &str) -> Failure {
    invalid(Failure::errno(what, errno).message)
}

fn invalid(message: String) -> Failure {
    Failure::new(Kind::Invalid, message)
}
