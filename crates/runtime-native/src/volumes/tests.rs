//! Opening of host paths, on directories of a test's own.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::host::{HostPaths, Made, open, reach};
use crate::error::{Kind, Result};

struct Machine {
    directory: tempfile::TempDir,
}

impl Machine {
    /// `allowed/inside`, and `secret` beside `allowed`.
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(directory.path().join("allowed/inside")).expect("made");
        fs::create_dir(directory.path().join("secret")).expect("made");
        fs::write(directory.path().join("secret/key"), "k").expect("written");
        fs::write(directory.path().join("allowed/inside/file"), "f").expect("written");
        Self { directory }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("text").to_owned()
    }

    fn paths(&self) -> HostPaths {
        HostPaths { allowed: vec![self.path("allowed")], hidden: Vec::new() }
    }

    fn open(&self, name: &str) -> Result<OwnedFd> {
        open("v", &self.path(name), &self.paths(), None)
    }

    fn link(&self, name: &str, target: &str) {
        symlink(target, self.path(name)).expect("linked");
    }
}

#[track_caller]
fn is_denied(outcome: Result<OwnedFd>) {
    let failure = outcome.map(drop).expect_err("denied");
    assert_eq!(failure.kind, Kind::HostPath, "{failure}");
    assert!(!failure.message.contains("secret") && !failure.message.contains("/tmp"), "{failure}");
}

#[test]
fn what_is_allowed_is_opened_and_nothing_beside_it() {
    let machine = Machine::new();
    assert!(machine.open("allowed").is_ok() && machine.open("allowed/inside/file").is_ok());
    is_denied(machine.open("secret"));
    is_denied(open("v", "/", &machine.paths(), None));
    is_denied(open("v", &machine.path("allowed"), &HostPaths::default(), None));
    assert_eq!(machine.open("allowed/nothing").expect_err("missing").kind, Kind::HostPathFailed);
}

#[test]
fn attack_13_links_that_lead_out_are_refused_and_those_within_are_followed() {
    let machine = Machine::new();
    machine.link("allowed/out", "../secret");
    machine.link("allowed/out-absolute", &machine.path("secret"));
    machine.link("allowed/out-file", &machine.path("secret/key"));
    machine.link("allowed/root", "/");
    machine.link("allowed/magic", "/proc/self/root");
    machine.link("allowed/within", "inside");
    machine.link("allowed/within-absolute", &machine.path("allowed/inside"));
    for name in ["out", "out/key", "out-absolute", "out-absolute/key", "out-file", "root", "root/etc"] {
        is_denied(machine.open(&format!("allowed/{name}")));
    }
    assert!(machine.open("allowed/magic").is_err());
    assert!(machine.open("allowed/within/file").is_ok() && machine.open("allowed/within-absolute").is_ok());
}

#[test]
fn attack_24_sockets_and_devices_are_no_volumes() {
    let machine = Machine::new();
    let _socket = std::os::unix::net::UnixListener::bind(machine.path("allowed/docker.sock")).expect("bound");
    is_denied(machine.open("allowed/docker.sock"));
    let dev = HostPaths { allowed: vec!["/dev".to_owned()], hidden: Vec::new() };
    is_denied(open("v", "/dev/null", &dev, None));
}

#[test]
fn what_belongs_to_the_server_is_never_shown_whatever_is_allowed() {
    let machine = Machine::new();
    let allowed = vec!["/".to_owned()];
    let paths = HostPaths { allowed, hidden: vec![machine.directory.path().join("allowed/inside")] };
    for name in ["allowed", "allowed/inside", "allowed/inside/file"] {
        is_denied(open("v", &machine.path(name), &paths, None));
    }
    assert!(open("v", &machine.path("secret"), &paths, None).is_ok());
}

#[test]
fn os_010_directories_that_were_made_go_again_unless_they_are_kept() {
    let machine = Machine::new();
    let paths = machine.paths();
    let wanted = machine.path("allowed/new/deep");
    for keep in [false, true] {
        let mut made = Made::default();
        open("v", &wanted, &paths, Some(&mut made)).expect("made");
        assert!(Path::new(&wanted).is_dir());
        if keep {
            made.keep();
        }
        drop(made);
        assert_eq!(Path::new(&machine.path("allowed/new")).exists(), keep);
    }
    let mut made = Made::default();
    machine.link("allowed/dangling", "../elsewhere/x");
    let outcome = open("v", &machine.path("allowed/dangling/x"), &paths, Some(&mut made));
    assert!(outcome.is_err() && !Path::new(&machine.path("elsewhere")).exists());
}

/// A directory is exchanged for a link to a forbidden one, over and over, while the path through it is opened.
#[test]
fn attack_13_a_link_that_is_swapped_in_never_leads_out() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("allowed/real/data")).expect("made");
    fs::create_dir(machine.path("secret/data")).expect("made");
    let forbidden = fs::metadata(machine.path("secret/data")).expect("there");
    for target in ["../secret".to_owned(), machine.path("secret")] {
        let (door, real, trap) =
            (machine.path("allowed/door"), machine.path("allowed/real"), machine.path("allowed/trap"));
        let _ = fs::remove_file(&trap);
        symlink(&target, &trap).expect("linked");
        symlink("real", &door).expect("linked");
        let done = AtomicBool::new(false);
        let (mut opened, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = &real;
                while !done.load(Ordering::Relaxed) {
                    rustix::fs::renameat_with(
                        rustix::fs::CWD,
                        &door,
                        rustix::fs::CWD,
                        &trap,
                        rustix::fs::RenameFlags::EXCHANGE,
                    )
                    .expect("exchanged");
                }
            });
            for _ in 0..20_000 {
                match open("v", &format!("{door}/data"), &machine.paths(), None) {
                    Ok(found) => {
                        opened += 1;
                        let found = rustix::fs::fstat(&found).expect("looked at");
                        assert_ne!(found.st_ino, std::os::unix::fs::MetadataExt::ino(&forbidden));
                    }
                    Err(failure) => {
                        refused += 1;
                        assert!(matches!(failure.kind, Kind::HostPath | Kind::HostPathFailed), "{failure}");
                    }
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(opened > 0 && refused > 0, "both were met: {opened} {refused}");
        fs::remove_file(&door).expect("removed");
    }
}

#[test]
fn a_path_within_a_volume_stays_within() {
    let machine = Machine::new();
    machine.link("allowed/inside/up", "..");
    machine.link("allowed/inside/absolute", "/etc");
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let base = rustix::fs::open(machine.path("allowed/inside"), flags, rustix::fs::Mode::empty()).expect("opened");
    for path in ["up", "up/secret", "absolute", "../..", "up/new"] {
        let mut made = Made::default();
        assert_eq!(reach(&base, Path::new(path), Some(&mut made)).map(drop), Err(rustix::io::Errno::XDEV), "{path}");
    }
    let mut made = Made::default();
    assert!(reach(&base, Path::new("a/b/c"), Some(&mut made)).is_ok());
    made.keep();
    assert!(Path::new(&machine.path("allowed/inside/a/b/c")).is_dir());
}
