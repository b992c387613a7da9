//! Calls of cargo, with its progress shown.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::system::root;

/// Cargo, started at the workspace's root.
#[must_use]
pub fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(program);
    cargo.current_dir(root());
    // Set for us by the outer cargo; they would make the inner one build everything anew.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION", "RUST_RECURSION_COUNT"] {
        cargo.env_remove(name);
    }
    cargo
}

/// Builds packages in the release profile; returns their programs by name.
///
/// # Errors
/// The build fails.
pub fn build(packages: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    let choice: Vec<&str> = packages.iter().flat_map(|package| ["-p", package]).collect();
    build_chosen(&choice)
}

/// As [`build`], of what these flags of cargo choose.
///
/// # Errors
/// The build fails.
pub fn build_chosen(choice: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    let mut cargo = cargo();
    cargo.args(["build", "--release", "--message-format=json-render-diagnostics"]).args(choice);
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("start cargo")?;
    let stdout = child.stdout.take().context("cargo's output was not taken")?;
    let mut programs = BTreeMap::new();
    for line in BufReader::new(stdout).lines() {
        let message: Value = serde_json::from_str(&line?).unwrap_or(Value::Null);
        let name = message["target"]["name"].as_str();
        if let (Some(name), Some(path)) = (name, message["executable"].as_str()) {
            programs.insert(name.to_owned(), PathBuf::from(path));
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("cargo build ended with {status}");
    }
    Ok(programs)
}
