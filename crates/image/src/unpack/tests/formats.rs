//! What GNU tar writes, in each of its formats, comes out as it went in.

use std::io::Write;
use std::process::Command;

use super::*;

fn run(program: &str, arguments: &[&str], directory: &Path) {
    let status = Command::new(program).args(arguments).current_dir(directory).status().expect("start a program");
    assert!(status.success(), "{program} {arguments:?}");
}

/// A tree with everything that a tar of that format can carry.
fn tree(directory: &Path, long_names: bool) {
    fs::create_dir(directory.join("sub")).unwrap();
    fs::write(directory.join("sub/file"), vec![7; 70_000]).unwrap();
    fs::write(directory.join("empty"), b"").unwrap();
    fs::hard_link(directory.join("sub/file"), directory.join("linked")).unwrap();
    std::os::unix::fs::symlink("sub/file", directory.join("link")).unwrap();
    std::os::unix::fs::chown(directory.join("empty"), Some(1234), Some(2345)).unwrap();
    run("chmod", &["4751", "empty"], directory);
    run("touch", &["-d", "1999-12-31T23:59:59Z", "sub/file", "sub"], directory);
    run("touch", &["-h", "-d", "2001-01-01T00:00:00Z", "link"], directory);
    if long_names {
        let deep = format!("{}/{}", "d".repeat(200), "e".repeat(200));
        fs::create_dir_all(directory.join(&deep)).unwrap();
        fs::write(directory.join(&deep).join("f".repeat(250)), b"deep").unwrap();
        std::os::unix::fs::symlink("t".repeat(300), directory.join("long target")).unwrap();
        fs::write(directory.join("näme"), b"x").unwrap();
    }
    run("find", &[".", "-type", "d", "-exec", "touch", "-d", "2010-10-10T10:10:10Z", "{}", "+"], directory);
}

#[track_caller]
fn check(options: &[&str], make: impl FnOnce(&Path), whole_seconds: bool) {
    let source = tempfile::tempdir().unwrap();
    run("chmod", &["750", "."], source.path());
    make(source.path());
    if whole_seconds {
        run(
            "find",
            &[".", "-newermt", "2020-01-01", "-exec", "touch", "-h", "-d", "2015-05-05T05:05:05Z", "{}", "+"],
            source.path(),
        );
    }
    let archive = tempfile::NamedTempFile::new().unwrap();
    let file = archive.path().to_str().unwrap();
    run("tar", &[options, &["-cf", file, "."]].concat(), source.path());
    let packed = fs::read(archive.path()).unwrap();
    let plain = match Compression::detect(&packed) {
        Compression::None => packed.clone(),
        Compression::Gzip => {
            let mut plain = Vec::new();
            std::io::copy(&mut flate2::read::MultiGzDecoder::new(&packed[..]), &mut plain).unwrap();
            plain
        }
        Compression::Zstd => zstd::decode_all(&packed[..]).unwrap(),
    };
    let ground = Ground::new();
    let root = fs::File::open(ground.layer()).unwrap();
    unpack_layer(
        &packed[..],
        Compression::detect(&packed),
        root.as_fd(),
        &diff_id(&plain),
        Ownership::Keep,
        &Limits::default(),
    )
    .unwrap();
    assert_eq!(listing(&ground.layer()), listing(source.path()), "with {options:?}");
}

#[test]
fn every_format_of_gnu_tar_is_read() {
    for format in ["gnu", "oldgnu", "pax"] {
        check(&["--format", format], |directory| tree(directory, true), format != "pax");
    }
    for format in ["ustar", "v7"] {
        check(&["--format", format], |directory| tree(directory, false), true);
    }
    check(&["--format", "pax", "-z"], |directory| tree(directory, true), false);
    check(&["--format", "pax", "--zstd"], |directory| tree(directory, true), false);
}

#[test]
fn every_sparse_format_of_gnu_tar_is_read() {
    let holes = |directory: &Path| {
        let file = fs::File::create(directory.join("holes")).unwrap();
        // More pieces than fit into the first header and the first block of a map.
        for piece in 0..60_u64 {
            use std::os::unix::fs::FileExt;
            file.write_all_at(&[u8::try_from(piece).unwrap() + 1; 4096], piece * 16_384).unwrap();
        }
        file.set_len(1 << 20).unwrap();
        fs::File::create(directory.join("only hole")).unwrap().set_len(300_000).unwrap();
        fs::File::create(directory.join("after")).unwrap().write_all(b"still aligned").unwrap();
    };
    check(&["--format", "gnu", "--sparse"], holes, true);
    for version in ["0.0", "0.1", "1.0"] {
        check(&["--format", "pax", "--sparse", "--sparse-version", version], holes, false);
    }
}

#[test]
fn holes_stay_holes() {
    let records: [(&str, &[u8]); 4] = [
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"hole"),
        ("GNU.sparse.realsize", b"1048576"),
    ];
    let mut map = b"1\n1048064\n512\n".to_vec();
    map.resize(512, 0);
    map.extend([9; 512]);
    let ground = Ground::new();
    ground.unpack(&Tar::new().pax(&records).file("x", &map).bytes()).unwrap();
    let metadata = fs::metadata(ground.layer().join("hole")).unwrap();
    assert_eq!(metadata.len(), 1 << 20);
    assert!(metadata.blocks() * 512 < 64 << 10, "{} blocks", metadata.blocks());
}

#[test]
fn several_gzip_members_and_zstd_frames_are_one_stream() {
    let archive = Tar::new().file("a", &[1; 3000]).bytes();
    let (first, second) = archive.split_at(1000);
    let gzip = |data: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    };
    let zstd = |data: &[u8]| zstd::encode_all(data, 1).unwrap();
    for (packed, compression) in [
        ([gzip(first), gzip(second)].concat(), Compression::Gzip),
        ([zstd(first), zstd(second)].concat(), Compression::Zstd),
    ] {
        let ground = Ground::new();
        let root = fs::File::open(ground.layer()).unwrap();
        unpack_layer(&packed[..], compression, root.as_fd(), &diff_id(&archive), Ownership::Keep, &SMALL).unwrap();
        assert_eq!(fs::read(ground.layer().join("a")).unwrap(), [1; 3000]);
        let cut = unpack_layer(
            &packed[..packed.len() - 5],
            compression,
            root.as_fd(),
            &diff_id(&archive),
            Ownership::Keep,
            &SMALL,
        );
        assert!(matches!(cut, Err(UnpackError::Malformed { .. })), "{cut:?}");
    }
}
