//! `GET /v1/files/watch`: nothing that changes is lost, or the stream says where to look again.

mod support;

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::files::write;
use support::{Connection, Daemon};

/// A change that the test waits for must be told within this.
const SOON: Duration = Duration::from_secs(60);

/// One open stream.
struct Stream {
    connection: Connection,
    events: VecDeque<Value>,
}

impl Stream {
    fn open(daemon: &Daemon, path: &str, query: &str) -> Self {
        let mut connection = daemon.connect();
        connection.send("GET", &format!("/v1/files/watch?path={path}&{query}"), &[], b"");
        let head = connection.head();
        assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
        Self { connection, events: VecDeque::new() }
    }

    /// With the first event read.
    fn watching(daemon: &Daemon, path: &str, query: &str) -> Self {
        let mut stream = Self::open(daemon, path, query);
        let first = stream.next().expect("a first event");
        assert_eq!((first["type"].as_str(), first["path"].as_str()), (Some("watching"), Some(path)), "{first}");
        stream
    }

    /// The next event that is no ping; `None` at the end.
    fn next(&mut self) -> Option<Value> {
        loop {
            match self.next_of_all()? {
                ping if ping["type"] == "ping" => {}
                event => return Some(event),
            }
        }
    }

    /// The next event; `None` for a ping.
    fn next_or_ping(&mut self) -> Option<Value> {
        self.next_of_all().filter(|event| event["type"] != "ping")
    }

    fn next_of_all(&mut self) -> Option<Value> {
        loop {
            if let Some(event) = self.events.pop_front() {
                assert!(event["type"].is_string() && event["timestamp"].is_i64(), "{event}");
                return Some(event);
            }
            let chunk = self.connection.chunk()?;
            let text = String::from_utf8(chunk).expect("a stream is UTF-8");
            assert!(text.ends_with("\n\n"), "an event is cut in two");
            self.events.extend(
                text.split_terminator("\n\n").map(|event| serde_json::from_str(event).expect("an event is JSON")),
            );
        }
    }

    /// Reads on until what is known is what there is: a move out of the tree is told a few events late, since its
    /// other half could still come. An event that never comes ends the test by the connection's timeout.
    fn until_true(&mut self, known: &mut Known, root: &Path) {
        let (truth, begun) = (tree(root), Instant::now());
        while known.paths != truth {
            let differ: Vec<_> = known.paths.symmetric_difference(&truth).take(5).collect();
            assert!(begun.elapsed() < SOON, "{} known, {} there, as {differ:?}", known.paths.len(), truth.len());
            if let Some(event) = self.next_or_ping() {
                known.apply(&event);
            }
        }
    }

    /// Type and path of the next event.
    fn next_pair(&mut self) -> (String, String) {
        let event = self.next().expect("an event");
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        (text("type"), text("path"))
    }
}

/// What a client knows of a tree from its events alone.
#[derive(Default)]
struct Known {
    paths: BTreeSet<String>,
    rescans: usize,
}

impl Known {
    fn apply(&mut self, event: &Value) {
        let path = event["path"].as_str().expect("a path").to_owned();
        match event["type"].as_str().expect("a type") {
            "created" => {
                self.paths.insert(path);
            }
            "deleted" => self.remove(&path),
            "moved" => {
                let from = event["from"].as_str().expect("moved from somewhere");
                let below: Vec<String> = self.below(from).collect();
                if below.is_empty() {
                    // A listing was ahead of this event: what moved is known under its new name, or not at all.
                    self.paths.extend(tree(Path::new(&path)));
                    self.paths.insert(path);
                    return;
                }
                self.remove(&path);
                for old in below {
                    self.paths.remove(&old);
                    self.paths.insert(format!("{path}{}", &old[from.len()..]));
                }
                self.paths.insert(path);
            }
            "rescan" => {
                self.rescans += 1;
                let below: Vec<String> = self.below(&path).filter(|below| *below != path).collect();
                below.iter().for_each(|below| {
                    self.paths.remove(below);
                });
                self.paths.extend(tree(Path::new(&path)));
            }
            "modified" | "closed" | "attributes" | "watching" => {}
            other => panic!("{other}: {event}"),
        }
    }

    fn below<'a>(&'a self, path: &str) -> impl Iterator<Item = String> + use<'a> {
        let (path, inside) = (path.to_owned(), format!("{path}/"));
        self.paths.iter().filter(move |known| **known == path || known.starts_with(&inside)).cloned()
    }

    fn remove(&mut self, path: &str) {
        let gone: Vec<String> = self.below(path).collect();
        gone.iter().for_each(|path| {
            self.paths.remove(path);
        });
    }
}

/// Every path below a directory.
fn tree(directory: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        found.insert(entry.path().to_str().expect("UTF-8").to_owned());
        if entry.file_type().expect("a type").is_dir() {
            found.extend(tree(&entry.path()));
        }
    }
    found
}

/// A row of numbers that is the same in every run.
struct Row(u64);

impl Row {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Makes `count` changes of all kinds below `root`, as fast as it can.
fn change(root: &Path, seed: u64, count: usize, move_directories: bool) {
    let mut row = Row(seed);
    let mut directories = vec![root.to_owned()];
    let mut files = Vec::new();
    for number in 0..count {
        let parent = directories[row.below(directories.len() as u64) as usize].clone();
        match row.below(10) {
            0 | 1 => {
                let path = parent.join(format!("d{number}"));
                if fs::create_dir(&path).is_ok() {
                    directories.push(path.clone());
                    // At once, before any watch can be set.
                    for name in ["a", "b"] {
                        let inside = path.join(name);
                        if fs::write(&inside, "x").is_ok() {
                            files.push(inside);
                        }
                    }
                }
            }
            2..6 => {
                let path = parent.join(format!("f{number}"));
                if fs::write(&path, "x").is_ok() {
                    files.push(path);
                }
            }
            6 | 7 if !files.is_empty() => {
                let path = files.swap_remove(row.below(files.len() as u64) as usize);
                let _ = fs::remove_file(path); // its directory may have gone or moved
            }
            8 if !files.is_empty() => {
                let path = files.swap_remove(row.below(files.len() as u64) as usize);
                let to = parent.join(format!("m{number}"));
                if fs::rename(path, &to).is_ok() {
                    files.push(to);
                }
            }
            9 if directories.len() > 4 => {
                let path = directories.swap_remove(1 + row.below(directories.len() as u64 - 1) as usize);
                if move_directories && row.below(2) == 0 {
                    let to = parent.join(format!("r{number}"));
                    if fs::rename(path, &to).is_ok() {
                        directories.push(to);
                    }
                } else {
                    let _ = fs::remove_dir_all(path); // it may have gone or moved with another
                }
            }
            _ => {}
        }
    }
}

/// The name whose appearance says that all changes before it have been told.
const LAST: &str = "last-of-all";

#[test]
fn nothing_is_lost_over_ten_thousand_changes() {
    let daemon = Daemon::start();
    let root = daemon.directory().join("w");
    fs::create_dir_all(root.join("deep/er")).expect("a directory");
    let mut stream = Stream::watching(&daemon, root.to_str().expect("UTF-8"), "");
    let mut known = Known { paths: tree(&root), rescans: 0 };
    let (mut events, mut rescans) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            change(&root, 1, 10_000, false);
            fs::write(root.join(LAST), "").expect("a file");
        });
        while !known.paths.contains(root.join(LAST).to_str().expect("UTF-8")) {
            known.apply(&stream.next().expect("an event"));
            events += 1;
        }
        rescans += known.rescans;
    });
    stream.until_true(&mut known, &root);
    assert!(events > 10_000 && rescans == 0, "{events} events, {rescans} rescans");
}

#[test]
fn moving_directories_are_followed_or_said_to_be_looked_at_again() {
    let daemon = Daemon::start();
    for seed in 2..6 {
        let root = daemon.directory().join(format!("w{seed}"));
        fs::create_dir(&root).expect("a directory");
        let mut stream = Stream::watching(&daemon, root.to_str().expect("UTF-8"), "");
        let mut known = Known::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                change(&root, seed, 2_000, true);
                fs::write(root.join(LAST), "").expect("a file");
            });
            while !known.paths.contains(root.join(LAST).to_str().expect("UTF-8")) {
                known.apply(&stream.next().expect("an event"));
            }
        });
        stream.until_true(&mut known, &root);
    }
}

#[test]
fn a_reader_that_comes_back_with_its_cursor_misses_nothing() {
    let daemon = Daemon::start();
    let root = daemon.path("w");
    fs::create_dir(&root).expect("a directory");
    let mut stream = Stream::watching(&daemon, &root, "");
    let mut cursor = String::new();
    let mut told = Vec::new();
    for round in 0..20 {
        for number in 0..50 {
            fs::create_dir(format!("{root}/{round}-{number}")).expect("a directory");
        }
        // Half of them are read, then the connection is cut.
        while told.len() < round * 50 + 25 {
            let event = stream.next().expect("an event");
            assert_eq!(event["type"], "created", "{event}");
            cursor = event["cursor"].as_str().expect("a cursor").to_owned();
            told.push(event["path"].as_str().expect("a path").to_owned());
        }
        drop(stream);
        stream = Stream::watching(&daemon, &root, &format!("cursor={cursor}"));
    }
    while told.len() < 1000 {
        told.push(stream.next_pair().1);
    }
    let expected: Vec<String> =
        (0..20).flat_map(|round| (0..50).map(move |number| format!("{round}-{number}"))).collect();
    assert_eq!(told, expected.iter().map(|name| format!("{root}/{name}")).collect::<Vec<_>>());
}

#[test]
fn each_kind_of_change_has_its_word() {
    let daemon = Daemon::start();
    let (root, outside) = (daemon.path("w"), daemon.path("outside"));
    fs::create_dir(&root).expect("a directory");
    fs::create_dir_all(format!("{outside}/d")).expect("a directory");
    fs::write(format!("{outside}/d/x"), "").expect("a file");
    let mut stream = Stream::watching(&daemon, &root, "");
    let at = |name: &str| format!("{root}/{name}");
    fs::write(at("f"), "text").expect("a file");
    for word in ["created", "modified", "closed"] {
        assert_eq!(stream.next_pair(), (word.into(), at("f")));
    }
    fs::set_permissions(at("f"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("chmod");
    assert_eq!(stream.next_pair(), ("attributes".into(), at("f")));
    fs::rename(at("f"), at("g")).expect("a rename");
    let moved = stream.next().expect("an event");
    assert_eq!((&moved["type"], &moved["from"], &moved["path"]), (&"moved".into(), &at("f").into(), &at("g").into()));
    assert!(moved.get("directory").is_none());
    fs::rename(at("g"), format!("{outside}/g")).expect("a rename");
    assert_eq!(stream.next_pair(), ("deleted".into(), at("g")));
    fs::rename(format!("{outside}/d"), at("d")).expect("a rename");
    let created = stream.next().expect("an event");
    assert_eq!((&created["path"], &created["directory"]), (&at("d").into(), &true.into()));
    assert_eq!(stream.next_pair(), ("created".into(), at("d/x")));
    fs::rename(at("d"), at("e")).expect("a rename");
    assert_eq!(stream.next_pair(), ("moved".into(), at("e")));
    fs::remove_file(at("e/x")).expect("removed");
    assert_eq!(stream.next_pair(), ("deleted".into(), at("e/x")), "under the new name");
    symlink("nowhere", at("link")).expect("a link");
    assert_eq!(stream.next_pair(), ("created".into(), at("link")));
    fs::remove_dir(at("e")).expect("removed");
    assert_eq!(stream.next_pair(), ("deleted".into(), at("e")));
    fs::remove_dir_all(&root).expect("removed");
    assert_eq!(stream.next_pair(), ("deleted".into(), at("link")));
    assert_eq!(stream.next_pair(), ("ended".into(), root.clone()));
    assert_eq!(stream.next(), None, "the stream ends with its directory");
}

#[test]
fn without_recursion_only_the_directory_itself_is_told() {
    let daemon = Daemon::start();
    let root = daemon.path("w");
    fs::create_dir_all(format!("{root}/d")).expect("a directory");
    let mut stream = Stream::watching(&daemon, &root, "recursive=false");
    fs::create_dir(format!("{root}/d/below")).expect("a directory");
    fs::create_dir(format!("{root}/e")).expect("a directory");
    assert_eq!(stream.next_pair(), ("created".into(), format!("{root}/e")));
}

#[test]
fn a_queue_that_ran_over_is_told_and_what_follows_is_complete() {
    let queue: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .expect("a limit")
        .trim()
        .parse()
        .expect("a number");
    let daemon = Daemon::start();
    let root = daemon.path("w");
    fs::create_dir(&root).expect("a directory");
    let mut stream = Stream::watching(&daemon, &root, "");
    let pid = Pid::from_raw(daemon.pid() as i32).expect("a pid");
    kill_process(pid, Signal::STOP).expect("execd lives");
    for number in 0..=queue {
        fs::create_dir(format!("{root}/{number}")).expect("a directory");
        fs::remove_dir(format!("{root}/{number}")).expect("a directory");
    }
    fs::create_dir_all(format!("{root}/late/r")).expect("a directory");
    kill_process(pid, Signal::CONT).expect("execd lives");
    loop {
        let event = stream.next().expect("an event");
        if event["type"] == "rescan" {
            assert_eq!(event["path"], root.as_str());
            break;
        }
    }
    fs::write(format!("{root}/late/r/x"), "").expect("a file");
    assert_eq!(stream.next_pair(), ("created".into(), format!("{root}/late/r/x")), "a directory that no event told");
}

#[test]
fn a_slow_reader_costs_a_bound_and_is_told_to_look_again() {
    let daemon = Daemon::start();
    let root = daemon.path("w");
    fs::create_dir(&root).expect("a directory");
    let mut watcher = Stream::open(&daemon, &root, "");
    let first = watcher.next().expect("an event")["cursor"].as_str().expect("a cursor").to_owned();
    let mut slow = Stream::watching(&daemon, &root, "");
    let before = daemon.status_kib("VmRSS:");
    let name = "n".repeat(200);
    let status = Command::new("bash")
        .args(["-c", &format!("cd {root}; for i in {{1..30000}}; do : > {name}$i; done")])
        .status()
        .expect("bash runs");
    assert!(status.success());
    // One that reads may fall behind too; once it has caught up it hears of what comes then.
    for marker in 0.. {
        let path = format!("{root}/marker{marker}");
        fs::write(&path, "").expect("a file");
        let caught_up = loop {
            let (word, at) = watcher.next_pair();
            if word == "rescan" || at == path {
                break at == path;
            }
        };
        if caught_up {
            break;
        }
    }
    let more = daemon.status_kib("VmRSS:").saturating_sub(before);
    assert!(more < 16 * 1024, "{more} KiB for a reader that does not read");
    // What lay between it and the oldest event that is kept is one word for the slow one.
    while slow.next_pair().0 != "rescan" {}
    let mut again = Stream::watching(&daemon, &root, &format!("cursor={first}"));
    assert_eq!(again.next_pair(), ("rescan".into(), root));
}

#[test]
fn a_tree_that_appears_whole_is_told_or_said_to_be_listed() {
    let daemon = Daemon::start();
    let (root, outside) = (daemon.path("w"), daemon.path("outside"));
    fs::create_dir(&root).expect("a directory");
    for directory in 0..100 {
        fs::create_dir_all(format!("{outside}/{directory}")).expect("a directory");
        for file in 0..100 {
            fs::write(format!("{outside}/{directory}/{file}"), "").expect("a file");
        }
    }
    let mut stream = Stream::watching(&daemon, &root, "");
    fs::rename(&outside, format!("{root}/big")).expect("a rename");
    while stream.next_pair() != ("rescan".into(), format!("{root}/big")) {}
    for directory in 0..100 {
        fs::write(format!("{root}/big/{directory}/new"), "").expect("a file");
    }
    let mut created = BTreeSet::new();
    while created.len() < 100 {
        let (word, path) = stream.next_pair();
        if word == "created" {
            created.insert(path);
        }
    }
    assert!(created.iter().all(|path| path.ends_with("/new")), "all hundred are watched");
}

#[test]
fn what_cannot_be_watched_is_refused_by_name() {
    let daemon = Daemon::start();
    let file = write(&daemon, "f", "");
    symlink(daemon.directory(), daemon.path("link")).expect("a link");
    let watch = |query: &str| daemon.get(&format!("/v1/files/watch?{query}"));
    watch("").refuses(400, "MISSING_QUERY", "path");
    watch("path=/no/such").refuses(404, "FILE_NOT_FOUND", "/no/such");
    watch(&format!("path={file}")).refuses(400, "INVALID_FILE", &file);
    watch(&format!("path={}", daemon.path("link"))).refuses(400, "INVALID_FILE", "symbolic link");
    watch("path=/tmp&recursive=yes").refuses(400, "INVALID_REQUEST_BODY", "recursive");
    watch("path=/tmp&cursor=x").refuses(400, "INVALID_REQUEST_BODY", "cursor");
}

#[test]
fn watches_are_capped_shared_and_given_up_when_nobody_reads() {
    let daemon = Daemon::start();
    let root = |number: usize| daemon.path(&format!("w{number}"));
    (0..10).for_each(|number| fs::create_dir(root(number)).expect("a directory"));
    let mut streams: Vec<Stream> = (0..8).map(|number| Stream::watching(&daemon, &root(number), "")).collect();
    streams.push(Stream::watching(&daemon, &root(0), ""));
    let refused = daemon.get(&format!("/v1/files/watch?path={}", root(8)));
    refused.refuses(429, "RUNTIME_ERROR", "8 directories");
    drop(streams.remove(3));
    // The daemon learns of the end of a connection a moment later.
    let begun = Instant::now();
    loop {
        let mut connection = daemon.connect();
        connection.send("GET", &format!("/v1/files/watch?path={}", root(8)), &[], b"");
        let head = connection.head();
        if head.status == 200 {
            break;
        }
        assert!(begun.elapsed() < SOON, "the unread watch is given up");
    }
    fs::write(format!("{}/x", root(0)), "").expect("a file");
    for stream in [0, 7] {
        assert_eq!(streams[stream].next_pair(), ("created".into(), format!("{}/x", root(0))), "both readers hear it");
    }
}
