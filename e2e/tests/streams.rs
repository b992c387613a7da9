//! Output is neither lost nor doubled: many runs at once, readers that are slow, cut off and resumed, while the server
//! is killed again and again; and execd stays small.
//!
//! `OSB_E2E_STREAM_MB` sets the size of all output together (default 1000; 10000 is the whole claim), `OSB_E2E_STREAM_SLOW`
//! how many of the readers take one megabyte a second (default 2, of a smaller run each; 16 for the whole claim),
//! `OSB_E2E_STREAM_CUT_MB` after how much a reader breaks off (default 8; 50 for the whole claim).

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use e2e::client::{Client, Endpoint};
use e2e::server::Server;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Commands at once.
const RUNS: usize = 16;
/// How often the API server is killed while they are read.
const KILLS: usize = 20;
/// Bytes in a second of a slow reader.
const SLOW: u64 = 1_000_000;
/// Longest run of a slow reader in the small form of the test.
const SLOW_BYTES: u64 = 12_000_000;
/// Memory of execd over its idle one, in KiB.
const MEMORY_KIB: u64 = 8 * 1024;
/// A reader that gets nothing for this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries to reach a server that was killed.
const AGAIN: Duration = Duration::from_millis(20);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn ex_008_nothing_is_lost_or_doubled_though_readers_and_servers_come_and_go() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let mut server = Server::start().expect("the server starts");
    let outcome = runtime.block_on(all(&server));
    let log = server.log();
    outcome.unwrap_or_else(|error| panic!("{error:#}\nserver log:\n{log}"));
    server.stop().expect("the server stops");
}

/// One run: its bytes, and how it is read.
struct Run {
    number: usize,
    bytes: u64,
    slow: bool,
    cut: u64,
}

/// What all readers together have seen.
#[derive(Default)]
struct Seen {
    bytes: AtomicU64,
    cuts: AtomicUsize,
    done: AtomicUsize,
}

async fn all(server: &Server) -> Result<()> {
    let client = server.client();
    let (id, _) = client
        .create(&json!({"image": {"uri": "host"}, "entrypoint": ["sleep", "infinity"], "timeout": 7200, "resourceLimits": {}}))
        .await?;
    let at = client.endpoint(&id).await?;
    client.run(&at, "true").await?;
    let execd = execd(server)?;
    let idle = resident_kib(execd, "VmRSS")?;
    forget_peak(execd)?;

    let total = setting("OSB_E2E_STREAM_MB", 1000) * 1_000_000;
    let slow = setting("OSB_E2E_STREAM_SLOW", 2) as usize;
    let cut = setting("OSB_E2E_STREAM_CUT_MB", 8) * 1_000_000;
    let each = total / RUNS as u64;
    let seen = Arc::new(Seen::default());
    let started = Instant::now();
    let readers: Vec<_> = (0..RUNS)
        .map(|number| {
            let is_slow = number < slow;
            let bytes = if is_slow && slow < RUNS { each.min(SLOW_BYTES) } else { each };
            let run = Run { number, bytes, slow: is_slow, cut: cut.min(bytes / 2) };
            tokio::spawn(work(client.clone(), at.clone(), run, Arc::clone(&seen)))
        })
        .collect();
    let kills = kill_again_and_again(server, &client, &seen, total, &readers).await?;
    for reader in readers {
        reader.await??;
    }
    let peak = resident_kib(execd, "VmHWM")?;
    println!(
        "{} bytes in {:?}, {} cuts, {kills} kills, execd {idle} KiB idle and {peak} KiB at most",
        seen.bytes.load(Ordering::Relaxed),
        started.elapsed(),
        seen.cuts.load(Ordering::Relaxed)
    );
    ensure!(kills >= KILLS, "the server was killed {kills} times only");
    ensure!(peak <= idle + MEMORY_KIB, "execd grew from {idle} to {peak} KiB");
    client.delete(&id).await
}

/// Starts one run, reads it in pieces, and compares it with what the sandbox itself says that it wrote.
async fn work(client: Client, at: Endpoint, run: Run, seen: Arc<Seen>) -> Result<()> {
    let number = run.number;
    let (bytes, sum) = (run.bytes, format!("/tmp/sum.{number}"));
    // Random bytes: whatever is lost, doubled or out of order shows.
    let command =
        format!("head -c {bytes} /dev/urandom | tee >(sha256sum > {sum}.new; mv {sum}.new {sum}); exit {number}");
    let id = start(&client, &at, number, &command).await.with_context(|| format!("start run {number}"))?;
    let (mut digest, mut offset) = (Sha256::new(), 0);
    let deadline_of = || Instant::now() + PATIENCE;
    let mut deadline = deadline_of();
    let end = loop {
        let before = offset;
        match read(&client, &at, &id, &run, &mut digest, &mut offset).await {
            Ok(Some(end)) => break end,
            Ok(None) => drop(seen.cuts.fetch_add(1, Ordering::Relaxed)),
            Err(error) if Instant::now() > deadline => return Err(error.context(format!("run {number} at {offset}"))),
            // The server was killed: it comes back.
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
        seen.bytes.fetch_add(offset - before, Ordering::Relaxed);
        if offset > before {
            deadline = deadline_of();
        }
    };
    seen.done.fetch_add(1, Ordering::Relaxed);
    ensure!(offset == bytes, "run {number}: {offset} of {bytes} bytes");
    ensure!(end == json!({"outcome": "exited", "exit_code": number}), "run {number} ended with {end}");
    let theirs = patiently(|| async {
        let shown = client.run(&at, &format!("until [ -e {sum} ]; do sleep 0.05; done; cut -c-64 {sum}")).await?;
        Ok(shown.stdout.trim().to_owned())
    });
    let ours: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let theirs = theirs.await?;
    ensure!(ours == theirs, "run {number}: {ours} was read, {theirs} was written");
    Ok(())
}

/// Every third is a background command, every third a foreground one whose client leaves at once, and the others are
/// runs of sessions.
async fn start(client: &Client, at: &Endpoint, number: usize, command: &str) -> Result<String> {
    match number % 3 {
        0 => client.start(at, command).await,
        1 => client.start_and_leave(at, "/command", &json!({ "command": command })).await,
        _ => {
            let session = client.session(at).await?;
            client.start_and_leave(at, &format!("/session/{session}/run"), &json!({ "command": command })).await
        }
    }
}

/// Reads until the run's end, which is returned, or until it is time to break off.
async fn read(
    client: &Client,
    at: &Endpoint,
    id: &str,
    run: &Run,
    digest: &mut Sha256,
    offset: &mut u64,
) -> Result<Option<Value>> {
    let mut response = client.output(at, id, *offset).await?;
    let (begun, from) = (Instant::now(), *offset);
    let mut rest: Vec<u8> = Vec::new();
    loop {
        let chunk = tokio::time::timeout(PATIENCE, response.chunk()).await.context("nothing came")??;
        let Some(chunk) = chunk else { bail!("the stream broke off") };
        rest.extend_from_slice(&chunk);
        while let Some(length) = rest.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = rest.drain(..length + 2).collect();
            let Some(data) = event.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"data: ")) else {
                continue;
            };
            let event: Value = serde_json::from_slice(data)?;
            match event["type"].as_str() {
                Some("output") => {
                    ensure!(event["offset"] == *offset, "{} after {offset}", event["offset"]);
                    let bytes = STANDARD.decode(event["base64"].as_str().context("no bytes")?)?;
                    digest.update(&bytes);
                    *offset += bytes.len() as u64;
                    ensure!(event["next"] == *offset, "{} is not {offset}", event["next"]);
                }
                Some("end") => return Ok(Some(event["end"].clone())),
                Some("lost") => bail!("lost: {event}"),
                _ => {}
            }
            if *offset - from >= run.cut {
                return Ok(None);
            }
            if run.slow {
                let due = Duration::from_secs_f64((*offset - from) as f64 / SLOW as f64);
                tokio::time::sleep_until(tokio::time::Instant::from_std(begun + due)).await;
            }
        }
    }
}

/// Kills the API server at even steps of the work, so that all kills fall into it.
async fn kill_again_and_again<T>(
    server: &Server,
    client: &Client,
    seen: &Seen,
    total: u64,
    readers: &[tokio::task::JoinHandle<T>],
) -> Result<usize> {
    let mut kills = 0;
    while readers.iter().any(|reader| !reader.is_finished()) {
        let step = total / (KILLS as u64 + 12);
        let due =
            seen.bytes.load(Ordering::Relaxed) >= step * (kills as u64 + 1) || seen.done.load(Ordering::Relaxed) > 0;
        if kills >= KILLS || !due {
            tokio::time::sleep(AGAIN).await;
            continue;
        }
        let victim = server.child_of_role("api-server").context("an API server")?;
        let pid = rustix::process::Pid::from_raw(i32::try_from(victim)?).context("a pid is not 0")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
        patiently(|| async {
            client.list().await?;
            ensure!(server.child_of_role("api-server").is_some_and(|now| now != victim), "the old one");
            Ok(())
        })
        .await?;
        kills += 1;
    }
    Ok(kills)
}

/// Tries until it works: the server may be on its way up.
async fn patiently<T>(mut attempt: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt().await {
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(AGAIN).await,
            done => return done,
        }
    }
}

/// The one PID 1 of a namespace among the server's processes.
fn execd(server: &Server) -> Result<u32> {
    let is_first = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        numbers.split_whitespace().count() > 1 && numbers.split_whitespace().last() == Some("1")
    };
    server.everything().into_iter().find(is_first).context("no execd")
}

fn resident_kib(pid: u32, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no such line")?;
    Ok(line.trim_start_matches(':').split_whitespace().next().context("no figure")?.parse()?)
}

fn forget_peak(pid: u32) -> Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").context("forget the peak of execd's memory")
}
