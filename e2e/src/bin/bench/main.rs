//! `bench [--runs N] [--out DIR]`: our figures beside the peers', in one run on one machine.
//!
//! Whole processes over HTTP, p50 and p99 after a warm-up. Machines differ and
//! are noisy: the ratio to `floor` and to the peers is the figure, the time is
//! context. Started by `cargo xtask bench`, which installs the peers.

mod ours;
mod peers;
mod report;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use report::Row;

fn main() -> Result<()> {
    let mut runs = 200;
    let mut out = PathBuf::from("docs");
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--runs" => runs = value.parse().context("--runs is a number")?,
            "--out" => out = value.into(),
            _ => bail!("unknown argument {name}"),
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    // Peers before and after ours show whether the machine stayed the same.
    peers::floor(runs, "floor", &mut rows)?;
    peers::all(runs, &mut rows)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(ours::all(runs, &mut rows))?;
    peers::floor(runs, "floor, again at the end", &mut rows)?;
    report::write(&out, runs, &rows)
}
