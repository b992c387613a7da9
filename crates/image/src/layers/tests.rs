use std::fs;

use tempfile::TempDir;

use super::*;

fn layer(digit: char) -> LayerId {
    digit.to_string().repeat(64).parse().unwrap()
}

fn area() -> (TempDir, Area) {
    let directory = tempfile::tempdir().unwrap();
    let area = Area::open(&directory.path().join("layers")).unwrap();
    (directory, area)
}

fn write(draft: &Draft, name: &str, content: &str) {
    let fd = rustix::fs::openat(draft.root(), name, OFlags::WRONLY | OFlags::CREATE, Mode::RUSR).unwrap();
    File::from(fd).write_all(content.as_bytes()).unwrap();
}

#[test]
fn a_layer_appears_whole_or_not_at_all() {
    let (directory, area) = area();
    let draft = area.begin().unwrap();
    write(&draft, "file", "1");
    assert_eq!(area.list().unwrap(), []);
    let stats = LayerStats { entries: 1, bytes: 1, ..LayerStats::default() };
    draft.commit(&layer('a'), &stats).unwrap();
    assert_eq!(area.list().unwrap(), [layer('a')]);
    assert_eq!(area.stats(&layer('a')).unwrap(), Some(stats));
    assert_eq!(fs::read_to_string(area.path(&layer('a')).join("file")).unwrap(), "1");

    drop(area.begin().unwrap());
    assert_eq!(fs::read_dir(directory.path().join("layers")).unwrap().count(), 1);
}

#[test]
fn the_first_of_two_equal_layers_stays() {
    let (directory, area) = area();
    let (first, second) = (area.begin().unwrap(), area.begin().unwrap());
    write(&first, "file", "first");
    write(&second, "file", "second");
    first.commit(&layer('a'), &LayerStats::default()).unwrap();
    second.commit(&layer('a'), &LayerStats::default()).unwrap();
    assert_eq!(fs::read_to_string(area.path(&layer('a')).join("file")).unwrap(), "first");
    assert_eq!(fs::read_dir(directory.path().join("layers")).unwrap().count(), 1);
}

#[test]
fn a_sweep_takes_what_is_dead_and_leaves_what_lives() {
    let (directory, area) = area();
    let living = area.begin().unwrap();
    write(&living, "file", "1");
    let dead = directory.path().join("layers/.transient-dead/fs/deep/er");
    fs::create_dir_all(&dead).unwrap();
    fs::write(dead.join("file"), "x").unwrap();
    fs::create_dir(directory.path().join("layers/lost+found")).unwrap();
    assert_eq!(area.sweep().unwrap(), 1);
    assert!(!dead.exists());
    living.commit(&layer('b'), &LayerStats::default()).unwrap();
    assert_eq!(area.list().unwrap(), [layer('b')]);
}

#[test]
fn removing_takes_everything_and_may_be_repeated() {
    let (directory, area) = area();
    let draft = area.begin().unwrap();
    write(&draft, "file", "1");
    std::os::unix::fs::symlink("/etc", area.root.join(&draft.name).join("fs/link")).unwrap();
    draft.commit(&layer('a'), &LayerStats::default()).unwrap();
    area.remove(&layer('a')).unwrap();
    area.remove(&layer('a')).unwrap();
    assert!(!area.has(&layer('a')).unwrap());
    assert_eq!(area.stats(&layer('a')).unwrap(), None);
    assert_eq!(fs::read_dir(directory.path().join("layers")).unwrap().count(), 0);
    assert!(Path::new("/etc/passwd").exists());
}

#[test]
fn layer_ids_are_safe_as_file_names() {
    for text in [
        "",
        "a",
        "../a",
        &"A".repeat(64),
        &"g".repeat(64),
        &"a".repeat(63),
        &"a".repeat(65),
        &format!("sha512:{}", "a".repeat(64)),
    ] {
        assert!(text.parse::<LayerId>().is_err(), "{text}");
        assert!(serde_json::from_str::<LayerId>(&format!("{text:?}")).is_err(), "{text}");
    }
    assert_eq!(format!("sha256:{}", "a".repeat(64)).parse::<LayerId>().unwrap(), layer('a'));
}

#[test]
fn scratch_goes_and_a_note_stays() {
    let (_directory, area) = area();
    let draft = area.begin().unwrap();
    let scratch = draft.scratch().unwrap();
    rustix::fs::mkdirat(&scratch, "x", Mode::RWXU).unwrap();
    draft.note("made-by").unwrap();
    draft.commit(&layer('a'), &LayerStats::default()).unwrap();
    let mut names: Vec<_> =
        fs::read_dir(area.path(&layer('a')).parent().unwrap()).unwrap().map(|item| item.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["fs", "made-by", "stats.json"]);
}

#[test]
fn a_draft_is_discarded_by_its_name_and_nothing_else_is() {
    let (directory, area) = area();
    let draft = area.begin().unwrap();
    write(&draft, "file", "1");
    let name = draft.name().to_owned();
    std::mem::forget(draft);
    fs::create_dir(directory.path().join("layers/other")).unwrap();
    for bad in ["other", ".transient-/../other", "../layers"] {
        assert!(area.discard(bad).is_err(), "{bad}");
    }
    area.discard(&name).unwrap();
    area.discard(&name).unwrap();
    let left: Vec<_> =
        fs::read_dir(directory.path().join("layers")).unwrap().map(|item| item.unwrap().file_name()).collect();
    assert_eq!(left, ["other"]);
}
