//! Builds the sandbox's root file system, inside its namespaces, as its root.
//!
//! Everything is mounted from descriptors onto descriptors that were opened beneath the new root without following
//! links, so an image cannot steer a mount elsewhere. Nothing here reads a path of the host except `/dev/*` nodes, and
//! [`trust`] the machine's roots for an image that has none.

mod etc;

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
    unmount,
};

use crate::cgroup::Hierarchies;
use crate::disk;
use crate::error::{Context, Failure, Kind, Result};
use crate::sys::{self, MountChange};
use crate::trust::{self, Authority};
use crate::volumes::inside::{self, Arriving, Ready};

/// Directories of any machine, the first of which becomes the place to build in; hidden only in our own namespace.
const BUILD_PLACES: &[&str] = &["/tmp", "/mnt", "/run", "/usr"];
/// Bytes and inodes of the build place: it holds empty directories only.
const BUILD_PLACE_OPTIONS: &[(&str, &str)] = &[("size", "1m"), ("nr_inodes", "2048"), ("mode", "0700")];
/// Device nodes of every sandbox.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
/// Links in /dev that programs expect.
const DEVICE_LINKS: &[(&str, &str)] = &[
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];
/// Parts of /proc and /sys that tell about, or act on, the whole machine.
const MASKED: &[&str] = &[
    "proc/kcore",
    "proc/keys",
    "proc/key-users",
    "proc/sysrq-trigger",
    "proc/timer_list",
    "proc/kmsg",
    "proc/sched_debug",
    "proc/acpi",
    "proc/scsi",
    "proc/latency_stats",
    "proc/kallsyms",
    "proc/kpagecount",
    "proc/kpageflags",
    "proc/kpagecgroup",
    "sys/firmware",
    "sys/kernel/debug",
    "sys/kernel/security",
    "sys/devices/virtual/powercap",
];
/// Parts of /proc that may be read but not written.
const READ_ONLY: &[&str] = &["proc/sys", "proc/bus", "proc/fs", "proc/irq"];
/// Terminals of one sandbox; the machine has 4,096 for all.
const MAX_TERMINALS: &str = "256";

/// Where an image's parts come from.
pub struct Sources {
    /// Detached mounts of the layers, lowest first.
    pub layers: Vec<OwnedFd>,
    /// Detached mounts of the machine's own programs, with their places beneath the root.
    pub programs: Vec<(PathBuf, OwnedFd)>,
    /// Its volumes.
    pub volumes: Vec<Arriving>,
    /// What the sandbox writes to.
    pub disk: Writable,
}

/// Where writes go.
pub enum Writable {
    /// A detached mount that has the directories of [`disk::lay_out`].
    Disk(OwnedFd),
    /// Memory, with these bounds.
    Memory(disk::Size),
    /// A directory of the host, for ordinary users without a disk limit.
    Directory(PathBuf),
}

/// What the root needs to know of the sandbox.
pub struct Shape<'a> {
    /// Host name inside.
    pub hostname: &'a str,
    /// Working directory to make where the image lacks it.
    pub working_dir: Option<&'a str>,
    /// Bytes of /dev/shm.
    pub shm_bytes: u64,
    /// What to show beneath /sys/fs/cgroup.
    pub cgroups: Option<&'a Hierarchies>,
    /// Whom to ask for names, if anybody answers.
    pub resolver: Option<Ipv4Addr>,
    /// Whom its programs are to trust beside the image's roots.
    pub authority: Option<&'a Authority>,
}

/// Builds the root and makes it the root of this process; the host's tree is gone afterwards.
pub fn enter(sources: Sources, shape: &Shape<'_>) -> Result<()> {
    let Image { root, sessions, mut volumes, .. } = image(sources, shape)?;
    volumes.attach(&root)?;
    proc_and_sys(&root, shape)?;
    dev(&root, shape.shm_bytes, Some(&sessions))?;
    protect(&root)?;
    make_working_dir(&root, shape);
    pivot(&root)?;
    volumes.keep();
    Ok(())
}

/// An image's root, built and mounted, without what a kernel adds to it.
pub(crate) struct Image {
    /// The root, opened.
    pub root: OwnedFd,
    /// The directory of the isolated sessions, as a detached mount.
    pub sessions: OwnedFd,
    /// Memory to build in, which is gone after a [`pivot`].
    pub place: PathBuf,
    /// Its volumes, not mounted yet.
    pub volumes: Ready,
}

/// Builds the image's root.
pub(crate) fn image(sources: Sources, shape: &Shape<'_>) -> Result<Image> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).op("make mounts private")?;
    let writable = detach(sources.disk)?;
    let place = build_place()?;
    let overlaid_programs = !sources.programs.is_empty();
    let (root, areas) = overlay(&place, sources.layers, writable, shape)?;
    let root = self::place(&root, &place.join("root"))?;

    for (target, program) in sources.programs {
        attach(&program, &root, &target)?;
    }
    if overlaid_programs {
        attach(&areas.local, &root, Path::new("usr/local"))?;
    }
    if let Some(authority) = shape.authority {
        // While no /proc is there, by whose links a path could leave the root.
        trust::install(&root, &place, authority)?;
    }
    let volumes = inside::prepare(&place, sources.volumes)?;
    Ok(Image { root, sessions: areas.sessions, place, volumes })
}

/// Mounts a detached mount onto a directory of our own and opens it.
pub(crate) fn place(mount: &OwnedFd, path: &Path) -> Result<OwnedFd> {
    let op = || format!("place a mount at {}", path.display());
    move_mount(mount, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).op(op())?;
    open_directory(CWD, path).op(op())
}

/// Makes the image's working directory where the image lacks it.
pub(crate) fn make_working_dir(root: &OwnedFd, shape: &Shape<'_>) {
    if let Some(path) = shape.working_dir.and_then(|path| path.strip_prefix('/')).filter(|path| !path.is_empty()) {
        // One that is reached through a link of the image exists already, or execd will say that it does not.
        let _ = directory(root, Path::new(path));
    }
}

/// Takes hold of a directory of the host before the build tmpfs may cover it (a data directory below `/tmp`).
fn detach(writable: Writable) -> Result<Writable> {
    Ok(match writable {
        Writable::Directory(path) => Writable::Disk(clone_directory(&path)?),
        other => other,
    })
}

fn clone_directory(path: &Path) -> Result<OwnedFd> {
    let tree = clone_tree(CWD, path).op("open the disk directory")?;
    change(&tree, sys::ATTR_NOSUID | sys::ATTR_NODEV).op("bind the disk directory")?;
    Ok(tree)
}

fn build_place() -> Result<PathBuf> {
    let place = BUILD_PLACES.iter().map(Path::new).find(|path| path.is_dir());
    let place = place.ok_or_else(|| Failure::internal("this machine has none of /tmp, /mnt, /run, /usr"))?;
    let mount = filesystem("tmpfs", BUILD_PLACE_OPTIONS, sys::ATTR_NOSUID | sys::ATTR_NODEV)?;
    move_mount(&mount, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).op("place the build tmpfs")?;
    for name in ["root", "disk", "cell"] {
        std::fs::create_dir(place.join(name)).op("make a build directory")?;
    }
    Ok(place.to_owned())
}

/// Directories of the disk that are seen at places of their own, as detached mounts.
struct Areas {
    /// For `/usr/local`.
    local: OwnedFd,
    /// For the isolated sessions, hidden from the sandbox.
    sessions: OwnedFd,
}

/// Mounts the overlay.
fn overlay(place: &Path, layers: Vec<OwnedFd>, writable: Writable, shape: &Shape<'_>) -> Result<(OwnedFd, Areas)> {
    if layers.is_empty() {
        return Err(Failure::new(Kind::Image, "the image has no layers"));
    }
    let mut lower = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        let path = place.join(format!("l{index}"));
        std::fs::create_dir(&path).op("make a build directory")?;
        move_mount(layer, "", CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).op("place a layer")?;
        lower.push(path);
    }
    let disk_path = place.join("disk");
    let disk = match writable {
        Writable::Disk(mount) => mount,
        Writable::Memory(size) => {
            let (bytes, inodes) = (size.bytes.to_string(), size.inodes.to_string());
            let options = [("size", bytes.as_str()), ("nr_inodes", inodes.as_str()), ("mode", "0755")];
            filesystem("tmpfs", &options, sys::ATTR_NOSUID | sys::ATTR_NODEV)?
        }
        Writable::Directory(path) => clone_directory(&path)?,
    };
    move_mount(&disk, "", CWD, &disk_path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).op("place the disk")?;
    disk::lay_out(open_directory(CWD, &disk_path).op("open the disk")?)?;
    let upper = open_directory(CWD, &disk_path.join(disk::UPPER)).op("open the disk")?;
    etc::write(&upper, &layers, shape)?;

    let root = mount_overlay(&disk_path.join(disk::UPPER), &disk_path.join(disk::WORK), &lower).op("mount overlay")?;
    let local = local(&disk_path, &lower, &layers)?;
    let sessions = clone_tree(CWD, &disk_path.join(disk::SESSIONS)).op("open the sessions' directory")?;
    Ok((root, Areas { local, sessions }))
}

/// What becomes `/usr/local` over the machine's own programs: a directory of the disk, and beneath it those of the
/// snapshots that the sandbox was made from.
fn local(disk: &Path, lower: &[PathBuf], layers: &[OwnedFd]) -> Result<OwnedFd> {
    let place = Path::new("usr/local");
    let has_one = |layer: &OwnedFd| open_beneath(layer, place, OFlags::PATH | OFlags::DIRECTORY).is_ok();
    let kept: Vec<PathBuf> =
        lower.iter().zip(layers).filter(|(_, layer)| has_one(layer)).map(|(path, _)| path.join(place)).collect();
    let upper = disk.join(disk::LOCAL);
    if kept.is_empty() {
        return clone_tree(CWD, &upper).op("open the local directory");
    }
    for name in disk::LOCAL_DIRECTORIES {
        // Empty so far. What the snapshot has in their place is shown.
        rustix::fs::unlinkat(CWD, upper.join(name), AtFlags::REMOVEDIR).op("prepare the local directory")?;
    }
    let work = disk.join(disk::LOCAL_WORK);
    rustix::fs::mkdirat(CWD, &work, Mode::from_raw_mode(0o755)).op("prepare the local directory")?;
    mount_overlay(&upper, &work, &kept).op("mount overlay on the local directory")
}

/// Mounts an overlay of these directories, lowest first.
pub(crate) fn mount_overlay(upper: &Path, work: &Path, lower: &[PathBuf]) -> std::result::Result<OwnedFd, Errno> {
    match mount_overlay_as(upper, work, lower, Naming::Singly) {
        // Kernels before 6.7 do not know the form, and those before 6.5 say so only here.
        Err(Errno::INVAL) => mount_overlay_as(upper, work, lower, Naming::Joined),
        other => other,
    }
}

/// How overlayfs is told its lower directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Naming {
    /// One by one, which has no bound on their number.
    Singly,
    /// All in one text, which every kernel understands and which has to fit into a page with the other options.
    Joined,
}

fn mount_overlay_as(
    upper: &Path,
    work: &Path,
    lower: &[PathBuf],
    naming: Naming,
) -> std::result::Result<OwnedFd, Errno> {
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&fs, "source", "overlay")?;
    // Uppermost first.
    match naming {
        Naming::Singly => lower.iter().rev().try_for_each(|path| fsconfig_set_string(&fs, "lowerdir+", path))?,
        Naming::Joined => {
            let all: Vec<_> = lower.iter().rev().map(|path| path.display().to_string()).collect();
            fsconfig_set_string(&fs, "lowerdir", all.join(":"))?;
        }
    }
    fsconfig_set_string(&fs, "upperdir", upper)?;
    fsconfig_set_string(&fs, "workdir", work)?;
    // Spelled out because machines have different defaults; `volatile` because unmounting would otherwise sync the
    // whole file system below, everybody's dirty pages included.
    for (key, value) in [("redirect_dir", "nofollow"), ("metacopy", "off"), ("index", "off"), ("xino", "off")] {
        fsconfig_set_string(&fs, key, value)?;
    }
    for flag in ["userxattr", "volatile"] {
        fsconfig_set_flag(&fs, flag)?;
    }
    fsconfig_create(&fs)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn proc_and_sys(root: &OwnedFd, shape: &Shape<'_>) -> Result<()> {
    let inert = sys::ATTR_NOSUID | sys::ATTR_NODEV | sys::ATTR_NOEXEC;
    let proc = filesystem("proc", &[], inert)?;
    attach(&proc, root, Path::new("proc"))?;
    let sysfs = filesystem("sysfs", &[], inert | sys::ATTR_RDONLY)?;
    attach(&sysfs, root, Path::new("sys"))?;
    if let Some(cgroups) = shape.cgroups {
        cgroup_view(root, cgroups)?;
    }
    Ok(())
}

/// Shows the sandbox its own groups, read-only: programs size themselves by them.
fn cgroup_view(root: &OwnedFd, cgroups: &Hierarchies) -> Result<()> {
    let inert = sys::ATTR_NOSUID | sys::ATTR_NODEV | sys::ATTR_NOEXEC;
    let place = Path::new("sys/fs/cgroup");
    if cgroups.v1.is_empty() {
        let view = filesystem("cgroup2", &[], inert | sys::ATTR_RDONLY)?;
        return attach(&view, root, place);
    }
    let holder = filesystem("tmpfs", &[("size", "64k"), ("nr_inodes", "64"), ("mode", "0755")], inert)?;
    let mut views: Vec<(String, OwnedFd)> = Vec::new();
    for controller in cgroups.v1.keys().filter(|name| *name != "freezer") {
        let fs = fsopen("cgroup", FsOpenFlags::FSOPEN_CLOEXEC).op("open cgroup")?;
        // Controllers that are mounted together can only be mounted together again.
        let together = cgroups.v1.iter().filter(|(_, path)| Some(*path) == cgroups.v1.get(controller));
        for (name, _) in together {
            fsconfig_set_flag(&fs, name.as_str()).op(format!("choose cgroup controller {name}"))?;
        }
        fsconfig_create(&fs).op(format!("mount cgroup {controller}"))?;
        let view = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).op("mount cgroup")?;
        change(&view, inert | sys::ATTR_RDONLY).op("protect cgroup")?;
        views.push((controller.clone(), view));
    }
    if cgroups.v2.is_some() {
        views.push(("unified".to_owned(), filesystem("cgroup2", &[], inert | sys::ATTR_RDONLY)?));
    }
    for (name, _) in &views {
        rustix::fs::mkdirat(&holder, name, Mode::from_raw_mode(0o755)).op("make a cgroup directory")?;
    }
    attach(&holder, root, place)?;
    for (name, view) in &views {
        attach(view, root, &place.join(name))?;
    }
    change(&holder, inert | sys::ATTR_RDONLY).op("protect the cgroup directory")
}

/// Builds `/dev`. The message queues' mount covers the directory of the isolated sessions: whoever may unmount finds it,
/// and no process of the sandbox may.
pub(crate) fn dev(root: &OwnedFd, shm_bytes: u64, sessions: Option<&OwnedFd>) -> Result<()> {
    let plain = sys::ATTR_NOSUID | sys::ATTR_NOEXEC;
    let holder =
        filesystem("tmpfs", &[("size", "64k"), ("nr_inodes", "256"), ("mode", "0755")], plain | sys::ATTR_NODEV)?;
    for name in ["pts", "shm", "mqueue"] {
        rustix::fs::mkdirat(&holder, name, Mode::from_raw_mode(0o755)).op("make a device directory")?;
    }
    for name in DEVICES {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&holder, *name, flags, Mode::from_raw_mode(0o644)).op("make a device file")?;
    }
    for (name, target) in DEVICE_LINKS {
        rustix::fs::symlinkat(*target, &holder, *name).op("make a device link")?;
    }
    let nodes: Vec<OwnedFd> = DEVICES.iter().map(|name| device(name)).collect::<Result<_>>()?;
    attach(&holder, root, Path::new("dev"))?;
    for (name, node) in DEVICES.iter().zip(&nodes) {
        attach(node, root, &Path::new("dev").join(name))?;
    }
    let terminals = filesystem(
        "devpts",
        &[("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), ("max", MAX_TERMINALS)],
        plain,
    )?;
    attach(&terminals, root, Path::new("dev/pts"))?;
    let size = shm_bytes.to_string();
    let shm = filesystem("tmpfs", &[("size", &size), ("mode", "1777")], plain | sys::ATTR_NODEV)?;
    attach(&shm, root, Path::new("dev/shm"))?;
    if let Some(sessions) = sessions {
        attach(sessions, root, Path::new("dev/mqueue"))?;
    }
    let mqueue = filesystem("mqueue", &[], plain | sys::ATTR_NODEV)?;
    attach(&mqueue, root, Path::new("dev/mqueue"))
}

/// One device node of the host as a detached mount of its own.
fn device(name: &str) -> Result<OwnedFd> {
    let tree = clone_tree(CWD, &Path::new("/dev").join(name)).op(format!("open /dev/{name}"))?;
    change(&tree, sys::ATTR_NOSUID | sys::ATTR_NOEXEC).op(format!("bind /dev/{name}"))?;
    Ok(tree)
}

pub(crate) fn protect(root: &OwnedFd) -> Result<()> {
    let null = open_beneath(root, Path::new("dev/null"), OFlags::PATH).op("open /dev/null")?;
    // The first cover of a directory is copied for the others, from where it is mounted: kernels before 6.15 cannot copy
    // a detached mount.
    let mut nothing: Option<OwnedFd> = None;
    for path in MASKED {
        let target = match open_beneath(root, Path::new(path), OFlags::PATH) {
            Ok(target) => target,
            // Kernels are built with different parts.
            Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) => continue,
            Err(errno) => return Err(Failure::errno(format!("open /{path}"), errno)),
        };
        let is_directory = rustix::fs::fstat(&target).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFDIR);
        let cover = match (is_directory, &nothing) {
            (true, Some(nothing)) => clone_tree(nothing, Path::new("")).op("copy an empty directory")?,
            (true, None) => {
                filesystem("tmpfs", &[("size", "0"), ("nr_inodes", "1"), ("mode", "0555")], sys::ATTR_RDONLY)?
            }
            (false, _) => clone_tree(&null, Path::new("")).op("copy /dev/null")?,
        };
        mount_onto(&cover, &target).op(format!("mask /{path}"))?;
        if is_directory && nothing.is_none() {
            nothing = Some(cover);
        }
    }
    for path in READ_ONLY {
        let target = match open_beneath(root, Path::new(path), OFlags::PATH | OFlags::DIRECTORY) {
            Ok(target) => target,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(Failure::errno(format!("open /{path}"), errno)),
        };
        let tree = clone_tree(&target, Path::new("")).op(format!("open /{path}"))?;
        let attributes = sys::ATTR_RDONLY | sys::ATTR_NOSUID | sys::ATTR_NODEV | sys::ATTR_NOEXEC;
        change(&tree, attributes).op(format!("protect /{path}"))?;
        mount_onto(&tree, &target).op(format!("protect /{path}"))?;
    }
    Ok(())
}

/// Makes an opened mount the root of this process; what was there before is gone.
pub(crate) fn pivot(root: &OwnedFd) -> Result<()> {
    rustix::process::fchdir(root).op("enter the new root")?;
    rustix::process::pivot_root(".", ".").op("pivot into the new root")?;
    unmount(".", UnmountFlags::DETACH).op("leave the host's tree")?;
    rustix::process::chdir("/").op("enter the new root")
}

/// A new file system as a detached mount.
pub(crate) fn filesystem(kind: &str, options: &[(&str, &str)], attributes: u64) -> Result<OwnedFd> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).op(format!("open {kind}"))?;
    for (key, value) in options {
        if value.is_empty() {
            fsconfig_set_flag(&fs, *key).op(format!("set {key} of {kind}"))?;
        } else {
            fsconfig_set_string(&fs, *key, *value).op(format!("set {key} of {kind}"))?;
        }
    }
    fsconfig_create(&fs).op(format!("mount {kind}"))?;
    let flags = MountAttrFlags::from_bits_retain(attributes as _);
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, flags).op(format!("mount {kind}"))
}

/// Mounts onto a directory or file beneath the root, making the directory if the image lacks it.
pub(crate) fn attach(mount: &OwnedFd, root: &OwnedFd, target: &Path) -> Result<()> {
    let opened = match open_beneath(root, target, OFlags::PATH) {
        Err(Errno::NOENT) => directory(root, target)?,
        other => other.op(format!("open /{}", target.display()))?,
    };
    mount_onto(mount, &opened).op(format!("mount onto /{}", target.display()))
}

pub(crate) fn mount_onto(mount: &OwnedFd, target: &OwnedFd) -> std::result::Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags)
}

/// Opens a directory beneath the root, making what is missing, and never follows a link.
pub(crate) fn directory(root: &OwnedFd, path: &Path) -> Result<OwnedFd> {
    let mut at = PathBuf::new();
    for part in path.components() {
        at.push(part);
        match open_beneath(root, &at, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(_) => {}
            Err(Errno::NOENT) => {
                rustix::fs::mkdirat(root, &at, Mode::from_raw_mode(0o755)).op(format!("make /{}", at.display()))?;
            }
            Err(Errno::LOOP | Errno::NOTDIR) => {
                let message = format!("the image has no directory at /{}, but a link or a file", at.display());
                return Err(Failure::new(Kind::Image, message));
            }
            Err(errno) => return Err(Failure::errno(format!("open /{}", at.display()), errno)),
        }
    }
    open_beneath(root, path, OFlags::PATH | OFlags::DIRECTORY).op(format!("open /{}", path.display()))
}

pub(crate) fn open_beneath(root: &OwnedFd, path: &Path, flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty(), resolve)
}

pub(crate) fn open_directory(at: impl AsFd, path: &Path) -> std::result::Result<OwnedFd, Errno> {
    rustix::fs::openat(at, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// A detached copy of one mount, without what is mounted below it.
pub fn clone_tree(at: impl AsFd, path: &Path) -> std::result::Result<OwnedFd, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if path.as_os_str().is_empty() {
        flags |= OpenTreeFlags::AT_EMPTY_PATH;
    }
    open_tree(at, path, flags)
}

/// Sets attributes of a detached mount.
pub fn change(mount: &OwnedFd, attributes: u64) -> std::result::Result<(), Errno> {
    sys::set_mount_attributes(mount.as_fd(), MountChange { set: attributes, id_map: None })
}

/// Makes a detached mount read-only and inert, and shifts its ids into a user namespace where one is given.
pub fn seal_layer(mount: &OwnedFd, id_map: Option<BorrowedFd<'_>>) -> std::result::Result<(), Errno> {
    let set = sys::ATTR_RDONLY | sys::ATTR_NOSUID | sys::ATTR_NODEV;
    sys::set_mount_attributes(mount.as_fd(), MountChange { set, id_map })
}
