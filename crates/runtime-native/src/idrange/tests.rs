use super::*;

fn id(text: &str) -> std::path::PathBuf {
    Path::new("/data/sandboxes").join(text)
}

#[test]
fn two_sandboxes_never_share_a_range() {
    let dir = tempfile::tempdir().expect("temp dir");
    let a = claim(dir.path(), &id("a"), 0, &Foreign::default()).expect("first");
    let b = claim(dir.path(), &id("b"), 0, &Foreign::default()).expect("second");
    assert_ne!(a, b);
    assert!(a.range().first + SLOT_IDS <= b.range().first);
}

#[test]
fn the_reserved_slot_is_never_given() {
    let dir = tempfile::tempdir().expect("temp dir");
    let slot = claim(dir.path(), &id("a"), u32::MAX, &Foreign::default()).expect("claimed");
    assert_ne!(slot.0, 0);
}

#[test]
fn a_range_of_somebody_else_is_skipped() {
    let dir = tempfile::tempdir().expect("temp dir");
    let first = Slot(1).range().first;
    let foreign = Foreign(Foreign::parse(&format!("someone:{}:10\n", first + 100)));
    let slot = claim(dir.path(), &id("a"), 0, &foreign).expect("claimed");
    assert_eq!(slot, Slot(2));
}

#[test]
fn only_the_owner_releases() {
    let dir = tempfile::tempdir().expect("temp dir");
    let slot = claim(dir.path(), &id("a"), 0, &Foreign::default()).expect("claimed");
    release(dir.path(), &id("b"), Some(slot)).expect("no effect");
    assert_eq!(claimed(dir.path(), Path::new("/data/sandboxes")).expect("list").len(), 1);
    release(dir.path(), &id("a"), None).expect("released");
    assert!(claimed(dir.path(), Path::new("/data/sandboxes")).expect("list").is_empty());
}

#[test]
fn another_data_directory_gets_another_range_and_does_not_list_ours() {
    let dir = tempfile::tempdir().expect("temp dir");
    let ours = claim(dir.path(), &id("a"), 0, &Foreign::default()).expect("claimed");
    let theirs = claim(dir.path(), Path::new("/other/sandboxes/a"), 0, &Foreign::default()).expect("claimed");
    assert_ne!(ours, theirs);
    release(dir.path(), Path::new("/other/sandboxes/a"), None).expect("released");
    assert_eq!(claimed(dir.path(), Path::new("/data/sandboxes")).expect("list").len(), 1);
}

#[test]
fn the_last_slot_stays_below_the_sign_bit() {
    let range = Slot(SLOTS - 1).range();
    assert!(range.first.checked_add(range.count).is_some_and(|end| end < 0x8000_0000));
}
