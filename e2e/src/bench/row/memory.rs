//! What an idle sandbox takes of the machine's memory.

use std::time::Duration;

use anyhow::Result;

use super::super::Bench;
use super::super::peer::docker::Docker;
use super::super::process::{self, MIB, descendants, meminfo, pss, words};
use super::super::report::{Figure, Row, Unit};
use super::super::sandbox::Bed;

/// Sandboxes over which the machine's memory is divided.
const SANDBOXES: usize = 50;
/// Containers likewise.
const CONTAINERS: usize = 20;
/// The kernel frees what it may in the background; the machine's figure is read after this long without our doing.
const SETTLE: Duration = Duration::from_secs(3);

/// Ours by part, theirs as a whole and the shim alone.
pub async fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut bed = Bed::make(bench).await?;
    bed.sandbox().await?.delete(&mut bed.connection, &bed.key.clone()).await?;
    let own = bed.server.own_processes()?;
    let share =
        |pids: &[u32]| -> Result<f64> { Ok(pids.iter().map(|pid| pss(*pid)).sum::<Result<u64>>()? as f64 / MIB) };
    let (free, kernel, server) = (available().await?, process::kernel()? as f64 / MIB, share(&own)?);
    let count = bench.runs(SANDBOXES);
    let mut sandboxes = Vec::new();
    for _ in 0..count {
        sandboxes.push(bed.sandbox().await?);
    }
    let machine = (free - available().await?) / count as f64;
    let kernel = (process::kernel()? as f64 / MIB - kernel) / count as f64;
    let grown = (share(&own)? - server) / count as f64;
    let (mut execds, mut monitors, mut mains) = (Vec::new(), Vec::new(), Vec::new());
    for pid in descendants(bed.server.pid())?.into_iter().filter(|pid| !own.contains(pid)) {
        let line = words(pid);
        let samples = match line.first().map(String::as_str) {
            Some("execd") => &mut execds,
            Some(name) if name.ends_with("osb") => &mut monitors,
            _ => &mut mains,
        };
        samples.push(pss(pid)? as f64 / MIB);
    }
    for sandbox in sandboxes {
        sandbox.delete(&mut bed.connection, &bed.key.clone()).await?;
    }
    drop(bed);

    let docker = Docker::start(bench)?;
    let first = docker.sleeper()?;
    docker.ask(&["rm", "--force", &first])?;
    let free = available().await?;
    let count = bench.runs(CONTAINERS);
    for _ in 0..count {
        docker.sleeper()?;
    }
    let container = (free - available().await?) / count as f64;
    let mut shims = Vec::new();
    for pid in process::parents()?.into_keys() {
        if words(pid).first().is_some_and(|word| word.ends_with("containerd-shim-runc-v2")) {
            shims.push(pss(pid)? as f64 / MIB);
        }
    }
    let part = |name: &str, samples: Vec<f64>| (!samples.is_empty()).then(|| Figure::new(name, Unit::Memory, samples));
    let mut figures = vec![Figure::single("osb, all, by what the machine has left", Unit::Memory, machine)];
    let users: f64 = [&execds, &monitors, &mains]
        .iter()
        .map(|samples| samples.iter().sum::<f64>() / samples.len().max(1) as f64)
        .sum();
    figures.extend(part("osb, execd", execds));
    figures.extend(part("osb, monitor", monitors));
    figures.extend(part("osb, main process (sleep)", mains));
    figures.push(Figure::single("osb, growth of the server", Unit::Memory, grown));
    figures.push(Figure::single(
        "osb, kernel: what the machine lost beside these",
        Unit::Memory,
        machine - users - grown,
    ));
    figures.push(Figure::single("osb, kernel: slabs, stacks, page tables, per core", Unit::Memory, kernel));
    figures.push(Figure::single("osb, sum of processes and kernel", Unit::Memory, users + grown + kernel));
    figures.push(Figure::single("docker container, all", Unit::Memory, container));
    figures.extend(part("docker container, its shim", shims));
    let note = "Difference of MemAvailable over 50 sandboxes, or 20 containers, divided; the parts are proportional shares (PSS). \
        The sum is steadier where others use the machine. The main process is `sleep infinity` of the machine.";
    Ok(vec![Row::new("memory of an idle sandbox", figures, note).at_most("all", machine, 4.0, " MiB")])
}

async fn available() -> Result<f64> {
    tokio::time::sleep(SETTLE).await;
    Ok(meminfo("MemAvailable")? as f64 / MIB)
}
