//! Two hundred sandboxes at the same time.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use hyper::Method;
use serde_json::Value;

use super::super::Bench;
use super::super::client::Connection;
use super::super::process::{cpu, descendants, idle};
use super::super::report::{Figure, Row, Unit};
use super::super::sandbox::{Bed, Sandbox, body};
use super::millis;

/// How many.
const SANDBOXES: usize = 200;
/// Clients that share the work.
const CLIENTS: usize = 8;
/// How long they are left alone.
const ALONE: Duration = Duration::from_secs(10);

/// All answer, lists are quick, nothing runs while nothing happens.
pub async fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut bed = Bed::make(bench).await?;
    let count = bench.runs(SANDBOXES);
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        connections.push(bed.server.connect().await?);
    }
    let key = bed.key.clone();
    let start = Instant::now();
    let each = count.div_ceil(CLIENTS);
    let made = try_join_all(connections.into_iter().map(|connection| create(connection, &key, each))).await?;
    let all_there = millis(start);

    let start = Instant::now();
    let answered = try_join_all(made.into_iter().map(answer)).await?;
    let all_answered = millis(start);

    let auth = [("open-sandbox-api-key", key.as_str())];
    let mut lists = Vec::new();
    for _ in 0..bench.runs(200) {
        let start = Instant::now();
        let list =
            bed.connection.json(Method::GET, "/v1/sandboxes?state=Running&pageSize=200", &auth, Value::Null).await?;
        lists.push(millis(start));
        let total = list["pagination"]["totalItems"].as_u64();
        ensure!(total == Some((each * CLIENTS) as u64), "the list tells of {total:?} running sandboxes");
    }

    let everybody = || -> Result<Duration> {
        let all = descendants(bed.server.pid())?;
        // A process that ended in between used nothing worth counting.
        Ok(all.into_iter().chain([bed.server.pid()]).filter_map(|pid| cpu(pid).ok()).sum())
    };
    let (before, before_idle, start) = (everybody()?, idle()?, Instant::now());
    tokio::time::sleep(ALONE).await;
    let (after, after_idle, passed) = (everybody()?, idle()?, start.elapsed().as_secs_f64());
    let used = 100.0 * after.saturating_sub(before).as_secs_f64() / passed;
    let cores = std::thread::available_parallelism()?.get() as f64;
    let others = 100.0 * (cores - after_idle.saturating_sub(before_idle).as_secs_f64() / passed);

    let start = Instant::now();
    try_join_all(answered.into_iter().map(|(connection, sandboxes)| delete(connection, sandboxes, &key))).await?;
    let all_gone = millis(start);
    let lists = Figure::new("osb, list of all on one page", Unit::Millis, lists);
    let p99 = lists.p99();
    let figures = vec![
        lists,
        Figure::single("osb, until all answer", Unit::Millis, all_there),
        Figure::single("osb, one command in each", Unit::Millis, all_answered),
        Figure::single("osb, until all are gone", Unit::Millis, all_gone),
        Figure::single("osb, idle processor time", Unit::Percent, used),
        Figure::single("machine, processor time meanwhile", Unit::Percent, others),
    ];
    let note = "Eight clients create, ask and delete; 100 % is one core. Idle time is that of the server, the jailer, every monitor \
        and everything in the sandboxes over ten seconds.";
    Ok(vec![Row::new("200 sandboxes alive", figures, note).at_most("list p99", p99, 20.0, " ms").at_most(
        "idle",
        used,
        5.0,
        " % of a core",
    )])
}

type Share = (Connection, Vec<Sandbox>);

async fn create(mut connection: Connection, key: &str, count: usize) -> Result<Share> {
    let mut sandboxes = Vec::new();
    for _ in 0..count {
        sandboxes.push(Sandbox::create_as(&mut connection, key, body()).await?);
    }
    Ok((connection, sandboxes))
}

async fn answer((mut connection, sandboxes): Share) -> Result<Share> {
    for sandbox in &sandboxes {
        let said = sandbox.run(&mut connection, "echo alive").await?;
        ensure!(said.trim() == "alive", "{} said {said:?}", sandbox.id);
    }
    Ok((connection, sandboxes))
}

async fn delete(mut connection: Connection, sandboxes: Vec<Sandbox>, key: &str) -> Result<()> {
    for sandbox in sandboxes {
        sandbox.delete(&mut connection, key).await?;
    }
    Ok(())
}
