//! The results of the last whole run, as `test` wrote them and `cases` reads them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::system::work;

/// One test that ran.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TestResult {
    /// Which suite: `rust`, `python as root`, ...
    pub suite: String,
    /// Full name of the test.
    pub name: String,
    /// `passed`, `failed` or `ignored`.
    pub outcome: String,
    /// Of a failed test: its last words.
    #[serde(default)]
    pub reason: String,
}

fn path() -> PathBuf {
    work().join("results.json")
}

/// Writes the results of a run.
///
/// # Errors
/// The file cannot be written.
pub fn save(results: &[TestResult]) -> Result<()> {
    std::fs::create_dir_all(work())?;
    let text = serde_json::to_string_pretty(results)?;
    std::fs::write(path(), text).with_context(|| format!("write {}", path().display()))
}

/// Reads the results of the last run.
///
/// # Errors
/// There was none.
pub fn load() -> Result<Vec<TestResult>> {
    let path = path();
    let text =
        std::fs::read(&path).with_context(|| format!("read {}: run `cargo xtask test` first", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))
}
