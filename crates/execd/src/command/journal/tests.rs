//! Journals against a model: a list of bytes, each with its stream.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::execd::output::{Overflow, StreamName};
use tokio::runtime::{Builder, LocalOptions};
use tokio::time::timeout;

use super::{Fetched, Journal, Limits, RETURN_WITHIN, Reader};
use fuzz::Random;

/// Small enough to wrap many times.
const SMALL: Limits =
    Limits { disk_bytes: 1000, tmpfs_bytes: 1000, memory_bytes: 1000, least_bytes: 10, index_entries: 16 };
/// A step that a healthy journal takes at once.
const SOON: Duration = Duration::from_secs(10);

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).expect("a runtime");
    runtime.block_on(test)
}

fn journal(overflow: Overflow) -> Rc<Journal> {
    Journal::new(SMALL, overflow, Rc::new(|| false))
}

async fn append(journal: &Journal, stream: StreamName, data: &[u8]) {
    let length = data.len();
    timeout(SOON, journal.append(stream, &Arc::new(data.to_vec()), length)).await.expect("there is room");
}

/// Everything that can be read now, byte by byte, and the ranges that are lost.
async fn read(reader: &mut Reader, max: usize) -> (Vec<(u8, StreamName)>, Vec<(u64, u64)>) {
    let (mut bytes, mut lost) = (Vec::new(), Vec::new());
    loop {
        match reader.fetch(max).await.expect("a disk that works") {
            Fetched::Nothing => return (bytes, lost),
            Fetched::Lost { from, to } => lost.push((from, to)),
            Fetched::Bytes => {
                let piece = reader.piece();
                assert!(!piece.bytes.is_empty(), "bytes were promised at {}", piece.offset);
                bytes.extend(piece.bytes.iter().map(|byte| (*byte, piece.stream)));
                let length = piece.bytes.len();
                reader.consume(length);
                reader.delivered();
            }
        }
    }
}

const BOTH: [StreamName; 2] = [StreamName::Stdout, StreamName::Stderr];

#[test]
fn what_was_written_is_read_from_any_offset() {
    run(async {
        let journal = journal(Overflow::Wait);
        append(&journal, StreamName::Stdout, b"one ").await;
        append(&journal, StreamName::Stderr, b"two ").await;
        append(&journal, StreamName::Stderr, b"three ").await;
        append(&journal, StreamName::Stdout, b"four").await;
        let all = b"one two three four";
        for offset in 0..=all.len() {
            let (bytes, lost) = read(&mut journal.reader(offset as u64), 7).await;
            assert_eq!(bytes.iter().map(|byte| byte.0).collect::<Vec<_>>(), &all[offset..]);
            let stderr = bytes.iter().filter(|byte| byte.1 == StreamName::Stderr).count();
            assert_eq!(stderr, all[offset..].len().min(14) - all[offset..].len().min(4), "at {offset}");
            assert!(lost.is_empty());
        }
    });
}

#[test]
fn histories_are_as_a_list_of_bytes_says() {
    for seed in 1..=60 {
        run(history(seed));
    }
}

/// Random appends and random readers, which leave and come again where they were.
async fn history(seed: u64) {
    let mut random = Random::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let overflow = if seed.is_multiple_of(2) { Overflow::Wait } else { Overflow::DropOldest };
    let journal = journal(overflow);
    let mut model: Vec<(u8, StreamName)> = Vec::new();
    let mut reader = journal.reader(0);
    let mut alternating = random.below(2) == 0;
    for _ in 0..60 {
        if random.below(10) == 0 {
            alternating = !alternating;
        }
        let length = random.below(if alternating { 12 } else { 1500 }) + 1;
        let stream = *random.pick(&BOTH);
        let data: Arc<Vec<u8>> = Arc::new((0..length).map(|_| random.below(256) as u8).collect());
        model.extend(data.iter().map(|byte| (*byte, stream)));
        let mut appended = Box::pin(timeout(SOON, journal.append(stream, &data, data.len())));
        // In `wait` it goes on as the reader does: the bytes or the index may be full.
        loop {
            tokio::select! {
                biased;
                done = &mut appended => break done.expect("room after reading"),
                () = waiting(&journal) => assert_eq!(overflow, Overflow::Wait),
            }
            let end = journal.extent().next as usize;
            check(&mut reader, &model[..end], overflow, &mut random).await;
        }
        match random.below(4) {
            0 => check(&mut reader, &model, overflow, &mut random).await,
            1 => reader = journal.reader(reader.offset()),
            _ => {}
        }
        let extent = journal.extent();
        assert_eq!(extent.next, model.len() as u64, "seed {seed}");
        assert!(extent.next - extent.oldest <= 1000, "seed {seed}: {extent:?}");
    }
    check(&mut reader, &model, overflow, &mut random).await;
    assert_eq!(reader.offset(), model.len() as u64);
}

async fn waiting(journal: &Journal) {
    while !journal.extent().waiting {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn check(reader: &mut Reader, model: &[(u8, StreamName)], overflow: Overflow, random: &mut Random) {
    let from = reader.offset();
    let (bytes, lost) = read(reader, random.below(300) + 1).await;
    let skipped: u64 = lost.iter().map(|range| range.1 - range.0).sum();
    assert!(overflow == Overflow::DropOldest || skipped == 0, "lost in wait: {lost:?}");
    let from = (from + skipped) as usize;
    assert!(bytes == model[from..], "other bytes than were written from {from} on");
}

#[test]
fn a_full_journal_waits_until_somebody_reads() {
    run(async {
        let journal = journal(Overflow::Wait);
        append(&journal, StreamName::Stdout, &[1; 750]).await;
        let more = Arc::new(vec![2; 250]);
        let mut waits = Box::pin(journal.append(StreamName::Stdout, &more, 250));
        assert!(timeout(Duration::from_millis(50), &mut waits).await.is_err(), "nothing was read yet");
        let extent = journal.extent();
        assert_eq!((extent.waiting, extent.first_wait), (true, Some(750)));
        // What a process left behind finds the room that was held back for it.
        journal.ending();
        timeout(SOON, waits).await.expect("the reserve");
        let more = Arc::new(vec![3; 10]);
        let mut waits = Box::pin(journal.append(StreamName::Stdout, &more, 10));
        assert!(timeout(Duration::from_millis(50), &mut waits).await.is_err(), "nothing was read yet");
        let mut reader = journal.reader(0);
        let (bytes, lost) = read(&mut reader, 100).await;
        assert_eq!((bytes.len(), lost.len()), (1000, 0));
        timeout(SOON, waits).await.expect("half of it is free now");
        assert!(!journal.extent().waiting);
        // The other half stays, for a reader whose last bytes were lost on their way.
        drop(reader);
        let (bytes, lost) = read(&mut journal.reader(500), 100).await;
        assert_eq!((bytes.len(), lost.len()), (510, 0));
    });
}

#[test]
fn asking_from_an_offset_frees_what_lies_before_it() {
    run(async {
        let journal = journal(Overflow::Wait);
        journal.ending();
        append(&journal, StreamName::Stdout, &[1; 1000]).await;
        journal.release(990);
        append(&journal, StreamName::Stdout, &[2; 10]).await;
        assert_eq!(journal.extent().oldest, 10);
        let (_, lost) = read(&mut journal.reader(0), 100).await;
        assert_eq!(lost, [(0, 10)]);
    });
}

#[test]
fn an_attached_reader_is_never_overtaken() {
    run(async {
        let journal = journal(Overflow::Wait);
        journal.ending();
        append(&journal, StreamName::Stdout, &[1; 1000]).await;
        let mut slow = journal.reader(0);
        read(&mut journal.reader(0), 100).await;
        journal.release(1000);
        let more = Arc::new(vec![2; 10]);
        let mut waits = Box::pin(journal.append(StreamName::Stdout, &more, 10));
        assert!(timeout(Duration::from_millis(50), &mut waits).await.is_err(), "the slow reader stands at 0");
        assert_eq!(slow.fetch(10).await.expect("bytes"), Fetched::Bytes);
        slow.consume(10);
        slow.delivered();
        drop(slow);
        timeout(SOON, waits).await.expect("nobody needs the oldest bytes any more");
    });
}

#[test]
fn what_every_reader_got_may_be_forgotten_at_once() {
    run(async {
        let journal = journal(Overflow::Wait);
        append(&journal, StreamName::Stdout, b"abc").await;
        journal.close();
        let mut reader = journal.reader(0);
        read(&mut reader, 100).await;
        drop(reader);
        assert!(journal.forget("expired", Instant::now()));
    });
}

#[test]
fn a_forgotten_journal_says_what_is_lost_and_why() {
    run(async {
        let journal = journal(Overflow::Wait);
        append(&journal, StreamName::Stdout, b"abc").await;
        let reader = journal.reader(0);
        let much_later = Instant::now() + 2 * RETURN_WITHIN;
        assert!(!journal.forget("expired", much_later), "somebody reads it");
        drop(reader);
        assert!(!journal.forget("expired", Instant::now()), "the reader has not got it all and may come back");
        assert!(journal.forget("expired", much_later));
        assert_eq!(journal.kept_bytes(), 0);
        let (bytes, lost) = read(&mut journal.reader(0), 10).await;
        assert_eq!((bytes.len(), lost), (0, vec![(0, 3)]));
        assert_eq!(journal.extent().gone.as_deref(), Some("expired"));
    });
}
