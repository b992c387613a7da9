//! Freezing and thawing.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::super::Bench;
use super::super::peer::docker::Docker;
use super::super::report::{Figure, Row, Unit};
use super::super::sandbox::{Bed, Sandbox};
use super::millis;

/// Processes of the busy sandbox that wait, and that spin.
const CROWD: &str =
    "for i in $(seq 20); do sleep 1000 & done; for i in $(seq 4); do while :; do :; done & done; echo ready; wait";
/// Runs before the first that counts.
const WARM_UP: usize = 5;
/// How long the crowd may take to be there.
const PATIENCE: Duration = Duration::from_secs(10);

/// An idle sandbox and a busy one.
pub async fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut bed = Bed::make(bench).await?;
    let sandbox = bed.sandbox().await?;
    let idle = turns(&mut bed, &sandbox, bench.runs(200)).await?;
    sandbox.run(&mut bed.connection, &format!("({CROWD}) >/dev/null 2>&1 &")).await?;
    let start = Instant::now();
    while super::super::process::descendants(bed.server.pid())?.len() < 24 {
        ensure!(start.elapsed() < PATIENCE, "24 processes did not start");
    }
    let busy = turns(&mut bed, &sandbox, bench.runs(200)).await?;
    sandbox.delete(&mut bed.connection, &bed.key).await?;

    let docker = Docker::start(bench)?;
    let container = docker.sleeper()?;
    let (mut pauses, mut resumes) = (Vec::new(), Vec::new());
    for _ in 0..bench.runs(200) {
        pauses.push(docker.time(&["pause", &container])?);
        resumes.push(docker.time(&["unpause", &container])?);
    }
    let [pause, busy_pause] = [(idle.0, "osb, idle"), (busy.0, "osb, 24 processes, 4 spin")].map(figure);
    let [resume, busy_resume] = [(idle.1, "osb, idle"), (busy.1, "osb, 24 processes, 4 spin")].map(figure);
    let row = |what: &str, ours: Figure, busy: Figure, theirs: (Vec<f64>, &'static str)| {
        let (p50, p99) = (ours.p50(), ours.p99());
        let note = "The call and reading of the state until it says so; docker by its client.";
        Row::new(what, vec![ours, busy, figure(theirs)], note)
            .at_most("p50", p50, 5.0, " ms")
            .at_most("p99", p99, 20.0, " ms")
    };
    Ok(vec![
        row("pause", pause, busy_pause, (pauses, "docker pause, idle")),
        row("resume", resume, busy_resume, (resumes, "docker unpause, idle")),
    ])
}

fn figure((samples, subject): (Vec<f64>, &'static str)) -> Figure {
    Figure::new(subject, Unit::Millis, samples)
}

async fn turns(bed: &mut Bed, sandbox: &Sandbox, runs: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut pauses, mut resumes) = (Vec::new(), Vec::new());
    for run in 0..WARM_UP + runs {
        for (verb, state, samples) in [("pause", "Paused", &mut pauses), ("resume", "Running", &mut resumes)] {
            let start = Instant::now();
            sandbox.turn(&mut bed.connection, &bed.key, verb, state).await?;
            if run >= WARM_UP {
                samples.push(millis(start));
            }
        }
    }
    Ok((pauses, resumes))
}
