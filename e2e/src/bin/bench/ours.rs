//! Our own figures, over HTTP on kept-alive connections.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::client::{Client, Endpoint};
use e2e::server::Server;
use serde_json::{Value, json};

use crate::peers::COLD;
use crate::report::Row;

/// Sandboxes that are alive at once.
const ALIVE: usize = 200;
/// How long idle cost is watched.
const IDLE: Duration = Duration::from_secs(10);
/// Bytes of the upload and download.
const FILE_BYTES: usize = 1 << 30;
/// Kernel ticks per second, as `/proc/<pid>/stat` counts them.
const TICKS_PER_SECOND: f64 = 100.0;

fn body() -> Value {
    json!({
        "image": {"uri": "host"},
        "entrypoint": ["sleep", "infinity"],
        "timeout": 3600,
        "resourceLimits": {"memory": "512Mi"},
    })
}

/// Measures everything.
///
/// # Errors
/// The server does not do what it is asked.
pub async fn all(runs: usize, rows: &mut Vec<Row>) -> Result<()> {
    let mut server = Server::start()?;
    let client = server.client();
    cold(runs, &client, rows).await?;
    let (id, _) = client.create(&body()).await?;
    let at = client.endpoint(&id).await?;
    exec(runs, &client, &at, rows).await?;
    output(&client, &at, rows).await?;
    files(&client, &at, rows).await?;
    pause(runs, &client, &id, rows).await?;
    client.delete(&id).await?;
    end(&client, rows).await?;
    alive(&server, &client, rows).await?;
    server.stop()
}

async fn cold(runs: usize, client: &Client, rows: &mut Vec<Row>) -> Result<()> {
    let mut times = Vec::new();
    let mut ends = Vec::new();
    let warm_up = (runs / 10).max(1);
    for number in 0..runs + warm_up {
        let started = Instant::now();
        let (id, _) = client.create(&body()).await?;
        let at = client.endpoint(&id).await?;
        let first = client.first_output(&at, &["/bin/echo", "x"]).await?;
        anyhow::ensure!(first == "x\n", "echo said {first:?}");
        let took = started.elapsed();
        let ending = Instant::now();
        client.delete(&id).await?;
        if number >= warm_up {
            times.push(took);
            ends.push(ending.elapsed());
        }
    }
    rows.push(Row::times(COLD, "osb, over HTTP", times));
    rows.push(Row::times("end", "osb, idle sandbox", ends));
    Ok(())
}

async fn exec(runs: usize, client: &Client, at: &Endpoint, rows: &mut Vec<Row>) -> Result<()> {
    let mut times = Vec::new();
    for _ in 0..runs {
        let started = Instant::now();
        client.first_output(at, &["/bin/true"]).await?;
        times.push(started.elapsed());
    }
    rows.push(Row::times("exec of true", "osb", times));
    Ok(())
}

/// Output of one command, in bytes of the program per second of the reader.
async fn output(client: &Client, at: &Endpoint, rows: &mut Vec<Row>) -> Result<()> {
    for (line_bytes, lines, name) in [(80, 4_000_000_u64, "80-byte lines"), (4096, 100_000, "4 KiB lines")] {
        let line = "x".repeat(line_bytes - 1);
        let command = format!("yes {line} | head -n {lines}");
        let started = Instant::now();
        let got = client.drain(at, &command).await?;
        let took = started.elapsed().as_secs_f64();
        let bytes = line_bytes as u64 * lines;
        anyhow::ensure!(got >= bytes, "only {got} bytes of stream for {bytes} of output");
        rows.push(Row::figure("output", &format!("osb, {name}"), rate(bytes as f64, took)));
    }
    Ok(())
}

async fn files(client: &Client, at: &Endpoint, rows: &mut Vec<Row>) -> Result<()> {
    let started = Instant::now();
    client.upload_zeros(at, "/root/bench", FILE_BYTES).await?;
    rows.push(Row::figure("upload of 1 GiB", "osb", rate(FILE_BYTES as f64, started.elapsed().as_secs_f64())));
    let started = Instant::now();
    let got = client.download(at, "/root/bench").await?;
    anyhow::ensure!(got == FILE_BYTES as u64, "downloaded {got} bytes");
    rows.push(Row::figure("download of 1 GiB", "osb", rate(FILE_BYTES as f64, started.elapsed().as_secs_f64())));
    client.run(at, "rm /root/bench").await?;
    Ok(())
}

fn rate(bytes: f64, seconds: f64) -> String {
    format!("{:.0} MB/s", bytes / 1e6 / seconds)
}

async fn pause(runs: usize, client: &Client, id: &str, rows: &mut Vec<Row>) -> Result<()> {
    let mut pauses = Vec::new();
    let mut resumes = Vec::new();
    for _ in 0..runs {
        for (action, state, times) in [("pause", "Paused", &mut pauses), ("resume", "Running", &mut resumes)] {
            let started = Instant::now();
            let answer = client.call("POST", &format!("/sandboxes/{id}/{action}"), None).await?;
            anyhow::ensure!(answer.status == 202, "{action}: {answer:?}");
            while client.get(id).await?["status"]["state"] != state {}
            times.push(started.elapsed());
        }
    }
    rows.push(Row::times("pause", "osb", pauses));
    rows.push(Row::times("resume", "osb", resumes));
    Ok(())
}

/// The end of a sandbox with 512 busy processes.
async fn end(client: &Client, rows: &mut Vec<Row>) -> Result<()> {
    let mut times = Vec::new();
    for _ in 0..20 {
        let (id, _) = client.create(&body()).await?;
        let at = client.endpoint(&id).await?;
        client.run(&at, "for n in $(seq 512); do (while :; do :; done) & done").await?;
        let started = Instant::now();
        client.delete(&id).await?;
        times.push(started.elapsed());
    }
    rows.push(Row::times("end", "osb, 512 busy processes", times));
    Ok(())
}

/// Many at once: all answer, lists stay quick, idleness costs nothing.
async fn alive(server: &Server, client: &Client, rows: &mut Vec<Row>) -> Result<()> {
    let free_before = available_bytes()?;
    let started = Instant::now();
    let mut ids = Vec::new();
    for _ in 0..ALIVE {
        ids.push(client.create(&body()).await?.0);
    }
    let mut endpoints = Vec::new();
    for id in &ids {
        endpoints.push(client.endpoint(id).await?);
    }
    let group = format!("{ALIVE} sandboxes alive");
    let rate = ALIVE as f64 / started.elapsed().as_secs_f64();
    rows.push(Row::figure(&group, "osb, created one by one", format!("{rate:.0} per second")));
    for at in &endpoints {
        client.first_output(at, &["/bin/true"]).await?;
    }
    let used = free_before.saturating_sub(available_bytes()?) as f64 / ALIVE as f64;
    rows.push(Row::figure(&group, "osb, memory of one", format!("{:.2} MiB", used / f64::from(1 << 20))));
    let before = cpu_seconds(server);
    tokio::time::sleep(IDLE).await;
    let share = (cpu_seconds(server) - before) / IDLE.as_secs_f64() * 100.0;
    rows.push(Row::figure(&group, "osb, idle CPU", format!("{share:.2} % of a core")));
    let mut lists = Vec::new();
    for _ in 0..200 {
        let started = Instant::now();
        let all = client.call("GET", &format!("/sandboxes?pageSize={ALIVE}"), None).await?;
        lists.push(started.elapsed());
        let count = all.body["items"].as_array().context("no items")?.len();
        anyhow::ensure!(count == ALIVE, "the list has {count}");
    }
    rows.push(Row::times(&group, "osb, list of all", lists));
    for id in &ids {
        client.delete(id).await?;
    }
    Ok(())
}

fn available_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:")).context("no MemAvailable")?;
    let kib: u64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
    Ok(kib * 1024)
}

/// Processor time of the server's processes and of their sandboxes' daemons.
fn cpu_seconds(server: &Server) -> f64 {
    let pids = server.everything();
    let ticks: u64 = pids
        .iter()
        .filter_map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
        })
        .sum();
    ticks as f64 / TICKS_PER_SECOND
}
