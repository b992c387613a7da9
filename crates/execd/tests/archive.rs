//! `/v1/archive`: directories in and out as one stream, and nothing beside them touched.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use support::files::{mode, write};
use support::{Connection, Daemon, Response};
use tar::{Builder, EntryType, Header};

/// Whole seconds, as tars have them.
const LONG_AGO: u64 = 1_000_000_000;

/// Path, and what is there: kind and mode, content or target, time of a file.
fn picture(top: &Path) -> BTreeMap<String, (String, String, i64)> {
    fn look(at: &Path, top: &Path, picture: &mut BTreeMap<String, (String, String, i64)>) {
        for entry in fs::read_dir(at).expect("a directory").flatten() {
            let (path, found) = (entry.path(), entry.metadata().expect("a look"));
            let name = path.strip_prefix(top).expect("below").to_string_lossy().into_owned();
            let kind = format!("{:o}", found.mode());
            if found.is_dir() {
                picture.insert(name, (kind, String::new(), 0));
                look(&path, top, picture);
            } else if found.is_symlink() {
                let target = fs::read_link(&path).expect("a link").to_string_lossy().into_owned();
                picture.insert(name, (kind, target, found.mtime()));
            } else {
                let content = String::from_utf8_lossy(&fs::read(&path).expect("a file")).into_owned();
                picture.insert(name, (kind, content, found.mtime()));
            }
        }
    }
    let mut picture = BTreeMap::new();
    look(top, top, &mut picture);
    picture
}

fn put(daemon: &Daemon, path: &str, body: &[u8]) -> Response {
    daemon.connect().request("PUT", &format!("/v1/archive?path={path}"), &[], body)
}

fn get(daemon: &Daemon, query: &str) -> Response {
    daemon.get(&format!("/v1/archive?path={query}"))
}

/// An archive of one's own making, however hostile.
struct Tar(Builder<Vec<u8>>);

impl Tar {
    fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    fn entry(mut self, kind: EntryType, name: &str, link: &str, content: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o4755);
        header.set_mtime(LONG_AGO);
        header.set_cksum();
        self.0.append(&header, content).expect("memory");
        self
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, name, "", content.as_bytes())
    }

    fn bytes(self) -> Vec<u8> {
        self.0.into_inner().expect("memory")
    }
}

#[test]
fn a_directory_goes_out_and_in_as_it_was() {
    let daemon = Daemon::start();
    let source = daemon.directory().join("source");
    let deep = source.join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(&deep).expect("a directory");
    fs::write(deep.join("ünïcode and spaces"), "deep").expect("a file");
    fs::write(source.join("empty"), "").expect("a file");
    fs::write(source.join("big"), "0123456789".repeat(100_000)).expect("a file");
    fs::set_permissions(source.join("big"), fs::Permissions::from_mode(0o640)).expect("chmod");
    fs::create_dir(source.join("closed")).expect("a directory");
    fs::write(source.join("closed/x"), "x").expect("a file");
    fs::set_permissions(source.join("closed"), fs::Permissions::from_mode(0o500)).expect("chmod");
    symlink("../elsewhere", source.join("link")).expect("a link");
    symlink(format!("/{}", "t".repeat(200)), source.join("long-link")).expect("a link");
    for name in ["big", "empty"] {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(LONG_AGO);
        let file = fs::File::options().write(true).open(source.join(name)).expect("a file");
        file.set_times(fs::FileTimes::new().set_modified(time)).expect("a time");
    }
    let out = get(&daemon, source.to_str().expect("UTF-8")).ok();
    assert_eq!(out.header("content-type"), Some("application/x-tar"));
    let target = daemon.path("new/target");
    put(&daemon, &target, &out.body).ok();
    assert_eq!(picture(Path::new(&target)), picture(&source));
    // Everybody else's tar understands it too, and ours theirs.
    let theirs = daemon.directory().join("theirs");
    fs::create_dir(&theirs).expect("a directory");
    let mut unpack = std::process::Command::new("tar")
        .args(["x", "-C"])
        .arg(&theirs)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("tar runs");
    unpack.stdin.take().expect("a pipe").write_all(&out.body).expect("tar reads");
    assert!(unpack.wait().expect("tar ends").success());
    assert_eq!(picture(&theirs), picture(&source));
    let packed = std::process::Command::new("tar").args(["c", "-C"]).arg(&source).arg(".").output().expect("tar runs");
    let from_theirs = daemon.path("from-theirs");
    put(&daemon, &from_theirs, &packed.stdout).ok();
    assert_eq!(picture(Path::new(&from_theirs)), picture(&source));
}

#[test]
fn attack_14_nothing_outside_of_the_directory_is_touched() {
    let daemon = Daemon::start();
    let outside = daemon.path("outside");
    fs::create_dir(&outside).expect("a directory");
    fs::write(format!("{outside}/canary"), "alive").expect("a file");
    let refused = |tar: Tar, word: &str| {
        let target = daemon.path("target");
        let _ = fs::remove_dir_all(&target);
        put(&daemon, &target, &tar.bytes()).refuses(400, "INVALID_FILE", word);
        let left: Vec<_> = fs::read_dir(&target).expect("made").flatten().map(|entry| entry.file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".partial")), "{left:?}");
    };
    refused(Tar::new().file(&format!("{outside}/canary"), "dead"), "absolute");
    refused(Tar::new().file("../outside/canary", "dead"), "upwards");
    refused(Tar::new().file("a/../../outside/canary", "dead"), "upwards");
    let link = || Tar::new().entry(EntryType::Symlink, "a", "../outside", b"");
    refused(link().file("a/canary", "dead"), "symbolic link");
    refused(link().entry(EntryType::Directory, "a/new", "", b""), "symbolic link");
    refused(link().entry(EntryType::Directory, "a", "", b""), "symbolic link");
    refused(link().entry(EntryType::Link, "b", "a/canary", b""), "hard link");
    refused(Tar::new().entry(EntryType::Link, "b", "../outside/canary", b""), "hard link");
    refused(Tar::new().entry(EntryType::Link, "b", &format!("{outside}/canary"), b""), "hard link");
    refused(Tar::new().entry(EntryType::Char, "null", "", b""), "device");
    refused(Tar::new().entry(EntryType::Fifo, "fifo", "", b""), "fifo");
    refused(Tar::new().file(".", "x"), "top");
    refused(Tar::new().file("d/x", "x").file("d", "a file"), "in its place");
    refused(Tar::new().file("d", "a file").file("d/x", "x"), "no directory");
    assert_eq!(fs::read_to_string(format!("{outside}/canary")).expect("kept"), "alive");
    assert_eq!(fs::read_dir(&outside).expect("kept").count(), 1);
}

#[test]
fn a_link_in_the_place_of_a_file_is_replaced_and_not_written_through() {
    let daemon = Daemon::start();
    let (target, outside) = (daemon.path("t"), write(&daemon, "outside", "alive"));
    fs::create_dir_all(format!("{target}/kept")).expect("a directory");
    fs::set_permissions(format!("{target}/kept"), fs::Permissions::from_mode(0o711)).expect("chmod");
    symlink(&outside, format!("{target}/f")).expect("a link");
    fs::write(format!("{target}/old"), "old").expect("a file");
    let tar = Tar::new()
        .entry(EntryType::Directory, "kept/", "", b"")
        .file("f", "new")
        .file("old", "newer")
        .entry(EntryType::Link, "same", "old", b"")
        .entry(EntryType::Link, "old", "same", b"");
    put(&daemon, &target, &tar.bytes()).ok();
    assert_eq!(fs::read_to_string(&outside).expect("kept"), "alive");
    let found = fs::symlink_metadata(format!("{target}/f")).expect("a file");
    assert!(found.is_file(), "the link is gone");
    assert_eq!((mode(&format!("{target}/f")), found.mtime()), (0o755, LONG_AGO as i64), "without set-id bits");
    assert_eq!(mode(&format!("{target}/kept")), 0o711, "a directory that was there keeps its mode");
    let old = fs::metadata(format!("{target}/old")).expect("a file");
    assert_eq!((old.ino(), old.nlink()), (fs::metadata(format!("{target}/same")).expect("a link").ino(), 2));
    assert_eq!(fs::read_dir(&target).expect("a directory").count(), 4, "no drafts are left");
}

#[test]
fn owner_and_mode_are_given_to_what_is_made() {
    let daemon = Daemon::start();
    let tar = Tar::new().file("d/f", "x").entry(EntryType::Symlink, "d/l", "f", b"");
    let target = daemon.path("t");
    let query = format!("{target}&owner=nobody&group=daemon&mode=600");
    daemon.connect().request("POST", &format!("/v1/archive?path={query}"), &[], &tar.bytes()).ok();
    for name in ["d", "d/f", "d/l"] {
        let found = fs::symlink_metadata(format!("{target}/{name}")).expect("made");
        assert_eq!((found.uid(), found.gid()), (65534, 1), "{name}");
    }
    assert_eq!(mode(&format!("{target}/d/f")), 0o600);
    let refused = |query: &str, word: &str| {
        let path = format!("/v1/archive?path={target}&{query}");
        daemon.connect().request("PUT", &path, &[], b"").refuses(400, "INVALID_REQUEST_BODY", word);
    };
    refused("owner=nosuch", "nosuch");
    refused("mode=rw", "mode");
    refused("mode=4755", "mode");
}

#[test]
fn what_is_no_archive_or_only_a_part_of_one_is_refused() {
    let daemon = Daemon::start();
    let target = daemon.path("t");
    let whole = Tar::new().file("a", &"x".repeat(5000)).bytes();
    put(&daemon, &target, b"\x1f\x8b\x08 not a tar").refuses(400, "INVALID_FILE_CONTENT", "not a tar");
    put(&daemon, &target, &whole[..3000]).refuses(400, "INVALID_FILE_CONTENT", "cut off");
    assert_eq!(fs::read_dir(&target).expect("made").count(), 0, "half a file has no name");
    put(&daemon, &target, b"").ok();
    let mut connection = daemon.connect();
    connection.send_head("PUT", &format!("/v1/archive?path={target}"), &[], "Content-Length: 100000\r\n");
    connection.write(&whole[..3000]);
    drop(connection);
    let encoded = [("Content-Encoding", "gzip")];
    let answer = daemon.connect().request("PUT", &format!("/v1/archive?path={target}"), &encoded, b"x");
    answer.refuses(415, "INVALID_FILE_CONTENT", "gzip");
    let file = write(&daemon, "f", "");
    put(&daemon, &file, &whole).refuses(400, "INVALID_FILE", &file);
    get(&daemon, &file).refuses(400, "INVALID_FILE", &file);
    get(&daemon, "/no/such").refuses(404, "FILE_NOT_FOUND", "/no/such");
    daemon.get("/v1/archive").refuses(400, "MISSING_QUERY", "path");
    assert_eq!(daemon.delete("/v1/archive?path=/tmp").status, 404);
}

#[test]
fn sockets_and_fifos_are_named_before_anything_is_sent_or_skipped_by_request() {
    let daemon = Daemon::start();
    let source = daemon.path("s");
    fs::create_dir(&source).expect("a directory");
    let _socket = std::os::unix::net::UnixListener::bind(format!("{source}/socket")).expect("a socket");
    fs::write(format!("{source}/f"), "x").expect("a file");
    get(&daemon, &source).refuses(400, "INVALID_FILE", "socket");
    get(&daemon, &format!("{source}&special=maybe")).refuses(400, "INVALID_REQUEST_BODY", "special");
    let out = get(&daemon, &format!("{source}&special=skip")).ok();
    let mut names = Vec::new();
    for entry in tar::Archive::new(out.body.as_slice()).entries().expect("entries") {
        names.push(entry.expect("an entry").path().expect("a path").to_string_lossy().into_owned());
    }
    assert_eq!(names, ["f"]);
}

#[test]
fn another_identity_packs_and_extracts_what_it_may() {
    let daemon = Daemon::start();
    let source = daemon.path("s");
    fs::create_dir(&source).expect("a directory");
    fs::set_permissions(&source, fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::write(format!("{source}/secret"), "x").expect("a file");
    fs::set_permissions(format!("{source}/secret"), fs::Permissions::from_mode(0o600)).expect("chmod");
    let nobody = |path: &str| format!("/v1/filesystem/65534/65534/archive?path={path}");
    let tar = Tar::new().file("f", "x").bytes();
    let refused = daemon.connect().request("PUT", &nobody(&source), &[], &tar);
    refused.refuses(400, "INVALID_FILE", "denied");
    let own = daemon.path("own");
    daemon.connect().request("PUT", &nobody(&own), &[], &tar).ok();
    assert_eq!(fs::metadata(format!("{own}/f")).expect("made").uid(), 65534);
    assert!(get(&daemon, &source).ok().body.len() > 512);
    daemon.get(&nobody(&source)).refuses(400, "INVALID_FILE", "secret");
}

#[test]
fn a_large_tree_moves_in_constant_memory() {
    const FILES: usize = 40;
    const FILE_BYTES: usize = 4 * 1024 * 1024;
    let daemon = Daemon::start();
    let before = daemon.status_kib("VmRSS:");
    let target = daemon.path("t");
    let content = vec![7; FILE_BYTES];
    let mut connection = daemon.connect();
    connection.send_head("PUT", &format!("/v1/archive?path={target}"), &[], "Transfer-Encoding: chunked\r\n");
    let chunk = |connection: &mut Connection, bytes: &[u8]| {
        connection.write(format!("{:x}\r\n", bytes.len()).as_bytes());
        connection.write(bytes);
        connection.write(b"\r\n");
    };
    for number in 0..FILES {
        let mut header = Header::new_ustar();
        header.set_path(format!("d/{number}")).expect("a name");
        header.set_size(FILE_BYTES as u64);
        header.set_mode(0o644);
        header.set_cksum();
        chunk(&mut connection, header.as_bytes());
        chunk(&mut connection, &content);
    }
    chunk(&mut connection, &[0; 1024]);
    connection.write(b"0\r\n\r\n");
    connection.response("PUT").ok();
    connection.send("GET", &format!("/v1/archive?path={target}"), &[], b"");
    let head = connection.head();
    let mut bytes = 0;
    connection.each_piece(&head, |piece| bytes += piece.len()).expect("a whole body");
    assert_eq!(bytes, 512 + FILES * (512 + FILE_BYTES) + 1024);
    let more = daemon.status_kib("VmHWM:").saturating_sub(before);
    assert!(more < 8 * 1024, "{more} KiB more");
    let mut last = Vec::new();
    fs::File::open(format!("{target}/d/39")).expect("made").read_to_end(&mut last).expect("read");
    assert!(last == content);
}
