//! `floor`: the example of the native runtime that does the least.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

/// What one start of the example said.
#[derive(Deserialize)]
pub struct Floor {
    micros: Vec<u64>,
    wall_micros: u64,
}

impl Floor {
    /// Runs it.
    ///
    /// # Errors
    /// It fails: it needs root.
    pub fn run(program: &Path, runs: usize, workers: usize) -> Result<Self> {
        let mut command = Command::new(program);
        command.args([runs.to_string(), workers.to_string()]);
        let output = command.output().with_context(|| format!("start {}", program.display()))?;
        ensure!(
            output.status.success(),
            "floor ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Milliseconds of each run.
    pub fn millis(&self) -> Vec<f64> {
        self.micros.iter().map(|micros| *micros as f64 / 1000.0).collect()
    }

    /// Runs in a second, clearing away included.
    pub fn rate(&self) -> f64 {
        self.micros.len() as f64 / (self.wall_micros as f64 / 1e6)
    }
}
