//! Create to the first output of a command, and creates in a second.

use std::time::{Duration, Instant};

use anyhow::Result;
use hyper::Method;
use serde_json::Value;

use super::super::Bench;
use super::super::client::{Connection, Payload};
use super::super::peer::docker::{Docker, IMAGE};
use super::super::peer::floor::Floor;
use super::super::peer::launcher;
use super::super::report::{Figure, Row, Unit};
use super::super::sandbox::{Bed, Sandbox, body, drain, first_output};
use super::millis;

/// Subjects take turns in blocks, so that a noisy minute hits all of them.
const BLOCKS: usize = 10;
/// Runs before the first that counts.
const WARM_UP: usize = 10;
/// Clients that create at the same time.
const CLIENTS: usize = 8;

/// One sandbox after another, nothing kept warm.
pub async fn cold(bench: &Bench) -> Result<Vec<Row>> {
    let mut bed = Bed::make(bench).await?;
    let docker = Docker::start(bench)?;
    let launchers = launcher::all(bench.scratch.path())?;
    for _ in 0..WARM_UP {
        create(&mut bed, body()).await?.1.delete(&mut bed.connection, &bed.key.clone()).await?;
        docker.ask(&["run", "--rm", "--network", "none", IMAGE, "/bin/true"])?;
    }
    for launcher in &launchers {
        launcher.run(WARM_UP)?;
    }
    let mut ours = Vec::new();
    let mut ready = Vec::new();
    let mut floor = Vec::new();
    let mut others = vec![Vec::new(); launchers.len()];
    let mut containers = Vec::new();
    for _ in 0..BLOCKS {
        for _ in 0..bench.runs(200) / BLOCKS {
            let ((whole, answering), sandbox) = create(&mut bed, body()).await?;
            ours.push(whole);
            ready.push(answering);
            sandbox.delete(&mut bed.connection, &bed.key.clone()).await?;
        }
        floor.extend(Floor::run(&bench.options.floor, bench.runs(200) / BLOCKS, 1)?.millis());
        for (launcher, samples) in launchers.iter().zip(&mut others) {
            samples.extend(launcher.run(bench.runs(200) / BLOCKS)?);
        }
        for _ in 0..bench.runs(100) / BLOCKS {
            containers.push(docker.time(&["run", "--rm", "--network", "none", IMAGE, "/bin/true"])?);
        }
    }
    let ours = Figure::new("osb, to the first output", Unit::Millis, ours);
    let ready = Figure::new("osb, to the endpoint", Unit::Millis, ready);
    let floor = Figure::new("floor", Unit::Millis, floor);
    let (p50, ratio) = (ours.p50(), ours.p50() / floor.p50());
    let mut figures = vec![ours, ready, floor];
    figures.extend(
        launchers.iter().zip(others).map(|(launcher, samples)| Figure::new(launcher.name, Unit::Millis, samples)),
    );
    figures.push(Figure::new("docker run --network none", Unit::Millis, containers));
    let note = "Create, endpoint look-up and `POST /command` on one kept-alive connection, to the first byte of output; image \
        `host`, cached, nothing kept warm. Beside it: `floor` makes the namespaces, groups, overlay and filter and runs a static \
        program; bwrap binds a directory in namespaces, without groups, overlay or filter of ours; crun and runc do one `run` with \
        the same namespaces and groups over a prepared directory; docker runs busybox `true` by its client.";
    Ok(vec![
        Row::new("cold create to a command's first output", figures, note).at_most("p50", p50, 15.0, " ms").at_most(
            "ratio to floor",
            ratio,
            4.0,
            "",
        ),
    ])
}

/// Creates one with this body and runs a command: milliseconds to its first output, and to the endpoint.
pub(super) async fn create(bed: &mut Bed, body: Value) -> Result<((f64, f64), Sandbox)> {
    let start = Instant::now();
    let sandbox = Sandbox::create_as(&mut bed.connection, &bed.key, body).await?;
    let answering = millis(start);
    let mut stream = sandbox.command(&mut bed.connection, "echo x").await?;
    first_output(&mut stream).await?;
    let whole = millis(start);
    drain(stream).await?;
    Ok(((whole, answering), sandbox))
}

/// Many clients that create and delete, and one that only asks.
pub async fn rate(bench: &Bench) -> Result<Vec<Row>> {
    let bed = Bed::make(bench).await?;
    let length = Duration::from_millis(500 * bench.runs(20) as u64);
    let end = Instant::now() + length;
    let start = Instant::now();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let connection = bed.server.connect().await?;
        clients.push(tokio::spawn(churn(connection, bed.key.clone(), end)));
    }
    let reads = tokio::spawn(read(bed.server.connect().await?, bed.key.clone(), end));
    let mut made = 0;
    for client in clients {
        made += client.await??;
    }
    let ours = made as f64 / start.elapsed().as_secs_f64();
    let (health, lists) = reads.await??;
    let floor = Floor::run(&bench.options.floor, bench.runs(1000), 2)?.rate();
    let health = Figure::new("osb, GET /health", Unit::Millis, health);
    let lists = Figure::new("osb, GET /v1/sandboxes", Unit::Millis, lists);
    let worst = health.p99().max(lists.p99());
    let note = "Eight clients, each of which creates a sandbox, waits until it answers and deletes it, for ten seconds; the bench, \
        the server and the sandboxes share the cores. Beside it: `floor` with two workers, making and clearing away.";
    let figures = vec![
        Figure::single("osb, create and delete", Unit::Rate, ours),
        Figure::single("floor, 2 workers", Unit::Rate, floor),
    ];
    Ok(vec![
        Row::new("creates in a second, sustained", figures, note).at_least("rate", ours, 100.0, "/s"),
        Row::new(
            "health and reads while creates and deletes run",
            vec![health, lists],
            "During the row above, on a connection of its own.",
        )
        .at_most("p99", worst, 50.0, " ms"),
    ])
}

async fn churn(mut connection: Connection, key: String, end: Instant) -> Result<usize> {
    let mut made = 0;
    while Instant::now() < end {
        let sandbox = Sandbox::create_as(&mut connection, &key, body()).await?;
        sandbox.delete(&mut connection, &key).await?;
        made += 1;
    }
    Ok(made)
}

async fn read(mut connection: Connection, key: String, end: Instant) -> Result<(Vec<f64>, Vec<f64>)> {
    /// A client that asks twenty times in a second is an eager one.
    const BETWEEN: Duration = Duration::from_millis(50);
    let auth = [("open-sandbox-api-key", key.as_str())];
    let (mut health, mut lists) = (Vec::new(), Vec::new());
    while Instant::now() < end {
        for (path, samples) in [("/health", &mut health), ("/v1/sandboxes", &mut lists)] {
            let start = Instant::now();
            connection.ask(Method::GET, path, &auth, Payload::Empty).await?;
            samples.push(millis(start));
        }
        tokio::time::sleep(BETWEEN).await;
    }
    Ok((health, lists))
}
