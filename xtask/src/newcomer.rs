//! `cargo xtask newcomer [demo|test]`: a fresh Debian 12, a Rust toolchain, a clone, and the two commands.
//!
//! Not part of `test`: it repeats all of it from nothing, and takes as long again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::system::{self, output, root, run as run_command, step};

/// Where the root is made; on a disk, since the build takes some gigabytes.
const PLACE: &str = "/var/tmp/osb-newcomer";
/// All that the machine has beside the toolchain: cargo needs a linker, and git the certificates.
const INCLUDED: &str = "ca-certificates,gcc,libc6-dev";

/// Runs the given commands of the README, or both.
///
/// # Errors
/// The root cannot be made, or a command ends with anything but 0.
pub fn run(chosen: &[String]) -> Result<()> {
    if !system::is_root() {
        bail!("a root file system is made by root: sudo -E cargo xtask newcomer");
    }
    let commands: Vec<&str> = match chosen {
        [] => vec!["demo", "test"],
        some => some.iter().map(String::as_str).collect(),
    };
    step("mmdebstrap", || system::ensure_packages(&["mmdebstrap", "git"]))?;
    let place = Path::new(PLACE);
    step("a fresh Debian 12", || make_root(place))?;
    step("a Rust toolchain and a clone", || fill(place))?;
    let mounts = Mounts::make(place)?;
    for command in &commands {
        step(&format!("cargo xtask {command}, as a newcomer"), || {
            run_command(
                Command::new("chroot")
                    .arg(place)
                    .args(["/bin/sh", "-c", "cd /root/osb && exec cargo xtask \"$0\"", command])
                    .env("PATH", "/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
                    .env("HOME", "/root")
                    .env_remove("CARGO_HOME")
                    .env_remove("RUSTUP_HOME")
                    .env_remove("RUSTUP_TOOLCHAIN")
                    .env_remove("CARGO_TARGET_DIR")
                    .env_remove("CARGO")
                    .env_remove("CARGO_MANIFEST_DIR"),
            )
        })?;
    }
    drop(mounts);
    fs::remove_dir_all(place).with_context(|| format!("remove {PLACE}"))?;
    println!("\nnewcomer: {} ended with 0", commands.join(" and "));
    Ok(())
}

fn make_root(place: &Path) -> Result<()> {
    if place.exists() {
        fs::remove_dir_all(place).with_context(|| format!("remove {PLACE} of an earlier run"))?;
    }
    run_command(
        Command::new("mmdebstrap").args(["--variant=minbase", &format!("--include={INCLUDED}"), "bookworm"]).arg(place),
    )?;
    // The network of this machine is the network of that one.
    for file in ["/etc/resolv.conf", "/etc/hosts"] {
        fs::copy(file, place.join(file.trim_start_matches('/')))?;
    }
    let trusted = Path::new("/etc/ssl/certs/ca-certificates.crt");
    if trusted.exists() {
        fs::copy(trusted, place.join("etc/ssl/certs/ca-certificates.crt"))?;
    }
    Ok(())
}

fn fill(place: &Path) -> Result<()> {
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    run_command(Command::new("cp").args(["-a", sysroot.trim()]).arg(place.join("opt/rust")))?;
    run_command(
        Command::new("git").args(["clone", "--quiet", "--no-hardlinks"]).arg(root()).arg(place.join("root/osb")),
    )
}

/// The kernel's file systems in the new root, as a machine has them.
struct Mounts(Vec<PathBuf>);

impl Mounts {
    fn make(place: &Path) -> Result<Self> {
        let mut made = Self(Vec::new());
        for source in ["/proc", "/sys", "/dev"] {
            let target = place.join(source.trim_start_matches('/'));
            run_command(Command::new("mount").args(["--rbind", "--make-rslave", source]).arg(&target))?;
            made.0.push(target);
        }
        Ok(made)
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for target in self.0.iter().rev() {
            if let Err(error) = run_command(Command::new("umount").args(["--recursive", "--lazy"]).arg(target)) {
                eprintln!("    {error:#}");
            }
        }
    }
}
