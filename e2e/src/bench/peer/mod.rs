//! Who is measured beside us, each in its own way of doing the comparable thing.

pub mod docker;
pub mod floor;
pub mod launcher;
pub mod nginx;
pub mod pipeline;
pub mod way_out;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Where Debian's static busybox lies.
const BUSYBOX: &str = "/bin/busybox";
/// Names under which an image offers it.
const APPLETS: &[&str] = &["sh", "true", "sleep", "yes", "head", "seq"];

/// Makes a root file system with a static busybox in it.
///
/// # Errors
/// busybox is not installed, or the directory cannot be written.
pub fn root_filesystem(at: &Path) -> Result<PathBuf> {
    for part in ["bin", "proc", "dev", "sys", "tmp"] {
        std::fs::create_dir_all(at.join(part))?;
    }
    std::fs::copy(BUSYBOX, at.join("bin/busybox")).context("copy busybox: is busybox-static installed?")?;
    for applet in APPLETS {
        std::os::unix::fs::symlink("busybox", at.join("bin").join(applet))?;
    }
    Ok(at.to_owned())
}
