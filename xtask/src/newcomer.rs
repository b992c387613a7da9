//! `cargo xtask newcomer [demo|test]`: a fresh Debian 12, a Rust toolchain, a clone, and the two commands.
//!
//! Not part of `test`: it repeats all of it from nothing, and takes as long again.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::system::{self, output, root, run as run_command, step};

/// Where the root is made; on a disk, since the build takes some gigabytes.
const PLACE: &str = "/var/tmp/osb-newcomer";
/// All that the machine has beside the toolchain: cargo needs a linker, and git the certificates.
const INCLUDED: &str = "ca-certificates,gcc,libc6-dev";
/// Makes the directory `$0` the root of a mount namespace of its own and runs the README's command `$1` there. Not
/// by `chroot`: the kernel makes no user namespace for a process whose root is not that of its mount namespace.
const ENTER: &str = r#"
mount --bind "$0" "$0"
for kernel in proc sys dev; do mount --rbind "/$kernel" "$0/$kernel"; done
cd "$0"
pivot_root . mnt
umount --lazy /mnt
cd /root/osb
exec cargo xtask "$1"
"#;

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
    for command in &commands {
        step(&format!("cargo xtask {command}, as a newcomer"), || {
            let mut newcomer = Command::new("unshare");
            newcomer.args(["--mount", "--propagation", "private", "/bin/sh", "-euc", ENTER]);
            newcomer.arg(place).arg(command);
            newcomer.env("PATH", "/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
            newcomer.env("HOME", "/root");
            let ours =
                ["CARGO", "CARGO_HOME", "CARGO_MANIFEST_DIR", "CARGO_TARGET_DIR", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"];
            for name in ours {
                newcomer.env_remove(name);
            }
            run_command(&mut newcomer)
        })?;
    }
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
