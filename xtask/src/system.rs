//! What a run needs of the machine: packages, users, visible steps.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Name of the ordinary user under whom a part of the tests runs.
pub const TEST_USER: &str = "osb-e2e";

/// The workspace's root.
#[must_use]
pub fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let beside = manifest.and_then(|path| path.parent().map(Path::to_owned));
    beside.unwrap_or_else(|| PathBuf::from("."))
}

/// Where runs keep their results.
#[must_use]
pub fn work() -> PathBuf {
    root().join("target/xtask")
}

/// Whether this process is root.
#[must_use]
pub fn is_root() -> bool {
    own_uid() == Some(0)
}

/// The effective id, as the kernel tells it: no libc needed.
fn own_uid() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// A program in `PATH`.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Announces a step, does it, and tells how long it took.
///
/// # Errors
/// What the step itself reports.
pub fn step<T>(title: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("\n==> {title}");
    let started = Instant::now();
    let done = work().with_context(|| title.to_owned())?;
    println!("    done in {:.1} s", started.elapsed().as_secs_f64());
    Ok(done)
}

/// Runs a command with its output shown, and insists on success.
///
/// # Errors
/// It cannot be started or fails.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("start {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs a command quietly and returns its standard output.
///
/// # Errors
/// It cannot be started or fails; then with its standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("start {}", shown(command)))?;
    if !output.status.success() {
        bail!(
            "{} ended with {}:\n{}{}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Installs the Debian packages that are missing.
///
/// # Errors
/// Something is missing and this is not root, or there is no apt, or apt fails.
pub fn ensure_packages(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages.iter().copied().filter(|name| !installed(name)).collect();
    if missing.is_empty() {
        println!("    all packages are there: {}", packages.join(" "));
        return Ok(());
    }
    let line = format!("apt-get install -y --no-install-recommends {}", missing.join(" "));
    if !is_root() {
        bail!("these packages are missing and only root can install them:\n  sudo {line}");
    }
    if find("apt-get").is_none() {
        bail!("this machine has no apt-get; install by its own means: {}", missing.join(" "));
    }
    println!("    installing {}", missing.join(" "));
    run(apt().args(["update", "-q"]))?;
    run(apt().args(["install", "-y", "-q", "--no-install-recommends"]).args(&missing))
}

fn apt() -> Command {
    let mut apt = Command::new("apt-get");
    apt.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    apt
}

fn installed(package: &str) -> bool {
    let query =
        Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}", package]).stderr(Stdio::null()).output();
    query.is_ok_and(|output| output.stdout == b"installed")
}

/// Makes the ordinary user of the tests, with a range of subordinate ids.
///
/// # Errors
/// `useradd` fails.
pub fn ensure_test_user() -> Result<()> {
    let users = std::fs::read_to_string("/etc/passwd").context("read /etc/passwd")?;
    if !users.lines().any(|line| line.starts_with(&format!("{TEST_USER}:"))) {
        run(Command::new("useradd").args(["--create-home", "--shell", "/bin/bash", TEST_USER]))?;
    }
    let ranges = std::fs::read_to_string("/etc/subuid").unwrap_or_default();
    if !ranges.lines().any(|line| line.starts_with(&format!("{TEST_USER}:"))) {
        bail!("{TEST_USER} has no range in /etc/subuid: delete the user and run again");
    }
    Ok(())
}
