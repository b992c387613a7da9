//! Volumes, with real mounts: what is seen inside, what is kept, and what an attacker inside can do with them.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Jailer, plan};
use lifecycle::runtime::Exit;
use lifecycle::volume::{Claim, Source, Volume};
use runtime_native::error::{Failure, Kind};
use runtime_native::wire::{Plan, Reply, Request, Seen};

fn volume(source: Source, mount_path: &str) -> Volume {
    Volume { name: "v".to_owned(), source, mount_path: mount_path.to_owned(), sub_path: None, read_only: false }
}

fn host(path: &Path, mount_path: &str) -> Volume {
    volume(Source::Host { path: path.to_str().expect("text").to_owned() }, mount_path)
}

fn named(name: &str, mount_path: &str) -> Volume {
    let claim = Claim { name: name.to_owned(), create: true, delete_at_end: false, bytes: None, default_bytes: None };
    volume(Source::Named(claim), mount_path)
}

fn with(volumes: Vec<Volume>) -> Plan {
    Plan { volumes, ..plan() }
}

/// Directories of the machine of which `allowed` may be mounted.
struct Machine {
    directory: tempfile::TempDir,
    jailer: Jailer,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("osb-volumes-").tempdir_in("/var/tmp").expect("a directory");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("opened");
        for name in ["allowed", "secret"] {
            fs::create_dir(directory.path().join(name)).expect("made");
        }
        fs::write(directory.path().join("secret/key"), "planted").expect("written");
        let allowed = directory.path().join("allowed").to_str().expect("text").to_owned();
        let jailer = Jailer::start_with(|config| config.host_paths.allowed = vec![allowed]);
        Self { directory, jailer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What a script printed, in a sandbox with these volumes.
    fn run(&self, volumes: Vec<Volume>, script: &str) -> String {
        let (console, seen) = self.jailer.run(&with(volumes), script);
        assert!(matches!(seen, Seen::Ended { exit: Exit::Exited { code: 0 } }), "{seen:?}: {console}");
        console
    }

    fn refused(&self, volumes: Vec<Volume>) -> Failure {
        self.jailer.create(&with(volumes), "true").map(drop).expect_err("refused")
    }

    fn make(&self, name: &str, bytes: Option<u64>) {
        let request = Request::MakeVolume { name: name.to_owned(), bytes };
        assert!(matches!(self.jailer.ask(&request, &[]).0, Reply::Done));
    }

    fn remove(&self, name: &str) {
        let request = Request::RemoveVolume { name: name.to_owned() };
        assert!(matches!(self.jailer.ask(&request, &[]).0, Reply::Done));
    }
}

#[test]
fn a_host_path_is_shared_with_the_ids_of_inside() {
    let machine = Machine::new();
    fs::write(machine.path("allowed/there"), "before\n").expect("written");
    let script = "cat /v/there; perl -e '$( = $) = 1000; $< = $> = 1000; open(F, q(>), q(/v/none)) and print qq(no)'; \
                  chmod 777 /v; perl -e '$) = 1000; $> = 1000; open(F, q(>), q(/v/mine)) or die; print F qq(x)'; ls -ln /v/mine";
    let console = machine.run(vec![host(&machine.path("allowed"), "/v")], script);
    assert!(console.starts_with("before\n") && console.contains("1000 1000"), "{console}");
    let mine = fs::metadata(machine.path("allowed/mine")).expect("is there");
    assert_eq!((mine.uid(), mine.gid()), (1000, 1000));
    let next = machine.run(vec![host(&machine.path("allowed"), "/v")], "stat -c '%u %g' /v/mine");
    assert_eq!(next.trim(), "1000 1000");
}

#[test]
fn what_is_missing_is_made_and_a_file_can_be_a_volume() {
    let machine = Machine::new();
    machine.run(vec![host(&machine.path("allowed/new/deep"), "/v/at/depth")], "echo x > /v/at/depth/f");
    assert_eq!(fs::read_to_string(machine.path("allowed/new/deep/f")).expect("is there"), "x\n");
    fs::write(machine.path("allowed/one"), "only this\n").expect("written");
    let console =
        machine.run(vec![host(&machine.path("allowed/one"), "/etc/app/one")], "cat /etc/app/one; ls /etc/app");
    assert_eq!(console, "only this\none\n");
}

#[test]
fn os_010_a_create_that_fails_makes_no_directory() {
    let machine = Machine::new();
    let mut second = named("nowhere", "/w");
    second.name = "w".to_owned();
    machine.refused(vec![host(&machine.path("allowed/new/deep"), "/v"), second]);
    assert!(!machine.path("allowed/new").exists());
    let mut inside = host(&machine.path("allowed"), "/v");
    inside.sub_path = Some("fresh/deep".to_owned());
    let mut bad = host(&machine.path("allowed"), "/etc/hosts/x");
    bad.name = "w".to_owned();
    machine.refused(vec![inside, bad]);
    assert!(!machine.path("allowed/fresh").exists());
}

#[test]
fn os_011_the_jailer_itself_refuses_what_is_not_allowed() {
    let machine = Machine::new();
    symlink(machine.path("secret"), machine.path("allowed/out")).expect("linked");
    symlink("/", machine.path("allowed/root")).expect("linked");
    for path in ["/", "/etc", "/proc", "/var/run/docker.sock"] {
        assert_eq!(machine.refused(vec![host(Path::new(path), "/v")]).kind, Kind::HostPath, "{path}");
    }
    for name in ["secret", "allowed/out", "allowed/out/key", "allowed/root/etc"] {
        let failure = machine.refused(vec![host(&machine.path(name), "/v")]);
        assert_eq!(failure.kind, Kind::HostPath, "{name}: {failure}");
        assert!(!failure.message.contains("secret") && !failure.message.contains("/var"), "{failure}");
    }
    let data = machine.jailer.paths.root().to_owned();
    let jailer = Jailer::start_with(|config| config.host_paths.allowed = vec!["/".to_owned()]);
    for path in [jailer.paths.root(), Path::new("/var/tmp"), &jailer.paths.sandboxes()] {
        let failure = jailer.create(&with(vec![host(path, "/v")]), "true").map(drop).expect_err("its own directory");
        assert_eq!(failure.kind, Kind::HostPath, "{}", path.display());
    }
    assert!(jailer.create(&with(vec![host(&data, "/v")]), "true").is_ok(), "another directory is none of its own");
}

#[test]
fn read_only_holds_below_other_mounts_too() {
    let machine = Machine::new();
    let inner = machine.path("allowed/inner");
    fs::create_dir(&inner).expect("made");
    let bind = |words: &[&str]| assert!(Command::new("mount").args(words).status().expect("mount").success());
    bind(&["--bind", machine.path("secret").to_str().expect("text"), inner.to_str().expect("text")]);
    let mut volume = host(&machine.path("allowed"), "/v");
    volume.read_only = true;
    let script = "touch /v/x; touch /v/inner/x; echo y > /v/inner/key; cat /v/inner/key; exit 0";
    let plan = with(vec![volume]);
    let receipt = machine.jailer.create(&plan, script);
    machine.jailer.wait_end(&plan.id);
    let console = machine.jailer.console(&plan.id);
    let status = Command::new("umount").arg(&inner).status().expect("umount");
    assert!(status.success());
    let receipt = receipt.expect("made");
    assert_eq!(console.matches("Read-only file system").count(), 3, "{console}");
    assert!(console.ends_with("planted"), "{console}");
    assert!(receipt.mounts[0].read_only && receipt.mounts[0].mount_path == "/v", "{receipt:?}");
    assert_eq!((receipt.mounts[0].kind.as_str(), receipt.mounts[0].ids.as_str()), ("host", "id-mapped"));
    assert!(!machine.path("secret/x").exists());
}

#[test]
fn attack_22_attack_21_set_user_id_and_devices_are_inert_on_a_volume() {
    let machine = Machine::new();
    let copy = machine.path("allowed/id");
    fs::copy("/usr/bin/id", &copy).expect("copied");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o6755)).expect("set");
    let status = Command::new("mknod").arg(machine.path("allowed/zero")).args(["-m", "666", "c", "1", "5"]).status();
    assert!(status.expect("mknod").success());
    let script = "chmod 755 /v; perl -e '$( = $) = 1000; $< = $> = 1000; exec q(/v/id), q(-u)'; head -c1 /v/zero; \
                  mknod /v/null c 1 3; exit 0";
    let console = machine.run(vec![host(&machine.path("allowed"), "/v")], script);
    assert!(console.starts_with("1000\n"), "{console}");
    assert!(console.contains("/v/zero") && console.contains("Permission denied"), "{console}");
    assert!(!machine.path("allowed/null").exists());
}

/// Inside, a directory is exchanged for a link to what is not allowed, while others are made with a path through it.
#[test]
fn attack_13_a_link_swapped_from_inside_mounts_nothing_else() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("allowed/real/data")).expect("made");
    fs::create_dir(machine.path("secret/data")).expect("made");
    fs::write(machine.path("secret/data/key"), "planted").expect("written");
    fs::write(machine.path("allowed/real/data/fine"), "fine").expect("written");
    symlink("real", machine.path("allowed/door")).expect("linked");
    symlink(machine.path("secret"), machine.path("allowed/trap")).expect("linked");
    // renameat2(..., RENAME_EXCHANGE)
    let swapper = with(vec![host(&machine.path("allowed"), "/v")]);
    let script = "perl -e '$|=1; my ($a, $b) = (q(/v/door), q(/v/trap)); print qq(swapping\\n); while(syscall(316, -100, $a, -100, $b, 2) == 0){} print $!'";
    machine.jailer.create(&swapper, script).expect("the swapper");
    machine.jailer.wait_console(&swapper.id, "swapping");
    let (mut made, mut refused) = (0, 0);
    for round in 0..60 {
        let mut by_path = host(&machine.path("allowed/door/data"), "/w");
        if round % 2 == 1 {
            by_path = host(&machine.path("allowed"), "/w");
            by_path.sub_path = Some("door/data".to_owned());
        }
        let victim = with(vec![by_path]);
        match machine.jailer.create(&victim, "cat /w/*; exit 0") {
            Ok(_) => {
                made += 1;
                machine.jailer.wait_end(&victim.id);
                let console = machine.jailer.console(&victim.id);
                assert!(!console.contains("planted"), "{console}");
            }
            Err(failure) => {
                refused += 1;
                let expected = matches!(failure.kind, Kind::HostPath | Kind::HostPathFailed | Kind::SubPath);
                assert!(expected && !failure.message.contains("secret"), "{failure}");
            }
        }
        machine.jailer.destroy(&victim.id, Duration::ZERO);
    }
    println!("{made} made, {refused} refused");
    assert!(made > 0 && refused > 0, "both were met: {made} {refused}");
    assert!(!machine.path("secret/data/fine").exists());
}

#[test]
fn sub_paths_are_made_and_never_lead_out() {
    let machine = Machine::new();
    machine.make("data", None);
    let at = |sub_path: &str| {
        let mut volume = named("data", "/v");
        volume.sub_path = Some(sub_path.to_owned());
        vec![volume]
    };
    machine.run(at("a/b"), "echo x > /v/f");
    let whole =
        machine.run(vec![named("data", "/v")], "cat /v/a/b/f; ln -s /etc /v/etc; ln -s .. /v/up; ln -s a /v/in");
    assert_eq!(whole, "x\n");
    assert_eq!(machine.run(at("in/b"), "cat /v/f"), "x\n");
    for path in ["etc", "up", "up/up/etc", "etc/new"] {
        let failure = machine.refused(at(path));
        assert_eq!(failure.kind, Kind::SubPath, "{path}: {failure}");
    }
}

#[test]
fn a_named_volume_outlives_its_sandboxes_and_is_shared() {
    let machine = Machine::new();
    machine.make("data", None);
    let script = "chmod 777 /v; perl -e '$) = 1000; $> = 1000; open(F, q(>), q(/v/mine)) or die; print F qq(kept\\n)'";
    machine.run(vec![named("data", "/v")], script);
    let reader = with(vec![named("data", "/v")]);
    let wait = "stat -c '%u %g' /v/mine; cat /v/mine; echo ready; until test -e /v/from-other; do sleep 0.05; done; cat /v/from-other";
    machine.jailer.create(&reader, wait).expect("made");
    assert_eq!(machine.jailer.wait_console(&reader.id, "ready"), "1000 1000\nkept\nready\n");
    machine.run(vec![named("data", "/v")], "echo hello > /v/part; mv /v/part /v/from-other");
    machine.jailer.wait_console(&reader.id, "hello");
    machine.jailer.wait_end(&reader.id);
    machine.remove("data");
    machine.remove("data");
    assert_eq!(machine.refused(vec![named("data", "/v")]).kind, Kind::Internal);
    let left = fs::read_dir(machine.jailer.paths.volumes()).expect("listed").count();
    assert_eq!(left, 0);
}

#[test]
fn a_size_limit_holds_for_all_who_share_the_volume_and_leaves_no_device() {
    let machine = Machine::new();
    machine.make("small", Some(32 << 20));
    let first = with(vec![named("small", "/v")]);
    let fill = "ls -A /v | wc -l; dd if=/dev/zero of=/v/fill bs=1M 2>&1; echo full; sleep 1000";
    let receipt = machine.jailer.create(&first, fill).expect("made");
    assert_eq!(receipt.mounts[0].file_system, "ext4");
    let console = machine.jailer.wait_console(&first.id, "full");
    assert!(console.starts_with("0\n") && console.contains("No space left on device"), "{console}");
    let second = machine.run(
        vec![named("small", "/v")],
        "stat -c %s /v/fill; dd if=/dev/zero of=/v/more bs=1M count=4; rm /v/more; exit 0",
    );
    assert!(second.contains("No space left on device"), "the same file system: {second}");
    let bytes: u64 = second.lines().next().and_then(|line| line.parse().ok()).expect("a size");
    assert!((16 << 20..32 << 20).contains(&bytes), "{bytes}");
    machine.jailer.destroy(&first.id, Duration::ZERO);
    let third = machine.run(vec![named("small", "/v")], "stat -c %s /v/fill; rm /v/fill; chown 1000 /v; exit 0");
    assert_eq!(third.trim().parse::<u64>().ok(), Some(bytes), "what was written is there");
    let mut part = named("small", "/v");
    part.sub_path = Some("a/b".to_owned());
    assert_eq!(
        machine.run(
            vec![part, named("small", "/w")].into_iter().enumerate().map(renamed).collect(),
            "touch /v/f; find /w -type f; stat -c %u /w"
        ),
        "/w/a/b/f\n1000\n"
    );
    machine.remove("small");
    let deadline = std::time::Instant::now() + common::DEADLINE;
    while is_attached(&machine.jailer.paths.volumes().join("small")) {
        assert!(std::time::Instant::now() < deadline, "its loop device stays");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_attached(directory: &Path) -> bool {
    let devices = fs::read_dir("/sys/block").expect("sysfs").flatten();
    let backing = devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    backing.into_iter().any(|file| file.contains(&*directory.to_string_lossy()))
}

fn renamed((index, volume): (usize, Volume)) -> Volume {
    Volume { name: format!("v{index}"), ..volume }
}

#[test]
fn one_volume_lies_within_another_and_nothing_follows_a_link_of_the_image() {
    let machine = Machine::new();
    machine.make("inner", None);
    let volumes = vec![named("inner", "/v/in"), host(&machine.path("allowed"), "/v")];
    machine.run(volumes.into_iter().enumerate().map(renamed).collect(), "touch /v/outer /v/in/inner");
    assert!(machine.path("allowed/outer").exists() && machine.path("allowed/in").is_dir());
    assert!(!machine.path("allowed/in/inner").exists(), "that lies on the other");
    let layer = machine.jailer.paths.layer(common::LAYER);
    symlink("/proc", layer.join("door")).expect("linked");
    let failure = machine.refused(vec![named("inner", "/door/x")]);
    assert!(failure.message.contains("link"), "{failure}");
}

#[test]
fn volumes_stay_through_pause_and_the_death_of_the_jailer() {
    let mut machine = Machine::new();
    machine.make("data", Some(32 << 20));
    let lasting = with(vec![named("data", "/v")]);
    let script = "echo ready; while :; do echo x >> /v/log; sleep 0.05; done";
    machine.jailer.create(&lasting, script).expect("made");
    machine.jailer.wait_console(&lasting.id, "ready");
    machine.jailer.restart();
    machine.jailer.pause(&lasting.id);
    let lines = || -> usize {
        let counted = machine.run(vec![named("data", "/v")], "wc -l < /v/log");
        counted.trim().parse().expect("a number")
    };
    let before = lines();
    machine.jailer.resume(&lasting.id);
    machine.jailer.wait_console(&lasting.id, "ready");
    let deadline = std::time::Instant::now() + common::DEADLINE;
    while lines() <= before {
        assert!(std::time::Instant::now() < deadline, "it writes no more");
    }
    machine.jailer.destroy(&lasting.id, Duration::ZERO);
    assert!(lines() > before, "what it wrote is kept");
}

#[test]
fn an_ordinary_users_volumes_keep_their_owners_from_sandbox_to_sandbox() {
    let jailer = Jailer::start_as_user(47_123);
    let ask = |request: &Request| jailer.ask(request, &[]).0;
    let make = |bytes| ask(&Request::MakeVolume { name: "data".to_owned(), bytes });
    assert!(matches!(make(Some(32 << 20)), Reply::Failed(failure) if failure.kind == Kind::Unsupported));
    assert!(matches!(make(None), Reply::Done));
    let plan = || Plan { limits: runtime_native::wire::PlanLimits::default(), ..with(vec![named("data", "/v")]) };
    let (first, second) = (plan(), plan());
    let (console, _) = jailer.run(&first, "echo kept > /v/f; mkdir /v/d; ls -ldn /v/d; exit 0");
    assert!(console.contains(" 0 0 "), "{console}");
    let mut read_only = second;
    read_only.volumes[0].read_only = true;
    read_only.volumes[0].sub_path = Some("d".to_owned());
    let (console, _) = jailer.run(&read_only, "stat -c '%u %g' /v; touch /v/x; exit 0");
    assert!(console.starts_with("0 0\n") && console.contains("Read-only file system"), "{console}");
    let denied = Plan { volumes: vec![host(Path::new("/etc"), "/v")], ..plan() };
    assert_eq!(jailer.create(&denied, "true").map(drop).expect_err("denied").kind, Kind::HostPath);
    assert!(matches!(ask(&Request::RemoveVolume { name: "data".to_owned() }), Reply::Done));
}
