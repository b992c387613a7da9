//! The end of a sandbox, from the request until nothing of it is left.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hyper::Method;

use super::super::Bench;
use super::super::client::Payload;
use super::super::peer::docker::Docker;
use super::super::process::descendants;
use super::super::report::{Figure, Row, Unit};
use super::super::sandbox::Bed;
use super::millis;

/// Processes of the busy sandbox.
const PROCESSES: usize = 512;
/// How long they may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two counts.
const LOOK: Duration = Duration::from_millis(20);

/// Idle and busy.
pub async fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut bed = Bed::make(bench).await?;
    let (mut idle, mut busy) = (Vec::new(), Vec::new());
    for _ in 0..bench.runs(200) {
        let sandbox = bed.sandbox().await?;
        let start = Instant::now();
        sandbox.delete(&mut bed.connection, &bed.key.clone()).await?;
        idle.push(millis(start));
    }
    let without = descendants(bed.server.pid())?.len();
    for _ in 0..bench.runs(20) {
        let sandbox = bed.sandbox().await?;
        sandbox.run(&mut bed.connection, &format!("({}) >/dev/null 2>&1 &", spinners())).await?;
        let start = Instant::now();
        while descendants(bed.server.pid())?.len() < without + PROCESSES {
            ensure!(start.elapsed() < PATIENCE, "{PROCESSES} processes did not start");
            tokio::time::sleep(LOOK).await;
        }
        let key = bed.key.clone();
        let auth = [("open-sandbox-api-key", key.as_str())];
        let path = format!("/v1/sandboxes/{}?grace=0", sandbox.id);
        // The old connection may have idled out while the crowd gathered; this one is warm after one answer.
        bed.connection = bed.server.connect().await?;
        bed.connection.ask(Method::GET, "/health", &[], Payload::Empty).await?;
        let start = Instant::now();
        bed.connection.ask(Method::DELETE, &path, &auth, Payload::Empty).await?;
        busy.push(millis(start));
    }
    drop(bed);

    let docker = Docker::start(bench)?;
    let (mut their_idle, mut their_busy) = (Vec::new(), Vec::new());
    for _ in 0..bench.runs(50) {
        let container = docker.sleeper()?;
        their_idle.push(docker.time(&["rm", "--force", &container])?);
    }
    for _ in 0..bench.runs(5) {
        let container = docker.sleeper()?;
        let spinners = format!("({}) >/dev/null 2>&1 & while ! [ -e /proc/{PROCESSES} ]; do :; done", spinners());
        docker.ask(&["exec", &container, "/bin/sh", "-c", &spinners])?;
        their_busy.push(docker.time(&["rm", "--force", &container])?);
    }
    let idle = Figure::new("osb, idle", Unit::Millis, idle);
    let busy = Figure::new("osb, 512 busy, grace 0", Unit::Millis, busy);
    let (p50, p99) = (busy.p50(), busy.p99());
    let figures = vec![
        idle,
        busy,
        Figure::new("docker rm -f, idle", Unit::Millis, their_idle),
        Figure::new("docker rm -f, 512 busy", Unit::Millis, their_busy),
    ];
    let note = "`DELETE` until its answer, which comes when the groups are empty and everything is removed. Busy: 512 shells that \
        spin; on two cores the request itself waits behind them.";
    Ok(vec![
        Row::new("end of a sandbox", figures, note)
            .at_most("busy p50", p50, 50.0, " ms")
            .at_most("busy p99", p99, 50.0, " ms"),
    ])
}

fn spinners() -> String {
    format!("for i in $(seq {PROCESSES}); do while :; do :; done & done; wait")
}
