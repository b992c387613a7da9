//! How sandboxes end, seen from outside: deadlines and reasons.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::client::Client;
use e2e::server::Server;
use serde_json::{Value, json};

/// Longest wait for an end that was provoked.
const PATIENCE: Duration = Duration::from_secs(30);

fn body(entrypoint: &[&str], limits: Value) -> Value {
    json!({
        "image": {"uri": "host"},
        "entrypoint": entrypoint,
        "timeout": 600,
        "resourceLimits": limits,
    })
}

/// Waits until the sandbox has left the living states; gives its status.
async fn ended(client: &Client, id: &str) -> Result<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = client.get(id).await?["status"].clone();
        let state = status["state"].as_str().context("no state")?;
        if matches!(state, "Terminated" | "Failed") {
            return Ok(status);
        }
        anyhow::ensure!(Instant::now() < deadline, "still {status} after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn run(test: impl AsyncFnOnce(&Server, &Client) -> Result<()>) {
    let mut server = Server::start().expect("the server starts");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = server.client();
    let outcome = runtime.block_on(test(&server, &client));
    let log = server.log();
    outcome.unwrap_or_else(|error| panic!("{error:#}\nserver log:\n{log}"));
    server.stop().expect("the server stops");
}

#[test]
fn a_timeout_of_60_ends_at_60_give_or_take_1() {
    run(async |_, client| {
        let mut asked = body(&["sleep", "infinity"], json!({}));
        asked["timeout"] = json!(60);
        let started = Instant::now();
        let (id, _) = client.create(&asked).await?;
        client.endpoint(&id).await?;
        loop {
            let answer = client.call("GET", &format!("/sandboxes/{id}"), None).await?;
            let state = answer.body["status"]["state"].as_str().unwrap_or("gone").to_owned();
            let elapsed = started.elapsed();
            if answer.status == 404 || matches!(&*state, "Terminated" | "gone") {
                println!("ended after {elapsed:?} ({state})");
                anyhow::ensure!((59.0..=61.0).contains(&elapsed.as_secs_f64()), "after {elapsed:?}");
                return Ok(());
            }
            anyhow::ensure!(elapsed < Duration::from_secs(70), "still {state} after {elapsed:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

/// Provokes one end and compares state, reason and message.
fn ends_as(entrypoint: &[&str], limits: Value, state: &str, reason_part: &str, message_part: &str) {
    run(async |_, client| {
        let (id, _) = client.create(&body(entrypoint, limits)).await?;
        let status = ended(client, &id).await?;
        let text = status.to_string();
        anyhow::ensure!(status["state"] == state, "{text}");
        let reason = status["reason"].as_str().unwrap_or_default().to_lowercase();
        let message = status["message"].as_str().unwrap_or_default().to_lowercase();
        anyhow::ensure!(reason.contains(reason_part), "reason lacks {reason_part:?}: {text}");
        anyhow::ensure!(message.contains(message_part), "message lacks {message_part:?}: {text}");
        client.delete(&id).await
    });
}

#[test]
fn exit_0_is_told() {
    ends_as(&["sh", "-c", "sleep 0.3"], json!({}), "Terminated", "exited", "");
}

#[test]
fn exit_7_is_told() {
    ends_as(&["sh", "-c", "sleep 0.3; exit 7"], json!({}), "Failed", "exited", "7");
}

#[test]
fn a_signal_is_told() {
    ends_as(&["sh", "-c", "sleep 0.3; kill -9 $$"], json!({}), "Failed", "signal", "9");
}

#[test]
fn out_of_memory_is_told() {
    let hog = "import time; time.sleep(0.3); b = bytearray(512 << 20)";
    ends_as(&["/usr/bin/python3", "-c", hog], json!({"memory": "128Mi"}), "Failed", "oom", "memory");
}

#[test]
fn os_018_a_process_limit_is_told() {
    let bomb = "sleep 0.3; for n in $(seq 200); do sleep 30 & done; wait";
    ends_as(&["sh", "-c", bomb], json!({"pids": "32"}), "Failed", "pids", "process");
}

#[test]
fn a_full_disk_is_told() {
    let fill = "sleep 0.3; exec dd if=/dev/zero of=/root/fill bs=1M count=512";
    ends_as(&["sh", "-c", fill], json!({"disk": "64Mi"}), "Failed", "disk", "disk");
}

#[test]
fn os_021_a_killed_sandbox_is_failed_and_refuses_what_needs_life() {
    run(async |server, client| {
        let (id, _) = client.create(&body(&["sleep", "infinity"], json!({}))).await?;
        let at = client.endpoint(&id).await?;
        let pid = first_process_of(server, &id)?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
        let status = ended(client, &id).await?;
        anyhow::ensure!(status["state"] == "Failed", "{status}");
        anyhow::ensure!(status["message"].as_str().is_some_and(|message| !message.is_empty()), "{status}");
        let started = Instant::now();
        anyhow::ensure!(client.run(&at, "true").await.is_err(), "a dead sandbox ran a command");
        anyhow::ensure!(started.elapsed() < Duration::from_secs(5), "exec failed late");
        for (action, body) in [("resume", None), ("pause", None)] {
            let answer = client.call("POST", &format!("/sandboxes/{id}/{action}"), body).await?;
            anyhow::ensure!(answer.status == 409, "{action}: {answer:?}");
        }
        let answer = client.call("GET", &format!("/sandboxes/{id}/endpoints/44772"), None).await?;
        anyhow::ensure!((400..500).contains(&answer.status), "endpoint: {answer:?}");
        let answer = client.call("DELETE", &format!("/sandboxes/{id}"), None).await?;
        anyhow::ensure!(answer.status == 204, "delete: {answer:?}");
        Ok(())
    });
}

/// PID 1 of the sandbox: the first process in its control group, which is named by the seat of its worker or by its id.
fn first_process_of(server: &Server, id: &str) -> Result<rustix::process::Pid> {
    let seat = std::fs::read_to_string(server.data().join("sandboxes").join(id).join("group"));
    let group = format!("/{}", seat.as_deref().map_or(id, |name| name.trim_matches('"')));
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let cgroup = std::fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        let inner = status.lines().find(|line| line.starts_with("NSpid:")).unwrap_or_default();
        if cgroup.lines().any(|line| line.ends_with(&group))
            && inner.split_whitespace().last() == Some("1")
            && inner.split_whitespace().count() > 2
        {
            return rustix::process::Pid::from_raw(pid).context("a pid is not 0");
        }
    }
    anyhow::bail!("no process of {id} found")
}

#[test]
fn os_022_the_entrypoint_gets_term_and_a_grace_before_the_end() {
    run(async |server, client| {
        let script = "trap 'echo got term; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
        let (id, _) = client.create(&body(&["sh", "-c", script], json!({}))).await?;
        client.endpoint(&id).await?;
        let console = |id: String| async move {
            let answer = client.call("GET", &format!("/sandboxes/{id}/diagnostics/logs?scope=container"), None).await?;
            Ok::<_, anyhow::Error>(answer.body["content"].as_str().unwrap_or_default().to_owned())
        };
        let deadline = Instant::now() + PATIENCE;
        while !console(id.clone()).await?.contains("ready") {
            anyhow::ensure!(Instant::now() < deadline, "the entrypoint did not start");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let started = Instant::now();
        let answer = client.call("DELETE", &format!("/sandboxes/{id}"), None).await?;
        anyhow::ensure!(answer.status == 204, "{answer:?}");
        // It ended by itself, well before the grace of 2 s and without KILL.
        anyhow::ensure!(started.elapsed() < Duration::from_millis(1500), "took {:?}", started.elapsed());
        anyhow::ensure!(client.call("DELETE", &format!("/sandboxes/{id}"), None).await?.status == 404, "second delete");
        drop(server.log());
        Ok(())
    });
}

#[test]
fn ex_027_the_same_metadata_can_be_used_again_at_once_and_ids_never() {
    run(async |_, client| {
        let mut asked = body(&["sleep", "infinity"], json!({}));
        asked["metadata"] = json!({"name": "one"});
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..10 {
            let (id, _) = client.create(&asked).await?;
            client.endpoint(&id).await?;
            client.delete(&id).await?;
            anyhow::ensure!(seen.insert(id), "an id came twice");
        }
        Ok(())
    });
}
