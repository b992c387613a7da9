//! A sandbox's life from create to destroy, on a real kernel, as root.

mod common;

use std::time::{Duration, Instant};

use common::{Census, Jailer, answer, plan};
use lifecycle::runtime::{Exit, Receipt};
use runtime_native::wire::{Reply, Seen};

#[test]
fn a_sandbox_is_made_runs_and_is_removed() {
    let jailer = Jailer::start();
    let plan = plan();
    let started = Instant::now();
    let receipt = jailer.create(&plan, "echo made; exec sleep 1000").expect("create");
    println!("first create took {:?}", started.elapsed());
    println!("{receipt:#?}");
    assert_eq!(jailer.inspect(&plan.id), Seen::Running);
    let console = jailer.wait_console(&plan.id, "made");
    assert_eq!(console, "made\n");
    jailer.destroy(&plan.id, Duration::ZERO);
    assert_eq!(jailer.inspect(&plan.id), Seen::Absent);
}

#[test]
fn the_exit_of_record_is_the_main_processs() {
    let jailer = Jailer::start();
    for (script, exit) in [
        ("exit 0", Exit::Exited { code: 0 }),
        ("exit 42", Exit::Exited { code: 42 }),
        ("kill -TERM $$", Exit::Signaled { signal: 15 }),
    ] {
        let (_, seen) = jailer.run(&plan(), script);
        assert_eq!(seen, Seen::Ended { exit }, "{script}");
    }
}

#[test]
fn many_sandboxes_leave_nothing() {
    let jailer = Jailer::start();
    let first = plan();
    jailer.create(&first, "exec sleep 1000").expect("create");
    jailer.destroy(&first.id, Duration::ZERO);
    let before = Census::take_when_quiet(&jailer);
    let mut creates = Vec::new();
    let mut destroys = Vec::new();
    for _ in 0..60 {
        let plan = plan();
        let started = Instant::now();
        jailer.create(&plan, "exec sleep 1000").expect("create");
        creates.push(started.elapsed());
        let started = Instant::now();
        jailer.destroy(&plan.id, Duration::ZERO);
        destroys.push(started.elapsed());
    }
    print_times("create", &mut creates);
    print_times("destroy", &mut destroys);
    assert_eq!(Census::take_when_quiet(&jailer), before);
    assert!(jailer.list().is_empty());
}

fn print_times(what: &str, times: &mut [Duration]) {
    times.sort();
    println!("{what}: p50 {:?}, p99 {:?}", times[times.len() / 2], times[times.len() * 99 / 100]);
}

#[test]
fn a_create_that_fails_leaves_nothing_and_says_why() {
    let jailer = Jailer::start();
    let mut missing = plan();
    missing.layers = vec!["f".repeat(64)];
    let failure = jailer.create(&missing, "true").expect_err("no such layer");
    assert!(failure.message.contains("not unpacked"), "{failure}");
    let mut user = plan();
    user.user = Some("nobody-at-all".to_owned());
    let failure = jailer.create(&user, "true").expect_err("no such user");
    assert!(failure.message.contains("nobody-at-all"), "{failure}");
    let mut entrypoint = plan();
    entrypoint.host_programs = false;
    let failure = jailer.create(&entrypoint, "true").expect_err("no shell in the bare layer");
    assert_eq!(failure.kind, runtime_native::error::Kind::Entrypoint, "{failure}");
    assert!(jailer.list().is_empty());
}

#[test]
fn the_images_user_is_resolved_inside() {
    let jailer = Jailer::start();
    let mut plan = plan();
    plan.user = Some("sandbox".to_owned());
    let (console, _) = jailer.run(&plan, "id -u; echo $HOME");
    assert_eq!(console, "1000\n/home\n");
}

#[test]
fn a_paused_sandbox_stands_still_and_can_be_destroyed() {
    let jailer = Jailer::start();
    let plan = plan();
    jailer.create(&plan, "i=0; while :; do echo tick $i; i=$((i+1)); sleep 0.05; done").expect("create");
    jailer.wait_console(&plan.id, "tick 1");
    jailer.pause(&plan.id);
    assert_eq!(jailer.inspect(&plan.id), Seen::Paused);
    jailer.resume(&plan.id);
    assert_eq!(jailer.inspect(&plan.id), Seen::Running);
    let ticks = jailer.console(&plan.id).lines().count();
    jailer.wait_console(&plan.id, &format!("tick {}", ticks + 1));
    jailer.pause(&plan.id);
    jailer.destroy(&plan.id, Duration::from_secs(2));
    assert_eq!(jailer.inspect(&plan.id), Seen::Absent);
}

#[test]
fn a_lease_that_ends_takes_everything_with_it() {
    let jailer = Jailer::start();
    let (lease, engine) = std::io::pipe().expect("pipe");
    let mut plan = plan();
    plan.leased = true;
    jailer.create_leased(&plan, "exec sleep 1000", std::os::fd::AsFd::as_fd(&lease)).expect("create");
    assert_eq!(jailer.inspect(&plan.id), Seen::Running);
    drop(engine);
    jailer.wait_absent(&plan.id);
    assert!(jailer.list().is_empty());
}

#[test]
fn a_create_may_be_repeated() {
    let jailer = Jailer::start();
    let plan = plan();
    let first = jailer.create(&plan, "exec sleep 1000").expect("create");
    let second = jailer.create(&plan, "exec sleep 1000").expect("the same again");
    assert_eq!(first, second);
}

#[test]
fn creates_of_one_sandbox_at_once_make_one() {
    let jailer = Jailer::start();
    let before = Census::take_when_quiet(&jailer);
    for _ in 0..20 {
        let plan = plan();
        let answers = jailer.create_at_once(&plan, "exec sleep 1000", 4);
        let receipts: Vec<Receipt> = answers
            .iter()
            .map(|socket| match answer(socket) {
                Some(Reply::Created { receipt }) => *receipt,
                other => panic!("a create was answered by {other:?}"),
            })
            .collect();
        assert!(receipts.iter().all(|receipt| *receipt == receipts[0]), "{receipts:?}");
        jailer.destroy(&plan.id, Duration::ZERO);
    }
    assert_eq!(Census::take_when_quiet(&jailer), before);
}

#[test]
fn a_destroy_outlives_the_creates_before_it() {
    let jailer = Jailer::start();
    let before = Census::take_when_quiet(&jailer);
    for _ in 0..40 {
        let plan = plan();
        let answers = jailer.create_at_once(&plan, "exec sleep 1000", 3);
        jailer.destroy(&plan.id, Duration::ZERO);
        // Made and ended, refused, or cut off: whatever became of them, nothing of it lives.
        answers.iter().for_each(|socket| drop(answer(socket)));
        assert_eq!(jailer.inspect(&plan.id), Seen::Absent);
    }
    assert_eq!(Census::take_when_quiet(&jailer), before);
}

#[test]
fn cpu_and_memory_limits_are_in_the_receipt() {
    let jailer = Jailer::start();
    let mut plan = plan();
    plan.limits.cpu_millis = Some(500);
    let receipt = jailer.create(&plan, "exec sleep 1000").expect("create");
    assert_eq!(receipt.limits["cpu"].value, Some(500));
    assert_eq!(receipt.limits["memory"].value, Some(256 << 20));
    assert_eq!(receipt.limits["swap"].value, Some(0));
    assert_eq!(receipt.limits["pids"].value, Some(256));
    let disk = receipt.limits["disk"].value.expect("disk limit");
    assert!(disk <= 10 << 30 && disk > 9 << 30, "{disk}");
}
