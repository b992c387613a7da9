//! Uploads: whole or not at all, in constant memory.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::Duration;

use serde_json::json;
use support::files::*;
use support::{Daemon, Response};

#[test]
fn ex_015_broken_uploads_are_named_and_change_nothing() {
    let daemon = Daemon::start();
    let path = write(&daemon, "f", "old");
    let whole = multipart(&[(json!({"path": path}), b"new content")]);
    let refused = |response: Response, code: &str, word: &str| {
        response.refuses(400, code, word);
        assert_eq!(fs::read_to_string(&path).expect("kept"), "old");
    };
    for end in [0, 10, whole.len() / 2, whole.len() - 5] {
        refused(upload_raw(&daemon, &whole[..end]), "INVALID_FILE", "boundary");
    }
    refused(daemon.connect().request("POST", "/files/upload", &[], &whole), "INVALID_FILE", "multipart");
    let part = |name: &str, text: &str| {
        format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"x\"\r\n\r\n{text}\r\n")
    };
    let metadata = part("metadata", &json!({"path": path}).to_string());
    let cases = [
        (part("file", "x"), "INVALID_FILE_METADATA", "metadata"),
        (metadata.clone(), "INVALID_FILE_CONTENT", "file"),
        (String::new(), "INVALID_FILE_METADATA", "metadata"),
        (format!("{metadata}{}{}", part("file", "x"), part("file", "y")), "INVALID_FILE", "1 metadata"),
        (format!("{}{}", part("metadata", "{"), part("file", "x")), "INVALID_FILE_METADATA", "JSON"),
        (format!("{}{}", part("metadata", "{}"), part("file", "x")), "INVALID_FILE_METADATA", "path"),
        (format!("{}{}", part("metadata", ""), part("file", "x")), "INVALID_FILE_METADATA", "empty"),
    ];
    for (parts, code, word) in cases {
        refused(upload_raw(&daemon, format!("{parts}--B--\r\n").as_bytes()), code, word);
    }
    let owner = json!({"path": path, "owner": "nosuch"});
    refused(upload(&daemon, &[(owner, b"x")]), "INVALID_REQUEST_BODY", "nosuch");
    let left: Vec<_> = fs::read_dir(daemon.directory())
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(left, ["f"], "no temporary file is left");
}

#[test]
fn an_upload_stores_every_file_with_its_permission() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.path("new/dirs/a"), daemon.path("b \"ü\".bin"));
    let files = [
        (json!({"path": a, "owner": "nobody", "group": "daemon", "mode": 640}), b"a\r\n".as_slice()),
        (json!({"path": b, "owner": null, "group": "", "mode": 0}), b"\r\n--\r\r\n--".as_slice()),
    ];
    upload(&daemon, &files).ok();
    let found = fs::metadata(&a).expect("a");
    assert_eq!((found.uid(), found.gid(), mode(&a)), (65534, 1, 0o640));
    assert_eq!((fs::read(&a).expect("a"), fs::read(&b).expect("b")), (b"a\r\n".to_vec(), b"\r\n--\r\r\n--".to_vec()));
    assert_eq!(mode(&b), 0o755, "0777 and the umask");
}

#[test]
fn an_upload_may_name_files_before_their_metadata_and_come_in_chunks() {
    let daemon = Daemon::start();
    let path = daemon.path("f");
    let mut connection = daemon.connect();
    connection.send_head("POST", "/files/upload", &[MULTIPART], "Transfer-Encoding: chunked\r\n");
    let metadata = json!({ "path": path });
    let body = format!(
        "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\ncontent\r\n\
         --B\r\nContent-Disposition: form-data; name=\"metadata\"\r\n\r\n{metadata}\r\n--B--\r\n"
    );
    for piece in body.as_bytes().chunks(11) {
        connection.write(format!("{:x}\r\n", piece.len()).as_bytes());
        connection.write(piece);
        connection.write(b"\r\n");
    }
    connection.write(b"0\r\n\r\n");
    connection.response("POST").ok();
    assert_eq!(fs::read_to_string(&path).expect("the file"), "content");
}

#[test]
fn an_upload_over_a_file_keeps_its_mode_owner_and_links() {
    let daemon = Daemon::start();
    let path = write(&daemon, "f", "old");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    std::os::unix::fs::chown(&path, Some(65534), Some(1)).expect("chown");
    symlink("f", daemon.path("link")).expect("a link");
    symlink("later", daemon.path("dangling")).expect("a link");
    upload(
        &daemon,
        &[(json!({"path": daemon.path("link")}), b"new"), (json!({"path": daemon.path("dangling")}), b"made")],
    )
    .ok();
    let found = fs::metadata(&path).expect("the file");
    assert_eq!((found.uid(), found.gid(), mode(&path)), (65534, 1, 0o600));
    assert_eq!(fs::read_to_string(&path).expect("the file"), "new");
    assert!(fs::symlink_metadata(daemon.path("link")).expect("a link").is_symlink());
    assert_eq!(fs::read_to_string(daemon.path("later")).expect("made through the link"), "made");
}

#[test]
fn ex_035_an_upload_honours_what_the_daemons_user_may() {
    let mut setpriv = std::process::Command::new("setpriv");
    setpriv.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_execd")]);
    let daemon = Daemon::wrapped(setpriv, |_| {});
    // A file that the user may write in a directory that it may not: overwritten in place.
    let directory = daemon.path("closed");
    fs::create_dir(&directory).expect("a directory");
    let file = write(&daemon, "closed/f", "a longer old content");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("chmod");
    let inode = fs::metadata(&file).expect("a file").ino();
    upload(&daemon, &[(json!({"path": file}), b"new")]).ok();
    assert_eq!(
        (fs::read_to_string(&file).expect("written"), fs::metadata(&file).expect("a file").ino()),
        ("new".into(), inode)
    );
    daemon.post("/files/replace", &json!({ &file: {"old": "new", "new": "newer"} })).ok();
    assert_eq!(fs::read_to_string(&file).expect("written"), "newer");
    upload(&daemon, &[(json!({"path": format!("{directory}/new")}), b"x")]).refuses(
        400,
        "INVALID_FILE",
        "permission denied",
    );
    let sysfs = upload(&daemon, &[(json!({"path": "/proc/new"}), b"x")]);
    assert!((400..500).contains(&sysfs.status), "{}", sysfs.text());
    let chown = upload(&daemon, &[(json!({"path": daemon.path("mine"), "owner": "root"}), b"x")]);
    chown.refuses(400, "INVALID_FILE", "not permitted");
    assert!(!fs::exists(daemon.path("mine")).expect("a look"), "nothing is left of it");
    let existing = daemon.path("existing");
    fs::write(&existing, "old").expect("a file");
    fs::set_permissions(&existing, fs::Permissions::from_mode(0o666)).expect("chmod");
    upload(&daemon, &[(json!({"path": existing, "owner": "root"}), b"new")]).refuses(
        400,
        "INVALID_FILE",
        "not permitted",
    );
    assert_eq!(fs::read_to_string(&existing).expect("kept"), "old");
}

#[test]
fn downloads_and_uploads_of_any_size_take_constant_memory() {
    const BYTES: u64 = 256 * 1024 * 1024;
    let daemon = Daemon::start();
    let before = daemon.status_kib("VmRSS");
    let (from, to) = (daemon.path("from"), daemon.path("to"));
    assert_eq!(daemon.shell(&format!("head -c {BYTES} /dev/urandom > {from}")).end(), "0");
    let mut download = daemon.connect();
    download.send("GET", &format!("/files/download?path={from}"), &[], b"");
    let head = download.head();
    assert_eq!(head.header("content-length"), Some(BYTES.to_string().as_str()));
    let mut upload = daemon.connect();
    let body = multipart(&[(json!({"path": to}), b"|")]);
    let cut = body.iter().rposition(|byte| *byte == b'|').expect("the content");
    let length = body.len() as u64 - 1 + BYTES;
    upload.send_head("POST", "/files/upload", &[MULTIPART], &format!("Content-Length: {length}\r\n"));
    upload.write(&body[..cut]);
    download.each_piece(&head, |piece| upload.write(piece)).expect("a whole file");
    upload.write(&body[cut + 1..]);
    upload.response("POST").ok();
    assert_eq!(daemon.shell(&format!("cmp {from} {to}")).end(), "0");
    let grown = daemon.status_kib("VmHWM") - before;
    assert!(grown < 16 * 1024, "memory grew by {grown} KiB");
}

#[test]
fn a_client_that_breaks_off_its_upload_changes_nothing() {
    let daemon = Daemon::start();
    let path = write(&daemon, "f", "old");
    let mut connection = daemon.connect();
    let body = multipart(&[(json!({"path": path}), &[b'x'; 100_000])]);
    connection.send_head("POST", "/files/upload", &[MULTIPART], &format!("Content-Length: {}\r\n", body.len() * 2));
    connection.write(&body);
    drop(connection);
    let begun = std::time::Instant::now();
    while fs::read_dir(daemon.directory()).expect("the directory").count() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(10), "a temporary file is left");
        daemon.get("/ping").ok();
    }
    assert_eq!(fs::read_to_string(&path).expect("kept"), "old");
}
