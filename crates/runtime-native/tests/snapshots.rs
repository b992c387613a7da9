//! Snapshots of real sandboxes: what is kept, what a chain costs, and what is left when anything is killed.

mod common;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{DEADLINE, Jailer, LAYER, answer, plan};
use lifecycle::runtime::Exit;
use lifecycle::snapshot::{Found, SnapshotId, Taken};
use lifecycle::spec::SandboxId;
use runtime_native::error::{Failure, Kind};
use runtime_native::wire::{Plan, Reply, Request, Seen};

fn id(name: &str) -> SnapshotId {
    SnapshotId::parse(name).expect("an id")
}

fn request(name: &str, sandbox: &SandboxId, found: Found) -> Request {
    Request::TakeSnapshot { id: id(name), sandbox: sandbox.clone(), found }
}

fn take(jailer: &Jailer, name: &str, sandbox: &SandboxId, found: Found) -> Result<Taken, Failure> {
    match jailer.ask(&request(name, sandbox, found), &[]).0 {
        Reply::Snapshot { taken } => Ok(*taken),
        Reply::Failed(failure) => Err(failure),
        other => panic!("unexpected reply {other:?}"),
    }
}

fn taken(jailer: &Jailer, name: &str, sandbox: &SandboxId) -> Taken {
    take(jailer, name, sandbox, Found::Running).unwrap_or_else(|failure| panic!("snapshot: {failure}"))
}

fn snapshots(jailer: &Jailer) -> Vec<SnapshotId> {
    let (reply, fds) = jailer.ask(&Request::ListSnapshots, &[]);
    assert!(matches!(reply, Reply::Snapshots), "{reply:?}");
    let file = fs::File::from(fds.into_iter().next().expect("a list"));
    let list: Vec<(SnapshotId, Taken)> = serde_json::from_reader(file).expect("a list");
    list.into_iter().map(|(id, _)| id).collect()
}

fn remove(jailer: &Jailer, name: &str) {
    assert!(matches!(jailer.ask(&Request::RemoveSnapshot { id: id(name) }, &[]).0, Reply::Done));
}

/// A sandbox of a snapshot.
fn from(taken: &Taken) -> Plan {
    Plan { layers: taken.standing.layers.clone(), ..plan() }
}

/// A sandbox that runs a script and then stays.
fn stays(jailer: &Jailer, plan: Plan, script: &str) -> SandboxId {
    jailer.create(&plan, &format!("{script}\necho done; exec sleep 1000")).expect("made");
    jailer.wait_console(&plan.id, "done\n");
    plan.id
}

/// What a script prints in a new sandbox.
fn said(jailer: &Jailer, plan: &Plan, script: &str) -> String {
    let (console, seen) = jailer.run(plan, script);
    assert!(matches!(seen, Seen::Ended { exit: Exit::Exited { code: 0 } }), "{seen:?}: {console}");
    jailer.destroy(&plan.id, Duration::ZERO);
    console
}

/// Names in the directory of layers.
fn layers(jailer: &Jailer) -> Vec<String> {
    let entries = fs::read_dir(jailer.paths.layers()).expect("layers").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn what_was_written_changed_and_deleted_is_found_in_a_new_sandbox() {
    let jailer = Jailer::start();
    let script = "mkdir -p /data/a/b; echo kept > /data/a/b/file; chown 1000:1000 /data/a/b/file; \
                  rm /etc/secret; rm -r /var; mkdir /var; echo new > /var/new; ln /data/a/b/file /data/hard; \
                  ln -s /data/a /link; truncate -s 2G /sparse; echo tool > /usr/local/bin/tool; rmdir /usr/local/games; \
                  echo 1.2.3.4 mine >> /etc/hosts; printf 0123456789abcdef0123456789abcdef > /etc/machine-id";
    let source = stays(&jailer, plan(), script);
    let one = taken(&jailer, "one", &source);
    assert_eq!((one.standing.layers.len(), &*one.standing.layers[0], one.standing.host_programs), (2, LAYER, true));
    assert_eq!(jailer.inspect(&source), Seen::Running, "it goes on");
    assert!(one.frozen > Duration::ZERO && one.frozen < Duration::from_secs(5), "{:?}", one.frozen);
    let check = "cat /data/a/b/file /link/b/file /var/new /usr/local/bin/tool; stat -c '%u %h' /data/hard; ls -a /var; \
                 test ! -e /etc/secret && test ! -e /usr/local/games && test -d /usr/local/share && stat -c %s /sparse; \
                 grep -c mine /etc/hosts; cat /etc/machine-id; echo \" $(hostname)\"; echo x > /usr/local/bin/more";
    let plan = from(&one);
    let console = said(&jailer, &plan, check);
    let lines: Vec<&str> = console.lines().collect();
    assert_eq!(lines[..8], ["kept", "kept", "new", "tool", "1000 2", ".", "..", "new"], "{console}");
    assert_eq!(lines[8..10], ["2147483648", "0"], "{console}");
    assert!(!lines[10].contains("0123456789abcdef") && lines[10].len() == 32, "a machine's id of its own: {console}");
    assert!(lines[11].ends_with(plan.id.as_str()), "{console}");
    jailer.destroy(&source, Duration::ZERO);
}

#[test]
fn a_chain_costs_its_differences_and_goes_piece_by_piece() {
    let jailer = Jailer::start();
    let first = stays(&jailer, plan(), "head -c 4000000 /dev/urandom > /big; echo a > /a; echo a > /usr/local/a");
    let one = taken(&jailer, "one", &first);
    assert!(one.bytes > 4_000_000);
    let second = stays(&jailer, from(&one), "echo b > /b; rm /a /usr/local/a; echo b > /usr/local/b");
    let two = taken(&jailer, "two", &second);
    assert!(two.bytes < 10_000 && two.standing.layers.len() == 3, "{two:?}");
    let third = stays(&jailer, from(&two), "test -s /big && test ! -e /a && echo c > /c");
    let three = taken(&jailer, "three", &third);
    for sandbox in [&first, &second] {
        jailer.destroy(sandbox, Duration::ZERO);
    }
    remove(&jailer, "one");
    remove(&jailer, "two");
    assert_eq!(snapshots(&jailer), [id("three")]);
    let check = "cat /b /c /usr/local/b; test ! -e /a; test ! -e /usr/local/a; stat -c %s /big";
    assert_eq!(said(&jailer, &from(&three), check), "b\nc\nb\n4000000\n");
    remove(&jailer, "three");
    assert_eq!(layers(&jailer).len(), 3, "a sandbox still stands on them");
    assert!(matches!(jailer.inspect(&third), Seen::Running));
    jailer.destroy(&third, Duration::ZERO);
    remove(&jailer, "three");
    assert_eq!(layers(&jailer), [LAYER]);
}

#[test]
fn a_paused_sandbox_stays_paused_and_equal_ones_share_a_layer() {
    let jailer = Jailer::start();
    let sandbox = stays(&jailer, plan(), "echo x > /x");
    jailer.pause(&sandbox);
    let one = take(&jailer, "one", &sandbox, Found::Paused).expect("taken");
    assert_eq!((jailer.inspect(&sandbox), one.frozen), (Seen::Paused, Duration::ZERO));
    let two = take(&jailer, "two", &sandbox, Found::Paused).expect("taken");
    assert_eq!(one.standing.layers, two.standing.layers);
    remove(&jailer, "one");
    assert_eq!(layers(&jailer).len(), 2);
    assert_eq!(said(&jailer, &from(&two), "cat /x"), "x\n");
    jailer.resume(&sandbox);
    jailer.destroy(&sandbox, Duration::ZERO);
}

#[test]
fn the_same_request_again_is_the_same_snapshot() {
    let jailer = Jailer::start();
    let sandbox = stays(&jailer, plan(), "echo x > /x");
    let one = taken(&jailer, "one", &sandbox);
    assert_eq!(taken(&jailer, "one", &sandbox), one);
    jailer.destroy(&sandbox, Duration::ZERO);
    assert_eq!(taken(&jailer, "one", &sandbox), one, "also when its source is gone");
    let gone = take(&jailer, "two", &sandbox, Found::Running).expect_err("gone");
    assert_eq!(gone.kind, Kind::NotFound);
}

#[test]
fn an_ordinary_user_is_told_that_there_are_none() {
    let jailer = Jailer::start_as_user(65_432);
    let plan = Plan { limits: Default::default(), ..plan() };
    jailer.create(&plan, "exec sleep 1000").expect("made");
    let refused = take(&jailer, "one", &plan.id, Found::Running).expect_err("refused");
    assert_eq!(refused.kind, Kind::Unsupported);
    assert!(refused.message.contains("root"), "{refused}");
    jailer.destroy(&plan.id, Duration::ZERO);
}

/// Memory with a bound in place of the directory of layers.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(jailer: &Jailer) -> Self {
        let path = jailer.paths.layers();
        let base = path.join(LAYER);
        let kept = path.with_file_name("kept");
        fs::rename(&base, &kept).expect("moved");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m,mode=0700", "small"]).arg(&path));
        run(Command::new("cp").arg("-a").arg(&kept).arg(&base));
        Self(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run(Command::new("umount").arg("-l").arg(&self.0));
    }
}

fn run(command: &mut Command) {
    assert!(command.status().expect("starts").success(), "{command:?}");
}

#[test]
fn ex_024_ex_040_a_full_disk_thaws_first_says_so_and_leaves_nothing() {
    let jailer = Jailer::start();
    let _small = SmallDisk::mount(&jailer);
    let sandbox = stays(&jailer, plan(), "head -c 40000000 /dev/urandom > /big");
    for _ in 0..2 {
        let failure = take(&jailer, "one", &sandbox, Found::Running).expect_err("full");
        assert_eq!(failure.kind, Kind::Exhausted);
        assert!(failure.message.contains("full") && failure.message.contains("free"), "{failure}");
        assert_eq!(jailer.inspect(&sandbox), Seen::Running);
        assert_eq!((snapshots(&jailer), layers(&jailer)), (vec![], vec![LAYER.to_owned()]));
    }
    jailer.destroy(&sandbox, Duration::ZERO);
}

#[test]
fn ex_024_five_sandboxes_of_one_image_are_snapshotted_at_once() {
    let jailer = Jailer::start();
    let sandboxes: Vec<SandboxId> =
        (0..5).map(|number| stays(&jailer, plan(), &format!("echo {number} > /number"))).collect();
    let replies: Vec<OwnedFd> = sandboxes
        .iter()
        .enumerate()
        .map(|(number, sandbox)| jailer.send(&request(&format!("s{number}"), sandbox, Found::Running), &[]))
        .collect();
    for (number, reply) in replies.iter().enumerate() {
        let Some(Reply::Snapshot { taken }) = answer(reply) else { panic!("no snapshot of {number}") };
        assert_eq!(said(&jailer, &from(&taken), "cat /number"), format!("{number}\n"));
    }
    assert_eq!(layers(&jailer).len(), 6);
    for sandbox in sandboxes {
        jailer.destroy(&sandbox, Duration::ZERO);
    }
}

/// Processes that take a snapshot: the worker and its child.
fn workers(jailer: &Jailer, known: &[u32]) -> Vec<u32> {
    let children = |pid: u32| -> Vec<u32> {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    let new = children(jailer.pid()).into_iter().filter(|pid| !known.contains(pid));
    new.flat_map(|worker| children(worker).into_iter().map(move |child| vec![worker, child])).flatten().collect()
}

fn children_of(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn has_draft(jailer: &Jailer) -> bool {
    layers(jailer).iter().any(|name| name.starts_with(".transient"))
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a number");
    // It may have ended just now.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Kills the child (1) or the worker and its child (0) at a moment of a large snapshot.
fn killed_at(moment: impl Fn(&Jailer, &SandboxId) -> bool, who: usize) {
    let jailer = Jailer::start();
    let sandbox = stays(&jailer, plan(), "head -c 60000000 /dev/zero | tr '\\0' x > /big");
    let before = children_of(jailer.pid());
    let reply = jailer.send(&request("one", &sandbox, Found::Running), &[]);
    wait_until("no copy began", || moment(&jailer, &sandbox));
    let workers = workers(&jailer, &before);
    assert_eq!(workers.len(), 2, "a worker and its child");
    kill(workers[who]);
    match answer(&reply) {
        // Nobody is left to answer, as for a server whose jailer is killed: it asks again.
        None => assert_eq!(who, 0),
        Some(Reply::Failed(failure)) => {
            assert!(who == 1 && failure.message.contains("killed"), "{failure}");
            assert_eq!(jailer.inspect(&sandbox), Seen::Running, "thawed before the failure is told");
            assert_eq!((snapshots(&jailer), layers(&jailer)), (vec![], vec![LAYER.to_owned()]));
        }
        other => panic!("{other:?}"),
    }
    let one = taken(&jailer, "one", &sandbox);
    assert_eq!(jailer.inspect(&sandbox), Seen::Running);
    assert_eq!(said(&jailer, &from(&one), "stat -c %s /big"), "60000000\n");
    wait_until("a draft is left", || !has_draft(&jailer));
    remove(&jailer, "one");
    assert_eq!(layers(&jailer), [LAYER]);
    jailer.destroy(&sandbox, Duration::ZERO);
}

fn is_copying(jailer: &Jailer, sandbox: &SandboxId) -> bool {
    has_draft(jailer) && jailer.inspect(sandbox) == Seen::Paused
}

fn is_hashing(jailer: &Jailer, sandbox: &SandboxId) -> bool {
    let copied = layers(jailer).iter().filter(|name| name.starts_with(".transient")).any(|name| {
        let copy = jailer.paths.layers().join(name).join("fs/big");
        fs::metadata(copy).is_ok_and(|about| about.len() == 60_000_000)
    });
    copied && jailer.inspect(sandbox) == Seen::Running
}

#[test]
fn ex_040_the_child_is_killed_while_it_copies() {
    killed_at(is_copying, 1);
}

#[test]
fn ex_040_the_worker_is_killed_while_the_sandbox_stands_still() {
    killed_at(is_copying, 0);
}

#[test]
fn ex_040_the_child_is_killed_while_it_reads_back() {
    killed_at(is_hashing, 1);
}

#[test]
fn ex_040_the_worker_is_killed_while_the_copy_is_read_back() {
    killed_at(is_hashing, 0);
}

#[test]
fn a_record_without_its_layer_is_no_snapshot() {
    let jailer = Jailer::start();
    let sandbox = stays(&jailer, plan(), "echo x > /x");
    let one = taken(&jailer, "one", &sandbox);
    // As it is between the record and the layer's name.
    let layer = one.standing.layers.last().expect("its own");
    fs::rename(jailer.paths.layers().join(layer), jailer.paths.layers().join(".transient-cut-off")).expect("moved");
    assert_eq!(snapshots(&jailer), []);
    assert!(!jailer.paths.snapshots().join("one.json").exists());
    assert_ne!(taken(&jailer, "one", &sandbox).frozen, Duration::MAX);
    assert_eq!(snapshots(&jailer), [id("one")]);
    // And between the layer's name and nothing: nobody remembers it.
    fs::remove_file(jailer.paths.snapshots().join("one.json")).expect("removed");
    assert_eq!(snapshots(&jailer), []);
    assert!(!jailer.paths.layer(layer).exists());
    jailer.destroy(&sandbox, Duration::ZERO);
}

#[test]
fn nobody_waits_for_a_snapshot_that_is_given_up() {
    let jailer = Jailer::start();
    let sandbox = stays(&jailer, plan(), "head -c 60000000 /dev/zero | tr '\\0' x > /big");
    let reply = jailer.send(&request("one", &sandbox, Found::Running), &[]);
    wait_until("no copy began", || is_copying(&jailer, &sandbox));
    drop(reply);
    wait_until("it stands still", || jailer.inspect(&sandbox) == Seen::Running);
    wait_until("a draft is left", || !has_draft(&jailer));
    assert_eq!((snapshots(&jailer), layers(&jailer)), (vec![], vec![LAYER.to_owned()]));
    jailer.destroy(&sandbox, Duration::ZERO);
}

#[test]
fn a_snapshot_survives_the_jailer() {
    let mut jailer = Jailer::start();
    let sandbox = stays(&jailer, plan(), "echo x > /x");
    let one = taken(&jailer, "one", &sandbox);
    jailer.restart();
    assert_eq!(snapshots(&jailer), [id("one")]);
    assert_eq!(said(&jailer, &from(&one), "cat /x"), "x\n");
    let two = taken(&jailer, "two", &sandbox);
    assert_eq!(one.standing.layers, two.standing.layers, "its monitor has the disk, not the jailer");
    jailer.destroy(&sandbox, Duration::ZERO);
}

#[test]
fn attack_32_no_planted_secret_and_no_token_is_in_a_snapshot() {
    let jailer = Jailer::start();
    let secret = "planted-7c1e55";
    let plan = plan();
    let boot = common::boot_with(
        &plan,
        &["/bin/sh", "-c", "echo mine > /mine; echo done; exec sleep 1000"],
        [("PATH", "/usr/bin:/bin"), ("SECRET", secret)].map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
    );
    use std::os::fd::AsFd as _;
    let made = jailer.ask(&Request::Create(Box::new(plan.clone())), &[boot.as_fd()]).0;
    assert!(matches!(made, Reply::Created { .. }), "{made:?}");
    jailer.wait_console(&plan.id, "done\n");
    let one = taken(&jailer, "one", &plan.id);
    let layer = jailer.paths.layers().join(one.standing.layers.last().expect("its own"));
    assert!(found(&layer, "mine"), "the search finds what is there");
    assert!(!found(&layer, secret) && !found(&jailer.paths.snapshots(), secret));
    jailer.destroy(&plan.id, Duration::ZERO);
}

fn found(directory: &Path, text: &str) -> bool {
    let found = Command::new("grep").args(["-rlaF", text]).arg(directory).output().expect("starts");
    !found.stdout.is_empty()
}
