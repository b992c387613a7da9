//! `way-out`: the example of the egress process's crate that measures it beside its peers, in namespaces of its own.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::super::Bench;

/// What one start of the example said.
pub struct WayOut(Vec<Sample>);

#[derive(Deserialize)]
struct Sample {
    what: String,
    who: String,
    values: Vec<f64>,
}

impl WayOut {
    /// Measures one thing, each step of it for `length`.
    ///
    /// # Errors
    /// It fails: it needs root, nginx with its module for streams, and mitmproxy.
    pub fn run(bench: &Bench, what: &str, length: Duration) -> Result<Self> {
        let options = &bench.options;
        let mut command = Command::new(&options.way_out);
        command.arg(what).arg(length.as_secs_f64().to_string()).arg(&options.mitmdump);
        command.arg(&options.osb).arg("egress-proxy");
        let output = command.output().with_context(|| format!("start {}", options.way_out.display()))?;
        ensure!(
            output.status.success(),
            "way-out {what} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(Self(serde_json::from_slice(&output.stdout)?))
    }

    /// The samples of a subject.
    ///
    /// # Errors
    /// There are none.
    pub fn of(&self, what: &str, who: &str) -> Result<Vec<f64>> {
        let found = self.0.iter().find(|sample| sample.what == what && sample.who == who);
        found.map(|sample| sample.values.clone()).with_context(|| format!("way-out said nothing of {what} of {who}"))
    }
}
