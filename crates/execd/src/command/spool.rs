//! Private directories for what execd keeps on a disk; made again when they are gone.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Name of the private directory.
const DIRECTORY: &str = "opensandbox-execd";
/// Where it is tried, in this order, after `TMPDIR`.
const BASES: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Private directories that exist or could be made just now.
pub fn directories() -> impl Iterator<Item = PathBuf> {
    let chosen = std::env::var_os("TMPDIR").map(PathBuf::from).filter(|base| base.is_absolute());
    chosen.into_iter().chain(BASES.map(PathBuf::from)).filter_map(|base| private(&base))
}

/// The private directory under `base`: ours, closed to others, and no link.
fn private(base: &Path) -> Option<PathBuf> {
    if base == Path::new(BASES[0]) && !base.exists() {
        // What a user deleted with `rm -rf /tmp` other programs miss, too.
        let _ = DirBuilder::new().mode(0o1777).create(base);
        let _ = fs::set_permissions(base, std::os::unix::fs::PermissionsExt::from_mode(0o1777));
    }
    let path = base.join(DIRECTORY);
    let _ = DirBuilder::new().mode(0o700).create(&path); // it may be there already: looked at next
    let found = fs::symlink_metadata(&path).ok()?;
    let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    ours.then_some(path)
}
