//! What an idle sandbox takes of memory.

use std::time::Duration;

use anyhow::Result;

use super::super::Bench;
use super::super::peer::docker::Docker;
use super::super::process::{self, MIB, descendants, pss, words};
use super::super::report::{Figure, Row, Unit};
use super::super::sandbox::Bed;

/// Sandboxes over which the machine's memory is divided.
const SANDBOXES: usize = 50;
/// Containers likewise.
const CONTAINERS: usize = 20;
/// The kernel frees what it may in the background; its figure is read after this long without our doing.
const SETTLE: Duration = Duration::from_secs(3);

/// Ours by part, theirs as a whole and the shim alone.
pub async fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut bed = Bed::make(bench).await?;
    bed.sandbox().await?.delete(&mut bed.connection, &bed.key.clone()).await?;
    let own = bed.server.own_processes()?;
    let share =
        |pids: &[u32]| -> Result<f64> { Ok(pids.iter().map(|pid| pss(*pid)).sum::<Result<u64>>()? as f64 / MIB) };
    tokio::time::sleep(SETTLE).await;
    let (kernel, server) = (process::kernel()? as f64 / MIB, share(&own)?);
    let count = bench.runs(SANDBOXES);
    let mut sandboxes = Vec::new();
    for _ in 0..count {
        sandboxes.push(bed.sandbox().await?);
    }
    tokio::time::sleep(SETTLE).await;
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
    let daemons = named(&["dockerd", "containerd"])?;
    let (kernel_before, daemons_before) = (process::kernel()? as f64 / MIB, share(&daemons)?);
    let containers = bench.runs(CONTAINERS);
    for _ in 0..containers {
        docker.sleeper()?;
    }
    tokio::time::sleep(SETTLE).await;
    let their_kernel = (process::kernel()? as f64 / MIB - kernel_before) / containers as f64;
    let their_growth = (share(&daemons)? - daemons_before) / containers as f64;
    let mut shims = Vec::new();
    for pid in named(&["containerd-shim-runc-v2"])? {
        shims.push(pss(pid)? as f64 / MIB);
    }

    let mean = |samples: &Vec<f64>| samples.iter().sum::<f64>() / samples.len().max(1) as f64;
    let sum = mean(&execds) + mean(&monitors) + mean(&mains) + grown + kernel;
    let their_sum = mean(&shims) + their_growth + their_kernel;
    let part = |name: &str, samples: Vec<f64>| (!samples.is_empty()).then(|| Figure::new(name, Unit::Memory, samples));
    let mut figures = vec![Figure::single("osb, all", Unit::Memory, sum)];
    figures.extend(part("osb, execd", execds));
    figures.extend(part("osb, monitor", monitors));
    figures.extend(part("osb, main process (sleep)", mains));
    figures.push(Figure::single("osb, growth of the server", Unit::Memory, grown));
    figures.push(Figure::single("osb, kernel: slabs, stacks, page tables, per core", Unit::Memory, kernel));
    figures.push(Figure::single("docker container, without its main process", Unit::Memory, their_sum));
    figures.extend(part("docker container, its shim", shims));
    figures.push(Figure::single("docker container, growth of the daemons", Unit::Memory, their_growth));
    figures.push(Figure::single("docker container, kernel", Unit::Memory, their_kernel));
    let note = "The sum of its parts over 50 sandboxes, or 20 containers, divided: proportional shares (PSS) of the processes, and \
        what the kernel says of its own memory. Not MemAvailable, which moves by more than all sandboxes together when a disk \
        writes back. The main process is `sleep infinity` of the machine.";
    Ok(vec![Row::new("memory of an idle sandbox", figures, note).at_most("all", sum, 4.0, " MiB")])
}

/// Processes whose program has one of these names.
fn named(names: &[&str]) -> Result<Vec<u32>> {
    let program = |pid: &u32| words(*pid).first().map(|word| word.rsplit('/').next().unwrap_or(word).to_owned());
    let wanted = |pid: &u32| program(pid).is_some_and(|word| names.contains(&word.as_str()));
    Ok(process::parents()?.into_keys().filter(wanted).collect())
}
