//! Fuzz targets of parsers that have no place of their own for one.

use std::collections::BTreeMap;

use protocol::execd::boot::{BootConfig, StatusLine};
use protocol::execd::command::RunCommand;
use protocol::execd::files::{FileMetadata, Permission, RenameItem, ReplaceItem};
use protocol::hooks::Hooks;
use protocol::schedule::Schedule;
use serde::de::DeserializeOwned;

use crate::environment::{Environment, apply_env_file, expand_path};
use fuzz::{run, run_briefly};

#[test]
fn fuzz_bodies() {
    fn read<T: DeserializeOwned>(input: &[u8]) -> Option<T> {
        serde_json::Deserializer::from_slice(input).into_iter().next()?.ok()
    }
    let examples: [&[u8]; 6] = [
        br#"{"command":"ls","cwd":"/","timeout":5,"uid":1,"gid":1,"envs":{"A":"b","C":null},"background":true}"#,
        br#"{"argv":["a","b"]}"#,
        br#"{"/f":{"old":"a","new":"b"}}"#,
        br#"[{"src":"a","dest":"b"}]"#,
        br#"{"path":"/f","owner":null,"group":"g","mode":644}"#,
        br#"{"preStart":{"command":["a"]},"periodic":[{"name":"n","schedule":"@daily","command":["b"]}]}"#,
    ];
    run("bodies", &examples, |input| {
        let _ = read::<RunCommand>(input);
        let _ = read::<BTreeMap<String, ReplaceItem>>(input);
        let _ = read::<Vec<RenameItem>>(input);
        let _ = read::<BTreeMap<String, Option<Permission>>>(input);
        let _ = read::<FileMetadata>(input);
        let _ = read::<BootConfig>(input);
        let _ = read::<Hooks>(input).map(|hooks| hooks.check());
    });
}

#[test]
fn fuzz_schedules() {
    let examples: [&[u8]; 5] = [b"*/5 1-3,7 * jan-mar mon", b"0 0 29 2 *", b"@every 1h30m", b"@weekly", b"1/2 ? 1 * 7"];
    run("schedules", &examples, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        if let Ok(schedule) = Schedule::parse(text) {
            let first = schedule.next(1_700_000_000, 1_700_000_000).expect("a date that comes");
            assert!(first > 1_700_000_000);
            let second = schedule.next(first, 1_700_000_000).expect("again");
            assert!(second > first && schedule.next(second - 1, 1_700_000_000) == Some(second));
        }
    });
}

#[test]
fn fuzz_env_files() {
    let examples: [&[u8]; 4] =
        [b"A=1\n# c\nB='x\ny'\nC=\"a\\n$A${B}\"\n", b"A=$A$$\n", b"A='open\nB=2", b"A=\"x\" y\nC= d \n"];
    run("env files", &examples, |input| {
        let mut env = Environment::from([("A".into(), "a".into())]);
        apply_env_file(&String::from_utf8_lossy(input), &mut env);
        for name in env.keys() {
            assert!(!name.is_empty() && !name.contains(['=', '\0', '\n', ' ']), "{name:?}");
        }
    });
}

#[test]
fn fuzz_paths() {
    let examples: [&[u8]; 4] = [b"~/a/../$HOME//${X}", b"$$a/./b", b"/../..", b"a\\~"];
    run_briefly("paths", &examples, |input| {
        let env = Environment::from([("HOME".into(), "/home/u".into()), ("X".into(), "../..".into())]);
        if let Ok(path) = expand_path(&String::from_utf8_lossy(input), &env, "/work") {
            assert!(path.starts_with('/') && !path.contains("//") && !path.split('/').any(|part| part == ".."));
        }
    });
}

#[test]
fn fuzz_status_lines() {
    let examples: [&[u8]; 4] = [b"ready", b"exited 3", b"signaled 9", b"hook-failed why"];
    run_briefly("status lines", &examples, |input| {
        let text = String::from_utf8_lossy(input);
        if let Some(line) = StatusLine::parse(&text) {
            assert!(StatusLine::parse(&line.to_string().replace('\n', " ")).is_some(), "{line}");
        }
    });
}

#[test]
fn fuzz_archives() {
    let mut writer = archive::Writer::new(Vec::new());
    let name = [b'n'; 150];
    for (kind, size) in [(archive::Kind::Directory, 0), (archive::Kind::File, 600), (archive::Kind::Symlink, 0)] {
        let head = archive::Head { name: &name, link: b"t", kind, mode: 0o644, uid: 1, gid: 1, mtime: 1, size };
        writer.begin(&head).expect("memory");
        writer.data(&vec![b'x'; size as usize]).expect("memory");
    }
    let example = writer.finish().expect("memory");
    run("archives", &[&example, &example[..1024]], |input| {
        let mut archive = archive::Archive::new(input, archive::Limits::default());
        let mut entries = 0;
        while let Ok(Some(entry)) = archive.next_entry() {
            let _ = archive::path::parse(&entry.name, &archive::Limits::default());
            entries += 1;
            assert!(entries * archive::BLOCK_BYTES <= input.len(), "an entry from nowhere");
        }
    });
}
