//! Volumes: opened outside of the sandbox, mounted inside.
//!
//! What is mounted is always what a descriptor refers to, never what a path means at the time of the mount: a link that is
//! exchanged in between changes nothing. As root the jailer opens, since it alone can map ids ([`open_all`]); an ordinary
//! user's first process opens for itself, by the same rules, in its copy of the user's mounts ([`open_here`]). Paths within
//! volumes are resolved by the first process, with no more rights than the sandbox's root has ([`inside`]).

pub mod host;
pub mod inside;
pub mod named;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lifecycle::volume::{self, MAX_VOLUMES, Source, Volume};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use self::host::{HostPaths, Made};
use self::inside::Arriving;
use crate::error::{Context, Failure, Kind, Result};
use crate::paths::Paths;
use crate::rootfs;
use crate::sys::{self, MountChange};
use crate::wire::Plan;

/// Refuses volumes that no create could have asked for, and host paths that the operator does not allow.
pub fn check(plan: &Plan, allowed: &HostPaths) -> Result<()> {
    let refuse = |message: String| Err(Failure::new(Kind::Refused, message));
    if plan.volumes.len() > MAX_VOLUMES {
        return refuse(format!("a plan has at most {MAX_VOLUMES} volumes, this one {}", plan.volumes.len()));
    }
    for (index, volume) in plan.volumes.iter().enumerate() {
        let mistake = volume::mistake_in_mount_path(&volume.mount_path)
            .or(volume.sub_path.as_deref().and_then(volume::mistake_in_relative));
        if let Some(mistake) = mistake {
            return refuse(format!("volume {index} of the plan has a path that {mistake}"));
        }
        match &volume.source {
            Source::Host { path } if volume::mistake_in_path(path).is_some() => {
                return refuse(format!("volume {index} of the plan has no canonical host path"));
            }
            Source::Host { path } if !allowed.allows(path) => return Err(host::not_allowed(&volume.name)),
            Source::Named(claim) if !volume::is_name(&claim.name, volume::MAX_CLAIM_BYTES) => {
                return refuse(format!("volume {index} of the plan has no name of a volume"));
            }
            Source::Host { .. } | Source::Named(_) => {}
        }
    }
    Ok(())
}

/// Makes what is missing of the host paths; what was made is undone unless it is kept.
pub fn make_missing(plan: &Plan, allowed: &HostPaths) -> Result<Made> {
    let mut made = Made::default();
    for volume in &plan.volumes {
        if let Source::Host { path } = &volume.source {
            host::open(&volume.name, path, allowed, Some(&mut made))?;
        }
    }
    Ok(made)
}

/// Opens every volume as a detached mount whose ids are those of the user namespace.
pub fn open_all(plan: &Plan, paths: &Paths, allowed: &HostPaths, ids: BorrowedFd<'_>) -> Result<Vec<OwnedFd>> {
    plan.volumes.iter().map(|volume| open_mapped(volume, paths, allowed, ids)).collect()
}

fn open_mapped(volume: &Volume, paths: &Paths, allowed: &HostPaths, ids: BorrowedFd<'_>) -> Result<OwnedFd> {
    let name = &volume.name;
    let tree = match &volume.source {
        Source::Host { path } => {
            let opened = host::open(name, path, allowed, None)?;
            clone_whole(&opened).op(format!("volume \"{name}\": bind its host path"))?
        }
        Source::Named(claim) => named::open(paths, &claim.name)?,
    };
    let change = MountChange { set: sys::ATTR_NOSUID | sys::ATTR_NODEV, id_map: Some(ids) };
    match sys::change_tree(tree.as_fd(), change) {
        Ok(()) => Ok(tree),
        // So the kernel says that a file system knows no id-mapped mounts.
        Err(Errno::INVAL) => {
            let kind = host::file_system(&tree);
            let message = format!(
                "volume \"{name}\": ids cannot be mapped on its file system ({kind}), or on one mounted beneath it; use a \
                 path on ext4, xfs or btrfs without other mounts, or a named volume"
            );
            Err(Failure::new(Kind::Unsupported, message))
        }
        Err(errno) => Err(Failure::errno(format!("volume \"{name}\": map its ids"), errno)),
    }
}

/// Opens every volume in the mount namespace of this process, with its rights.
pub fn open_here(plan: &Plan, paths: &Paths, allowed: &HostPaths) -> Result<Vec<Arriving>> {
    let open = |volume: &Volume| -> Result<Arriving> {
        let opened = match &volume.source {
            Source::Host { path } => host::open(&volume.name, path, allowed, None)?,
            Source::Named(claim) => named::open_files(paths, &claim.name)?,
        };
        let mount = clone_whole(&opened).op(format!("volume \"{}\": bind it", volume.name))?;
        Ok(Arriving { volume: volume.clone(), mount })
    };
    plan.volumes.iter().map(open).collect()
}

/// A detached copy of what lies there, with the mounts below it.
pub(crate) fn clone_whole(at: &OwnedFd) -> std::result::Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(at, "", flags)
}

/// A detached copy of one directory, without what is mounted below it.
fn clone_one(at: &OwnedFd) -> std::result::Result<OwnedFd, Errno> {
    rootfs::clone_tree(at, std::path::Path::new(""))
}
