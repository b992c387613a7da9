//! bwrap, crun and runc: one start of a static `true` in namespaces of its own, from the start of the launcher to
//! its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// A launcher with what it needs to run.
pub struct Launcher {
    /// Its name.
    pub name: &'static str,
    command: Box<dyn Fn(usize) -> Command>,
    started: usize,
}

impl Launcher {
    /// One start.
    ///
    /// # Errors
    /// It does not end with 0.
    pub fn run(&mut self) -> Result<f64> {
        self.started += 1;
        let mut command = (self.command)(self.started);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let start = Instant::now();
        let status = command.status().with_context(|| format!("start {}: is it installed?", self.name))?;
        let millis = start.elapsed().as_secs_f64() * 1e3;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(millis)
    }
}

/// The three launchers over one root file system.
///
/// # Errors
/// A directory cannot be written.
pub fn all(scratch: &Path) -> Result<Vec<Launcher>> {
    let directory = tempfile::Builder::new().prefix("launch-").tempdir_in(scratch)?.keep();
    let root = super::root_filesystem(&directory.join("rootfs"))?;
    let bundle = bundle(&directory)?;
    let bwrap = move |_| {
        let mut command = Command::new("bwrap");
        command.args(["--unshare-all", "--die-with-parent", "--ro-bind"]).arg(&root);
        command.args(["/", "--proc", "/proc", "--dev", "/dev", "/bin/true"]);
        command
    };
    Ok(vec![
        Launcher { name: "bwrap", command: Box::new(bwrap), started: 0 },
        oci("crun", &directory, bundle.clone()),
        oci("runc", &directory, bundle),
    ])
}

fn oci(name: &'static str, directory: &Path, bundle: PathBuf) -> Launcher {
    let state = directory.join(name);
    let command = move |number: usize| {
        let mut command = Command::new(name);
        command.arg("--root").arg(&state).args(["run", "--bundle"]).arg(&bundle);
        command.arg(format!("osb-bench-{}-{number}", std::process::id()));
        command
    };
    Launcher { name, command: Box::new(command), started: 0 }
}

/// A bundle beside the root file system: the namespaces and limits of our own sandboxes, a short filter.
fn bundle(directory: &Path) -> Result<PathBuf> {
    let mount = |target: &str, kind: &str| json!({ "destination": target, "type": kind, "source": kind, "options": ["nosuid", "nodev", "noexec"] });
    let namespaces: Vec<Value> =
        ["pid", "network", "ipc", "uts", "mount", "cgroup", "user"].iter().map(|kind| json!({ "type": kind })).collect();
    let ids = json!([{ "containerID": 0, "hostID": 0, "size": 65536 }]);
    let config = json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false, "user": { "uid": 0, "gid": 0 }, "args": ["/bin/true"], "env": ["PATH=/bin"], "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": { "bounding": [], "effective": [], "permitted": [] },
        },
        "root": { "path": "rootfs", "readonly": true },
        "hostname": "bench",
        "mounts": [mount("/proc", "proc"), mount("/dev/shm", "tmpfs")],
        "linux": {
            "namespaces": namespaces, "uidMappings": ids, "gidMappings": ids,
            "resources": {
                "memory": { "limit": 512 << 20 }, "cpu": { "quota": 100_000, "period": 100_000 }, "pids": { "limit": 512 },
            },
            "seccomp": {
                "defaultAction": "SCMP_ACT_ALLOW",
                "syscalls": [{ "names": ["mount", "umount2", "bpf", "keyctl"], "action": "SCMP_ACT_ERRNO" }],
            },
        },
    });
    fs::write(directory.join("config.json"), config.to_string())?;
    Ok(directory.to_owned())
}
