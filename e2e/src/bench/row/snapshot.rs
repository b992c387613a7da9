//! Snapshots of what a sandbox wrote, sandboxes made from one, and forks.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use hyper::Method;
use serde_json::{Value, json};

use super::super::Bench;
use super::super::client::Payload;
use super::super::peer::docker::Docker;
use super::super::report::{Figure, Row, Unit};
use super::super::sandbox::{Bed, Sandbox, body};
use super::millis;

/// Writes 100 MB into one file.
const ONE_FILE: &str = "head -c 100000000 /dev/urandom > /root/big";
/// Writes 100 MB into 10,000 files. With busybox and coreutils alike.
const MANY_FILES: &str = "mkdir /root/many; head -c 10000 /dev/urandom > /root/one; \
                          for d in $(seq 100); do mkdir /root/many/$d; for f in $(seq 100); do echo /root/many/$d/$f; done; done \
                          | xargs -n 500 sh -c 'for f; do cat /root/one > $f; done' sh";
/// Sandboxes of a fork.
const FORKS: usize = 100;
/// How long a snapshot may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// All of it.
pub async fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut bed = Bed::make(bench).await?;
    let docker = Docker::start(bench)?;
    let mut rows = Vec::new();
    let one = taken(bench, &mut bed, &docker, ONE_FILE).await?;
    let (frozen, ready) = (one[0].p50(), one[1].p50());
    rows.push(row("snapshot, 100 MB in one file", one).at_most("frozen p50", frozen, 60.0, " ms").at_most(
        "Ready p50",
        ready,
        300.0,
        " ms",
    ));
    let many = taken(bench, &mut bed, &docker, MANY_FILES).await?;
    let ready = many[1].p50();
    rows.push(row("snapshot, 100 MB in 10,000 files", many).at_most("Ready p50", ready, 1500.0, " ms"));
    rows.push(restored(bench, &mut bed, &docker).await?);
    rows.push(forked(bench, &mut bed).await?);
    Ok(rows)
}

fn row(what: &str, figures: Vec<Figure>) -> Row {
    let note = "Ready: copied, flushed to the disk, read back from it and compared. Docker pauses the container meanwhile, \
                flushes nothing and reads nothing back.";
    Row::new(what, figures, note)
}

/// Snapshots of a sandbox that ran a script, one after the other: frozen, until `Ready`, and docker's commits.
async fn taken(bench: &Bench, bed: &mut Bed, docker: &Docker, script: &str) -> Result<Vec<Figure>> {
    let sandbox = bed.sandbox().await?;
    sandbox.run(&mut bed.connection, script).await?;
    let (mut frozen, mut ready) = (Vec::new(), Vec::new());
    for _ in 0..bench.runs(10) {
        let (snapshot, time) = take(bed, &sandbox.id).await?;
        ready.push(time);
        frozen.push(snapshot["frozenMs"].as_f64().context("how long it stood still")?);
        remove(bed, &snapshot).await?;
    }
    sandbox.delete(&mut bed.connection, &bed.key).await?;

    let container = docker.sleeper()?;
    docker.ask(&["exec", &container, "/bin/sh", "-c", &format!("mkdir -p /root; {script}")])?;
    let mut committed = Vec::new();
    for _ in 0..bench.runs(10) {
        committed.push(docker.time(&["commit", &container, "committed:1"])?);
        docker.ask(&["rmi", "committed:1"])?;
    }
    docker.ask(&["rm", "--force", &container])?;
    Ok(vec![
        Figure::new("osb, frozen", Unit::Millis, frozen),
        Figure::new("osb, until Ready", Unit::Millis, ready),
        Figure::new("docker commit", Unit::Millis, committed),
    ])
}

/// Takes a snapshot; it, and the milliseconds until it was ready.
async fn take(bed: &mut Bed, sandbox: &str) -> Result<(Value, f64)> {
    let auth = [("open-sandbox-api-key", bed.key.as_str())];
    let start = Instant::now();
    let path = format!("/v1/sandboxes/{sandbox}/snapshots");
    let made = bed.connection.json(Method::POST, &path, &auth, json!({})).await?;
    let path = format!("/v1/snapshots/{}", made["id"].as_str().context("an id")?);
    loop {
        let now = bed.connection.json(Method::GET, &path, &auth, Value::Null).await?;
        match now["status"]["state"].as_str() {
            Some("Ready") => return Ok((now, millis(start))),
            Some("Creating") => ensure!(start.elapsed() < PATIENCE, "a snapshot takes too long: {now}"),
            _ => anyhow::bail!("a snapshot failed: {now}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn remove(bed: &mut Bed, snapshot: &Value) -> Result<()> {
    let auth = [("open-sandbox-api-key", bed.key.as_str())];
    let path = format!("/v1/snapshots/{}", snapshot["id"].as_str().context("an id")?);
    bed.connection.ask(Method::DELETE, &path, &auth, Payload::Empty).await.map(drop)
}

/// A sandbox from a snapshot, until it answers.
async fn restored(bench: &Bench, bed: &mut Bed, docker: &Docker) -> Result<Row> {
    let source = bed.sandbox().await?;
    source.run(&mut bed.connection, ONE_FILE).await?;
    let (snapshot, _) = take(bed, &source.id).await?;
    let mut from = body();
    from["snapshotId"] = snapshot["id"].clone();
    from.as_object_mut().context("an object")?.remove("image");
    let mut ours = Vec::new();
    for _ in 0..bench.runs(50) {
        let start = Instant::now();
        let made = Sandbox::create_as(&mut bed.connection, &bed.key, from.clone()).await?;
        ours.push(millis(start));
        made.delete(&mut bed.connection, &bed.key).await?;
    }
    source.delete(&mut bed.connection, &bed.key).await?;
    remove(bed, &snapshot).await?;

    let container = docker.sleeper()?;
    docker.ask(&["exec", &container, "/bin/sh", "-c", &format!("mkdir -p /root; {ONE_FILE}")])?;
    docker.ask(&["commit", &container, "committed:1"])?;
    let mut theirs = Vec::new();
    for _ in 0..bench.runs(50) {
        theirs.push(docker.time(&["run", "--rm", "--network", "none", "committed:1", "/bin/true"])?);
    }
    docker.ask(&["rm", "--force", &container])?;
    docker.ask(&["rmi", "committed:1"])?;
    let ours = Figure::new("osb, until it answers", Unit::Millis, ours);
    let p50 = ours.p50();
    let theirs = Figure::new("docker run of the commit, to its end", Unit::Millis, theirs);
    let note = "From a snapshot of 100 MB, one after the other.";
    Ok(Row::new("create from a snapshot", vec![ours, theirs], note).at_most("p50", p50, 20.0, " ms"))
}

/// Many from one, until each has run a command.
async fn forked(bench: &Bench, bed: &mut Bed) -> Result<Row> {
    let source = bed.sandbox().await?;
    source.run(&mut bed.connection, "echo kept > /root/kept").await?;
    // Also in a quick run: what is bounded is so many.
    let count = FORKS;
    let mut times = Vec::new();
    for _ in 0..bench.runs(5) {
        let key = bed.key.clone();
        let auth = [("open-sandbox-api-key", key.as_str())];
        let start = Instant::now();
        let path = format!("/v1/sandboxes/{}/fork?wait=60", source.id);
        let answer = bed.connection.json(Method::POST, &path, &auth, json!({ "count": count })).await?;
        let items = answer["items"].as_array().context("items")?;
        let ids: Vec<String> =
            items.iter().filter_map(|item| item["sandbox"]["id"].as_str().map(str::to_owned)).collect();
        times.push(millis(start));
        ensure!(ids.len() == count, "a fork was refused: {answer}");
        for item in items {
            ensure!(item["sandbox"]["status"]["state"] == "Running", "a fork does not run: {item}");
        }
        let mut connections = Vec::new();
        for _ in 0..8 {
            connections.push(bed.server.connect().await?);
        }
        let chunks = ids.chunks(count.div_ceil(8));
        try_join_all(connections.into_iter().zip(chunks).map(async |(mut connection, ids)| -> Result<()> {
            for id in ids {
                let path = format!("/v1/sandboxes/{id}?grace=0");
                connection.ask(Method::DELETE, &path, &auth, Payload::Empty).await?;
            }
            Ok(())
        }))
        .await?;
    }
    source.delete(&mut bed.connection, &bed.key).await?;
    let figure = Figure::new("osb, until all answer", Unit::Millis, times);
    let p50 = figure.p50();
    let note = "One call that returns when execd answers in each of them.";
    Ok(Row::new("fork into 100", vec![figure], note).at_most("p50", p50, 500.0, " ms"))
}
