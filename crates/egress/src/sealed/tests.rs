use std::io::Write as _;

use super::*;

fn secret(text: &[u8]) -> Secret {
    let mut secret = Secret::default();
    secret.write_all(text).expect("memory");
    secret
}

/// What another process gets of it.
fn copy(memory: &Memory) -> Memory {
    Memory::from_parts(memory.file.try_clone().expect("a descriptor"), memory.key.clone(), None)
}

fn opened(memory: &Memory) -> Option<Vec<u8>> {
    let (_, state) = Sealed::open(copy(memory)).expect("readable");
    state.map(|state| state.bytes().to_vec())
}

/// The beginnings of both slots, one behind the other; these tests write no more.
fn contents(memory: &Memory) -> Vec<u8> {
    const EACH: usize = 16 * 1024;
    let file = File::from(memory.file.try_clone().expect("a descriptor"));
    let mut bytes = vec![0; 2 * EACH];
    for (at, part) in bytes.chunks_mut(EACH).enumerate() {
        // The file ends where nothing was written yet.
        let _ = file.read_at(part, at as u64 * SLOT_BYTES).expect("readable");
    }
    bytes
}

fn holds(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn the_next_process_finds_what_was_written_last() {
    let memory = Memory::new().expect("a memory file");
    assert_eq!(opened(&memory), None);
    for text in ["first", "", "a third that is longer"] {
        let (mut sealed, _) = Sealed::open(copy(&memory)).expect("readable");
        sealed.write(secret(text.as_bytes())).expect("written");
        assert_eq!(opened(&memory).as_deref(), Some(text.as_bytes()));
    }
}

#[test]
fn nothing_of_it_is_in_the_file_and_without_the_key_it_does_not_open() {
    let memory = Memory::new().expect("a memory file");
    let (mut sealed, _) = Sealed::open(copy(&memory)).expect("readable");
    sealed.write(secret(b"planted-secret-value")).expect("written");
    assert!(!holds(&contents(&memory), b"planted-secret-value"));
    let other = Memory { file: memory.file.try_clone().expect("a descriptor"), ..Memory::new().expect("another key") };
    assert_eq!(opened(&other), None);
}

#[test]
fn what_was_written_over_is_not_kept_in_any_form() {
    let memory = Memory::new().expect("a memory file");
    let (mut sealed, _) = Sealed::open(copy(&memory)).expect("readable");
    sealed.write(secret(&[7; 10_000])).expect("written");
    let before = contents(&memory);
    let kept: Vec<&[u8]> = before.chunks(64).filter(|chunk| chunk.iter().any(|byte| *byte != 0)).collect();
    sealed.write(secret(b"short")).expect("written");
    let after = contents(&memory);
    assert!(kept.iter().all(|chunk| !holds(&after, chunk)));
}

/// Whatever part of a write is missing when its process dies, nobody reads it as one.
#[test]
fn a_write_that_broke_off_leaves_the_state_before_and_a_whole_one_is_the_state_after() {
    let memory = Memory::new().expect("a memory file");
    let (mut sealed, _) = Sealed::open(copy(&memory)).expect("readable");
    sealed.write(secret(b"before")).expect("written");
    let at = slot(2) * SLOT_BYTES;
    let whole = HEAD_BYTES + b"after!".len() + TAG_BYTES;
    for missing in 0..whole {
        // Killed before the old slot was emptied.
        sealed.write_slot(2, &mut b"after!".to_vec()).expect("written");
        let mut byte = [0];
        sealed.file.read_exact_at(&mut byte, at + missing as u64).expect("readable");
        if byte == [0] {
            continue;
        }
        sealed.file.write_all_at(&[0], at + missing as u64).expect("a byte that was not written yet");
        assert_eq!(opened(&memory).as_deref(), Some(&b"before"[..]), "without byte {missing}");
    }
    sealed.write_slot(2, &mut b"after!".to_vec()).expect("written");
    assert_eq!(opened(&memory).as_deref(), Some(&b"after!"[..]));
}

#[test]
fn more_than_is_kept_is_refused_and_changes_nothing() {
    let memory = Memory::new().expect("a memory file");
    let (mut sealed, _) = Sealed::open(copy(&memory)).expect("readable");
    sealed.write(secret(b"before")).expect("written");
    let refused = sealed.write(secret(&vec![1; MAX_BYTES + 1])).expect_err("too much");
    assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
    assert_eq!(opened(&memory).as_deref(), Some(&b"before"[..]));
}

#[test]
fn a_key_and_a_secret_do_not_show_themselves() {
    let memory = Memory::new().expect("a memory file");
    assert_eq!(format!("{:?} {:?}", memory.key, secret(b"abc")), "Key(..) Secret(3 bytes)");
}
