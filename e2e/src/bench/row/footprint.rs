//! What the programs cost while nothing happens.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hyper::Method;

use super::super::Bench;
use super::super::client::{Connection, Payload};
use super::super::process::{self, MIB};
use super::super::report::{Figure, Row, Unit};
use super::super::server::Server;
use super::millis;

/// What the published server of the same protocol takes while idle: measured once, it needs Python and Docker.
const PUBLISHED_SERVER_MIB: f64 = 133.0;
/// How long a daemon may take to answer before the bench gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// The server: start to ready, memory, file.
pub async fn server(bench: &Bench) -> Result<Vec<Row>> {
    let mut started = Vec::new();
    let mut memory = Vec::new();
    for _ in 0..bench.runs(20).max(3) {
        let server = Server::start(bench).await?;
        started.push(server.started.as_secs_f64() * 1e3);
        let mut bytes = 0;
        for pid in server.own_processes()? {
            bytes += process::pss(pid)?;
        }
        memory.push(bytes as f64 / MIB);
        server.stop()?;
    }
    let file = process::size(&bench.options.osb)? as f64 / MIB;
    let start = Figure::new("osb server", Unit::Millis, started);
    let memory = Figure::new("osb server: supervisor, API and jailer", Unit::Memory, memory);
    let (start_p50, memory_p50) = (start.p50(), memory.p50());
    let published = Figure::single("published server (measured once)", Unit::Memory, PUBLISHED_SERVER_MIB);
    Ok(vec![
        Row::new(
            "server: start to ready",
            vec![start],
            "From the start of the program over an empty data directory to the answer to `/health`.",
        )
        .at_most("p50", start_p50, 50.0, " ms"),
        Row::new(
            "server: idle memory",
            vec![memory, published],
            "Proportional share (PSS) of all its processes, right after the start.",
        )
        .at_most("p50", memory_p50, 32.0, " MiB"),
        Row::new(
            "server: file",
            vec![Figure::single("osb", Unit::Memory, file)],
            "One static file, execd inside. It has symbols and line tables.",
        ),
    ])
}

/// execd is idle, and has given back what its start took, so long after its last answer.
const IDLE_AFTER: Duration = Duration::from_secs(2);
/// One start in so many is waited for to become idle.
const IDLE_EVERY: usize = 10;

/// execd by itself: file, memory, start to `/ping`.
pub async fn execd(bench: &Bench) -> Result<Vec<Row>> {
    let program = &bench.options.execd;
    let directory = tempfile::Builder::new().prefix("execd-").tempdir_in(bench.scratch.path())?;
    let mut started = Vec::new();
    let mut memory = Vec::new();
    for run in 0..bench.runs(200) {
        let socket = directory.path().join(format!("socket-{run}"));
        let start = Instant::now();
        let mut command = Command::new(program);
        command.arg("--unix").arg(&socket).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("start {}", program.display()))?;
        let answered = ping(&socket, start).await;
        started.push(millis(start));
        let mut bytes = None;
        if run.is_multiple_of(IDLE_EVERY) {
            tokio::time::sleep(IDLE_AFTER).await;
            bytes = Some(process::pss(child.id()));
        }
        child.kill()?;
        child.wait()?;
        answered?;
        if let Some(bytes) = bytes {
            memory.push(bytes? as f64 / MIB);
        }
    }
    let file = Figure::single("execd", Unit::Memory, process::size(program)? as f64 / MIB);
    let start = Figure::new("execd", Unit::Millis, started);
    let memory = Figure::new("execd", Unit::Memory, memory);
    let (file_size, start_p50, memory_p50) = (file.p50(), start.p50(), memory.p50());
    Ok(vec![
        Row::new("execd: file", vec![file], "As carried inside `osb`.").at_most("size", file_size, 4.0, " MiB"),
        Row::new(
            "execd: start to `/ping`",
            vec![start],
            "From the start of the program to its answer on a unix socket.",
        )
        .at_most("p50", start_p50, 5.0, " ms"),
        Row::new(
            "execd: idle memory",
            vec![memory],
            "Proportional share (PSS) two seconds after one answer; not PID 1 of a sandbox here.",
        )
        .at_most("p50", memory_p50, 2.5, " MiB"),
    ])
}

async fn ping(socket: &std::path::Path, start: Instant) -> Result<()> {
    loop {
        if let Ok(mut connection) = Connection::open_unix(socket).await {
            connection.ask(Method::GET, "/ping", &[], Payload::Empty).await?;
            return Ok(());
        }
        ensure!(start.elapsed() < PATIENCE, "execd did not answer within {PATIENCE:?}");
        tokio::task::yield_now().await;
    }
}
