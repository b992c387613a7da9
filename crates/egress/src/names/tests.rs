use std::io::Write;
use std::os::unix::fs::FileExt;

use super::*;

fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

fn file(text: &str) -> std::fs::File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    file
}

fn load(file: &std::fs::File) -> Names {
    Names::load(file.try_clone().expect("a duplicate").into(), DEFAULT_RANGE).expect("names")
}

#[test]
fn a_name_keeps_its_address_when_the_file_is_read_again() {
    let file = file("");
    let first = load(&file);
    let a = first.address_of(&name("a.example")).expect("an address");
    let b = first.address_of(&name("b.example")).expect("an address");
    assert_ne!(a, b);
    assert_eq!(first.address_of(&name("a.example")).expect("an address"), a);
    let second = load(&file);
    assert_eq!(second.find(&name("a.example")), Some(a));
    assert_eq!(second.name_of(b), Some(name("b.example")));
    assert_eq!(second.count(), 2);
}

#[test]
fn a_line_that_was_cut_off_is_dropped_and_the_next_one_is_whole() {
    let file = file("28.64.0.9 a.example\n28.64.0.10 b.exa");
    let names = load(&file);
    assert_eq!((names.count(), names.find(&name("a.example"))), (1, Some(Ipv4Addr::new(28, 64, 0, 9))));
    names.address_of(&name("c.example")).expect("an address");
    assert_eq!(load(&file).count(), 2);
    let mut text = vec![0; 200];
    let read = file.read_at(&mut text, 0).expect("read");
    assert!(!String::from_utf8_lossy(&text[..read]).contains("b.exa"));
}

#[test]
fn lines_that_are_none_are_not_used() {
    let file = file(
        "10.0.0.1 a.example\nnonsense\n28.64.0.9 10.0.0.1\n28.64.0.9 b.example\n28.64.0.9 c.example\n28.64.0.8 b.example\n",
    );
    let names = load(&file);
    assert_eq!(names.count(), 1);
    assert_eq!(names.name_of(Ipv4Addr::new(28, 64, 0, 9)), Some(name("b.example")));
}

#[test]
fn names_that_pick_one_place_get_two() {
    let names = load(&file(""));
    let all: std::collections::HashSet<_> =
        (0..2000).map(|n| names.address_of(&name(&format!("n{n}.example"))).expect("an address")).collect();
    assert_eq!(all.len(), 2000);
    assert!(all.iter().all(|address| DEFAULT_RANGE.contains(address)));
}

#[test]
fn one_name_too_many_is_refused() {
    let text: String = (0..limits::NAMES).map(|n| format!("28.64.{}.{} n{n}.example\n", n / 256, n % 256)).collect();
    let names = load(&file(&text));
    assert_eq!(names.count(), limits::NAMES);
    assert!(matches!(names.address_of(&name("one.more.example")), Err(NameError::Full)));
    assert!(names.address_of(&name("n5.example")).is_ok());
}

#[test]
fn fuzz_names_files() {
    fuzz::run_briefly(
        "names files",
        &[b"28.64.0.9 a.example\n28.64.0.10 b.exa", b"nonsense\n\n10.0.0.1 x\n"],
        |input| {
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(input).expect("written");
            let names = load(&file);
            let address = names.address_of(&name("new.example")).expect("an address");
            assert_eq!(names.name_of(address), Some(name("new.example")));
            let again = load(&file);
            assert_eq!((again.count(), again.find(&name("new.example"))), (names.count(), Some(address)));
        },
    );
}

#[test]
fn what_cannot_be_written_is_not_answered() {
    let read_only = std::fs::File::open("/dev/null").expect("a file that takes no writes");
    let names = Names::load(read_only.into(), DEFAULT_RANGE).expect("names");
    assert!(matches!(names.address_of(&name("a.example")), Err(NameError::File(_))));
    assert_eq!(names.find(&name("a.example")), None);
}
