//! Files and directories: what the rows of area files ask, and the contract's forms.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};
use support::{Daemon, Response};

/// A multipart body of pairs of metadata and content.
fn multipart(files: &[(Value, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (metadata, content) in files {
        body.extend_from_slice(
            b"--B\r\nContent-Disposition: form-data; name=\"metadata\"; filename=\"metadata\"\r\n\r\n",
        );
        body.extend_from_slice(metadata.to_string().as_bytes());
        body.extend_from_slice(b"\r\n--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n");
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--B--\r\n");
    body
}

const MULTIPART: (&str, &str) = ("Content-Type", "multipart/form-data; boundary=B");

fn upload(daemon: &Daemon, files: &[(Value, &[u8])]) -> Response {
    upload_raw(daemon, &multipart(files))
}

fn upload_raw(daemon: &Daemon, body: &[u8]) -> Response {
    daemon.connect().request("POST", "/files/upload", &[MULTIPART], body)
}

fn write(daemon: &Daemon, name: &str, content: &str) -> String {
    let path = daemon.path(name);
    fs::write(&path, content).expect("a file");
    path
}

fn mode(path: &str) -> u32 {
    fs::metadata(path).expect("a file").mode() & 0o7777
}

#[test]
fn info_describes_links_themselves_and_keys_by_the_given_path() {
    let daemon = Daemon::start();
    let file = write(&daemon, "f", "hello");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("chmod");
    symlink("nowhere", daemon.path("l")).expect("a link");
    let odd = format!("{}/./f", daemon.path(""));
    let info = daemon
        .get(&format!("/files/info?path={odd}&path={}&path=/dev/null&path={}", daemon.path("l"), daemon.path("")))
        .ok()
        .json();
    let first = &info[&odd];
    assert_eq!(
        (&first["path"], &first["type"], &first["size"], &first["mode"]),
        (&json!(file), &json!("file"), &json!(5), &json!(640))
    );
    assert_eq!((&first["owner"], &first["group"]), (&json!("root"), &json!("root")));
    assert!(first["modified_at"].as_str().is_some_and(|time| time.ends_with('Z')) && first["created_at"].is_string());
    assert_eq!(info[&daemon.path("l")]["type"], "symlink");
    assert_eq!(info["/dev/null"]["type"], "other");
    assert_eq!(info[&daemon.path("")]["type"], "directory");
    assert_eq!(daemon.get("/files/info").ok().json(), json!({}));
    daemon.get(&format!("/files/info?path={file}&path=/nope")).refuses(404, "FILE_NOT_FOUND", "/nope");
}

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

#[test]
fn a_download_has_the_published_headers() {
    let daemon = Daemon::start();
    let path = write(&daemon, "a b.txt", "0123456789");
    let response = daemon.get(&format!("/files/download?path={}", path.replace(' ', "+"))).ok();
    assert_eq!(response.text(), "0123456789");
    assert_eq!(response.header("content-type"), Some("application/octet-stream"));
    assert_eq!(response.header("content-disposition"), Some("attachment; filename=\"a b.txt\""));
    let modified = response.header("last-modified").expect("a date").to_owned();
    write(&daemon, "ä\"", "x");
    let odd = daemon.get(&format!("/files/download?path={}/%C3%A4%22", daemon.path(""))).ok();
    assert_eq!(
        odd.header("content-disposition"),
        Some("attachment; filename=\"%C3%A4%22\"; filename*=UTF-8''%C3%A4%22")
    );
    let url = format!("/files/download?path={}", path.replace(' ', "%20"));
    let conditional = |name: &str, value: &str| daemon.connect().request("GET", &url, &[(name, value)], b"").status;
    assert_eq!(conditional("If-Modified-Since", &modified), 304);
    assert_eq!(conditional("If-Modified-Since", "Thu, 01 Jan 1970 00:00:00 GMT"), 200);
    assert_eq!(conditional("If-Unmodified-Since", "Thu, 01 Jan 1970 00:00:00 GMT"), 412);
    daemon.get("/files/download?path=/nope").refuses(404, "FILE_NOT_FOUND", "/nope");
    daemon.get("/files/download?path=/dev/zero").refuses(400, "INVALID_FILE", "/dev/zero");
    assert_eq!(
        daemon.get(&format!("/files/download?path={}", write(&daemon, "empty", ""))).ok().header("content-length"),
        Some("0")
    );
    assert!(
        daemon.get("/files/download?path=/proc/version").ok().text().ends_with('\n'),
        "files that say 0 and hold more"
    );
}

#[test]
fn ranges_follow_the_contract() {
    let daemon = Daemon::start();
    let url = format!("/files/download?path={}", write(&daemon, "f", "0123456789"));
    let range = |range: &str| daemon.connect().request("GET", &url, &[("Range", range)], b"");
    for (asked, text, content_range) in [
        ("bytes=0-3", "0123", "bytes 0-3/10"),
        ("bytes=8-", "89", "bytes 8-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
        ("bytes=-100", "0123456789", "bytes 0-9/10"),
        ("bytes=5-100", "56789", "bytes 5-9/10"),
        ("bytes=50-60,2-3", "23", "bytes 2-3/10"),
    ] {
        let response = range(asked);
        assert_eq!(
            (response.status, response.text().as_str(), response.header("content-range")),
            (206, text, Some(content_range)),
            "{asked}"
        );
    }
    for malformed in ["bytes=", "bytes=x-", "bytes=3-1", "lines=1-2", "bytes=1"] {
        let response = range(malformed);
        assert_eq!(response.status, 416, "{malformed}");
        response.refuses(416, "UNKNOWN", "");
    }
    let beyond = range("bytes=10-");
    assert_eq!((beyond.status, beyond.header("content-range")), (416, Some("bytes */10")));
}

#[test]
fn line_windows_follow_the_contract() {
    let daemon = Daemon::start();
    let url = format!("/files/download?path={}", write(&daemon, "f", "one\r\ntwo\nthree\n"));
    let window = |query: &str| daemon.get(&format!("{url}&{query}"));
    for (query, text) in
        [("offset=1", "one\ntwo\nthree"), ("offset=2&limit=1", "two"), ("limit=2", "one\ntwo"), ("offset=9", "")]
    {
        let response = window(query).ok();
        assert_eq!(response.text(), text, "{query}");
        assert_eq!(response.header("content-type"), Some("text/plain; charset=utf-8"));
    }
    for query in ["offset=0", "limit=0", "offset=-1", "limit=x"] {
        window(query).refuses(400, "INVALID_REQUEST_BODY", &query[..5]);
    }
    daemon.connect().request("GET", &format!("{url}&offset=1"), &[("Range", "bytes=0-1")], b"").refuses(
        400,
        "INVALID_REQUEST_BODY",
        "Range",
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
        let stored = (0..300).filter(|_| upload_to(format!("{flip}/x")).status == 200).count();
        drop(stop);
        flipper.join().expect("a flipper");
        assert!(stored > 0, "some uploads met the directory");
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

#[test]
fn listing_follows_the_contract() {
    let daemon = Daemon::start();
    fs::create_dir_all(daemon.path("b/c")).expect("a directory");
    for name in ["b/c/deep", "b/x", "a", "B"] {
        write(&daemon, name, "");
    }
    symlink("b", daemon.path("link")).expect("a link");
    let list = |query: &str| -> Vec<String> {
        let found = daemon.get(&format!("/directories/list?path={}{query}", daemon.path(""))).ok().json();
        let root = format!("{}/", daemon.directory().display());
        found
            .as_array()
            .expect("a list")
            .iter()
            .map(|entry| entry["path"].as_str().expect("a path").replace(&root, ""))
            .collect()
    };
    assert_eq!(list(""), ["B", "a", "b", "link"]);
    assert_eq!(list("&depth=2"), ["B", "a", "b", "b/c", "b/x", "link"]);
    assert_eq!(list("&depth=9"), ["B", "a", "b", "b/c", "b/c/deep", "b/x", "link"]);
    assert!(list("&depth=0").is_empty());
    let refused =
        |path: &str, status, code| daemon.get(&format!("/directories/list?path={path}")).refuses(status, code, path);
    refused(&daemon.path("nope"), 404, "FILE_NOT_FOUND");
    refused(&daemon.path("link"), 400, "INVALID_FILE");
    for depth in ["-1", "x"] {
        daemon.get(&format!("/directories/list?path=/&depth={depth}")).refuses(400, "INVALID_REQUEST_BODY", "depth");
    }
    daemon.get("/directories/list").refuses(400, "MISSING_QUERY", "path");
}

#[test]
fn search_matches_base_names() {
    let daemon = Daemon::start();
    fs::create_dir_all(daemon.path("src/deep.py")).expect("a directory");
    for name in ["src/a.py", "src/deep.py/b.py", "src/c.txt", "!x"] {
        write(&daemon, name, "");
    }
    symlink("nowhere", daemon.path("src/l.py")).expect("a link");
    let search = |pattern: &str| -> Vec<String> {
        let found = daemon.get(&format!("/files/search?path={}&pattern={pattern}", daemon.path(""))).ok().json();
        let root = format!("{}/", daemon.directory().display());
        found
            .as_array()
            .expect("a list")
            .iter()
            .map(|entry| entry["path"].as_str().expect("a path").replace(&root, ""))
            .collect()
    };
    assert_eq!(search("*.py"), ["src/a.py", "src/deep.py/b.py", "src/l.py"]);
    assert_eq!(search("").len(), 5, "everything that is no directory: {:?}", search(""));
    assert!(search("src/*.py").is_empty());
    assert_eq!(search("%5C!x"), ["!x"]);
    assert_eq!(search("[ac].{py,txt}"), ["src/a.py", "src/c.txt"]);
    daemon.get(&format!("/files/search?path={}&pattern=!x", daemon.path(""))).refuses(
        400,
        "INVALID_REQUEST_BODY",
        "!x",
    );
    daemon.get("/files/search?path=/nope").refuses(404, "FILE_NOT_FOUND", "/nope");
    daemon.get("/files/search").refuses(400, "MISSING_QUERY", "path");
}

#[test]
fn a_listing_of_many_files_streams() {
    let daemon = Daemon::start();
    let full = daemon.path("full");
    assert_eq!(
        daemon
            .shell(&format!(
                "mkdir {full} && cd {full} && seq -f 'a-rather-long-name-for-a-file-%g' 30000 | xargs touch"
            ))
            .end(),
        "0"
    );
    let before = daemon.status_kib("VmRSS");
    let found = daemon.get(&format!("/directories/list?path={full}")).ok().json();
    assert_eq!(found.as_array().expect("a list").len(), 30_000);
    let grown = daemon.status_kib("VmHWM").saturating_sub(before);
    assert!(grown < 12 * 1024, "memory grew by {grown} KiB");
}
