//! The round trip of a command that does nothing.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use super::super::Bench;
use super::super::peer::docker::Docker;
use super::super::report::{Figure, Row, Unit};
use super::super::sandbox::{Bed, drain};
use super::millis;

/// Runs before the first that counts.
const WARM_UP: usize = 20;

/// `true`, with and without a shell.
pub async fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut bed = Bed::make(bench).await?;
    let sandbox = bed.sandbox().await?;
    let (mut shell, mut direct) = (Vec::new(), Vec::new());
    for run in 0..WARM_UP + bench.runs(1000) {
        for (body, samples) in [(json!({ "command": "true" }), &mut shell), (json!({ "argv": ["true"] }), &mut direct)]
        {
            let start = Instant::now();
            drain(sandbox.post(&mut bed.connection, &body).await?).await?;
            if run >= WARM_UP {
                samples.push(millis(start));
            }
        }
    }
    sandbox.delete(&mut bed.connection, &bed.key).await?;

    let docker = Docker::start(bench)?;
    let container = docker.sleeper()?;
    let mut theirs = Vec::new();
    for _ in 0..bench.runs(200) {
        theirs.push(docker.time(&["exec", &container, "/bin/true"])?);
    }
    let shell = Figure::new("osb, shell", Unit::Millis, shell);
    let direct = Figure::new("osb, argv", Unit::Millis, direct);
    let p50 = shell.p50();
    let theirs = Figure::new("docker exec", Unit::Millis, theirs);
    let note = "`POST /command` through the server to the end of the stream, kept alive; `docker exec` by its client.";
    Ok(vec![Row::new("exec of `true`", vec![shell, direct, theirs], note).at_most("p50", p50, 3.0, " ms")])
}
