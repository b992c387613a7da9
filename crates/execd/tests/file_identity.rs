//! `/v1/filesystem/{uid}/{gid}/...`: the file calls under another identity, checked by the kernel.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::files::*;
use support::{Connection, Daemon, Response};

const NOBODY: u32 = 65534;
const UNAVAILABLE: &str = "FILESYSTEM_IDENTITY_UNAVAILABLE";

fn nobody(path: &str) -> String {
    format!("/v1/filesystem/{NOBODY}/{NOBODY}{path}")
}

fn upload_as_nobody(daemon: &Daemon, files: &[(Value, &[u8])]) -> Response {
    daemon.connect().request("POST", &nobody("/files/upload"), &[MULTIPART], &multipart(files))
}

/// A file of root that nobody else may read.
fn secret(daemon: &Daemon) -> String {
    let path = write(daemon, "secret", "s");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    path
}

/// A directory of root in which nobody else may write.
fn closed(daemon: &Daemon) -> String {
    let path = daemon.path("closed");
    fs::create_dir(&path).expect("a directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
    path
}

/// Children of the daemon, dead or alive.
fn children(daemon: &Daemon) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("execd lives");
    tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok())
        .map(|children| children.split_ascii_whitespace().count())
        .sum()
}

fn wait_for_no_children(daemon: &Daemon) {
    let begun = Instant::now();
    while children(daemon) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} workers are left", children(daemon));
        std::thread::yield_now();
    }
}

#[test]
fn every_file_call_works_under_another_identity() {
    let daemon = Daemon::start();
    let (file, directory) = (daemon.path("w/f"), daemon.path("w/d/e"));
    upload_as_nobody(&daemon, &[(json!({"path": file, "mode": 640}), b"one two\n")]).ok();
    let found = fs::metadata(&file).expect("uploaded");
    assert_eq!((found.uid(), found.gid(), mode(&file)), (NOBODY, NOBODY, 0o640));
    let parent = fs::metadata(daemon.path("w")).expect("made on the way");
    assert_eq!((parent.uid(), parent.mode() & 0o777), (NOBODY, 0o755), "the umask is execd's");

    daemon.post(&nobody("/directories"), &json!({ &directory: {"mode": 700} })).ok();
    assert_eq!((fs::metadata(&directory).expect("made").uid(), mode(&directory)), (NOBODY, 0o700));
    let info = daemon.get(&nobody(&format!("/files/info?path={file}"))).ok().json();
    assert_eq!((&info[&file]["owner"], &info[&file]["mode"]), (&json!("nobody"), &json!(640)));
    assert_eq!(daemon.get(&nobody(&format!("/files/download?path={file}"))).ok().text(), "one two\n");
    let mut connection = daemon.connect();
    let range = [("Range", "bytes=4-6")];
    let part = connection.request("GET", &nobody(&format!("/files/download?path={file}")), &range, b"");
    assert_eq!((part.status, part.text().as_str(), part.header("content-range")), (206, "two", Some("bytes 4-6/8")));
    let found = daemon.get(&nobody(&format!("/files/search?path={}&pattern=f", daemon.path("w")))).ok().json();
    assert_eq!(found[0]["path"], json!(file));
    let listed = daemon.get(&nobody(&format!("/directories/list?path={}&depth=9", daemon.path("w")))).ok().json();
    assert_eq!(listed.as_array().map(Vec::len), Some(3));
    let replaced = json!({ &file: {"old": "two", "new": "three"} });
    let counts = daemon.post(&nobody("/files/replace?verbose=true"), &replaced).ok().json();
    assert_eq!(counts[&file]["replacedCount"], 1);
    daemon.post(&nobody("/files/permissions"), &json!({ &file: {"mode": 600} })).ok();
    assert_eq!((mode(&file), fs::metadata(&file).expect("kept").uid()), (0o600, NOBODY));
    let moved = daemon.path("w/g");
    daemon.post(&nobody("/files/mv"), &json!([{"src": file, "dest": moved}])).ok();
    assert_eq!(fs::read_to_string(&moved).expect("moved"), "one three\n");
    daemon.delete(&nobody(&format!("/files?path={moved}"))).ok();
    daemon.delete(&nobody(&format!("/directories?path={}", daemon.path("w/d")))).ok();
    assert_eq!(fs::read_dir(daemon.path("w")).expect("kept").count(), 0);
    wait_for_no_children(&daemon);
}

#[test]
fn every_file_call_is_refused_what_the_identity_may_not() {
    let daemon = Daemon::start();
    let (secret, closed) = (secret(&daemon), closed(&daemon));
    let inside = format!("{closed}/f");
    fs::write(&inside, "text").expect("a file");
    let hidden = daemon.path("hidden");
    fs::create_dir(&hidden).expect("a directory");
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o700)).expect("chmod");
    let denied = |answer: Response, path: &str| {
        answer.refuses(400, "INVALID_FILE", path);
        assert!(answer.text().contains("denied") || answer.text().contains("not permitted"), "{}", answer.text());
    };
    denied(daemon.get(&nobody(&format!("/files/info?path={hidden}/x"))), &hidden);
    denied(daemon.get(&nobody(&format!("/files/download?path={secret}"))), &secret);
    denied(daemon.get(&nobody(&format!("/files/search?path={hidden}"))), &hidden);
    denied(daemon.get(&nobody(&format!("/directories/list?path={hidden}"))), &hidden);
    denied(daemon.delete(&nobody(&format!("/files?path={inside}"))), &inside);
    denied(daemon.delete(&nobody(&format!("/directories?path={closed}"))), &closed);
    denied(daemon.post(&nobody("/directories"), &json!({ format!("{closed}/d"): {} })), &closed);
    denied(daemon.post(&nobody("/files/mv"), &json!([{"src": inside, "dest": daemon.path("stolen")}])), "stolen");
    denied(daemon.post(&nobody("/files/permissions"), &json!({ &inside: {"mode": 666} })), &inside);
    denied(daemon.post(&nobody("/files/replace"), &json!({ &secret: {"old": "s", "new": "t"} })), &secret);
    denied(upload_as_nobody(&daemon, &[(json!({"path": inside}), b"x")]), &inside);
    denied(upload_as_nobody(&daemon, &[(json!({"path": daemon.path("own"), "owner": "root"}), b"x")]), "own");
    assert_eq!((fs::read_to_string(&inside).expect("kept"), mode(&inside)), ("text".into(), 0o644));
    assert_eq!(fs::read_to_string(&secret).expect("kept"), "s");
    assert!(!fs::exists(daemon.path("own")).expect("a look"), "no file of a refused upload stays");
}

#[test]
fn the_group_of_the_request_counts() {
    let daemon = Daemon::start();
    let path = write(&daemon, "f", "for the group");
    chown(&path, Some(0), Some(12)).expect("chown");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("chmod");
    let as_group = |gid: u32| daemon.get(&format!("/v1/filesystem/{NOBODY}/{gid}/files/download?path={path}"));
    assert_eq!(as_group(12).ok().text(), "for the group");
    as_group(13).refuses(400, "INVALID_FILE", &path);
}

#[test]
fn attack_34_a_worker_holds_nothing_of_execds() {
    let daemon = Daemon::with_token("s3cret");
    let read = |path: &str| daemon.get(&nobody(&format!("/files/download?path={path}"))).ok().text();
    assert!(!read("/proc/self/environ").contains("s3cret"), "the token travels");
    let status = read("/proc/self/status");
    let line = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("the line is there");
        line.split_ascii_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(line("Uid:"), ["65534", "65534", "65534", "65534"]);
    assert_eq!((line("Groups:"), line("CapPrm:")), (vec!["65534".into()], vec!["0000000000000000".to_owned()]));
    let own = daemon.pid();
    daemon.get(&nobody(&format!("/files/download?path=/proc/{own}/environ"))).refuses(400, "INVALID_FILE", "denied");
    assert_eq!(daemon.connect().request("GET", &nobody("/files/info"), &[], b"").status, 200);
    let mut stranger = Connection::open(&support::Target::Tcp(daemon.address(), None));
    assert_eq!(stranger.request("GET", &nobody("/files/info?path=/"), &[], b"").status, 401);
}

#[test]
fn where_no_switch_is_permitted_another_identity_is_refused_and_the_own_works() {
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_execd")]);
    let daemon = Daemon::wrapped(setpriv, |_| {});
    let path = write(&daemon, "f", "text");
    let own = daemon.get(&nobody(&format!("/files/download?path={path}")));
    assert_eq!(own.ok().text(), "text");
    for identity in ["1000/1000", "0/0", "65534/0"] {
        let refused = daemon.get(&format!("/v1/filesystem/{identity}/files/info?path={path}"));
        refused.refuses(503, UNAVAILABLE, "CAP_SETGID");
    }
}

#[test]
fn a_number_that_is_no_id_is_refused_by_name() {
    let daemon = Daemon::start();
    for (ids, field) in [("4294967295/0", "uid"), ("-1/0", "uid"), ("0/x", "gid"), ("+1/0", "uid"), ("/0", "uid")] {
        let refused = daemon.get(&format!("/v1/filesystem/{ids}/files/info?path=/"));
        refused.refuses(400, "INVALID_REQUEST_BODY", field);
    }
    assert_eq!(daemon.get(&nobody("/metrics")).status, 404);
    assert_eq!(daemon.get(&nobody("/files/nope")).status, 404);
}

#[test]
fn a_client_that_goes_away_takes_its_worker_and_its_half_upload_along() {
    let daemon = Daemon::start();
    let mut connection = daemon.connect();
    connection.send_head("POST", &nobody("/files/upload"), &[MULTIPART], "Content-Length: 100000000\r\n");
    let body = multipart(&[(json!({"path": daemon.path("half")}), &[b'x'; 1_000_000])]);
    connection.write(&body[..900_000]);
    let begun = Instant::now();
    while !fs::read_dir(daemon.directory()).expect("a directory").any(|entry| is_stage(&entry.expect("an entry"))) {
        assert!(begun.elapsed() < Duration::from_secs(20), "the upload begins");
        std::thread::yield_now();
    }
    drop(connection);
    wait_for_no_children(&daemon);
    let left: Vec<_> = fs::read_dir(daemon.directory()).expect("a directory").flatten().collect();
    assert!(left.iter().all(|entry| !is_stage(entry) && entry.file_name() != "half"), "{left:?}");
}

fn is_stage(entry: &fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with(".execd-")
}

#[test]
fn many_calls_leave_neither_process_nor_descriptor() {
    let daemon = Daemon::start();
    let path = write(&daemon, "f", "text");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("chmod");
    let call = || assert_eq!(daemon.get(&nobody(&format!("/files/download?path={path}"))).ok().text(), "text");
    call();
    wait_for_no_children(&daemon);
    let before = daemon.descriptors();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..25).for_each(|_| call()));
        }
    });
    wait_for_no_children(&daemon);
    let begun = Instant::now();
    while daemon.descriptors() > before {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} descriptors, {before} before", daemon.descriptors());
        std::thread::yield_now();
    }
}
