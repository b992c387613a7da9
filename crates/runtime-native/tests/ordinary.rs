//! The same sandbox for an ordinary user: what works, what is weaker, and that it says so.

mod common;

use std::time::Duration;

use common::{Jailer, plan};
use lifecycle::runtime::Exit;
use runtime_native::wire::{PlanLimits, Seen};

/// A user id without an account and without sub-ids.
const UID: u32 = 12_345;

#[test]
fn an_ordinary_user_runs_a_sandbox_and_leaves_nothing() {
    let jailer = Jailer::start_as_user(UID);
    let mut plan = plan();
    plan.limits = PlanLimits::default();
    let receipt =
        jailer.create(&plan, "id -u; cat /proc/self/uid_map; echo hello > /root/file; cat /root/file; exec sleep 1000");
    let receipt = receipt.unwrap_or_else(|failure| panic!("{failure}"));
    let console = jailer.wait_console(&plan.id, "hello");
    assert!(console.starts_with("0\n"), "{console}");
    assert!(console.contains(&UID.to_string()), "{console}");
    assert_eq!(receipt.mode, "user");
    assert!(receipt.seccomp && receipt.no_new_privs);
    assert_eq!(receipt.limits["disk"].by, "none");
    assert!(!receipt.weaker.is_empty());
    jailer.destroy(&plan.id, Duration::ZERO);
    assert_eq!(jailer.inspect(&plan.id), Seen::Absent);
    assert!(jailer.list().is_empty());
}

#[test]
fn limits_that_hold_for_an_ordinary_user_hold() {
    let jailer = Jailer::start_as_user(UID);
    let mut memory = plan();
    memory.limits =
        PlanLimits { memory_bytes: Some(64 << 20), pids: Some(64), cpu_millis: Some(1000), ..PlanLimits::default() };
    let (console, seen) = jailer.run(&memory, "nproc; perl -e '$x = q(x) x 100000000' 2>&1; ulimit -d");
    assert!(console.starts_with("1\n"), "{console}");
    assert!(console.contains("65536"), "{console}");
    assert!(console.to_lowercase().contains("memory"), "{console} {seen:?}");

    let mut disk = plan();
    disk.limits = PlanLimits { disk_bytes: Some(16 << 20), disk_inodes: Some(1000), ..PlanLimits::default() };
    let (console, seen) = jailer.run(&disk, "dd if=/dev/zero of=/root/fill bs=1M count=32");
    assert!(console.contains("No space left"), "{console}");
    assert!(matches!(seen, Seen::Ended { exit: Exit::Exited { code: 1 } }), "{seen:?}");
}

#[test]
fn pausing_is_refused_by_name() {
    let jailer = Jailer::start_as_user(UID);
    let mut plan = plan();
    plan.limits = PlanLimits::default();
    jailer.create(&plan, "exec sleep 1000").expect("create");
    let request = runtime_native::wire::Request::Pause { id: plan.id.clone() };
    match jailer.ask(&request, &[]).0 {
        runtime_native::wire::Reply::Failed(failure) => assert!(failure.message.contains("cgroup"), "{failure}"),
        other => panic!("{other:?}"),
    }
}
