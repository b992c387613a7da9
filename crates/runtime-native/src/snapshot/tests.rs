use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags};

use super::{Counts, LeaveOut, Source, copy, note_platform_files, read_back};
use crate::error::Result;

/// A source, a copy and a place beside it, on a disk that knows extended attributes.
struct Trees {
    directory: tempfile::TempDir,
}

impl Trees {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("osb-snapshot-").tempdir_in("/var/tmp").expect("a directory");
        for name in ["upper", "local", "copy", "scratch"] {
            fs::create_dir(directory.path().join(name)).expect("made");
        }
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn open(&self, name: &str) -> OwnedFd {
        open(&self.path(name))
    }

    fn copy_without(&self, leave_out: &LeaveOut) -> Result<(u32, Counts)> {
        let (upper, target, scratch) = (self.open("upper"), self.open("copy"), self.open("scratch"));
        let source = Source { upper: upper.as_fd(), local: None, first_id: 0, leave_out };
        copy(&source, target.as_fd(), scratch.as_fd())
    }

    fn copy(&self) -> (u32, Counts) {
        self.copy_without(&LeaveOut::default()).expect("copied")
    }

    fn read_back(&self) -> ([u8; 32], u32, Counts) {
        read_back(self.open("copy").as_fd()).expect("read back")
    }
}

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opens")
}

fn attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).expect("set");
}

fn attributes(path: &Path) -> Vec<String> {
    let mut buffer = vec![0; 4096];
    let count = rustix::fs::listxattr(path, &mut buffer[..]).expect("listed");
    buffer[..count]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

#[test]
fn everything_that_a_sandbox_can_write_is_kept() {
    let trees = Trees::new();
    let upper = trees.path("upper");
    let odd = upper.join(std::ffi::OsStr::from_bytes(b" -\n\xff\"'.wh.x"));
    fs::write(&odd, "odd").expect("written");
    fs::set_permissions(&odd, fs::Permissions::from_mode(0o4751)).expect("set");
    std::os::unix::fs::chown(&odd, Some(1000), Some(65534)).expect("given away");
    fs::set_permissions(&odd, fs::Permissions::from_mode(0o4751)).expect("set");
    fs::create_dir(upper.join("d")).expect("made");
    attribute(&upper.join("d"), "user.overlay.opaque", b"y");
    attribute(&upper.join("d"), "user.overlay.origin", b"handle");
    attribute(&upper.join("d"), "user.overlay.overlay.mine", b"1");
    attribute(&upper.join("d"), "user.mine", b"1");
    attribute(&upper.join("d"), "trusted.mine", b"1");
    fs::write(upper.join("d/first"), "same").expect("written");
    fs::hard_link(upper.join("d/first"), upper.join("d/second")).expect("linked");
    symlink("/etc/passwd", upper.join("link")).expect("linked");
    rustix::fs::mknodat(CWD, upper.join("gone"), FileType::CharacterDevice, Mode::empty(), 0).expect("a whiteout");
    rustix::fs::mknodat(CWD, upper.join("fifo"), FileType::Fifo, Mode::RUSR, 0).expect("a fifo");
    let _socket = UnixListener::bind(upper.join("socket")).expect("bound");
    let sparse = File::create(upper.join("sparse")).expect("made");
    sparse.set_len(8 << 30).expect("a hole");
    sparse.write_all_at(b"middle", 5 << 30).expect("written");

    let (sum, counts) = trees.copy();
    let (_, again, read) = trees.read_back();
    assert_eq!(sum, again);
    assert_eq!((counts.sockets_left_out, counts.attributes_left_out, counts.entries), (1, 1, 8));
    assert_eq!((read.entries, read.bytes), (counts.entries, counts.bytes));
    let kept = trees.path("copy");
    let meta = fs::metadata(kept.join(odd.file_name().expect("a name"))).expect("is there");
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o4751, 1000, 65534));
    assert_eq!(meta.mtime_nsec(), fs::metadata(&odd).expect("is there").mtime_nsec());
    assert_eq!(
        fs::metadata(kept.join("d")).expect("is there").mtime_nsec(),
        fs::metadata(upper.join("d")).expect("is there").mtime_nsec()
    );
    let mut names = attributes(&kept.join("d"));
    names.sort();
    assert_eq!(names, ["user.mine", "user.overlay.opaque", "user.overlay.overlay.mine"]);
    let [first, second] = ["d/first", "d/second"].map(|name| fs::metadata(kept.join(name)).expect("is there"));
    assert_eq!(first.ino(), second.ino());
    assert_eq!(fs::read_link(kept.join("link")).expect("a link"), Path::new("/etc/passwd"));
    let gone = fs::symlink_metadata(kept.join("gone")).expect("is there");
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    assert!(fs::symlink_metadata(kept.join("fifo")).expect("is there").file_type().is_fifo());
    assert!(!kept.join("socket").exists());
    let sparse = fs::metadata(kept.join("sparse")).expect("is there");
    assert!(sparse.len() == 8 << 30 && sparse.blocks() < 64, "{} blocks", sparse.blocks());
    let mut middle = [0; 6];
    File::open(kept.join("sparse")).expect("opens").read_exact_at(&mut middle, 5 << 30).expect("read");
    assert_eq!(&middle, b"middle");
}

#[test]
fn the_name_of_a_tree_does_not_depend_on_where_its_holes_are() {
    let digests = ["sparse", "dense"].map(|form| {
        let trees = Trees::new();
        let mut file = File::create(trees.path("upper/file")).expect("made");
        match form {
            "sparse" => _ = file.seek(SeekFrom::Start(3 << 20)).expect("a hole"),
            _ => file.write_all(&vec![0; 3 << 20]).expect("zeros"),
        }
        file.write_all(b"end").expect("written");
        let epoch = std::time::SystemTime::UNIX_EPOCH;
        file.set_modified(epoch).expect("set");
        File::open(trees.path("upper")).expect("opens").set_modified(epoch).expect("set");
        let (sum, counts) = trees.copy();
        let (digest, again, _) = trees.read_back();
        assert_eq!((sum, counts.bytes), (again, 3));
        digest
    });
    assert_eq!(digests[0], digests[1]);
}

/// Does something to a copy.
type Change = &'static dyn Fn(&Path);

#[test]
fn any_change_of_what_was_stored_is_noticed() {
    let changes: [(&str, Change); 5] = [
        ("a byte", &|copy| {
            File::options()
                .write(true)
                .open(copy.join("file"))
                .expect("opens")
                .write_all_at(b"X", 9000)
                .expect("written")
        }),
        ("a mode", &|copy| fs::set_permissions(copy.join("file"), fs::Permissions::from_mode(0o640)).expect("set")),
        ("a name", &|copy| fs::rename(copy.join("file"), copy.join("fil")).expect("renamed")),
        ("a file more", &|copy| fs::write(copy.join("more"), "").expect("written")),
        ("an attribute", &|copy| attribute(&copy.join("file"), "user.x", b"1")),
    ];
    for (what, change) in changes {
        let trees = Trees::new();
        fs::write(trees.path("upper/file"), vec![7; 10_000]).expect("written");
        let (sum, _) = trees.copy();
        change(&trees.path("copy"));
        assert_ne!(trees.read_back().1, sum, "{what}");
    }
}

#[test]
fn a_deep_tree_is_kept_and_a_bottomless_one_refused_by_its_place() {
    let trees = Trees::new();
    let mut at = trees.open("upper");
    let mut deeper = || {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).expect("made");
        at = rustix::fs::openat(&at, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opens");
    };
    (0..400).for_each(|_| deeper());
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: Some(4096), ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("raised");
    let (sum, counts) = trees.copy();
    assert_eq!((trees.read_back().1, counts.entries), (sum, 400));
    (0..200).for_each(|_| deeper());
    for name in ["copy", "scratch"] {
        fs::remove_dir_all(trees.path(name)).expect("removed");
        fs::create_dir(trees.path(name)).expect("made");
    }
    let refused = trees.copy_without(&LeaveOut::default()).expect_err("too deep");
    assert!(refused.message.contains("/d/d/d") && refused.message.contains("500"), "{refused}");
}

#[test]
fn what_the_platform_wrote_is_left_out_until_somebody_changes_it() {
    let trees = Trees::new();
    for directory in ["upper/etc/ssl", "upper/tmp/opensandbox-execd", "sandbox"] {
        fs::create_dir_all(trees.path(directory)).expect("made");
    }
    for file in ["etc/hosts", "etc/ssl/bundle", "etc/ssl/mine", "tmp/opensandbox-execd/output"] {
        fs::write(trees.path("upper").join(file), "platform").expect("written");
    }
    let disk = open(trees.directory.path());
    note_platform_files(disk.as_fd(), &trees.path("sandbox")).expect("noted");
    fs::write(trees.path("upper/etc/ssl/mine"), "changed").expect("written");
    fs::write(trees.path("upper/etc/later"), "mine").expect("written");
    fs::write(trees.path("upper/etc/hosts"), "changed, and still made anew").expect("written");
    let leave_out = LeaveOut::of(&trees.path("sandbox")).expect("read");
    let (sum, _) = trees.copy_without(&leave_out).expect("copied");
    assert_eq!(trees.read_back().1, sum);
    let copy = trees.path("copy");
    assert_eq!(fs::read_to_string(copy.join("etc/ssl/mine")).expect("kept"), "changed");
    assert_eq!(fs::read_to_string(copy.join("etc/later")).expect("kept"), "mine");
    for gone in ["etc/hosts", "etc/ssl/bundle", "tmp/opensandbox-execd"] {
        assert!(!copy.join(gone).exists(), "{gone}");
    }
}

#[test]
fn the_owners_on_a_mapped_disk_are_those_of_inside() {
    let trees = Trees::new();
    fs::write(trees.path("upper/file"), "x").expect("written");
    for (path, id) in [("upper", 100_000), ("upper/file", 101_000)] {
        std::os::unix::fs::chown(trees.path(path), Some(id), Some(id)).expect("given away");
    }
    let (upper, target, scratch) = (trees.open("upper"), trees.open("copy"), trees.open("scratch"));
    let nothing = LeaveOut::default();
    let source = Source { upper: upper.as_fd(), local: None, first_id: 100_000, leave_out: &nothing };
    let (sum, _) = copy(&source, target.as_fd(), scratch.as_fd()).expect("copied");
    assert_eq!(trees.read_back().1, sum);
    assert_eq!(fs::metadata(trees.path("copy/file")).expect("is there").uid(), 1000);
    let source = Source { first_id: 100_001, ..source };
    let stranger = copy(&source, target.as_fd(), scratch.as_fd()).expect_err("not the sandbox's");
    assert!(stranger.message.contains("100000"), "{stranger}");
}

#[test]
fn usr_local_comes_from_a_directory_of_its_own() {
    let trees = Trees::new();
    fs::create_dir(trees.path("upper/var")).expect("made");
    fs::create_dir(trees.path("upper/zzz")).expect("made");
    fs::create_dir(trees.path("local/bin")).expect("made");
    fs::write(trees.path("local/bin/tool"), "x").expect("written");
    let (upper, local, target, scratch) =
        (trees.open("upper"), trees.open("local"), trees.open("copy"), trees.open("scratch"));
    let nothing = LeaveOut::default();
    let source = Source { upper: upper.as_fd(), local: Some(local.as_fd()), first_id: 0, leave_out: &nothing };
    let (sum, _) = copy(&source, target.as_fd(), scratch.as_fd()).expect("copied");
    assert_eq!(trees.read_back().1, sum);
    assert!(trees.path("copy/usr/local/bin/tool").exists() && trees.path("copy/zzz").exists());
}
