use std::os::unix::fs::{FileExt as _, PermissionsExt as _};

use super::*;

fn id(text: &str) -> SandboxId {
    SandboxId::parse(text).expect("an id")
}

/// A shelf in a directory, and one without.
fn shelves(check: impl Fn(&Shelf)) {
    let scratch = tempfile::tempdir().expect("a directory");
    check(&Shelf::new(Some(scratch.path().join("recordings"))));
    check(&Shelf::new(None));
}

#[test]
fn a_sandbox_has_the_same_recording_until_it_is_forgotten() {
    shelves(|shelf| {
        let open = || shelf.recording_of(&id("a"), &Taping::Record, 9).expect("opened").expect("recorded");
        let (how, file) = open();
        assert_eq!(how, How::Record { limit_bytes: 9 });
        file.write_all_at(b"text", 0).expect("written");
        assert_eq!(open().1.metadata().expect("facts").len(), 4);
        assert!(shelf.of_sandbox(&id("a")).expect("looked").is_some());
        assert!(shelf.of_sandbox(&id("b")).expect("looked").is_none());
        shelf.forget_sandbox(&id("a"));
        assert!(shelf.of_sandbox(&id("a")).expect("looked").is_none());
        assert!(shelf.recording_of(&id("a"), &Taping::None, 9).expect("nothing to open").is_none());
    });
}

#[test]
fn an_upload_is_kept_under_an_id_or_not_at_all() {
    shelves(|shelf| {
        let arriving = shelf.arriving().expect("made");
        arriving.file.write_all_at(b"text", 0).expect("written");
        let kept = shelf.keep(arriving).expect("kept");
        drop(shelf.arriving().expect("made"));
        let ids: Vec<String> = shelf.ids().expect("listed").into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, std::slice::from_ref(&kept));
        let replay = Taping::Replay { recording: kept.clone() };
        let (how, file) = shelf.recording_of(&id("a"), &replay, 9).expect("opened").expect("there");
        assert_eq!((how, file.metadata().expect("facts").len()), (How::Replay, 4));
        assert!(shelf.check(&kept).is_ok() && shelf.discard(&kept).expect("removed"));
        assert!(shelf.check(&kept).is_err() && !shelf.discard(&kept).expect("nothing to do"));
        shelf.recording_of(&id("a"), &replay, 9).expect_err("it is gone");
    });
}

#[test]
fn files_are_the_servers_alone_and_what_is_left_is_swept() {
    let scratch = tempfile::tempdir().expect("a directory");
    let directory = scratch.path().join("recordings");
    let shelf = Shelf::new(Some(directory.clone()));
    for sandbox in ["known", "gone"] {
        shelf.recording_of(&id(sandbox), &Taping::Record, 9).expect("made");
    }
    let arriving = shelf.arriving().expect("made");
    let mode = |path: &Path| path.metadata().expect("facts").permissions().mode() & 0o777;
    assert_eq!((mode(&directory), mode(&directory.join("sandbox.known"))), (0o700, 0o600));
    std::mem::forget(arriving);
    shelf.sweep(|id| id == "known");
    let left: Vec<_> =
        std::fs::read_dir(&directory).expect("listed").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["sandbox.known"]);
}
