//! Builds the daemon that lives inside every sandbox and hands it to the program to carry inside.
//!
//! A nested cargo works in a target directory of its own, so that it neither waits for the outer one's lock nor
//! shares its profile. `OSB_EXECD=<path>` uses a daemon that was built before.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What the nested cargo may keep of the outer one's variables; the rest describes the outer build.
const KEPT: [&str; 8] = [
    "CARGO_HOME",
    "CARGO_MAKEFLAGS",
    "CARGO_NET_OFFLINE",
    "CARGO_NET_GIT_FETCH_WITH_CLI",
    "CARGO_HTTP_PROXY",
    "CARGO_HTTP_CAINFO",
    "CARGO_HTTP_TIMEOUT",
    "CARGO_HTTP_MULTIPLEXING",
];

/// Variables of the outer build without the prefix `CARGO_`.
const DROPPED: [&str; 13] = [
    "RUSTFLAGS",
    "RUSTC",
    "RUSTDOC",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_LINKER",
    "TARGET",
    "HOST",
    "OUT_DIR",
    "PROFILE",
    "DEBUG",
    "OPT_LEVEL",
    "NUM_JOBS",
];

fn main() {
    println!("cargo::rerun-if-env-changed=OSB_EXECD");
    let carried = PathBuf::from(variable("OUT_DIR")).join("execd");
    let built = match env::var_os("OSB_EXECD") {
        Some(path) => {
            println!("cargo::rerun-if-changed={}", Path::new(&path).display());
            PathBuf::from(path)
        }
        None => build(),
    };
    // A new file, never a write through an old one: that could be the executable of a running sandbox.
    let _ = fs::remove_file(&carried);
    if let Err(error) = fs::copy(&built, &carried) {
        panic!("copy {} to {}: {error}", built.display(), carried.display());
    }
}

/// Builds the daemon and returns its path.
fn build() -> PathBuf {
    let workspace = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../..");
    for part in ["crates/execd/src", "crates/execd/Cargo.toml", "crates/protocol", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", workspace.join(part).display());
    }
    let triple = variable("TARGET");
    let target_dir = target_dir(&triple).join("execd-embed");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["build", "--quiet", "--package", "execd", "--bin", "execd", "--profile", "execd", "--target", &triple]);
    cargo.current_dir(&workspace);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let outer = text.starts_with("CARGO_") || text == "CARGO" || text.starts_with("DEP_");
        let registry = text.starts_with("CARGO_REGISTR") || text.starts_with("CARGO_SOURCE_");
        if (outer && !registry && !KEPT.contains(&&*text)) || DROPPED.contains(&&*text) {
            cargo.env_remove(&name);
        }
    }
    cargo.env("CARGO_TARGET_DIR", &target_dir);
    match cargo.status() {
        Ok(status) if status.success() => target_dir.join(triple).join("execd/execd"),
        Ok(status) => panic!("the build of execd ended with {status}; its errors are above"),
        Err(error) => panic!("start cargo for execd: {error}"),
    }
}

/// The outer build's target directory: five or six levels above `OUT_DIR`.
fn target_dir(triple: &str) -> PathBuf {
    let out = PathBuf::from(variable("OUT_DIR"));
    let profile = out.ancestors().nth(3).expect("OUT_DIR is <target>[/<triple>]/<profile>/build/<package>/out");
    let above = profile.parent().expect("a profile directory has a parent");
    if above.file_name().is_some_and(|name| name == triple) {
        above.parent().expect("a triple's directory has a parent").to_owned()
    } else {
        above.to_owned()
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo sets {name}: {error}"))
}
