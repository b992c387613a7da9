//! Marks of deleted files, and times and permissions of directories.

use super::*;

fn is_opaque(path: &Path) -> bool {
    let mut value = [0; 8];
    rustix::fs::getxattr(path, "user.overlay.opaque", &mut value[..]).is_ok_and(|len| &value[..len] == b"y")
}

fn is_whiteout(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_char_device() && metadata.rdev() == 0)
}

#[track_caller]
fn layer(tar: Tar) -> Ground {
    let ground = Ground::new();
    ground.unpack(&tar.bytes()).expect("the archive was refused");
    ground
}

#[test]
fn marks_become_whiteouts_and_opaque_directories() {
    let ground = layer(
        Tar::new()
            .directory("d")
            .file("d/.wh.gone", b"")
            .file("e/.wh..wh..opq", b"")
            .file("e/new", b"x")
            .device("f", EntryType::Char, 0, 0)
            .file(".wh..wh.aufs", b"")
            .directory(".wh..wh.plnk")
            .file(".wh..wh.plnk/1.2", b"x"),
    );
    let at = |name: &str| ground.layer().join(name);
    assert!(is_whiteout(&at("d/gone")) && is_whiteout(&at("f")) && is_opaque(&at("e")));
    assert!(!is_opaque(&at("d")) && !at(".wh..wh.plnk").exists() && !at("d/.wh.gone").exists());
    assert_eq!(fs::read_dir(ground.layer()).unwrap().count(), 3);
}

#[test]
fn what_a_layer_adds_wins_over_its_own_marks_in_any_order() {
    for tar in [Tar::new().file(".wh.f", b"").file("f", b"x"), Tar::new().file("f", b"x").file(".wh.f", b"")] {
        let ground = layer(tar);
        assert_eq!(fs::read(ground.layer().join("f")).unwrap(), b"x");
    }
    for tar in [
        Tar::new().file(".wh.d", b"").directory("d").file("d/x", b"x"),
        Tar::new().directory("d").file("d/x", b"x").file(".wh.d", b""),
        Tar::new().file(".wh.d", b"").file("d/x", b"x"),
    ] {
        let ground = layer(tar);
        assert!(ground.layer().join("d/x").is_file());
        assert!(is_opaque(&ground.layer().join("d")), "the directory below shows through");
    }
}

#[test]
fn marks_that_name_nothing_are_refused() {
    for name in [".wh.", ".wh..", ".wh...", "d/.wh..", ".wh.d/x"] {
        Ground::new().unpack(&Tar::new().file(name, b"").bytes()).expect_err(name);
    }
}

#[test]
fn directories_keep_their_times_whatever_is_put_into_them_later() {
    let ground = layer(
        Tar::new()
            .directory("a")
            .directory("a/b")
            .file("a/b/1", b"")
            .file("c", b"")
            .file("a/2", b"")
            .file("a/b/3", b"")
            .file("a/i/j/k", b""),
    );
    for line in listing(&ground.layer()).iter().filter(|line| line.starts_with("./a ") || line.starts_with("./a/b ")) {
        assert!(line.contains(" 1000000.000000000 "), "{line}");
    }
    for name in ["a/i", "a/i/j"] {
        let implied = fs::metadata(ground.layer().join(name)).unwrap();
        assert_eq!((implied.mtime(), implied.mode() & 0o7777), (0, 0o755));
    }
}

#[test]
fn an_ordinary_user_can_unpack_and_remove_read_only_directories() {
    // Root ignores permissions, so this runs as somebody else.
    let archive = {
        let mut closed = header(EntryType::Directory, "closed", "");
        closed.set_mode(0o555);
        closed.set_uid(4321);
        closed.set_cksum();
        Tar::new().raw(&closed, b"").directory("closed/d").file("closed/d/f", b"x").file("closed/g", b"x").bytes()
    };
    let ground = Ground::new();
    std::os::unix::fs::chown(ground.layer(), Some(12345), Some(12345)).unwrap();
    std::os::unix::fs::chown(ground.directory.path(), Some(12345), Some(12345)).unwrap();
    let path = ground.layer();
    let ordinary = std::thread::spawn(move || {
        // Only this thread changes its identity; the raw calls are per thread.
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(
            rustix::fs::Gid::from_raw(12345),
            rustix::fs::Gid::from_raw(12345),
            rustix::fs::Gid::from_raw(12345),
        )
        .unwrap();
        rustix::thread::set_thread_res_uid(
            rustix::fs::Uid::from_raw(12345),
            rustix::fs::Uid::from_raw(12345),
            rustix::fs::Uid::from_raw(12345),
        )
        .unwrap();
        let root = fs::File::open(&path).unwrap();
        unpack_layer(&archive[..], Compression::None, root.as_fd(), &diff_id(&archive), Ownership::Current, &SMALL)
            .unwrap();
        let closed = fs::metadata(path.join("closed")).unwrap();
        assert_eq!((closed.mode() & 0o7777, closed.uid(), closed.mtime()), (0o555, 12345, 1_000_000));
        crate::unpack::tree::remove(root.as_fd(), b"closed").unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    });
    ordinary.join().unwrap();
}
