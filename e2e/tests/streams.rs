//! Output that is not lost: many runs, slow readers, cut connections, a server that is killed.
//!
//! `OSB_E2E_STREAM_MB` sets the bytes of each run in MB; 640 make the 10 GB that are read before a release.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use e2e::census;
use e2e::client::{Client, Endpoint};
use e2e::server::Server;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Commands that write at the same time.
const RUNS: u64 = 16;
/// MB of output of each, unless the environment says otherwise.
const RUN_MB: u64 = 96;
/// How often a reader's connection is cut, by bytes: so many times in the course of a run.
const CUTS: u64 = 12;
/// Readers that take their time.
const SLOW_READERS: u64 = 4;
/// Bytes a slow reader takes in a second, and for how many of its first bytes.
const SLOW_RATE: u64 = 1_000_000;
const SLOW_BYTES: u64 = 10_000_000;
/// How often the API process is killed.
const KILLS: u64 = 20;
/// Bytes that execd may take beyond what it takes idle.
const MAX_GROWTH_KIB: u64 = 8 * 1024;
/// No run may stand still for so long.
const STALL: Duration = Duration::from_secs(60);
/// Between two tries to reach a server that was killed, and two looks at the memory.
const LOOK: Duration = Duration::from_millis(20);

#[test]
fn nothing_is_lost_or_doubled_through_cuts_and_kills() {
    let megabytes = std::env::var("OSB_E2E_STREAM_MB").ok().and_then(|text| text.parse().ok()).unwrap_or(RUN_MB);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(all(megabytes * 1_000_000)).expect("every byte arrives once");
}

async fn all(bytes: u64) -> Result<()> {
    let mut server = Server::start()?;
    let client = server.client();
    let body =
        json!({"image": {"uri": "host"}, "entrypoint": ["sleep", "infinity"], "timeout": 3000, "resourceLimits": {}});
    let (id, _) = client.create(&body).await?;
    let at = client.endpoint(&id).await?;
    client.run(&at, "true").await?;
    let execd = execd_of(&server)?;
    let idle = memory_kib(execd)?;

    let begun = Instant::now();
    let mut readers = tokio::task::JoinSet::new();
    for number in 0..RUNS {
        let command = client.start(&at, &noise(number, bytes)).await?;
        readers.spawn(read(client.clone(), at.clone(), command, number, bytes));
    }
    let mut sums = vec![String::new(); RUNS as usize];
    let (mut cuts, mut kills, mut read_bytes, mut most) = (0, 0, 0, 0);
    while !readers.is_empty() {
        tokio::select! {
            done = readers.join_next() => {
                let done = done.context("there is a reader")???;
                sums[done.number as usize] = done.sum;
                cuts += done.cuts;
                read_bytes += bytes;
            }
            () = tokio::time::sleep(LOOK) => most = most.max(memory_kib(execd)?),
        }
        // Spread over the output, not over time: a fast machine is killed as often.
        let progress = PROGRESS.load(std::sync::atomic::Ordering::Relaxed);
        if kills < KILLS && progress > (kills + 1) * RUNS * bytes / (KILLS + 2) && kill(&server)? {
            kills += 1;
        }
    }
    println!(
        "{read_bytes} bytes of {RUNS} runs in {:?}: {cuts} connections cut, {kills} kills, execd {idle} KiB idle and {most} at most",
        begun.elapsed()
    );
    for number in 0..RUNS {
        let expected = shell_sum(number, bytes)?;
        ensure!(
            sums[number as usize] == expected,
            "run {number}: {} was read, {expected} written",
            sums[number as usize]
        );
    }
    ensure!(kills == KILLS, "{kills} kills");
    // The last cut of a run may fall together with its end.
    ensure!(cuts >= RUNS * (CUTS - 1), "{cuts} connections were cut");
    ensure!(most <= idle + MAX_GROWTH_KIB, "execd grew from {idle} KiB to {most}");
    client.delete(&id).await?;
    server.stop()
}

/// Bytes read by all readers together.
static PROGRESS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// What one reader found.
struct Done {
    number: u64,
    sum: String,
    cuts: u64,
}

/// Reads a run to its end, through as many connections as it takes.
async fn read(client: Client, at: Endpoint, command: String, number: u64, bytes: u64) -> Result<Done> {
    let mut reader = Reader { number, sum: Sha256::new(), position: 0, cut_at: bytes / CUTS, every: bytes / CUTS };
    let (mut cuts, mut moved) = (0, Instant::now());
    loop {
        let before = reader.position;
        let lost = match reader.connection(&client, &at, &command).await {
            Ok(End::Run) => break,
            Ok(End::Cut) => {
                cuts += 1;
                None
            }
            Err(Broken::Lost(why)) => Some(why),
            Err(Broken::Wrong(error)) => return Err(error.context(format!("run {number} at {}", reader.position))),
        };
        if reader.position > before {
            moved = Instant::now();
        }
        ensure!(moved.elapsed() < STALL, "run {number} stands still at {}: {lost:?}", reader.position);
        tokio::time::sleep(LOOK).await;
    }
    ensure!(reader.position == bytes, "run {number} ended after {} of {bytes} bytes", reader.position);
    let sum = reader.sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Done { number, sum, cuts })
}

/// How a connection ended without fault.
enum End {
    Run,
    Cut,
}

/// How a connection ended otherwise.
enum Broken {
    /// By the kill of the server: what follows is asked for again.
    Lost(anyhow::Error),
    /// By something that must not happen.
    Wrong(anyhow::Error),
}

impl From<anyhow::Error> for Broken {
    fn from(error: anyhow::Error) -> Self {
        Self::Wrong(error)
    }
}

struct Reader {
    number: u64,
    sum: Sha256,
    position: u64,
    cut_at: u64,
    every: u64,
}

impl Reader {
    async fn connection(&mut self, client: &Client, at: &Endpoint, command: &str) -> Result<End, Broken> {
        let mut response = client.stream(at, command, self.position).await.map_err(Broken::Lost)?;
        let mut unread = Vec::new();
        loop {
            let next = tokio::time::timeout(STALL, response.chunk()).await;
            let next = next.with_context(|| format!("nothing came for {STALL:?}"))?;
            let chunk = match next {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return Err(Broken::Lost(anyhow::anyhow!("the stream ended before its run"))),
                Err(error) => return Err(Broken::Lost(error.into())),
            };
            unread.extend_from_slice(&chunk);
            let mut used = 0;
            while let Some(length) = unread[used..].windows(2).position(|two| two == b"\n\n") {
                let ended = self.event(&unread[used..used + length])?;
                used += length + 2;
                if ended {
                    return Ok(End::Run);
                }
            }
            unread.drain(..used);
            if self.position >= self.cut_at {
                self.cut_at += self.every;
                return Ok(End::Cut);
            }
            if self.number < SLOW_READERS && self.position < SLOW_BYTES {
                let pause = chunk.len() as u64 * 1_000_000 / SLOW_RATE;
                tokio::time::sleep(Duration::from_micros(pause)).await;
            }
        }
    }

    /// Takes one event; says whether it is the last of the run.
    fn event(&mut self, frame: &[u8]) -> Result<bool> {
        let text = std::str::from_utf8(frame)?;
        let Some(data) = text.lines().find_map(|line| line.strip_prefix("data: ")) else { return Ok(false) };
        let event: Value = serde_json::from_str(data)?;
        match event["type"].as_str().unwrap_or_default() {
            "output" => {
                let bytes = BASE64_STANDARD.decode(event["base64"].as_str().context("bytes")?)?;
                ensure!(event["offset"] == self.position, "output of {} at {}", event["offset"], self.position);
                self.sum.update(&bytes);
                self.position += bytes.len() as u64;
                ensure!(event["next"] == self.position, "next is {}", event["next"]);
                PROGRESS.fetch_add(bytes.len() as u64, std::sync::atomic::Ordering::Relaxed);
                Ok(false)
            }
            "begin" | "spool_full" => Ok(false),
            "end" if event["end"] == json!({"outcome": "exited", "exit_code": 0}) => Ok(true),
            _ => bail!("{data}"),
        }
    }
}

/// Writes that many bytes which nobody can guess the order of, but anybody can make again.
fn noise(number: u64, bytes: u64) -> String {
    format!("openssl enc -aes-128-ctr -K {number:032x} -iv 00 -in /dev/zero 2>/dev/null | head -c {bytes}; exit 0")
}

fn shell_sum(number: u64, bytes: u64) -> Result<String> {
    let sum = Command::new("sh").args(["-c", &format!("({}) | sha256sum", noise(number, bytes))]).output()?;
    let text = String::from_utf8(sum.stdout)?;
    Ok(text.split_ascii_whitespace().next().context("a sum")?.to_owned())
}

/// Kills the API process, if it is there.
fn kill(server: &Server) -> Result<bool> {
    let Some(pid) = server.child_of_role("api-server") else { return Ok(false) };
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid)?).context("a pid is not 0")?;
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok())
}

/// The process 1 of the only sandbox, as the machine sees it.
fn execd_of(server: &Server) -> Result<u32> {
    let status = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parent = |pid: u32| field(&status(pid), "PPid:").and_then(|text| text.parse::<u32>().ok());
    let ours = |pid: u32| std::iter::successors(Some(pid), |pid| parent(*pid)).any(|pid| pid == server.supervisor());
    let first = |pid: &u32| field(&status(*pid), "NSpid:").is_some_and(|pids| pids.ends_with("\t1"));
    census::pids().into_iter().filter(first).find(|pid| ours(*pid)).context("the sandbox has no process 1")
}

fn memory_kib(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let anonymous = field(&status, "RssAnon:").context("a figure")?;
    Ok(anonymous.trim_end_matches(" kB").parse()?)
}

/// The value of a line of `/proc/PID/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
