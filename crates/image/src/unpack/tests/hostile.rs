//! Row 14 of the attacks: whatever an archive says, nothing outside the layer changes.

use super::*;

/// The archive is refused and the refusal mentions `reason`.
#[track_caller]
fn refused(tar: Tar, reason: &str) {
    let error = Ground::new().unpack(&tar.bytes()).expect_err("the archive was accepted");
    let text = error.to_string();
    assert!(text.contains(reason), "{text:?} does not mention {reason:?}");
}

#[track_caller]
fn accepted(tar: Tar) -> (Ground, LayerStats) {
    let ground = Ground::new();
    let stats = ground.unpack(&tar.bytes()).expect("the archive was refused");
    (ground, stats)
}

#[test]
fn attack_14_names_that_leave_the_layer_are_refused() {
    refused(Tar::new().file("/etc/passwd", b"x"), "absolute");
    refused(Tar::new().file("../outside/canary", b"x"), "upwards");
    refused(Tar::new().file("a/../../outside/canary", b"x"), "upwards");
    refused(Tar::new().directory("a/.."), "upwards");
    refused(Tar::new().file("..", b"x"), "upwards");
    refused(Tar::new().symlink("/link", "x"), "absolute");
    refused(Tar::new().pax(&[("path", b"../outside/canary")]).file("harmless", b"x"), "upwards");
    refused(Tar::new().pax(&[("path", b"a\0b")]).file("harmless", b"x"), "zero byte");
    refused(
        Tar::new().pax(&[("GNU.sparse.name", b"../outside/canary"), ("GNU.sparse.size", b"0")]).file("harmless", b""),
        "upwards",
    );
    refused(Tar::new().file(".", b"x"), "root");
    refused(Tar::new().symlink(".", "outside"), "root");
}

#[test]
fn attack_14_writing_through_a_symbolic_link_is_refused() {
    refused(Tar::new().symlink("a", "../outside").file("a/canary", b"x"), "symbolic link");
    refused(Tar::new().symlink("a", "/").file("a/etc/x", b"x"), "symbolic link");
    refused(Tar::new().directory("d").symlink("d/a", "../../outside").directory("d/a/b"), "symbolic link");
    refused(Tar::new().symlink("a", "b").directory("b").file("a/x", b"x"), "symbolic link");
    refused(Tar::new().symlink("a", "../outside").file("a/b/c/d", b"x"), "symbolic link");
    refused(Tar::new().symlink("a", "../outside").file("a/.wh.canary", b""), "symbolic link");
    refused(Tar::new().symlink("a", "../outside").file("a/.wh..wh..opq", b""), "symbolic link");
}

#[test]
fn attack_14_a_file_replaces_a_link_instead_of_following_it() {
    let (ground, _) = accepted(Tar::new().symlink("a", "../outside/canary").file("a", b"mine"));
    assert_eq!(fs::read(ground.layer().join("a")).unwrap(), b"mine");
    assert!(fs::symlink_metadata(ground.layer().join("a")).unwrap().is_file());
    let (ground, _) = accepted(Tar::new().symlink("a", "../outside").directory("a").file("a/x", b"x"));
    assert!(fs::symlink_metadata(ground.layer().join("a")).unwrap().is_dir());
}

#[test]
fn attack_14_hard_links_stay_within_the_layer() {
    refused(Tar::new().hard_link("a", "../outside/canary"), "out of the layer");
    refused(Tar::new().hard_link("a", "/etc/passwd"), "out of the layer");
    refused(Tar::new().hard_link("a", "missing"), "does not have");
    refused(Tar::new().symlink("s", "../outside").hard_link("a", "s/canary"), "behind a symbolic link");
    refused(Tar::new().directory("d").hard_link("a", "d"), "something else than a file");
    refused(Tar::new().file(".wh.gone", b"").hard_link("a", "gone"), "something else than a file");
    refused(Tar::new().directory("d").file("d/f", b"x").hard_link("d", "d/f"), "");
    // A link to a symbolic link is a second name of the link, not of its target.
    let (ground, _) = accepted(Tar::new().symlink("s", "../outside/canary").hard_link("a", "s"));
    assert!(fs::symlink_metadata(ground.layer().join("a")).unwrap().is_symlink());
    let (ground, _) = accepted(Tar::new().file("f", b"x").hard_link("g", "f").hard_link("f", "f"));
    assert_eq!(fs::metadata(ground.layer().join("f")).unwrap().nlink(), 2);
}

#[test]
fn attack_14_devices_are_refused_or_left_out() {
    refused(Tar::new().device("sda", EntryType::Block, 8, 0), "device");
    refused(Tar::new().device("null", EntryType::Char, 1, 3), "device");
    refused(Tar::new().directory("x").device("x/dev", EntryType::Char, 1, 3), "device");
    let (ground, stats) = accepted(Tar::new().directory("dev").device("dev/sda", EntryType::Block, 8, 0).device(
        "dev/pts/0",
        EntryType::Char,
        1,
        3,
    ));
    assert_eq!(stats.dropped_devices, 2);
    assert_eq!(fs::read_dir(ground.layer().join("dev")).unwrap().count(), 0);
    let (ground, _) = accepted(Tar::new().add(EntryType::Fifo, "queue", "", b""));
    assert!(fs::symlink_metadata(ground.layer().join("queue")).unwrap().file_type().is_fifo());
}

#[test]
fn attack_14_bombs_end_at_the_limits() {
    let many = (0..101).fold(Tar::new(), |tar, n| tar.file(&format!("f{n}"), b""));
    refused(many, "more entries than the limit of 100");
    // Directories that are only implied cost inodes as well.
    let implied = (0..60).fold(Tar::new(), |tar, n| tar.file(&format!("d{n}/f"), b""));
    refused(implied, "more entries");
    refused(Tar::new().file("big", &vec![0; (1 << 20) + 1]), "bytes of file content");
    let sparse = |size: &[u8]| {
        Tar::new()
            .pax(&[
                ("GNU.sparse.major", b"1"),
                ("GNU.sparse.minor", b"0"),
                ("GNU.sparse.name", b"hole"),
                ("GNU.sparse.realsize", size),
            ])
            .file("x", &padded(b"0\n"))
    };
    refused(sparse(b"1099511627776"), "bytes of file content");
    refused(sparse(b"18446744073709551615"), "bytes of file content");
    let (ground, stats) = accepted(sparse(b"1048576"));
    assert_eq!((stats.bytes, fs::metadata(ground.layer().join("hole")).unwrap().len()), (1 << 20, 1 << 20));
    let pieces = (0..65).map(|n| format!("{},0,", n * 512)).collect::<String>();
    refused(
        Tar::new()
            .pax(&[("GNU.sparse.size", b"65536"), ("GNU.sparse.map", pieces.trim_end_matches(',').as_bytes())])
            .file("x", b""),
        "pieces",
    );
    refused(Tar::new().pax(&[("comment", &vec![b'x'; 70 << 10])]).file("x", b""), "extended headers");
    let headers = (0..20).fold(Tar::new(), |tar, _| tar.pax(&[("comment", &[b'x'; 4 << 10])]));
    refused(headers.file("x", b""), "extended headers");
    refused(Tar::new().pax(&[("path", &[b'x'; 5000])]).file("x", b""), "too long");
    refused(Tar::new().pax(&[("path", &[b'x'; 300])]).file("x", b""), "too long");
    refused(Tar::new().pax(&[("path", &b"d/".repeat(40))]).directory("x"), "too deep");
    refused(Tar::new().pax(&[("linkpath", &[b'x'; 5000])]).symlink("x", "y"), "target");
    // The size field of a header cannot say more than fits, an extended one can.
    refused(Tar::new().pax(&[("size", b"18446744073709551615")]).file("x", b""), "bytes of file content");
}

#[test]
fn attack_14_endless_padding_ends() {
    let mut archive = Tar::new().file("x", b"").bytes();
    archive.resize((4 << 20) + 1, 0);
    let error = Ground::new().unpack(&archive).unwrap_err();
    assert!(error.to_string().contains("limit of 4194304"), "{error}");
    archive.truncate(4 << 20);
    Ground::new().unpack(&archive).expect("the limit itself is allowed");
    let packed = zstd::encode_all(&vec![0; 64 << 20][..], 1).unwrap();
    assert!(packed.len() < 64 << 10);
    let ground = Ground::new();
    let root = fs::File::open(ground.layer()).unwrap();
    let error =
        unpack_layer(&packed[..], Compression::Zstd, root.as_fd(), &diff_id(b""), Ownership::Keep, &SMALL).unwrap_err();
    assert!(matches!(error, UnpackError::Limit { limit: 4_194_304, .. }), "{error}");
}

#[test]
fn attack_14_damaged_archives_are_refused() {
    let whole = Tar::new().file("a", &[1; 700]).file("b", b"x").bytes();
    for cut in [1, 511, 513, 1000, 1024 + 300, 1536 + 100] {
        let error = Ground::new().unpack(&whole[..cut]).expect_err("a cut archive was accepted");
        assert!(error.to_string().contains("cut off"), "at {cut}: {error}");
    }
    let mut flipped = whole.clone();
    flipped[3] ^= 1;
    let error = Ground::new().unpack(&flipped).unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
    refused(Tar::new().pax(&[("size", b"-1")]).file("x", b""), "cannot be read");
    refused(Tar::new().pax(&[("size", b"12x")]).file("x", b""), "cannot be read");
    refused(Tar::new().file("name/", b"x"), "ends with a slash");
    refused(Tar::new().add(EntryType::new(b'Z'), "x", "", b""), "unknown");
    refused(Tar::new().symlink("x", ""), "target");
    refused(Tar::new().file("", b""), "no name");
    let overlapping = padded(b"2\n0\n10\n5\n10\n");
    let records: [(&str, &[u8]); 3] =
        [("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"100")];
    refused(Tar::new().pax(&records).file("x", &[overlapping, vec![0; 20]].concat()), "sparse map");
    refused(Tar::new().pax(&records).file("x", &padded(b"99\n0\n")), "sparse map");
    refused(
        Tar::new().pax(&[("GNU.sparse.size", b"10"), ("GNU.sparse.map", b"0,5,20,5")]).file("x", &[0; 10]),
        "sparse map",
    );
}

#[test]
fn attack_14_a_wrong_diff_id_is_refused() {
    let archive = Tar::new().file("x", b"x").bytes();
    let ground = Ground::new();
    let root = fs::File::open(ground.layer()).unwrap();
    let error =
        unpack_layer(&archive[..], Compression::None, root.as_fd(), &diff_id(b"other"), Ownership::Keep, &SMALL)
            .unwrap_err();
    assert_eq!(error, UnpackError::DiffId { expected: diff_id(b"other"), found: diff_id(&archive) });
}

#[test]
fn attack_14_attributes_that_steer_the_kernel_are_dropped() {
    let records: [(&str, &[u8]); 7] = [
        ("SCHILY.xattr.user.overlay.redirect", b"/outside"),
        ("SCHILY.xattr.user.overlay.metacopy", b""),
        ("SCHILY.xattr.user.overlay.opaque", b"y"),
        ("SCHILY.xattr.trusted.overlay.redirect", b"/outside"),
        ("SCHILY.xattr.system.posix_acl_access", b"x"),
        ("SCHILY.xattr.security.selinux", b"x"),
        ("SCHILY.xattr.user.kept", b"value"),
    ];
    let (ground, stats) = accepted(Tar::new().pax(&records).directory("d").pax(&records).file("f", b"x"));
    assert_eq!(stats.dropped_attributes, 12);
    for name in ["d", "f"] {
        let mut buffer = [0; 1024];
        let len = rustix::fs::listxattr(ground.layer().join(name), &mut buffer[..]).unwrap();
        assert_eq!(&buffer[..len], b"user.kept\0");
    }
}

#[test]
fn attack_14_set_user_id_bits_are_kept_as_data() {
    let (ground, _) = accepted(Tar::new().owned("su", 0, 0, 0o4755).owned("other", 1000, 100, 0o2755));
    let su = fs::metadata(ground.layer().join("su")).unwrap();
    assert_eq!((su.mode() & 0o7777, su.uid()), (0o4755, 0));
    let other = fs::metadata(ground.layer().join("other")).unwrap();
    assert_eq!((other.mode() & 0o7777, other.uid(), other.gid()), (0o2755, 1000, 100));
}

#[test]
fn owners_outside_the_range_of_a_sandbox_become_nobody() {
    let (ground, stats) = accepted(Tar::new().owned("far", 1_848_900, 0, 0o644).owned("edge", 65_535, 65_535, 0o644));
    assert_eq!(stats.remapped_owners, 1);
    let far = fs::metadata(ground.layer().join("far")).unwrap();
    assert_eq!((far.uid(), far.gid()), (65_534, 0));
    assert_eq!(fs::metadata(ground.layer().join("edge")).unwrap().uid(), 65_535);
}

#[test]
fn later_entries_replace_earlier_ones_of_any_kind() {
    let (ground, _) = accepted(
        Tar::new()
            .file("a", b"1")
            .file("a", b"2")
            .file("b", b"x")
            .directory("b")
            .file("b/c", b"x")
            .directory("d")
            .directory("d/e")
            .file("d/e/f", b"x")
            .file("d", b"now a file")
            .symlink("s", "a")
            .symlink("s", "b")
            .directory("keep")
            .file("keep/inside", b"x")
            .directory("keep"),
    );
    let names: Vec<String> =
        listing(&ground.layer()).into_iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(names, [".", "./a", "./b", "./b/c", "./d", "./keep", "./keep/inside", "./s"]);
    assert_eq!(fs::read(ground.layer().join("a")).unwrap(), b"2");
    assert_eq!(fs::read_link(ground.layer().join("s")).unwrap(), Path::new("b"));
    refused(Tar::new().file("f", b"x").file("f/g", b"x"), "not a directory");
}

#[test]
fn errors_show_names_escaped_and_cut() {
    let error = Ground::new()
        .unpack(&Tar::new().pax(&[("path", &[b"/\x1b[31m".as_slice(), &[b'x'; 3000]].concat())]).file("x", b"").bytes())
        .unwrap_err();
    let text = error.to_string();
    assert!(text.len() < 400 && !text.contains('\x1b'), "{text:?}");
    let travelled: UnpackError = serde_json::from_str(&serde_json::to_string(&error).unwrap()).unwrap();
    assert_eq!(travelled, error);
}

fn padded(data: &[u8]) -> Vec<u8> {
    let mut block = data.to_vec();
    block.resize(data.len().next_multiple_of(512), 0);
    block
}
