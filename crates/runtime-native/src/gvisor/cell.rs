//! The root in which `runsc` runs: memory with the image's root, two programs and a bundle, and nothing of the host's tree.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::bundle;
use crate::error::{Context, Failure, Result};
use crate::rootfs::{self, Shape, Sources};
use crate::sys;

/// The image's root.
pub(super) const ROOT: &str = "root";
/// The image's root as a path in the cell.
pub(crate) const ROOT_PLACE: &str = "/root";
/// The image's /tmp.
pub(super) const SCRATCH: &str = "scratch";
/// execd.
pub(super) const EXECD: &str = "execd";
/// gVisor itself.
pub(super) const RUNSC: &str = "runsc";
/// The bundle's directory.
pub(super) const BUNDLE: &str = "bundle";
/// Where `runsc` keeps its own state.
pub(super) const STATE: &str = "state";
/// What `runsc` says of itself.
pub(super) const LOG: &str = "log";
/// The place of a volume in the cell, by its position after sorting by depth.
fn volume_name(index: usize) -> String {
    format!("volume-{index}")
}

/// The same as a path in the cell.
pub(crate) fn volume_place(index: usize) -> String {
    inside(&volume_name(index)).display().to_string()
}

/// Bytes and inodes of the cell: a bundle, two records of `runsc` and its log.
const OPTIONS: &[(&str, &str)] = &[("size", "4m"), ("nr_inodes", "1024"), ("mode", "0755")];
/// Bytes of /dev/shm that nobody uses: the sandbox has one of its own.
const UNUSED_SHM_BYTES: u64 = 64 << 10;

/// The place of something in the cell, as whoever lives there sees it.
pub(super) fn inside(name: &str) -> PathBuf {
    Path::new("/").join(name)
}

/// Programs that are shown in the cell, as detached mounts.
pub(crate) struct Parts {
    /// gVisor.
    pub runsc: OwnedFd,
    /// execd.
    pub execd: OwnedFd,
}

/// The root of this process.
pub(crate) struct Cell {
    /// The image's root, opened.
    pub root: OwnedFd,
}

impl Cell {
    /// Builds the image's root and the cell around it, and makes the cell the root of this process.
    pub fn enter(sources: Sources, parts: Parts, shape: &Shape<'_>) -> Result<Self> {
        let mut image = rootfs::image(sources, shape)?;
        rootfs::make_working_dir(&image.root, shape);
        let cell = rootfs::filesystem("tmpfs", OPTIONS, sys::ATTR_NOSUID | sys::ATTR_NODEV)?;
        let cell = rootfs::place(&cell, &image.place.join("cell"))?;
        rootfs::attach(&rootfs::filesystem("proc", &[], INERT)?, &cell, Path::new("proc"))?;
        rootfs::attach(&rootfs::filesystem("sysfs", &[], INERT | sys::ATTR_RDONLY)?, &cell, Path::new("sys"))?;
        rootfs::dev(&cell, UNUSED_SHM_BYTES, None)?;
        let scratch = scratch(&image.root)?;
        if let Some(scratch) = &scratch {
            rootfs::attach(scratch, &cell, Path::new(SCRATCH))?;
        }
        for name in ["tmp", BUNDLE, STATE] {
            rootfs::directory(&cell, Path::new(name))?;
        }
        attach_file(&parts.runsc, &cell, RUNSC)?;
        attach_file(&parts.execd, &cell, EXECD)?;
        let mut volumes = Vec::new();
        for (index, (volume, _, cut)) in image.volumes.volumes.iter().enumerate() {
            let name = volume_name(index);
            match cut.is_directory {
                true => rootfs::attach(&cut.mount, &cell, Path::new(&name))?,
                false => attach_file(&cut.mount, &cell, &name)?,
            }
            volumes.push(bundle::Bind {
                source: inside(&name),
                target: &volume.mount_path,
                read_only: volume.read_only,
            });
        }
        let config = bundle::config(&bundle::Shape {
            hostname: shape.hostname,
            shm_bytes: shape.shm_bytes,
            scratch: scratch.is_some(),
            volumes: &volumes,
        });
        write(&cell, &format!("{BUNDLE}/config.json"), config.to_string().as_bytes())?;
        rootfs::attach(&image.root, &cell, Path::new(ROOT))?;
        rootfs::pivot(&cell)?;
        image.volumes.keep();
        Ok(Self { root: image.root })
    }
}

/// What nobody executes from.
const INERT: u64 = sys::ATTR_NOSUID | sys::ATTR_NODEV | sys::ATTR_NOEXEC;

/// The image's /tmp as a mount of its own, unless that is no directory.
fn scratch(root: &OwnedFd) -> Result<Option<OwnedFd>> {
    let Ok(directory) = rootfs::open_beneath(root, Path::new("tmp"), OFlags::PATH | OFlags::DIRECTORY) else {
        return Ok(None);
    };
    rootfs::clone_tree(&directory, Path::new("")).op("open the image's /tmp").map(Some)
}

fn attach_file(mount: &OwnedFd, cell: &OwnedFd, name: &str) -> Result<()> {
    write(cell, name, b"")?;
    rootfs::attach(mount, cell, Path::new(name))
}

fn write(cell: &OwnedFd, name: &str, text: &[u8]) -> Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file =
        rustix::fs::openat(cell, name, flags, Mode::from_raw_mode(0o600)).op(format!("make {name} in the cell"))?;
    let written = rustix::io::write(&file, text).op(format!("write {name} in the cell"))?;
    match written == text.len() {
        true => Ok(()),
        false => Err(Failure::internal(format!("write {name} in the cell: it is cut off"))),
    }
}
