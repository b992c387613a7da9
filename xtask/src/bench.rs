//! `cargo xtask bench`: installs the peers, builds what is measured, and starts the bench program.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::system::{ensure_packages, is_root, output, root, run as start, step, work};

/// The peers, and what they and the sandboxes need.
const PACKAGES: &[&str] = &[
    "bubblewrap",
    "crun",
    "runc",
    "docker.io",
    "nginx-light",
    "libnginx-mod-stream",
    "python3-venv",
    "busybox-static",
    "e2fsprogs",
    "uidmap",
    "tar",
    "iproute2",
    "nftables",
];
/// The peer for credentials. Later ones want a newer Python than Debian 12 has.
const MITMPROXY: &str = "mitmproxy==11.0.2";

/// Measures everything, or the rows that are named; `--quick` runs a tenth and leaves `docs/bench.md` alone.
///
/// # Errors
/// This is not root, or a peer or a build fails.
pub fn run(arguments: &[String]) -> Result<()> {
    if !is_root() {
        bail!("the bench starts dockerd, crun and runc: run it as root");
    }
    step("peers", || ensure_packages(PACKAGES))?;
    let mitmdump = step("mitmproxy", ensure_mitmproxy)?;
    let examples = ["-p", "runtime-native", "--example", "floor", "-p", "egress", "--example", "way-out"];
    let chosen = [&["-p", "osb", "--bin", "osb", "-p", "e2e", "--bin", "bench"][..], &examples].concat();
    let programs = step("build", || cargo::build_chosen(&chosen))?;
    let program = |name: &str| programs.get(name).with_context(|| format!("cargo built no {name}"));
    let osb = program("osb")?;
    // A part of the bench is no table: only a whole and full run replaces the one in the docs.
    let work = root().join("target");
    let markdown = if arguments.is_empty() { root().join("docs/bench.md") } else { work.join("bench.md") };
    step("measure", || {
        let mut bench = Command::new(program("bench")?);
        bench.arg("--osb").arg(osb).arg("--floor").arg(program("floor")?).arg("--execd").arg(execd(osb)?);
        bench.arg("--way-out").arg(program("way-out")?).arg("--mitmdump").arg(&mitmdump);
        bench.arg("--json").arg(work.join("bench.json")).arg("--markdown").arg(&markdown);
        bench.arg("--revision").arg(revision()?).args(arguments);
        start(&mut bench)
    })?;
    println!("\n{}", std::fs::read_to_string(&markdown).with_context(|| format!("read {}", markdown.display()))?);
    Ok(())
}

/// mitmproxy in an environment of its own; installed once.
fn ensure_mitmproxy() -> Result<PathBuf> {
    let environment = work().join("mitmproxy");
    let program = environment.join("bin/mitmdump");
    if program.exists() {
        return Ok(program);
    }
    start(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    start(Command::new(environment.join("bin/pip")).args(["install", "--quiet", MITMPROXY]))?;
    Ok(program)
}

/// The execd that the build of `osb` left beside it: `<target>/execd-embed/<triple>/execd/execd`.
fn execd(osb: &Path) -> Result<PathBuf> {
    let triple = osb.ancestors().nth(2).context("osb lies in <target>/<triple>/release")?;
    let name = triple.file_name().context("a triple has a name")?;
    let path = triple.with_file_name("execd-embed").join(name).join("execd/execd");
    if !path.exists() {
        bail!("the build of osb left no execd at {}", path.display());
    }
    Ok(path)
}

fn revision() -> Result<String> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["describe", "--always", "--dirty", "--exclude=*"]);
    Ok(output(&mut git)?.trim().to_owned())
}
