//! What a reader must know of the machine and of the peers.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Facts in the order of showing.
///
/// # Errors
/// A peer is not installed.
pub fn facts(revision: &str, mitmdump: &str) -> Result<Vec<(String, String)>> {
    let uname = rustix::system::uname();
    let cpus = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    let cores = std::thread::available_parallelism()?;
    let memory = super::process::meminfo("MemTotal")?;
    let cgroups = if fs::exists("/sys/fs/cgroup/cgroup.controllers")? {
        "version 2"
    } else if fs::exists("/sys/fs/cgroup/unified")? {
        "hybrid: version 1 with an empty version 2 tree"
    } else {
        "version 1"
    };
    let root = fs::read_to_string("/proc/mounts")?;
    let disk = root.lines().filter_map(|line| line.split(' ').nth(2)).next().unwrap_or("unknown").to_owned();
    let mut facts = vec![
        ("date".to_owned(), command("date", &["-u", "+%Y-%m-%d %H:%M UTC"])?),
        ("revision".to_owned(), revision.to_owned()),
        ("cores".to_owned(), format!("{cores} x {}", model.unwrap_or("unknown").trim())),
        ("memory".to_owned(), format!("{:.1} GiB", memory as f64 / (1u64 << 30) as f64)),
        ("kernel".to_owned(), uname.release().to_string_lossy().into_owned()),
        ("cgroups".to_owned(), cgroups.to_owned()),
        ("root file system".to_owned(), disk),
        ("load before".to_owned(), fs::read_to_string("/proc/loadavg")?.split(' ').next().unwrap_or("").to_owned()),
    ];
    for (name, arguments) in [
        ("bwrap", &["--version"][..]),
        ("crun", &["--version"]),
        ("runc", &["--version"]),
        ("dockerd", &["--version"]),
        ("nginx", &["-v"]),
        (mitmdump, &["--version"]),
    ] {
        let version = command(name, arguments)?;
        let name = name.rsplit('/').next().unwrap_or(name);
        facts.push((name.to_owned(), version.lines().next().unwrap_or("").to_owned()));
    }
    Ok(facts)
}

/// What a command says, on either stream.
fn command(name: &str, arguments: &[&str]) -> Result<String> {
    let output =
        Command::new(name).args(arguments).output().with_context(|| format!("run {name}: is it installed?"))?;
    ensure!(output.status.success(), "{name} {arguments:?} ended with {}", output.status);
    let said = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    Ok(String::from_utf8_lossy(&said).trim().to_owned())
}
