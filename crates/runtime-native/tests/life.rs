//! A sandbox's life from create to destroy, on a real kernel, as root.

mod common;

use std::time::{Duration, Instant};

use common::{Jailer, plan};
use lifecycle::runtime::Exit;
use runtime_native::wire::Seen;

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
