//! The start of an isolated session.

use std::time::Instant;

use anyhow::{Context as _, Result};
use hyper::Method;
use serde_json::json;

use super::super::Bench;
use super::super::client::Payload;
use super::super::peer::docker::Docker;
use super::super::report::{Figure, Row, Unit};
use super::super::sandbox::Bed;
use super::millis;

/// Runs before the first that counts.
const WARM_UP: usize = 5;

/// Sessions with an overlay workspace, one after the other in one sandbox.
pub async fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut bed = Bed::make(bench).await?;
    let sandbox = bed.sandbox().await?;
    let base = format!("{}/v1/isolated/session", sandbox.execd);
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for run in 0..WARM_UP + bench.runs(200) {
        let start = Instant::now();
        let body = json!({ "workspace": { "path": "/workspace" } });
        let made = bed.connection.json(Method::POST, &base, &sandbox.headers(), body).await?;
        let started = millis(start);
        let id = made["session_id"].as_str().context("a session has an id")?;
        let start = Instant::now();
        bed.connection.ask(Method::DELETE, &format!("{base}/{id}"), &sandbox.headers(), Payload::Empty).await?;
        if run >= WARM_UP {
            starts.push(started);
            ends.push(millis(start));
        }
    }
    sandbox.delete(&mut bed.connection, &bed.key).await?;

    let docker = Docker::start(bench)?;
    let container = docker.sleeper()?;
    let mut theirs = Vec::new();
    for _ in 0..bench.runs(200) {
        theirs.push(docker.time(&["exec", "--interactive", "--tty=false", &container, "/bin/true"])?);
    }
    let starts = Figure::new("osb, start", Unit::Millis, starts);
    let p50 = starts.p50();
    let figures =
        vec![starts, Figure::new("osb, end", Unit::Millis, ends), Figure::new("docker exec", Unit::Millis, theirs)];
    let note = "`POST /v1/isolated/session` with an overlay workspace through the server, kept alive, and its `DELETE`; \
                `docker exec` by its client makes no mounts.";
    Ok(vec![Row::new("start of an isolated session", figures, note).at_most("p50", p50, 5.0, " ms")])
}
