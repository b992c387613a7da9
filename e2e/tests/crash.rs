//! The server and the jailer are killed at random points while clients work.
//!
//! `OSB_E2E_KILLS` sets how often each of the two is killed (default 100),
//! `OSB_E2E_SEED` repeats a run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use e2e::client::Client;
use e2e::promise::{Promise, settled};
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
/// Lines that each background command writes.
const LINES: usize = 60;

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
        match promise.check(&client).await {
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
        let Ok(answered) = client.create(&body(timeout)).await else { continue };
        created.fetch_add(1, Ordering::Relaxed);
        let mut promise = Promise::new(answered);
        // Failures while something is down are expected; what was answered is held to.
        if let Ok(at) = client.endpoint(&promise.id).await {
            let command = format!("for n in $(seq {LINES}); do echo line $n; sleep 0.01; done");
            let expected = (1..=LINES).map(|number| format!("line {number}\n")).collect();
            promise.background = client.start(&at, &command).await.ok().map(|id| (id, expected));
            let _ = client.run(&at, "echo in between").await;
        }
        if random.below(2) == 0 {
            promise.renew(&client, 4000 + random.below(4000)).await;
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
