use protocol::execd::stream::StreamEvent;

use super::{Cut, Lines, MAX_LINE_BYTES};

const SUFFIX: &[u8] = b"\",\"timestamp\":1}\n\n";

fn texts(pieces: &[&[u8]]) -> Vec<String> {
    let mut lines = Lines::stdout();
    let mut out = Vec::new();
    for piece in pieces {
        lines.feed(piece, SUFFIX, &mut out).expect("lines of any length");
    }
    lines.finish(SUFFIX, &mut out);
    let out = String::from_utf8(out).expect("events are text");
    let events = out.split("\n\n").filter(|event| !event.is_empty());
    events
        .map(|event| serde_json::from_str::<StreamEvent>(event).expect("an event is JSON").text.unwrap_or_default())
        .collect()
}

#[track_caller]
fn check(pieces: &[&[u8]], expected: &[&str]) {
    assert_eq!(texts(pieces), expected);
}

#[test]
fn terminators_are_kept() {
    check(&[b"a\nb\r\nc\rd"], &["a\n", "b\r\n", "c\r", "d"]);
    check(&[b"\n\n\r\r\n"], &["\n", "\n", "\r", "\r\n"]);
}

#[test]
fn ex_037_half_lines_wait_for_their_end() {
    check(&[b"a", b"b", b"c\nd"], &["abc\n", "d"]);
}

#[test]
fn a_crlf_across_pieces_counts_once() {
    check(&[b"a\r", b"\nb\r", b"c\r"], &["a\r\n", "b\r", "c\r"]);
    check(&[b"a\r", b"\r", b"\n"], &["a\r", "\r\n"]);
}

#[test]
fn text_is_escaped_and_bad_utf8_marked() {
    check(&[b"\"\\\t\x01\xC3\xA4\xFF\n"], &["\"\\\t\u{1}ä\u{FFFD}\n"]);
}

#[test]
fn a_long_line_comes_in_whole_characters() {
    let line = "€".repeat(100_000);
    let got = texts(&[line.as_bytes()]);
    assert!(got.len() > 1);
    assert!(got.iter().all(|text| text.len() <= MAX_LINE_BYTES && !text.contains('\u{FFFD}')));
    assert_eq!(got.concat(), line);
}

#[test]
fn a_long_line_does_not_tear_its_terminator_apart() {
    let mut line = vec![b'x'; MAX_LINE_BYTES - 1];
    line.extend_from_slice(b"\r\n");
    let got = texts(&[&line]);
    assert_eq!(got.concat().as_bytes(), line);
    assert!(got.iter().all(|text| !text.ends_with('\r')));
}

#[test]
fn random_cuts_restore_the_output() {
    let text = "ab\r\n\rcd\n\n€\r\nend".as_bytes();
    let whole = texts(&[text]);
    for first in 0..text.len() {
        for second in first..text.len() {
            assert_eq!(texts(&[&text[..first], &text[first..second], &text[second..]]), whole, "{first} {second}");
        }
    }
}
