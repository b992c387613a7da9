//! `cargo xtask bench [--runs N]`: our figures and the peers' in one run; writes docs/bench.md.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::system::{self, root, run as run_command, step};

/// The peers and what compiles the yardstick.
const PACKAGES: [&str; 7] =
    ["bubblewrap", "crun", "runc", "docker.io", "e2fsprogs", "gcc", "libc6-dev"];

/// Installs the peers and measures.
///
/// # Errors
/// Something is missing, or our own part fails.
pub fn run(arguments: &[String]) -> Result<()> {
    if !system::is_root() {
        bail!("the peers need root: sudo -E cargo xtask bench");
    }
    step("the peers", || system::ensure_packages(&PACKAGES))?;
    let programs = step("build", || cargo::build(&["osb", "e2e"]))?;
    let osb = programs.get("osb").context("cargo built no osb")?;
    let bench = programs.get("bench").context("cargo built no bench")?;
    step("measure; leave the machine alone meanwhile", || {
        run_command(
            Command::new(bench)
                .args(arguments)
                .args(["--out", &root().join("docs").display().to_string()])
                .env("OSB_BIN", osb),
        )
    })
}
