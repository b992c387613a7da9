//! What `runsc` is told to run: an OCI bundle's `config.json`.
//!
//! Its paths are those of the [`cell`](super::cell). Limits, ids and the network are not in it: they stand around `runsc`.

use std::path::PathBuf;

use protocol::execd::boot::HANDED_FLAG;
use rustix::thread::CapabilitySet;
use serde_json::{Value, json};

use super::cell;
use crate::init::{KEPT, OPEN_FILES};

#[cfg(test)]
mod tests;

/// Where execd is seen inside. Nothing of an image lies there.
const EXECD_INSIDE: &str = "/dev/execd";

/// What differs between sandboxes.
pub struct Shape<'a> {
    /// Host name inside.
    pub hostname: &'a str,
    /// Bytes of /dev/shm.
    pub shm_bytes: u64,
    /// Whether the image's /tmp has a mount of its own in the cell. Without one, `runsc` would put memory there.
    pub scratch: bool,
    /// The sandbox's volumes, what lies deeper later.
    pub volumes: &'a [Bind<'a>],
}

/// A volume, in the cell and inside.
pub struct Bind<'a> {
    /// Where it lies in the cell.
    pub source: PathBuf,
    /// Where it is seen.
    pub target: &'a str,
    /// Whether it can only be read.
    pub read_only: bool,
}

/// The bundle's configuration.
pub fn config(shape: &Shape<'_>) -> Value {
    let kept = capability_names(KEPT);
    let size = format!("size={}", shape.shm_bytes);
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"] }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] }),
        json!({ "destination": "/dev/pts", "type": "devpts", "source": "devpts" }),
        json!({ "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
            "options": ["nosuid", "nodev", "noexec", "mode=1777", size] }),
        json!({ "destination": "/sys", "type": "sysfs", "source": "sysfs",
            "options": ["nosuid", "noexec", "nodev", "ro"] }),
        json!({ "destination": EXECD_INSIDE, "type": "bind", "source": cell::inside(cell::EXECD), "options": ["ro"] }),
    ];
    if shape.scratch {
        let source = cell::inside(cell::SCRATCH);
        mounts.push(json!({ "destination": "/tmp", "type": "bind", "source": source, "options": ["nosuid", "nodev"] }));
    }
    for volume in shape.volumes {
        let write = if volume.read_only { "ro" } else { "rw" };
        let options = ["rbind", "nosuid", "nodev", write];
        mounts.push(json!({
            "destination": volume.target, "type": "bind", "source": volume.source, "options": options
        }));
    }
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": [EXECD_INSIDE, HANDED_FLAG],
            "env": [],
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": { "bounding": kept, "effective": kept, "permitted": kept },
            "rlimits": [
                { "type": "RLIMIT_NOFILE", "soft": OPEN_FILES, "hard": OPEN_FILES },
                { "type": "RLIMIT_CORE", "soft": 0, "hard": 0 },
            ],
        },
        "root": { "path": cell::inside(cell::ROOT) },
        "hostname": shape.hostname,
        "mounts": mounts,
        "linux": { "namespaces": [{ "type": "pid" }, { "type": "mount" }, { "type": "ipc" }, { "type": "uts" }] },
    })
}

fn capability_names(set: CapabilitySet) -> Vec<String> {
    set.iter_names().map(|(name, _)| format!("CAP_{name}")).collect()
}
