use super::{Cursor, MAX_STRETCHES, Piece, REPLAY_BYTES, Ring, Stream};

fn live(stream: Stream, bytes: &[u8]) -> Option<Piece> {
    Some(Piece::Live { stream, bytes: bytes.into() })
}

fn replay(offset: u64, bytes: &[u8]) -> Option<Piece> {
    Some(Piece::Replay { offset, bytes: bytes.into() })
}

fn next(cursor: &mut Cursor, ring: &Ring) -> Option<Piece> {
    cursor.next(ring, u64::MAX)
}

#[test]
fn os_066_a_replay_tells_the_true_offset_when_old_bytes_are_gone() {
    let mut ring = Ring::new(8);
    ring.push(Stream::Out, b"0123456789ab");
    assert_eq!((ring.start(), ring.end()), (4, 12));
    for (since, expected) in [(0, replay(4, b"456789ab")), (4, replay(4, b"456789ab")), (11, replay(11, b"b"))] {
        assert_eq!(next(&mut Cursor::new(&ring, since), &ring), expected, "since {since}");
    }
    for since in [12, 13, u64::MAX] {
        let mut cursor = Cursor::new(&ring, since);
        assert_eq!((next(&mut cursor, &ring), cursor.at()), (None, 12), "since {since}");
    }
}

#[test]
fn live_output_is_of_one_stream_and_a_reader_left_behind_is_told_where_it_is() {
    let mut ring = Ring::new(8);
    let mut cursor = Cursor::new(&ring, 0);
    cursor.follow();
    ring.push(Stream::Out, b"ab");
    ring.push(Stream::Err, b"c");
    assert_eq!(next(&mut cursor, &ring), live(Stream::Out, b"ab"));
    assert_eq!(next(&mut cursor, &ring), live(Stream::Err, b"c"));
    assert_eq!(next(&mut cursor, &ring), None);
    ring.push(Stream::Out, b"0123456789");
    assert_eq!(next(&mut cursor, &ring), replay(5, b"23456789"));
    ring.push(Stream::Out, b"x");
    assert_eq!(next(&mut cursor, &ring), live(Stream::Out, b"x"));
}

#[test]
fn nothing_comes_after_the_end_that_was_asked_for() {
    let mut ring = Ring::new(8);
    ring.push(Stream::Out, b"abcd");
    let mut cursor = Cursor::new(&ring, 0);
    assert_eq!(cursor.next(&ring, 2), replay(0, b"ab"));
    assert_eq!(cursor.next(&ring, 2), None);
    ring.push(Stream::Out, b"0123456789");
    assert_eq!(cursor.next(&ring, 4), None, "what was before that end is gone");
}

#[test]
fn a_replay_with_its_head_is_no_larger_than_common_clients_take() {
    let mut ring = Ring::default();
    ring.push(Stream::Out, &vec![b'x'; 3_000_000]);
    let mut cursor = Cursor::new(&ring, 0);
    let Some(Piece::Replay { offset, bytes }) = next(&mut cursor, &ring) else { panic!("a replay") };
    assert_eq!((offset, bytes.len()), (3_000_000 - 1_048_576, REPLAY_BYTES));
    assert_eq!(next(&mut cursor, &ring), live(Stream::Out, &[b'x'; 9]));
}

#[test]
fn streams_that_take_turns_hold_no_more_memory_than_their_bound() {
    let mut ring = Ring::default();
    for turn in 0..100_000 {
        ring.push(if turn % 2 == 0 { Stream::Out } else { Stream::Err }, b"x");
    }
    assert_eq!((ring.end(), ring.end() - ring.start()), (100_000, MAX_STRETCHES as u64));
}
