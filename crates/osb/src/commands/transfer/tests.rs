use super::*;

#[test]
fn a_listing_cannot_name_what_is_elsewhere() {
    assert_eq!(child_name("/a", "/a/b").expect("is in it"), "b");
    assert_eq!(child_name("", "/etc").expect("is in it"), "etc");
    for path in ["/a", "/a/", "/a/..", "/a/.", "/a/b/c", "/b", "/ab", "a/b", "/a//b", "/a/b\0"] {
        assert!(child_name("/a", path).is_err(), "{path:?}");
    }
}

#[test]
fn a_link_is_no_place_for_a_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("/tmp", &link).expect("a link");
    assert!(make_plain_directory(&link).is_err());
    assert!(make_plain_directory(&dir.path().join("new")).is_ok());
    assert!(make_plain_directory(&dir.path().join("new")).is_ok());
}

#[test]
fn modes_travel_as_digits() {
    assert_eq!(digits(0o100_644), Some(644));
    assert_eq!(digits(0o104_755), Some(755));
    assert_eq!(digits(0o100_000), None);
}

#[test]
fn an_unfinished_file_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(Partial::create(dir.path()).expect("a file"));
    assert_eq!(fs::read_dir(dir.path()).expect("a listing").count(), 0);
}
