//! `osb file`: bytes arrive as they are, whatever their number, and nothing leaves the place it was meant for.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use support::Server;

/// Bytes that no text is: every value, in an order that does not repeat within a page.
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 1u32;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        })
        .collect()
}

/// A directory inside the sandbox, which is on this machine.
fn inside(server: &Server) -> PathBuf {
    let dir = server.home.path().join("inside");
    fs::create_dir_all(&dir).expect("a directory");
    dir
}

fn text(path: &Path) -> &str {
    path.to_str().expect("is text")
}

#[test]
fn a_large_file_goes_in_and_comes_out_unchanged() {
    let server = Server::start();
    let id = server.sandbox();
    let content = bytes(20 * 1024 * 1024 + 17);
    let local = server.home.path().join("local.bin");
    fs::write(&local, &content).expect("a file");
    let remote = inside(&server).join("new/dir/remote.bin");
    let ran = server.run(&["file", "upload", &id, text(&local), text(&remote)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(fs::read(&remote).expect("is there") == content);
    let back = server.home.path().join("back.bin");
    let ran = server.run(&["file", "download", &id, text(&remote), text(&back)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(fs::read(&back).expect("is there") == content);
    assert!(server.run(&["file", "download", &id, text(&remote), "-"]).bytes == content);
    assert!(server.run(&["file", "cat", &id, text(&remote)]).bytes == content);
}

#[test]
fn standard_input_goes_in() {
    let server = Server::start();
    let id = server.sandbox();
    let content = bytes(3 * 1024 * 1024);
    let remote = inside(&server).join("a");
    let ran = server.run_with_input(&["file", "write", &id, text(&remote), "--mode", "600"], &content);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(fs::read(&remote).expect("is there") == content);
    assert_eq!(fs::metadata(&remote).expect("is there").permissions().mode() & 0o777, 0o600);
    let remote = inside(&server).join("b");
    assert_eq!(server.run_with_input(&["file", "upload", &id, "-", text(&remote)], b"x\0y").code, Some(0));
    assert_eq!(fs::read(&remote).expect("is there"), b"x\0y");
    assert_eq!(server.run(&["file", "write", &id, text(&remote), "-c", ""]).code, Some(0));
    assert_eq!(fs::read(&remote).expect("is there"), b"");
}

#[test]
fn a_directory_goes_in_and_comes_out() {
    let server = Server::start();
    let id = server.sandbox();
    let tree = server.home.path().join("tree");
    fs::create_dir_all(tree.join("a/b c/empty")).expect("directories");
    fs::write(tree.join("top"), "top").expect("a file");
    fs::write(tree.join("a/b c/ü&x=1.txt"), "deep").expect("a file");
    fs::write(tree.join("a/run"), "#!/bin/sh\n").expect("a file");
    fs::set_permissions(tree.join("a/run"), fs::Permissions::from_mode(0o755)).expect("its own file");
    let remote = inside(&server).join("copy");
    let ran = server.run(&["file", "upload", "-r", &id, text(&tree), text(&remote)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let back = server.home.path().join("back");
    let ran = server.run(&["file", "download", "-r", &id, text(&remote), text(&back), "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json().as_array().expect("rows").len(), 3);
    assert_eq!(fs::read_to_string(back.join("top")).expect("is there"), "top");
    assert_eq!(fs::read_to_string(back.join("a/b c/ü&x=1.txt")).expect("is there"), "deep");
    assert!(back.join("a/b c/empty").is_dir());
    assert_eq!(fs::metadata(back.join("a/run")).expect("is there").permissions().mode() & 0o777, 0o755);
}

#[test]
fn links_are_named_and_not_copied() {
    let server = Server::start();
    let id = server.sandbox();
    let remote = inside(&server).join("links");
    fs::create_dir(&remote).expect("a directory");
    fs::write(remote.join("plain"), "x").expect("a file");
    symlink("/etc/passwd", remote.join("link")).expect("a link");
    let back = server.home.path().join("back");
    let ran = server.run(&["file", "download", "-r", &id, text(&remote), text(&back)]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("which is not copied"), "{ran:?}");
    assert!(back.join("plain").exists() && !back.join("link").exists());
}

#[test]
fn a_directory_needs_to_be_asked_for() {
    let server = Server::start();
    let id = server.sandbox();
    let dir = inside(&server);
    for words in [["file", "download", &id, text(&dir), "x"], ["file", "upload", &id, text(&dir), "/tmp/x"]] {
        let ran = server.run(&words);
        assert!(ran.code == Some(2) && ran.stderr.contains("-r"), "{ran:?}");
    }
}

#[test]
fn a_missing_file_is_a_failure_that_names_it_and_leaves_nothing() {
    let server = Server::start();
    let id = server.sandbox();
    let before = fs::read_dir(server.home.path()).expect("a listing").count();
    for words in [["file", "download", &id, "/nonexistent/f", "x"], ["file", "cat", &id, "/nonexistent/f", "-v"]] {
        let ran = server.run(&words);
        assert!(ran.code == Some(1) && ran.stderr.contains("/nonexistent/f"), "{ran:?}");
    }
    let ran = server.run(&["file", "upload", &id, "/nonexistent/local", "/tmp/x"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("/nonexistent/local"), "{ran:?}");
    assert_eq!(fs::read_dir(server.home.path()).expect("a listing").count(), before);
}

#[test]
fn files_are_moved_changed_searched_and_removed() {
    let server = Server::start();
    let id = server.sandbox();
    let dir = inside(&server);
    let (a, b) = (dir.join("a.txt"), dir.join("b.txt"));
    fs::write(&a, "one two one\nthree\n").expect("a file");
    let run = |words: &[&str]| {
        let ran = server.run(words);
        assert_eq!(ran.code, Some(0), "{words:?}: {ran:?}");
        ran.stdout
    };
    assert!(run(&["file", "replace", &id, text(&a), "--old", "one", "--new", "1"]).contains("2 replaced"));
    assert!(run(&["file", "replace", &id, text(&a), "--old", "absent", "--new", "-"]).contains("nothing matched"));
    assert_eq!(run(&["file", "cat", &id, text(&a), "--offset", "2", "--limit", "1"]), "three");
    run(&["file", "mv", &id, text(&a), text(&b)]);
    assert!(!a.exists() && b.exists());
    assert!(run(&["file", "search", &id, text(&dir), "-p", "*.txt"]).contains(text(&b)));
    assert!(run(&["file", "ls", &id, text(&dir)]).contains("b.txt"));
    run(&["file", "chmod", &id, text(&b), "--mode", "640"]);
    assert_eq!(fs::metadata(&b).expect("is there").permissions().mode() & 0o777, 0o640);
    assert!(run(&["file", "info", &id, text(&b)]).contains("640"));
    run(&["file", "mkdir", &id, text(&dir.join("x/y"))]);
    run(&["file", "rm", &id, text(&b)]);
    run(&["file", "rm", "-r", &id, text(&dir.join("x"))]);
    assert_eq!(fs::read_dir(&dir).expect("a listing").count(), 0);
    let ran = server.run(&["file", "rm", &id, text(&dir), "-o", "json"]);
    assert_eq!((ran.code, &ran.json()[0]["status"]), (Some(1), &"error".into()), "{ran:?}");
}
