//! Calls that read: info, list, search, download.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::json;
use support::Daemon;
use support::files::*;

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
