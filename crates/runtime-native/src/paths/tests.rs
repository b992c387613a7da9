use std::os::unix::net::{UnixListener, UnixStream};

use super::*;

#[test]
fn a_socket_deeper_than_an_address_is_bound_and_reached_all_the_same() {
    let dir = tempfile::tempdir().expect("temp dir");
    let deep = dir.path().join("d".repeat(120));
    std::fs::create_dir(&deep).expect("deep directory");
    let path = deep.join("execd.sock");
    let (name, _directory) = socket_name(&path).expect("short name");
    let _listener = UnixListener::bind(&name).expect("bind");
    assert!(path.exists());
    let (name, _directory) = socket_name(&path).expect("short name");
    UnixStream::connect(name).expect("connect");
}

#[test]
fn a_short_path_is_used_as_it_is() {
    let path = Path::new("/tmp/execd.sock");
    let (name, directory) = socket_name(path).expect("a name");
    assert!(name == path && directory.is_none());
}
