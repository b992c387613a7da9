//! bwrap, crun and runc: one start of a static `true` in namespaces of its own, from the start of the launcher to
//! its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// crun refuses a version 2 tree with controllers beside version 1, so it does not get to see that tree.
const ALONE: &str = "if grep --quiet . /sys/fs/cgroup/unified/cgroup.controllers 2>/dev/null; then umount /sys/fs/cgroup/unified; fi; \
    exec \"$@\"";

/// A launcher with what it needs to run.
pub struct Launcher {
    /// Its name.
    pub name: &'static str,
    words: Vec<String>,
}

impl Launcher {
    /// So many starts, one after another; milliseconds of each.
    ///
    /// # Errors
    /// One does not end with 0.
    pub fn run(&self, times: usize) -> Result<Vec<f64>> {
        let program = std::env::current_exe()?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", ALONE, "sh"]).arg(program).arg("repeat").arg(times.to_string());
        let output = command.args(&self.words).stdin(Stdio::null()).output().context("start unshare")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {said}", self.name);
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// Runs a command again and again and prints the milliseconds of each run as JSON.
///
/// # Errors
/// It cannot be started or does not end with 0.
pub fn repeat(times: usize, words: &[String]) -> Result<()> {
    let (name, arguments) = words.split_first().context("repeat what?")?;
    let mut samples = Vec::with_capacity(times);
    for _ in 0..times {
        let mut command = Command::new(name);
        command.args(arguments).stdin(Stdio::null());
        let start = Instant::now();
        let output = command.output().with_context(|| format!("start {name}: is it installed?"))?;
        samples.push(start.elapsed().as_secs_f64() * 1e3);
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{name} ended with {}: {said}", output.status);
    }
    println!("{}", serde_json::to_string(&samples)?);
    Ok(())
}

/// The three launchers over one root file system.
///
/// # Errors
/// A directory cannot be written.
pub fn all(scratch: &Path) -> Result<Vec<Launcher>> {
    let directory = tempfile::Builder::new().prefix("launch-").tempdir_in(scratch)?.keep();
    let root = super::root_filesystem(&directory.join("rootfs"))?.display().to_string();
    let bundle = bundle(&directory)?.display().to_string();
    let bwrap = [
        "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        &root,
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "/bin/true",
    ];
    let oci = |name: &'static str| {
        let (state, id) = (directory.join(name).display().to_string(), format!("osb-bench-{}", std::process::id()));
        let words = [name, "--root", &state, "run", "--bundle", &bundle, &id];
        Launcher { name, words: words.map(str::to_owned).to_vec() }
    };
    Ok(vec![Launcher { name: "bwrap", words: bwrap.map(str::to_owned).to_vec() }, oci("crun"), oci("runc")])
}

/// A bundle beside the root file system: the namespaces and limits of our own sandboxes, a short filter.
fn bundle(directory: &Path) -> Result<PathBuf> {
    let mount = |target: &str, kind: &str| json!({ "destination": target, "type": kind, "source": kind, "options": ["nosuid", "nodev", "noexec"] });
    let namespaces: Vec<Value> = ["pid", "network", "ipc", "uts", "mount", "cgroup", "user"]
        .iter()
        .map(|kind| json!({ "type": kind }))
        .collect();
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
