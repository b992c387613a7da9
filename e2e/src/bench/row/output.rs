//! How fast the output of one command arrives.

use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::super::Bench;
use super::super::peer::docker::Docker;
use super::super::peer::pipeline;
use super::super::process::{MIB, forget_peak, peak};
use super::super::report::{Figure, Row, Unit};
use super::super::sandbox::Bed;

/// Bytes of one run.
const BYTES: u64 = 512_000_000;
/// The last event of a command that ended with 0.
const COMPLETE: &[u8] = b"execution_complete";

/// Short lines and long ones.
pub async fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (line, bound) in [(80, 200.0), (4000, 300.0)] {
        rows.push(lines(bench, line, bound).await?);
    }
    Ok(rows)
}

async fn lines(bench: &Bench, line: u64, bound: f64) -> Result<Row> {
    let bytes = BYTES / line * line;
    let command = format!("yes {} | head -c {bytes}", "y".repeat(line as usize - 1));
    let runs = bench.runs(8).max(2);
    let mut bed = Bed::make(bench).await?;
    let sandbox = bed.sandbox().await?;
    let server = bed.server.api_process()?;
    let (mut ours, mut hops, mut grown) = (Vec::new(), Vec::new(), 0.0_f64);
    for run in 0..=runs {
        forget_peak(server)?;
        let before = peak(server)?;
        let start = Instant::now();
        let stream = sandbox.command(&mut bed.connection, &command).await?;
        let lines = count(stream).await?;
        let seconds = start.elapsed().as_secs_f64();
        ensure!(lines == bytes / line, "{lines} of {} lines arrived", bytes / line);
        // The first run warms up: buffers of the connection are part of the server's usual size from then on.
        if run > 0 {
            ours.push(bytes as f64 / 1e6 / seconds);
            grown = grown.max(peak(server)?.saturating_sub(before) as f64 / MIB);
            hops.push(pipeline::run(bench.scratch.path(), &command, bytes)?);
        }
    }
    sandbox.delete(&mut bed.connection, &bed.key).await?;
    drop(bed);

    let docker = Docker::start(bench)?;
    let container = docker.sleeper()?;
    let mut theirs = Vec::new();
    for _ in 0..bench.runs(2).max(1) {
        theirs.push(docker_output(&docker, &container, &command, bytes)?);
    }
    let ours = Figure::new("osb", Unit::Megabytes, ours);
    let p50 = ours.p50();
    let figures = vec![
        ours,
        Figure::new("pipe, unix socket, TCP", Unit::Megabytes, hops),
        Figure::new("docker exec", Unit::Megabytes, theirs),
        Figure::single("osb, growth of the server's memory", Unit::Memory, grown),
    ];
    let note = "512 MB from `yes | head -c`, every line counted by the client. Beside it: as many hops without HTTP, events or JSON; `docker exec` into a pipe.";
    Ok(Row::new(format!("output of one command, lines of {line} bytes"), figures, note)
        .at_least("p50", p50, bound, " MB/s")
        .at_most("growth", grown, 32.0, " MiB"))
}

/// Counts the line ends in a stream of events, which JSON writes as `\n` with a backslash.
async fn count(mut stream: Incoming) -> Result<u64> {
    let mut lines = 0;
    let mut end: Vec<u8> = Vec::new();
    while let Some(frame) = stream.frame().await {
        if let Ok(data) = frame?.into_data() {
            lines += data.iter().filter(|byte| **byte == b'\\').count() as u64;
            end.extend_from_slice(&data[data.len().saturating_sub(512)..]);
            end.drain(..end.len().saturating_sub(512));
        }
    }
    if !end.windows(COMPLETE.len()).any(|window| window == COMPLETE) {
        bail!("the stream has no end: {}", String::from_utf8_lossy(&end));
    }
    Ok(lines)
}

fn docker_output(docker: &Docker, container: &str, command: &str, bytes: u64) -> Result<f64> {
    let start = Instant::now();
    let mut client =
        docker.command(&["exec", container, "/bin/sh", "-c", command]).stdout(std::process::Stdio::piped()).spawn()?;
    let mut output = client.stdout.take().context("its output is a pipe")?;
    let arrived = pipeline::count(&mut output)?;
    let seconds = start.elapsed().as_secs_f64();
    client.wait()?;
    ensure!(arrived == bytes, "docker exec delivered {arrived} of {bytes} bytes");
    Ok(bytes as f64 / 1e6 / seconds)
}
