//! Calls that change: what the rows of area files ask.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};
use support::Daemon;
use support::files::*;

#[test]
fn ex_015_wrong_kinds_are_refused_by_path_and_nothing_changes() {
    let daemon = Daemon::start();
    let (directory, file) = (daemon.path("d"), write(&daemon, "f", "text"));
    fs::create_dir(&directory).expect("a directory");
    let in_directory = write(&daemon, "d/x", "x");
    daemon.get(&format!("/files/download?path={directory}")).refuses(400, "INVALID_FILE", &directory);
    upload(&daemon, &[(json!({"path": daemon.path("new")}), b"n"), (json!({"path": directory}), b"d")]).refuses(
        400,
        "INVALID_FILE",
        &directory,
    );
    assert!(!fs::exists(daemon.path("new")).expect("a look"), "no file of a refused upload stays");
    daemon.get(&format!("/directories/list?path={file}")).refuses(400, "INVALID_FILE", &file);
    daemon.delete(&format!("/files?path={file}&path={directory}")).refuses(400, "INVALID_FILE", &directory);
    daemon.post("/files/replace", &json!({ &directory: {"old": "a", "new": "b"} })).refuses(
        400,
        "INVALID_FILE",
        &directory,
    );
    daemon.post("/files/mv", &json!([{"src": file, "dest": directory}])).refuses(400, "INVALID_FILE", &directory);
    daemon.get(&format!("/files/search?path={file}")).refuses(400, "INVALID_FILE", &file);
    daemon.post("/files/mv", &json!([])).refuses(400, "INVALID_REQUEST_BODY", "empty");
    daemon.delete("/files").refuses(400, "MISSING_QUERY", "path");
    daemon.delete("/directories").refuses(400, "MISSING_QUERY", "path");
    daemon.get("/files/download").refuses(400, "MISSING_QUERY", "path");
    assert_eq!(
        (fs::read_to_string(&file).expect("kept"), fs::read_to_string(&in_directory).expect("kept")),
        ("text".into(), "x".into())
    );
}

#[test]
fn os_057_a_move_says_which_item_failed() {
    let daemon = Daemon::start();
    let (a, b) = (write(&daemon, "a", "a"), write(&daemon, "b", "b"));
    let moved = |items: Value| daemon.post("/files/mv", &items);
    moved(json!([{"src": daemon.path("nope"), "dest": daemon.path("x")}])).refuses(404, "FILE_NOT_FOUND", "nope");
    moved(json!([{"src": a, "dest": b}])).refuses(400, "INVALID_FILE", "already exists");
    assert_eq!(fs::read_to_string(&b).expect("kept"), "b");
    moved(json!([{"src": a, "dest": daemon.path("new/dir/a")}])).ok();
    moved(json!([{"src": daemon.path("new"), "dest": daemon.path("other")}])).ok();
    assert_eq!(fs::read_to_string(daemon.path("other/dir/a")).expect("moved"), "a");
    moved(json!([{"src": daemon.path("other"), "dest": daemon.path("other/dir/self")}])).refuses(
        400,
        "INVALID_FILE",
        "itself",
    );
    let second =
        moved(json!([{"src": b, "dest": daemon.path("c")}, {"src": daemon.path("nope"), "dest": daemon.path("d")}]));
    second.refuses(404, "FILE_NOT_FOUND", "item 2 of 2");
    assert!(second.text().contains("1 moved before it"), "{}", second.text());
    assert_eq!(fs::read_to_string(daemon.path("c")).expect("the first item was moved"), "b");
}

#[test]
fn os_057_a_move_crosses_file_systems() {
    let other = tempfile::tempdir_in("/dev/shm").expect("another file system");
    let daemon = Daemon::start();
    fs::create_dir_all(daemon.path("d/sub")).expect("a directory");
    let file = write(&daemon, "d/sub/f", "text");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o604)).expect("chmod");
    std::os::unix::fs::chown(&file, Some(65534), None).expect("chown");
    symlink("sub/f", daemon.path("d/link")).expect("a link");
    let modified = fs::metadata(&file).expect("a file").modified().expect("a time");
    let dest = other.path().join("moved");
    assert_ne!(fs::metadata(other.path()).expect("a look").dev(), fs::metadata(&file).expect("a look").dev());
    daemon.post("/files/mv", &json!([{"src": daemon.path("d"), "dest": dest}])).ok();
    assert!(!fs::exists(daemon.path("d")).expect("a look"));
    let found = fs::metadata(dest.join("sub/f")).expect("moved");
    assert_eq!((found.mode() & 0o777, found.uid(), found.modified().expect("a time")), (0o604, 65534, modified));
    assert_eq!(fs::read_link(dest.join("link")).expect("a link").to_str(), Some("sub/f"));
}

#[test]
fn os_059_permissions_are_checked_whole_before_any_is_set() {
    let daemon = Daemon::start();
    let (a, b) = (write(&daemon, "a", ""), write(&daemon, "b", ""));
    for path in [&a, &b] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("chmod");
    }
    let set = |items: Value| daemon.post("/files/permissions", &items);
    set(json!({ &a: {"mode": 600}, &b: {"mode": 600, "owner": "nosuch"} })).refuses(
        400,
        "INVALID_REQUEST_BODY",
        "nosuch",
    );
    set(json!({ &a: {"mode": 600}, &b: {"mode": 600, "group": "nosuch"} })).refuses(
        400,
        "INVALID_REQUEST_BODY",
        "nosuch",
    );
    set(json!({ &a: {"mode": 600}, "/nope": {"mode": 600} })).refuses(404, "FILE_NOT_FOUND", "/nope");
    set(json!({ &a: {"mode": 493} })).refuses(400, "INVALID_REQUEST_BODY", "493");
    set(json!({ &a: {"mode": "0755"} })).refuses(400, "INVALID_REQUEST_BODY", "JSON");
    assert_eq!((mode(&a), mode(&b)), (0o644, 0o644));
    set(json!({ &a: {"group": "daemon"} })).ok();
    let found = fs::metadata(&a).expect("a");
    assert_eq!((found.uid(), found.gid(), mode(&a)), (0, 1, 0o644), "absent fields are left alone");
    set(json!({ &a: {"mode": 755, "owner": "nobody", "group": null} })).ok();
    assert_eq!((fs::metadata(&a).expect("a").uid(), mode(&a)), (65534, 0o755));
}

#[test]
fn os_063_replace_counts_keeps_and_is_whole() {
    let daemon = Daemon::start();
    let path = write(&daemon, "f", "a\r\nb a\r\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("chmod");
    std::os::unix::fs::chown(&path, Some(65534), Some(1)).expect("chown");
    let replace = |verbose: &str, items: Value| daemon.post(&format!("/files/replace{verbose}"), &items);
    replace("", json!({ &path: {"old": "", "new": "x"} })).refuses(400, "INVALID_REQUEST_BODY", "old");
    replace("", json!({ &path: {"old": "a", "new": "x"}, "/nope": {"old": "a", "new": "x"} })).refuses(
        404,
        "FILE_NOT_FOUND",
        "/nope",
    );
    assert_eq!(fs::read_to_string(&path).expect("untouched"), "a\r\nb a\r\n");
    assert_eq!(
        replace("?verbose=true", json!({ &path: {"old": "a", "new": "ää"} })).ok().json(),
        json!({ &path: {"replacedCount": 2} })
    );
    assert_eq!(replace("", json!({ &path: {"old": "b", "new": ""} })).ok().text(), "");
    assert_eq!(replace("?verbose=1", json!({ &path: {"old": "none", "new": ""} })).ok().text(), "");
    assert_eq!(fs::read_to_string(&path).expect("replaced"), "ää\r\n ää\r\n");
    let found = fs::metadata(&path).expect("a file");
    assert_eq!((found.uid(), found.gid(), mode(&path)), (65534, 1, 0o640));
}

#[test]
fn os_063_a_concurrent_reader_sees_no_half_file() {
    let daemon = Daemon::start();
    let (a, b) = ("a".repeat(300_000), "b".repeat(300_000));
    let path = write(&daemon, "f", &a);
    std::thread::scope(|scope| {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let reader = scope.spawn({
            let path = path.clone();
            let (a, b) = (a.clone(), b.clone());
            move || {
                while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                    let text = fs::read_to_string(&path).expect("always there");
                    assert!(text == a || text == b, "a half file of {} bytes", text.len());
                }
            }
        });
        for round in 0..20 {
            let (old, new) = if round % 2 == 0 { ("a", "b") } else { ("b", "a") };
            daemon.post("/files/replace", &json!({ &path: {"old": old, "new": new} })).ok();
        }
        drop(stop);
        reader.join().expect("a reader");
    });
}

#[test]
fn os_065_paths_are_expanded_alike_in_all_calls() {
    let home = tempfile::tempdir().expect("a home");
    let daemon = Daemon::with(|command| {
        command.env("HOME", home.path()).current_dir(home.path());
    });
    upload(&daemon, &[(json!({"path": "~/t"}), b"home")]).ok();
    let info = daemon.get("/files/info?path=$HOME/t").ok().json();
    assert_eq!(info["$HOME/t"]["path"], home.path().join("t").to_str().expect("UTF-8"));
    for path in ["${HOME}/t", "t", "./x/../t", "~/t"] {
        assert_eq!(daemon.get(&format!("/files/download?path={path}")).ok().text(), "home", "{path}");
    }
    upload(&daemon, &[(json!({"path": "~/a$$HOME"}), b"literal")]).ok();
    assert!(home.path().join("a$HOME").exists());
    assert_eq!(daemon.run(json!({"command": "cat 'a$HOME'", "cwd": "${HOME}"})).stdout(), "literal");
    for path in ["$NOPE/etc/passwd", "${NOPE}"] {
        daemon.get(&format!("/files/download?path={path}")).refuses(400, "INVALID_FILE", "NOPE");
        daemon.delete(&format!("/directories?path={path}")).refuses(400, "INVALID_FILE", "NOPE");
    }
    let set = json!({"$HOME/t": {"mode": 600}});
    daemon.post("/files/permissions", &set).ok();
    daemon.delete("/files?path=~/t").ok();
    assert!(!home.path().join("t").exists());
}

#[test]
fn ex_038_attack_13_strict_mode_follows_no_link() {
    let daemon = Daemon::start();
    let (real, outside) = (daemon.path("w/a"), daemon.path("outside"));
    for directory in [&real, &outside] {
        fs::create_dir_all(directory).expect("a directory");
    }
    symlink(&outside, daemon.path("w/link")).expect("a link");
    symlink("x", daemon.path("w/a/last")).expect("a link");
    let strict = [("OpenSandbox-Resolve", "no-symlinks")];
    let upload_to = |path: String| {
        let headers = [MULTIPART, strict[0]];
        daemon.connect().request("POST", "/files/upload", &headers, &multipart(&[(json!({ "path": path }), b"x")]))
    };
    upload_to(daemon.path("w/a/x")).ok();
    upload_to(daemon.path("w/a/new/y")).ok();
    for path in ["w/link/x", "w/link/new/x", "w/a/last"] {
        upload_to(daemon.path(path)).refuses(400, "INVALID_FILE", "symbolic link");
    }
    let get = |path: String| daemon.connect().request("GET", &format!("/files/download?path={path}"), &strict, b"");
    assert_eq!(get(daemon.path("w/a/x")).ok().text(), "x");
    get(daemon.path("w/a/last")).refuses(400, "INVALID_FILE", "symbolic link");
    daemon.connect().request("GET", "/files/info", &[("OpenSandbox-Resolve", "maybe")], b"").refuses(
        400,
        "INVALID_REQUEST_BODY",
        "maybe",
    );
    // A directory that becomes a link and back, as fast as it can, while files are uploaded through it.
    std::thread::scope(|scope| {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (flip, aside) = (daemon.path("w/flip"), daemon.path("w/aside"));
        fs::create_dir(&flip).expect("a directory");
        symlink(&outside, &aside).expect("a link");
        let flipper = scope.spawn({
            let flip = flip.clone();
            move || {
                while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                    renameat_with(CWD, &flip, CWD, &aside, RenameFlags::EXCHANGE).expect("exchanged");
                }
            }
        });
        let (begun, mut tries, mut stored) = (Instant::now(), 0, 0);
        // An upload looks at its path more than once: on a busy machine few meet the directory each time.
        while tries < 300 || (stored == 0 && begun.elapsed() < Duration::from_secs(20)) {
            tries += 1;
            stored += usize::from(upload_to(format!("{flip}/x")).status == 200);
        }
        drop(stop);
        flipper.join().expect("a flipper");
        assert!(stored > 0, "of {tries} uploads some met the directory");
    });
    assert_eq!(fs::read_dir(&outside).expect("the directory").count(), 0, "nothing went through a link");
}

#[test]
fn removal_follows_the_contract() {
    let daemon = Daemon::start();
    let file = write(&daemon, "f", "");
    symlink("nowhere", daemon.path("dangling")).expect("a link");
    fs::create_dir_all(daemon.path("d/sub")).expect("a directory");
    symlink("d", daemon.path("to-directory")).expect("a link");
    daemon.delete(&format!("/files?path={file}&path={}&path={}", daemon.path("dangling"), daemon.path("no/such"))).ok();
    assert!(fs::symlink_metadata(daemon.path("dangling")).is_err(), "a dangling link really goes");
    daemon.delete(&format!("/files?path={}", daemon.path("to-directory"))).refuses(400, "INVALID_FILE", "to-directory");
    daemon.delete(&format!("/directories?path={}", daemon.path("to-directory"))).ok();
    assert!(fs::exists(daemon.path("d/sub")).expect("a look"), "links are not followed");
    daemon.delete(&format!("/directories?path={}&path={}", daemon.path("d"), daemon.path("no/such"))).ok();
    assert!(!fs::exists(daemon.path("d")).expect("a look"));
    daemon.delete("/directories?path=/").refuses(400, "INVALID_FILE", "root");
    daemon.delete("/directories?path=/..").refuses(400, "INVALID_FILE", "root");
}

#[test]
fn directories_are_made_with_their_parents() {
    let daemon = Daemon::start();
    let path = daemon.path("a/b/c");
    daemon.post("/directories", &json!({ &path: {"mode": 700} })).ok();
    assert_eq!((mode(&path), mode(&daemon.path("a/b"))), (0o700, 0o755));
    daemon.post("/directories", &json!({ &path: {"mode": 777}, daemon.path("d"): null })).ok();
    assert_eq!(mode(&path), 0o700, "an existing one is left alone");
    let file = write(&daemon, "f", "");
    daemon.post("/directories", &json!({ &file: {} })).refuses(400, "INVALID_FILE", &file);
    daemon.post("/directories", &json!({ format!("{file}/x"): {} })).refuses(400, "INVALID_FILE", &file);
}
