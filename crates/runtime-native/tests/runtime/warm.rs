//! Sandboxes that wait: claimed once, or gone with whoever held them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lifecycle::runtime::{ErrorKind, Runtime as _};
use lifecycle::spec::{Limits, Network, SandboxId, SandboxSpec};

use super::common::{Jailer, ranges};
use super::{connect, create, id, spec};

/// Longest wait for a monitor to notice something.
const PATIENCE: Duration = Duration::from_secs(20);

fn directory(jailer: &Jailer, id: &SandboxId) -> PathBuf {
    jailer.paths.sandbox(id)
}

async fn gone(jailer: &Jailer, id: &SandboxId) {
    let deadline = Instant::now() + PATIENCE;
    while directory(jailer, id).exists() {
        assert!(Instant::now() < deadline, "{id} is still there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn monitor(jailer: &Jailer, id: &SandboxId) -> i32 {
    let text = std::fs::read(directory(jailer, id).join("monitor.json")).expect("a monitor");
    let value: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    value["monitor"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a number")
}

#[tokio::test]
async fn a_claim_sets_what_was_asked_and_is_a_sandbox_like_any() {
    let jailer = Jailer::start();
    let runtime = connect(&jailer).await;
    let warm = runtime.warm().expect("keeps some ready");
    let id = id("claimed");
    let prepared = Network::Steered { reachable: ranges(&["0.0.0.0/0"]) };
    let base = SandboxSpec { network: prepared, ..spec("host", &["true"]) };
    warm.prepare(&id, &base).await.expect("prepare");
    assert!(warm.is_waiting(&id));
    let asked = SandboxSpec {
        limits: Limits { memory_bytes: Some(64 << 20), cpu_millis: Some(500), pids: Some(77), ..Limits::default() },
        network: Network::Steered { reachable: ranges(&["203.0.113.0/24"]) },
        ..spec(
            "host",
            &["sh", "-c", "echo $GREETING; hostname; cat /etc/machine-id; df -k /dev/shm | tail -1; exec sleep 1000"],
        )
    };
    assert_eq!(warm.kind(&asked), warm.kind(&base));
    let monitor_before = monitor(&jailer, &id);
    let created = create(&runtime, &id, &asked).await.expect("claim");
    assert_eq!(monitor(&jailer, &id), monitor_before, "it was claimed and not made anew");
    assert!(!warm.is_waiting(&id));
    assert!(created.listeners.is_some());
    let limit = |name: &str| created.receipt.limits[name].value;
    assert_eq!((limit("memory"), limit("cpu"), limit("pids")), (Some(64 << 20), Some(500), Some(77)));
    let deadline = Instant::now() + PATIENCE;
    let console = loop {
        let text = String::from_utf8(runtime.console(&id, 1000).await.expect("console")).expect("text");
        if text.lines().count() >= 4 || Instant::now() > deadline {
            break text;
        }
    };
    let lines: Vec<&str> = console.lines().collect();
    assert_eq!((lines[0], lines[1], lines[2].len()), ("hello", id.as_str(), 32), "{console}");
    assert!(lines[3].split_whitespace().any(|word| word == "32768"), "/dev/shm is half of the memory: {console}");
    // Asked again after a crash of the server, it is found.
    assert_eq!(create(&runtime, &id, &asked).await.expect("again").receipt, created.receipt);
    runtime.destroy(&id, Duration::ZERO).await.expect("destroy");
    gone(&jailer, &id).await;
}

#[tokio::test]
async fn one_whose_server_is_gone_removes_itself() {
    let jailer = Jailer::start();
    let runtime = connect(&jailer).await;
    let id = id("alone");
    runtime.warm().expect("warm").prepare(&id, &spec("host", &["true"])).await.expect("prepare");
    assert!(directory(&jailer, &id).exists());
    drop(runtime);
    gone(&jailer, &id).await;
}

#[tokio::test]
async fn a_claim_of_one_whose_monitor_was_killed_makes_it_anew() {
    let jailer = Jailer::start();
    let runtime = connect(&jailer).await;
    let warm = runtime.warm().expect("warm");
    let id = id("killed");
    warm.prepare(&id, &spec("host", &["true"])).await.expect("prepare");
    let pid = rustix::process::Pid::from_raw(monitor(&jailer, &id)).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
    let deadline = Instant::now() + PATIENCE;
    while warm.is_waiting(&id) {
        assert!(Instant::now() < deadline, "nobody noticed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    create(&runtime, &id, &spec("host", &["sleep", "1000"])).await.expect("create");
    runtime.destroy(&id, Duration::ZERO).await.expect("destroy");
}

#[tokio::test]
async fn a_create_that_does_not_fit_is_made_anew_under_the_same_id() {
    let jailer = Jailer::start();
    let runtime = connect(&jailer).await;
    let warm = runtime.warm().expect("warm");
    let id = id("unfit");
    let base = spec("host", &["true"]);
    warm.prepare(&id, &base).await.expect("prepare");
    let limits = Limits { disk_bytes: Some(64 << 20), ..Limits::default() };
    let other = SandboxSpec { limits, ..spec("host", &["sleep", "1000"]) };
    assert_ne!(warm.kind(&base), warm.kind(&other));
    let before = monitor(&jailer, &id);
    create(&runtime, &id, &other).await.expect("create");
    assert_ne!(monitor(&jailer, &id), before);
    runtime.destroy(&id, Duration::ZERO).await.expect("destroy");
}

#[tokio::test]
async fn os_094_a_main_process_that_cannot_start_leaves_nothing_of_a_claimed_one() {
    let jailer = Jailer::start();
    let runtime = connect(&jailer).await;
    let id = id("nosuch");
    runtime.warm().expect("warm").prepare(&id, &spec("host", &["true"])).await.expect("prepare");
    let error = create(&runtime, &id, &spec("host", &["/no/such/program"])).await.expect_err("fails");
    assert_eq!(error.kind, ErrorKind::Entrypoint, "{error}");
    gone(&jailer, &id).await;
}

#[tokio::test]
async fn discarded_ones_are_gone_when_that_is_said() {
    let jailer = Jailer::start();
    let runtime = connect(&jailer).await;
    let warm = runtime.warm().expect("warm");
    let (id, other) = (id("discarded"), id("destroyed"));
    for id in [&id, &other] {
        warm.prepare(id, &spec("host", &["true"])).await.expect("prepare");
    }
    warm.discard(&id).await.expect("discard");
    assert!(!directory(&jailer, &id).exists());
    runtime.destroy(&other, Duration::ZERO).await.expect("destroy");
    assert!(!directory(&jailer, &other).exists() && !warm.is_waiting(&other));
    assert!(runtime.list().await.expect("list").is_empty());
}
