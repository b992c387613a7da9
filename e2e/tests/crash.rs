//! The server and the jailer are killed at random points while clients work.
//!
//! `OSB_E2E_KILLS` sets how often each of the two is killed (default 100),
//! `OSB_E2E_SEED` repeats a run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use e2e::census::Census;
use e2e::client::Client;
use e2e::server::Server;
use serde_json::json;

/// How often each process is killed unless the environment says otherwise.
const KILLS: usize = 100;
/// Clients that work at the same time.
const CLIENTS: usize = 8;
/// Sandboxes one client keeps alive.
const KEPT: usize = 3;
/// Longest random wait between two kills.
const MAX_PAUSE_MS: u64 = 150;
/// In this time a killed server must answer again.
const BACK: Duration = Duration::from_secs(2);
/// In this time everything of the deleted sandboxes must be gone.
const SETTLE: Duration = Duration::from_secs(15);
/// Lines that each background command writes.
const LINES: usize = 60;

/// What a client was promised about one sandbox.
struct Promise {
    id: String,
    /// Deadlines that may be in force: more than one after a renewal without an answer.
    deadlines: Vec<String>,
    /// A background command that was started, and whether its start was answered.
    background: Option<String>,
}

#[test]
fn os_002_nothing_is_lost_or_left_when_processes_are_killed() {
    let seed = std::env::var("OSB_E2E_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
        u64::from(now.subsec_nanos()) ^ now.as_secs()
    });
    let kills = std::env::var("OSB_E2E_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    println!("seed {seed}, {kills} kills of each (repeat with OSB_E2E_SEED={seed})");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(storm(seed, kills)).expect("the storm is survived");
}

async fn storm(seed: u64, kills: usize) -> Result<()> {
    let mut server = Server::start()?;
    let client = server.client();
    warm_up(&client).await?;
    let before = settled(&server, None).await;
    println!("before: {before:?}");

    let stop = Arc::new(AtomicBool::new(false));
    let created = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..CLIENTS as u64)
        .map(|number| {
            let work = work(client.clone(), Random(seed ^ (number + 1) << 32), Arc::clone(&stop), Arc::clone(&created));
            tokio::spawn(work)
        })
        .collect();
    let mut slowest = Duration::ZERO;
    let mut random = Random(seed);
    for round in 0..kills * 2 {
        tokio::time::sleep(Duration::from_millis(random.below(MAX_PAUSE_MS))).await;
        let role = if round % 2 == 0 { "api-server" } else { "jailer" };
        let waited = kill_and_wait(&server, &client, role).await.with_context(|| format!("round {round}"))?;
        slowest = slowest.max(waited);
    }
    stop.store(true, Ordering::Relaxed);
    let mut promises = Vec::new();
    for worker in workers {
        promises.extend(worker.await?);
    }
    println!(
        "{} creates answered, {} sandboxes left to check, slowest restart {slowest:?}",
        created.load(Ordering::Relaxed),
        promises.len()
    );
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    let mut broken = Vec::new();
    for promise in &promises {
        match check(&client, promise).await {
            Ok(outcome) => *outcomes.entry(outcome).or_default() += 1,
            Err(error) => broken.push(format!("{}: {error:#}", promise.id)),
        }
    }
    println!("outcomes: {outcomes:?}");
    for id in client.list().await? {
        client.delete(&id).await?;
    }
    let after = settled(&server, Some(&before)).await;
    println!("after: {after:?}");
    anyhow::ensure!(
        broken.is_empty(),
        "{} of {} promises broken:\n{}",
        broken.len(),
        promises.len(),
        broken.join("\n")
    );
    anyhow::ensure!(after.within(&before), "left over:\nbefore {before:?}\nafter  {after:?}");
    server.stop()
}

/// Makes the first sandbox, so that what is made once (layers, stocks) is there.
async fn warm_up(client: &Client) -> Result<()> {
    let (id, _) = client.create(&body(300)).await?;
    let at = client.endpoint(&id).await?;
    client.run(&at, "true").await?;
    client.delete(&id).await
}

fn body(timeout: u64) -> serde_json::Value {
    json!({
        "image": {"uri": "host"},
        "entrypoint": ["sleep", "infinity"],
        "timeout": timeout,
        "resourceLimits": {"memory": "256Mi"},
    })
}

/// Takes the census until it stays the same for a moment, or equals `wanted`.
async fn settled(server: &Server, wanted: Option<&Census>) -> Census {
    let deadline = Instant::now() + SETTLE;
    let mut last = Census::take(server);
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = Census::take(server);
        let done = wanted.map_or(now == last, |wanted| now.within(wanted));
        if done || Instant::now() > deadline {
            return now;
        }
        last = now;
    }
}

async fn kill_and_wait(server: &Server, client: &Client, role: &str) -> Result<Duration> {
    let deadline = Instant::now() + BACK;
    // The one killed before may be on its way up still.
    let victim = loop {
        if let Some(pid) = server.child_of_role(role) {
            break pid;
        }
        anyhow::ensure!(Instant::now() < deadline, "no {role} {BACK:?} after it was killed: {:?}", server.processes());
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    let pid = rustix::process::Pid::from_raw(i32::try_from(victim)?).context("a pid is not 0")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    let killed = Instant::now();
    loop {
        let answered = client.list().await.is_ok();
        if answered && server.child_of_role(role).is_some_and(|now| now != victim) {
            return Ok(killed.elapsed());
        }
        anyhow::ensure!(killed.elapsed() < BACK, "{role} is not back after {BACK:?}:\n{}", server.log());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// One client: creates, runs, renews and deletes until told to stop.
async fn work(client: Client, mut random: Random, stop: Arc<AtomicBool>, created: Arc<AtomicUsize>) -> Vec<Promise> {
    let mut promises: Vec<Promise> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let timeout = 600 + random.below(3000);
        // A create without an answer promised nothing.
        let Ok((id, deadline)) = client.create(&body(timeout)).await else { continue };
        created.fetch_add(1, Ordering::Relaxed);
        let mut promise = Promise { id, deadlines: deadline.into_iter().collect(), background: None };
        // Failures while something is down are expected; what was answered is held to.
        if let Ok(at) = client.endpoint(&promise.id).await {
            let command = format!("for n in $(seq {LINES}); do echo line $n; sleep 0.01; done");
            promise.background = client.start(&at, &command).await.ok();
            let _ = client.run(&at, "echo in between").await;
        }
        if random.below(2) == 0 {
            renew(&client, &mut promise, 4000 + random.below(4000)).await;
        }
        promises.push(promise);
        if promises.len() > KEPT {
            let old = promises.remove(0);
            if client.delete(&old.id).await.is_err() {
                // Not answered: gone or not, it is no longer promised, and the end deletes it.
                continue;
            }
        }
    }
    promises
}

async fn renew(client: &Client, promise: &mut Promise, seconds: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970").as_secs();
    let wanted = rfc3339(now + seconds);
    let answer = client
        .call("POST", &format!("/sandboxes/{}/renew-expiration", promise.id), Some(&json!({"expiresAt": wanted})))
        .await;
    match answer {
        Ok(answer) if answer.status == 200 => promise.deadlines = vec![wanted],
        Ok(_) => {}
        Err(_) => promise.deadlines.push(wanted),
    }
}

/// Holds the server to one promise; says how it was kept.
async fn check(client: &Client, promise: &Promise) -> Result<String> {
    // The look-up waits for a create that is still under way.
    let at = client.endpoint(&promise.id).await;
    let detail = client.get(&promise.id).await?;
    let state = detail["status"]["state"].as_str().unwrap_or_default();
    if state == "Failed" {
        let cause = detail["status"]["message"].as_str().unwrap_or_default();
        anyhow::ensure!(!cause.is_empty(), "Failed without a cause: {detail}");
        let reason = detail["status"]["reason"].as_str().unwrap_or_default();
        return Ok(format!("Failed {reason}: {}", cause.chars().take(90).collect::<String>()));
    }
    anyhow::ensure!(state == "Running", "state {state}: {detail}");
    let at = at?;
    let echo = client.run(&at, "echo still here").await?;
    anyhow::ensure!(echo.stdout == "still here\n" && echo.exit_code == Some(0), "echo gave {echo:?}");
    let deadline = detail["expiresAt"].as_str().unwrap_or_default();
    anyhow::ensure!(
        promise.deadlines.iter().any(|wanted| seconds(wanted) == seconds(deadline)),
        "deadline {deadline}, promised {:?}",
        promise.deadlines
    );
    if let Some(id) = &promise.background {
        let expected: String = (1..=LINES).map(|number| format!("line {number}\n")).collect();
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            let logs = client.logs(&at, id).await?;
            if logs == expected {
                break;
            }
            let so_far = expected.starts_with(&logs) && Instant::now() < patience;
            anyhow::ensure!(so_far, "background logs are {logs:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok("Running".into())
}

/// The part of a timestamp down to the second.
fn seconds(timestamp: &str) -> &str {
    timestamp.get(..19).unwrap_or(timestamp)
}

fn rfc3339(unix_seconds: u64) -> String {
    const DAY: u64 = 86_400;
    let (mut days, rest) = (unix_seconds / DAY, unix_seconds % DAY);
    let mut year = 1970;
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    format!("{year:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", month + 1, days + 1, rest / 3600, rest / 60 % 60, rest % 60)
}

/// xorshift64*: small, seeded, good enough to pick moments.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.max(1);
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % bound
    }
}
