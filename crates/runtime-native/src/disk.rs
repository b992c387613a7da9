//! The sandbox's disk: a sparse ext4 image on a loop device, never mounted anywhere on the host.
//!
//! The image is unlinked as soon as a loop device holds it, the loop device is cleared by the kernel at its last
//! close, and the mount is detached: whoever dies, nothing of a disk can be left over.
//!
//! Making and giving back an image costs some ten milliseconds of processor time, most of it in the kernel. A sandbox
//! therefore gets a copy of the mount where the kernel can copy detached mounts, and a disk on which little was
//! written is emptied and used again.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, SeekFrom};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};

use serde::{Deserialize, Serialize};

use crate::error::{Context, Failure, Kind, Result};
use crate::sys::{self, LoopDevice};

/// Size of a disk when the request names none.
pub const DEFAULT_BYTES: u64 = 10 << 30;
/// Bytes for each inode when the request names no number of inodes: the ratio of ext4 itself.
const BYTES_PER_INODE: u64 = 16 << 10;
/// Smallest disk that ext4 accepts with room to work in.
pub const MIN_BYTES: u64 = 4 << 20;
/// Largest disk: the host would have to hold it sooner or later.
pub const MAX_BYTES: u64 = 4 << 40;
/// Piece by which sparse images are copied.
const COPY_BYTES: usize = 256 << 10;

/// No copies of the superblock and all structures at the front: an empty image is then 4 pieces instead of 16, and a
/// host that discards what it frees needs some milliseconds for each piece when the image goes.
const EXTENDED: &str = "nodiscard,lazy_itable_init=1,root_owner=0:0,num_backup_sb=0,packed_meta_blocks=1";

/// Directory of a disk that holds what the sandbox writes over its image.
pub const UPPER: &str = "upper";
/// Directory that overlayfs works in.
pub const WORK: &str = "work";
/// Directory that appears as `/usr/local` where the machine's own programs are bound.
pub const LOCAL: &str = "local";
/// Directory that overlayfs works in where `/usr/local` lies over that of a snapshot.
pub const LOCAL_WORK: &str = "local-work";
/// Directories of [`LOCAL`], as distributions have them.
pub const LOCAL_DIRECTORIES: [&str; 8] = ["bin", "etc", "games", "include", "lib", "sbin", "share", "src"];
/// Directory that holds what the sandbox's isolated sessions write, one directory for each.
pub const SESSIONS: &str = "sessions";

/// Bytes and inodes of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Bytes, file system structures included.
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
}

impl Size {
    /// The size for these limits, defaults filled in.
    pub fn of(bytes: Option<u64>, inodes: Option<u64>) -> Self {
        let bytes = bytes.unwrap_or(DEFAULT_BYTES);
        Self { bytes, inodes: inodes.unwrap_or(bytes / BYTES_PER_INODE) }
    }
}

/// Most bytes that may be written on a disk, over all its uses, before it is given back: what is deleted on it stays
/// allocated in the image.
const RECYCLED_BYTES: u64 = 64 << 20;
/// Bytes of an inode, as [`format`] asks for them; what was once written stays allocated in the image.
const INODE_BYTES: u64 = 256;
/// The first inode that ext4 gives to files.
const FIRST_INODE: u64 = 11;
/// Inodes beyond the ones in use at the end of a life, for those that it deleted before.
const INODES_APART: u64 = 64;
/// Most files a disk may hold and still be emptied: about as many are deleted in the time a new disk takes.
const RECYCLED_FILES: u64 = 2_000;

/// An empty disk: a detached mount.
pub struct Disk {
    /// The mount.
    pub mount: OwnedFd,
    /// What it can hold.
    pub size: Size,
    /// What is free on it, and was used up on it before.
    pub state: Record,
}

/// What must be known of a disk to use it again; travels with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Blocks that are free while it holds nothing but the directories of [`lay_out`].
    pub free_blocks: u64,
    /// Inodes that are free then.
    pub free_inodes: u64,
    /// Bytes that earlier uses wrote.
    pub spent_bytes: u64,
    /// Number of the inode from which on the next use takes its own, see [`begin_at`].
    #[serde(default)]
    pub next_inode: u64,
}

impl Disk {
    /// A copy of the mount, to be changed and given away; `None` where the kernel cannot copy detached mounts (before
    /// Linux 6.15).
    pub fn copy(&self) -> Option<OwnedFd> {
        crate::rootfs::clone_tree(&self.mount, Path::new("")).ok()
    }

    /// Deletes everything that was written, if that is little, and says what must be known for the next use. `None`
    /// means that the disk is to be given back. No process of its sandbox may be left.
    pub fn emptied(&self) -> Option<Record> {
        let root = open_root(&self.mount).ok()?;
        let used = rustix::fs::fstatfs(&root).ok()?;
        let bytes = self.state.free_blocks.saturating_sub(used.f_bfree) * used.f_bsize as u64;
        let files = self.state.free_inodes.saturating_sub(used.f_ffree);
        let spent_bytes = self.state.spent_bytes + bytes + files * INODE_BYTES;
        if spent_bytes > RECYCLED_BYTES || files > RECYCLED_FILES {
            return None;
        }
        for name in [UPPER, WORK, LOCAL, LOCAL_WORK, SESSIONS] {
            // By way of the descriptor, since the mount has no name; the standard library's walk follows no links.
            let path = format!("/proc/self/fd/{}/{name}", std::os::fd::AsRawFd::as_raw_fd(&root));
            match fs::remove_dir_all(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return None,
                _ => {}
            }
        }
        lay_out(&root).ok()?;
        let left = rustix::fs::fstatfs(&root).ok()?;
        let is_empty = left.f_bfree == self.state.free_blocks && left.f_ffree == self.state.free_inodes;
        if !is_empty {
            return None;
        }
        let next_inode = (self.state.next_inode.max(FIRST_INODE) + files + INODES_APART) % left.f_files.max(1);
        begin_at(&root, next_inode);
        Some(Record { spent_bytes, next_inode, ..self.state })
    }
}

/// Tells the file system from which number on inodes are taken. Without a journal ext4 leaves a deleted inode alone for a
/// minute or more, and passes over each of them again at every file that is made: of all that a create does on its disk,
/// that was the largest part. A kernel without the setting serves a little slower.
fn begin_at(root: &OwnedFd, inode: u64) {
    let Ok(stat) = rustix::fs::fstat(root) else { return };
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let Ok(device) = fs::read_link(format!("/sys/dev/block/{major}:{minor}")) else { return };
    if let Some(name) = device.file_name() {
        let goal = Path::new("/sys/fs/ext4").join(name).join("inode_goal");
        let _ = fs::write(goal, inode.to_string()); // as said above
    }
}

/// Opens the top directory of a mount.
pub fn open_root(mount: &OwnedFd) -> std::result::Result<OwnedFd, Errno> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::openat(mount, ".", flags, Mode::empty())
}

/// Mounts a sparse ext4 image.
pub fn mount(device: &LoopDevice) -> Result<OwnedFd> {
    let fs = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).op("open ext4")?;
    fsconfig_set_string(&fs, "source", device.path.as_str()).op("choose the loop device")?;
    // Without it a kernel thread writes all inode tables, which would fill the sparse image.
    fsconfig_set_flag(&fs, "noinit_itable").op("set noinit_itable")?;
    fsconfig_create(&fs).op("mount a disk image")?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes).op("mount a disk image")
}

/// Makes a fresh disk from the template of its size, making the template first if need be.
pub fn make(disks: &Path, size: Size) -> Result<Disk> {
    let template = template(disks, size)?;
    let image = copy_sparse(&template, disks)?;
    let mount = mount(&sys::attach_loop(&image).op("attach a disk image to a loop device")?)?;
    let root = open_root(&mount).op("open a disk")?;
    lay_out(&root)?;
    let free = rustix::fs::fstatfs(&root).op("measure a disk")?;
    let state = Record { free_blocks: free.f_bfree, free_inodes: free.f_ffree, spent_bytes: 0, next_inode: 0 };
    Ok(Disk { mount, size, state })
}

/// Makes the directories that every disk has, where they are missing: image disks get theirs beforehand. They belong to
/// root of whoever mounts.
pub fn lay_out(root: impl AsFd) -> Result<()> {
    let root = root.as_fd();
    for name in [UPPER, WORK, LOCAL, SESSIONS] {
        match rustix::fs::mkdirat(root, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Failure::errno(format!("make {name} on the disk"), errno)),
        }
    }
    for name in LOCAL_DIRECTORIES {
        match rustix::fs::mkdirat(root, format!("{LOCAL}/{name}"), Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Failure::errno(format!("make {LOCAL}/{name} on the disk"), errno)),
        }
    }
    Ok(())
}

/// The formatted, empty image of this size.
fn template(disks: &Path, size: Size) -> Result<PathBuf> {
    let path = disks.join(format!("template-{}-{}.ext4", size.bytes, size.inodes));
    if path.exists() {
        return Ok(path);
    }
    let temporary = disks.join(format!("new-{}-{}", std::process::id(), size.bytes));
    let made = format(&temporary, size).and_then(|()| fs::rename(&temporary, &path).op("name a disk template"));
    if made.is_err() {
        // The first error counts; a leftover is swept at the next start.
        let _ = fs::remove_file(&temporary);
    }
    made.map(|()| path)
}

fn format(path: &Path, size: Size) -> Result<()> {
    let file = File::create(path).op("make a disk template")?;
    file.set_len(size.bytes).op("make a disk template")?;
    let output = Command::new("mkfs.ext4")
        .args(["-q", "-F", "-m", "0", "-b", "4096", "-I", "256", "-O", "^has_journal,^resize_inode,sparse_super2"])
        .args(["-E", EXTENDED, "-N", &size.inodes.to_string()])
        .arg(path)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|error| {
        Failure::new(Kind::Unsupported, format!("run mkfs.ext4: {error}; install e2fsprogs for disk limits"))
    })?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::internal(format!("mkfs.ext4: {}", words.trim())));
    }
    Ok(())
}

/// Copies the written parts of an image into a file without a name.
fn copy_sparse(template: &Path, directory: &Path) -> Result<File> {
    let source = File::open(template).op("open the disk template")?;
    let length = source.metadata().op("measure the disk template")?.len();
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let target: File = rustix::fs::open(directory, flags, Mode::from_raw_mode(0o600)).op("make a disk image")?.into();
    target.set_len(length).op("make a disk image")?;
    let mut buffer = vec![0u8; COPY_BYTES];
    let mut at = 0u64;
    loop {
        let data = match rustix::fs::seek(&source, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(target),
            Err(errno) => return Err(Failure::errno("copy the disk template", errno)),
        };
        let end = rustix::fs::seek(&source, SeekFrom::Hole(data)).op("copy the disk template")?;
        at = data;
        while at < end {
            let piece = (end - at).min(COPY_BYTES as u64) as usize;
            source.read_exact_at(&mut buffer[..piece], at).op("copy the disk template")?;
            target.write_all_at(&buffer[..piece], at).op("copy the disk template")?;
            at += piece as u64;
        }
    }
}
