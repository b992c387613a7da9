//! Isolated sessions in a sandbox, on a real kernel: what they are made of, what ends them, what stays closed.
//!
//! The stand-in runs a session's "main process" inside the session, which these tests use to look around there.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use common::{Census, DEADLINE, Jailer, plan};
use lifecycle::isolated::{Mount, MountKind, Record, Seen, SessionId, SessionSpec};
use lifecycle::spec::SandboxId;
use protocol::execd::boot::BootConfig;
use protocol::execd::isolated::CreateSession;
use runtime_native::error::{Failure, Kind};
use runtime_native::state::Process;
use runtime_native::user::memory_file;
use runtime_native::wire::{PlanLimits, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

/// Main process of a sandbox: prints what a session left in the workspace, then stays.
const REPORT: &str = "while [ ! -e /w/done ]; do sleep 0.05; done; cat /w/result; echo end; exec sleep 1000";

fn id(number: u32) -> SessionId {
    SessionId::parse(&format!("00000000-0000-4000-8000-{number:012}")).expect("a UUID")
}

fn spec(kind: MountKind) -> SessionSpec {
    let mounts = vec![Mount { path: "/w".to_owned(), kind }];
    SessionSpec { mounts, own_tmp: true, ..SessionSpec::default() }
}

fn start(jailer: &Jailer, sandbox: &SandboxId, id: &SessionId, spec: SessionSpec, script: &str) -> Result<(), Failure> {
    let config = BootConfig {
        sandbox_id: sandbox.to_string(),
        token: None,
        env: BTreeMap::from([("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned())]),
        entrypoint: vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()],
        cwd: None,
        user: None,
        grace_ms: 0,
        hooks: protocol::hooks::Hooks::default(),
        isolated: None,
    };
    let boot = memory_file("boot", &serde_json::to_vec(&config).expect("boot configuration")).expect("memory file");
    let record = Record { id: id.clone(), created_ms: 1, asked: CreateSession::default() };
    let request = Request::StartSession { sandbox: sandbox.clone(), record: Box::new(record), spec: Box::new(spec) };
    match jailer.ask(&request, &[boot.as_fd()]).0 {
        Reply::Done => Ok(()),
        Reply::Failed(failure) => Err(failure),
        other => panic!("start a session: {other:?}"),
    }
}

fn end(jailer: &Jailer, sandbox: &SandboxId, id: &SessionId) {
    let request = Request::EndSession { sandbox: sandbox.clone(), session: id.clone() };
    match jailer.ask(&request, &[]).0 {
        Reply::Done => {}
        other => panic!("end a session: {other:?}"),
    }
}

fn list(jailer: &Jailer, sandbox: &SandboxId) -> Vec<Seen> {
    match jailer.ask(&Request::ListSessions { sandbox: sandbox.clone() }, &[]).0 {
        Reply::Sessions { sessions } => sessions,
        other => panic!("list the sessions: {other:?}"),
    }
}

fn init(jailer: &Jailer, sandbox: &SandboxId, id: &SessionId) -> Process {
    let text = fs::read(jailer.paths.session(sandbox, id).join("init.json")).expect("the session's first process");
    serde_json::from_slice(&text).expect("a process")
}

/// Waits for the end of a process.
fn wait_gone(process: Process) {
    let Some(open) = process.open() else { return };
    let timeout = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&open, PollFlags::IN)], Some(&timeout)).expect("poll");
    assert!(ended > 0, "process {} does not end", process.pid);
}

#[test]
fn a_session_has_mounts_and_processes_of_its_own() {
    let jailer = Jailer::start();
    let plan = plan();
    jailer.create(&plan, REPORT).expect("create");
    let script = "exec >/w/result 2>&1; echo pid $$; hostname; (: >/etc/x) 2>/dev/null || echo closed; \
                  echo own >/tmp/own && cat /tmp/own; ls /dev/mqueue | wc -l; grep -c 'dev/mqueue' /proc/self/mountinfo; \
                  cat /proc/sys/user/max_user_namespaces; : >/w/done; exec sleep 1000";
    start(&jailer, &plan.id, &id(1), spec(MountKind::Rw), script).expect("start");
    let console = jailer.wait_console(&plan.id, "end");
    assert_eq!(console, "pid 2\nsandbox\nclosed\nown\n0\n1\n0\nend\n");
    let seen = list(&jailer, &plan.id);
    assert!(seen.len() == 1 && seen[0].alive && seen[0].record.id == id(1), "{seen:?}");
    let process = init(&jailer, &plan.id, &id(1));
    end(&jailer, &plan.id, &id(1));
    wait_gone(process);
    assert!(list(&jailer, &plan.id).is_empty());
    end(&jailer, &plan.id, &id(1));
}

#[test]
fn an_overlay_keeps_its_writes_from_the_sandbox() {
    let jailer = Jailer::start();
    let plan = plan();
    let wait = "mkdir /w; echo lower >/w/file; echo made; until [ -e /x/done ]; do sleep 0.05; done; cat /w/file; ls /w; exec sleep 1000";
    jailer.create(&plan, wait).expect("create");
    jailer.wait_console(&plan.id, "made");
    let mut both = spec(MountKind::Overlay);
    both.mounts.push(Mount { path: "/x".to_owned(), kind: MountKind::Rw });
    both.mounts.push(Mount { path: "/m".to_owned(), kind: MountKind::Ephemeral });
    let script = "echo upper >/w/file && echo new >/w/new && echo m >/m/m && : >/x/done; exec sleep 1000";
    start(&jailer, &plan.id, &id(1), both, script).expect("start");
    assert_eq!(jailer.wait_console(&plan.id, "file\n"), "made\nlower\nfile\n");
}

#[test]
fn what_a_session_wrote_goes_with_it() {
    let jailer = Jailer::start();
    let plan = plan();
    jailer.create(&plan, "while :; do [ -e /x/look ] && cat /x/look && rm /x/look; sleep 0.02; done").expect("create");
    let mut both = spec(MountKind::Overlay);
    both.mounts.push(Mount { path: "/x".to_owned(), kind: MountKind::Rw });
    let say = |text: &str| {
        format!("ls -A /w | wc -l >/x/part; : >/w/new; echo {text} >>/x/part; mv /x/part /x/look; exec sleep 1000")
    };
    start(&jailer, &plan.id, &id(1), both.clone(), &say("first")).expect("start");
    assert_eq!(jailer.wait_console(&plan.id, "first\n"), "0\nfirst\n");
    end(&jailer, &plan.id, &id(1));
    // The same id again: nothing of its predecessor is there.
    start(&jailer, &plan.id, &id(1), both, &say("second")).expect("start");
    assert_eq!(jailer.wait_console(&plan.id, "second\n"), "0\nfirst\n0\nsecond\n");
}

#[test]
fn the_end_of_a_sandbox_is_the_end_of_its_sessions() {
    let jailer = Jailer::start();
    let before = Census::take_when_quiet(&jailer);
    let plan = plan();
    jailer.create(&plan, "exec sleep 1000").expect("create");
    let kinds = [MountKind::Rw, MountKind::Overlay, MountKind::Ephemeral, MountKind::Ro];
    for (number, kind) in kinds.into_iter().enumerate() {
        let mut spec = spec(kind);
        spec.own_network = number == 0;
        start(&jailer, &plan.id, &id(number as u32), spec, "sleep 1001 & exec sleep 1000").expect("start");
    }
    let processes: Vec<Process> = (0..4).map(|number| init(&jailer, &plan.id, &id(number))).collect();
    jailer.destroy(&plan.id, Duration::ZERO);
    for process in processes {
        wait_gone(process);
    }
    assert_eq!(Census::take_when_quiet(&jailer), before);
}

#[test]
fn the_end_of_pid_1_takes_the_sessions_along() {
    let jailer = Jailer::start();
    let plan = plan();
    jailer.create(&plan, "while [ ! -d /w ]; do sleep 0.05; done; sleep 1; exit 3").expect("create");
    start(&jailer, &plan.id, &id(1), spec(MountKind::Overlay), "exec sleep 1000").expect("start");
    let process = init(&jailer, &plan.id, &id(1));
    jailer.wait_end(&plan.id);
    wait_gone(process);
}

#[test]
fn sessions_outlive_their_jailer_and_are_found_again() {
    let mut jailer = Jailer::start();
    let plan = plan();
    jailer.create(&plan, "exec sleep 1000").expect("create");
    start(&jailer, &plan.id, &id(1), spec(MountKind::Overlay), "exec sleep 1000").expect("start");
    jailer.restart();
    assert!(list(&jailer, &plan.id)[0].alive);
    start(&jailer, &plan.id, &id(1), spec(MountKind::Overlay), "exec sleep 1000").expect("the same again");
    let process = init(&jailer, &plan.id, &id(1));
    end(&jailer, &plan.id, &id(1));
    wait_gone(process);
    assert!(list(&jailer, &plan.id).is_empty());
    start(&jailer, &plan.id, &id(2), spec(MountKind::Overlay), "exec sleep 1000").expect("another");
}

#[test]
fn a_session_that_is_killed_is_cleared_away() {
    let jailer = Jailer::start();
    let plan = plan();
    jailer.create(&plan, "exec sleep 1000").expect("create");
    start(&jailer, &plan.id, &id(1), spec(MountKind::Overlay), "exec sleep 1000").expect("start");
    let process = init(&jailer, &plan.id, &id(1));
    kill_process(Pid::from_raw(process.pid).expect("a pid"), Signal::KILL).expect("kill");
    let deadline = Instant::now() + DEADLINE;
    while jailer.paths.session(&plan.id, &id(1)).exists() {
        assert!(Instant::now() < deadline, "it is still there");
        list(&jailer, &plan.id);
    }
}

#[test]
fn a_session_is_in_the_groups_of_its_sandbox() {
    let jailer = Jailer::start();
    let plan = plan();
    jailer.create(&plan, "exec sleep 1000").expect("create");
    start(&jailer, &plan.id, &id(1), spec(MountKind::Rw), "exec sleep 1000").expect("start");
    let state = fs::read(jailer.paths.sandbox(&plan.id).join("state.json")).expect("state");
    let state: serde_json::Value = serde_json::from_slice(&state).expect("state");
    let groups = |pid: i64| fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("groups");
    let sandbox = groups(state["init"]["pid"].as_i64().expect("a pid"));
    assert_eq!(groups(init(&jailer, &plan.id, &id(1)).pid.into()), sandbox);
    assert!(sandbox.contains("osb-"), "{sandbox}");
    let process = init(&jailer, &plan.id, &id(1));
    jailer.pause(&plan.id);
    jailer.destroy(&plan.id, Duration::ZERO);
    wait_gone(process);
}

/// The error numbers of system calls, as Perl prints them.
fn perl(calls: &[String]) -> String {
    let lines: Vec<String> = calls.iter().map(|call| format!("$!=0; syscall({call}); print $!+0, qq( );")).collect();
    format!("perl -e '$|=1; {}'", lines.join(" "))
}

#[test]
fn attack_15_to_18_stay_closed_while_sessions_run() {
    let newuser = libc::CLONE_NEWUSER;
    let refused = [
        format!("{}, my $a=qq(none), my $b=qq(/tmp), my $c=qq(tmpfs), 0, 0", libc::SYS_mount),
        format!("{}, my $d=qq(/dev/mqueue), 0", libc::SYS_umount2),
        format!("{}, my $e=qq(/), my $f=qq(/)", libc::SYS_pivot_root),
        format!("{}, my $g=qq(tmpfs), 0", libc::SYS_fsopen),
        format!("{}, -100, my $h=qq(/), 1", libc::SYS_open_tree),
        format!("{}, -100, my $i=qq(/tmp), -100, my $j=qq(/tmp), 0", libc::SYS_move_mount),
        format!("{}, {newuser}", libc::SYS_unshare),
        format!("{}, {}", libc::SYS_unshare, libc::CLONE_NEWNS),
        format!("{}, {}, 0, 0, 0, 0", libc::SYS_clone, newuser | libc::SIGCHLD),
        format!("{}, 0, 0", libc::SYS_setns),
        format!("{}, 0, 0, 0", libc::SYS_keyctl),
        format!("{}, 0, 0, 0", libc::SYS_bpf),
        format!("{}, 0, 0, 0, 0, 0", libc::SYS_perf_event_open),
        format!("{}, 0", libc::SYS_userfaultfd),
        format!("{}, 1, 0", libc::SYS_io_uring_setup),
    ];
    let expected = format!("{} ", libc::EPERM).repeat(refused.len());
    let jailer = Jailer::start();
    let plan = plan();
    let calls = perl(&refused);
    let script = format!(
        "while [ ! -e /w/done ]; do sleep 0.05; done; {calls}; echo; cat /w/result; echo; \
         cat /proc/sys/user/max_mnt_namespaces; readlink /proc/1/exe /proc/*/exe | grep -c execd; echo end; exec sleep 1000"
    );
    jailer.create(&plan, &script).expect("create");
    start(&jailer, &plan.id, &id(2), spec(MountKind::Overlay), "exec sleep 1000").expect("another");
    let inside = format!("{calls} >/w/result; : >/w/done; exec sleep 1000");
    start(&jailer, &plan.id, &id(1), spec(MountKind::Rw), &inside).expect("start");
    let console = jailer.wait_console(&plan.id, "end");
    let lines: Vec<&str> = console.lines().collect();
    assert_eq!((lines[0], lines[1]), (expected.as_str(), expected.as_str()), "{console}");
    // No counter was left raised, and no execd's program can be read.
    assert_eq!((lines[2], lines[3]), ("0", "0"), "{console}");
}

#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    let jailer = Jailer::start();
    let plan = plan();
    jailer.create(&plan, "ln -s /proc /leads; echo made; exec sleep 1000").expect("create");
    jailer.wait_console(&plan.id, "made");
    let at = |path: &str| SessionSpec {
        mounts: vec![Mount { path: path.to_owned(), kind: MountKind::Rw }],
        ..SessionSpec::default()
    };
    for (path, kind) in [("/../etc", Kind::Refused), ("/leads/sys", Kind::Invalid), ("/etc/passwd", Kind::Invalid)] {
        let failure = start(&jailer, &plan.id, &id(1), at(path), "true").expect_err(path);
        assert_eq!(failure.kind, kind, "{failure}");
        assert!(list(&jailer, &plan.id).is_empty());
    }
    let unknown = SandboxId::parse("nobody").expect("an id");
    let failure = start(&jailer, &unknown, &id(1), at("/w"), "true").expect_err("no sandbox");
    assert_eq!(failure.kind, Kind::NotFound, "{failure}");
    end(&jailer, &unknown, &id(1));
    assert!(list(&jailer, &unknown).is_empty());
}

#[test]
fn an_ordinary_users_sandbox_has_sessions_too() {
    let jailer = Jailer::start_as_user(12_345);
    let mut plan = plan();
    plan.limits = PlanLimits::default();
    jailer.create(&plan, REPORT).expect("create");
    let mut both = spec(MountKind::Rw);
    both.mounts.push(Mount { path: "/o".to_owned(), kind: MountKind::Overlay });
    let script = "(id -u; echo o >/o/o && cat /o/o) >/w/result 2>&1; : >/w/done; exec sleep 1000";
    start(&jailer, &plan.id, &id(1), both, script).expect("start");
    assert_eq!(jailer.wait_console(&plan.id, "end"), "0\no\nend\n");
    let process = init(&jailer, &plan.id, &id(1));
    jailer.destroy(&plan.id, Duration::ZERO);
    wait_gone(process);
    assert!(jailer.list().is_empty());
}
