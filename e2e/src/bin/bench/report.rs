//! Percentiles and the two forms of the result.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

/// One measured thing.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What is measured; rows of the same group are compared.
    pub group: String,
    /// By whom.
    pub who: String,
    /// Times, or none where the figure is no time.
    pub p50_ms: Option<f64>,
    /// As above.
    pub p99_ms: Option<f64>,
    /// Another figure, with its unit.
    pub figure: Option<String>,
    /// How many runs.
    pub runs: usize,
}

impl Row {
    /// A row of durations.
    pub fn times(group: &str, who: &str, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: f64| {
            let index = ((times.len() as f64 * share).ceil() as usize).clamp(1, times.len()) - 1;
            times[index].as_secs_f64() * 1000.0
        };
        let row = Self {
            group: group.into(),
            who: who.into(),
            p50_ms: (!times.is_empty()).then(|| at(0.50)),
            p99_ms: (!times.is_empty()).then(|| at(0.99)),
            figure: None,
            runs: times.len(),
        };
        row.tell();
        row
    }

    /// A row with a figure of another kind.
    pub fn figure(group: &str, who: &str, figure: String) -> Self {
        let row = Self {
            group: group.into(),
            who: who.into(),
            p50_ms: None,
            p99_ms: None,
            figure: Some(figure),
            runs: 1,
        };
        row.tell();
        row
    }

    fn tell(&self) {
        println!(
            "{:<34} {:<28} {:>9} {:>9} {}",
            self.group,
            self.who,
            shown(self.p50_ms),
            shown(self.p99_ms),
            self.figure.as_deref().unwrap_or_default()
        );
    }
}

fn shown(time: Option<f64>) -> String {
    time.map_or_else(String::new, |ms| format!("{ms:.2}"))
}

/// Writes `bench.json` and `bench.md` into `out`.
///
/// # Errors
/// The files cannot be written.
pub fn write(out: &Path, runs: usize, rows: &[Row]) -> Result<()> {
    std::fs::create_dir_all(out)?;
    let json = serde_json::to_string_pretty(rows)?;
    let path = out.join("bench.json");
    std::fs::write(&path, json + "\n").with_context(|| format!("write {}", path.display()))?;
    let floor = rows.iter().find(|row| row.who == "floor").and_then(|row| row.p50_ms);
    let mut text = String::from("# Bench\n\n");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    writeln!(
        text,
        "Written by `cargo xtask bench`: {runs} runs each unless told otherwise, all in one run on one machine \
         ({cores} cores, kernel {}). Times in milliseconds are context; the ratio to `floor` (the least the kernel \
         can do for a sandbox with a network namespace) and to the peers is the figure. `docker run` and the OCI \
         runtimes start and reap one program; ours answers over HTTP and stays.\n",
        kernel.trim()
    )?;
    text.push_str("| what | who | p50 ms | p99 ms | x floor | figure | runs |\n|---|---|---:|---:|---:|---|---:|\n");
    for row in rows {
        let ratio = match (row.p50_ms, floor) {
            (Some(time), Some(floor)) if row.group.starts_with("cold") => format!("{:.1}", time / floor),
            _ => String::new(),
        };
        writeln!(
            text,
            "| {} | {} | {} | {} | {ratio} | {} | {} |",
            row.group,
            row.who,
            shown(row.p50_ms),
            shown(row.p99_ms),
            row.figure.as_deref().unwrap_or_default(),
            row.runs
        )?;
    }
    let path = out.join("bench.md");
    std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    println!("written: {}", path.display());
    Ok(())
}
