use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue};

use crate::name::Name;

use super::*;

const LIMIT: u64 = 1 << 20;

fn asked(target: &str, body: &[u8]) -> Asked {
    Asked {
        method: "GET".into(),
        scheme: "https".into(),
        host: "api.example".into(),
        port: 443,
        target: target.into(),
        headers: Headers::default(),
        bytes: body.len() as u64,
        sha256: Digest::of(body),
    }
}

fn over(target: &str, broken: Option<&str>) -> Over {
    let mut headers = HeaderMap::new();
    headers.append("x-odd", HeaderValue::from_bytes(b"caf\xe9").expect("a value"));
    Over {
        at_ms: 7,
        request: asked(target, b""),
        status: 200,
        headers: Headers::of(&headers, |_| true),
        trailers: Headers::default(),
        broken: broken.map(str::to_owned),
    }
}

fn record(tape: &Arc<Tape>, target: &str, body: &[u8]) -> Result<(), Dropped> {
    let mut taking = tape.take()?;
    // In pieces that do not fit those of the file.
    body.chunks(1000).for_each(|part| taking.push(part));
    taking.finish(over(target, None))
}

fn tape(file: &File, limit: u64) -> Arc<Tape> {
    Arc::new(Tape::open(file.try_clone().expect("a duplicate"), limit).expect("a recording"))
}

fn file() -> File {
    tempfile::tempfile().expect("a file")
}

/// A file of these bytes.
fn file_of(bytes: &[u8]) -> File {
    let mut made = file();
    made.write_all(bytes).expect("written");
    made
}

fn bytes_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().expect("facts").len()).expect("short")];
    file.read_exact_at(&mut bytes, 0).expect("all of it");
    bytes
}

fn body_of(book: &Book, exchange: &Exchange) -> Vec<u8> {
    exchange.answer.pieces.iter().flat_map(|digest| book.piece(*digest).expect("a piece")).collect()
}

fn long() -> Vec<u8> {
    (0..PIECE_BYTES * 3 + 17).map(|at| u8::try_from(at * 7 % 251).expect("a byte")).collect()
}

#[test]
fn what_is_recorded_is_found_again() {
    let file = file();
    let tape = tape(&file, LIMIT);
    record(&tape, "/a", &long()).expect("recorded");
    record(&tape, "/empty", b"").expect("recorded");
    let book = Book::open(file).expect("a recording");
    let exchange = book.next(Key::of(&asked("/a", b""))).expect("readable").expect("there");
    assert_eq!((exchange.answer.bytes, exchange.answer.sha256), (long().len() as u64, Digest::of(&long())));
    assert_eq!(body_of(&book, &exchange), long());
    assert_eq!(exchange.answer.headers.to_map().expect("headers")["x-odd"].as_bytes(), b"caf\xe9");
    let empty = book.next(Key::of(&asked("/empty", b""))).expect("readable").expect("there");
    assert_eq!((empty.answer.bytes, empty.answer.pieces.len()), (0, 0));
    for other in [asked("/b", b""), asked("/a", b"x"), Asked { port: 8443, ..asked("/a", b"") }] {
        assert_eq!(book.next(Key::of(&other)).expect("readable"), None, "{other:?}");
    }
    let name = |text| Name::from_ascii(text).expect("a name");
    assert!(book.has_port(&name("api.example"), 443) && !book.has_port(&name("api.example"), 80));
    assert!(!book.has_host(&name("other.example")));
}

#[test]
fn equal_requests_are_answered_in_their_order_and_the_last_repeats() {
    let file = file();
    let tape = tape(&file, LIMIT);
    for body in ["one", "two"] {
        record(&tape, "/a", body.as_bytes()).expect("recorded");
    }
    let book = Book::open(file).expect("a recording");
    let next = || {
        let exchange = book.next(Key::of(&asked("/a", b""))).expect("readable").expect("there");
        String::from_utf8(body_of(&book, &exchange)).expect("text")
    };
    assert_eq!([next(), next(), next()], ["one", "two", "two"]);
}

#[test]
fn a_body_is_stored_once() {
    let file = file();
    let tape = tape(&file, LIMIT);
    record(&tape, "/a", &long()).expect("recorded");
    let before = file.metadata().expect("facts").len();
    record(&tape, "/b", &long()).expect("recorded");
    assert!(file.metadata().expect("facts").len() - before < 1024);
}

#[test]
fn what_broke_off_is_kept_and_never_served() {
    let file = file();
    let tape = tape(&file, LIMIT);
    let mut taking = tape.take().expect("recorded");
    taking.push(b"part");
    taking.finish(over("/a", Some("the host broke off"))).expect("written");
    let summary = survey(&file, Depth::Everything).expect("a recording");
    assert_eq!((summary.exchanges, summary.broken), (0, 1));
    let book = Book::open(file).expect("a recording");
    assert_eq!(book.next(Key::of(&asked("/a", b""))).expect("readable"), None);
}

#[test]
fn a_file_that_ends_anywhere_is_whole_up_to_there_and_goes_on() {
    let recorded = file();
    let first = tape(&recorded, LIMIT);
    record(&first, "/a", b"some body").expect("recorded");
    first.not_recorded("no HTTP", "ssh.example", 22);
    record(&first, "/b", b"another").expect("recorded");
    let all = bytes_of(&recorded);
    let mut seen = Vec::new();
    for end in 0..all.len() {
        let cut = file_of(&all[..end]);
        let summary = survey(&cut, Depth::Everything).unwrap_or_else(|error| panic!("{end}: {error}"));
        assert!(summary.bytes <= end as u64);
        assert_eq!(summary.is_torn, summary.bytes != end as u64, "{end}");
        let again = tape(&cut, LIMIT);
        record(&again, "/c", b"after").expect("recorded");
        let after = survey(&cut, Depth::Everything).unwrap_or_else(|error| panic!("{end}: {error}"));
        assert!(!after.is_torn);
        assert_eq!(after.exchanges, summary.exchanges + 1, "{end}");
        seen.push(summary.exchanges);
    }
    assert!(seen.is_sorted() && seen.last() == Some(&1));
}

#[test]
fn a_byte_that_changed_is_found() {
    let recorded = file();
    let tape = tape(&recorded, LIMIT);
    record(&tape, "/a", b"some body").expect("recorded");
    let all = bytes_of(&recorded);
    for at in 0..all.len() {
        let mut changed = all.clone();
        changed[at] ^= 1;
        let changed = file_of(&changed);
        let found = survey(&changed, Depth::Everything);
        // A length that grew looks like an end that is missing.
        assert!(found.as_ref().map_or(true, |summary| summary.is_torn), "{at}: {found:?}");
        if let Ok(book) = Book::open(changed)
            && let Ok(Some(exchange)) = book.next(Key::of(&asked("/a", b"")))
        {
            exchange.answer.pieces.iter().for_each(|digest| assert!(book.piece(*digest).is_err(), "{at}"));
        }
    }
}

#[test]
fn at_its_limit_it_is_full_and_says_so_for_ever() {
    let file = file();
    let first = tape(&file, 4000);
    record(&first, "/a", b"fits").expect("recorded");
    let filled = record(&first, "/b", &[b'x'; 8000]).expect_err("full");
    assert!(matches!(filled, Dropped::Filled { .. }), "{filled:?}");
    assert_eq!(record(&first, "/c", b"small"), Err(Dropped::Full), "what is recorded has no holes");
    first.not_recorded("why", "host.example", 1);
    let summary = survey(&file, Depth::Everything).expect("a recording");
    assert!(summary.full.is_some_and(|why| why.contains("4000 bytes")));
    assert_eq!((summary.exchanges, summary.not_recorded.len()), (1, 1));
    assert_eq!(record(&tape(&file, LIMIT), "/d", b"later"), Err(Dropped::Full));
}

#[test]
fn notes_are_bounded_and_say_that_there_were_more() {
    let file = file();
    let tape = tape(&file, LIMIT);
    for _ in 0..MAX_NOTES + 9 {
        tape.not_recorded("why", "host.example", 22);
    }
    let summary = survey(&file, Depth::Everything).expect("a recording");
    assert_eq!(summary.not_recorded.values().sum::<u64>(), MAX_NOTES as u64);
    assert!(summary.has_more);
}

#[test]
fn one_that_is_closed_writes_nothing() {
    let file = file();
    let tape = tape(&file, LIMIT);
    let mut taking = tape.take().expect("recorded");
    tape.close();
    let before = bytes_of(&file);
    taking.push(&long());
    assert_eq!(taking.finish(over("/a", None)), Err(Dropped::Closed));
    tape.not_recorded("why", "host.example", 1);
    assert_eq!(bytes_of(&file), before);
}

#[test]
fn other_files_are_refused() {
    for bytes in [&b"osb-recording 2\n"[..], b"hello", b"osb-recording 1\nnonsense", b"osb-recording 1\npiece x 1\n"] {
        assert!(survey(&file_of(bytes), Depth::Everything).is_err(), "{bytes:?}");
    }
    let empty = Digest::of(b"x");
    let lies = [
        frame::written(frame::Kind::Piece, empty, b"y"),
        frame::written(frame::Kind::Note, Digest::of(b"{}"), b"{}"),
        frame::written(frame::Kind::Piece, Digest::of(&[0; PIECE_BYTES + 1]), &[0; PIECE_BYTES + 1]),
    ];
    for record in lies {
        let lie = file_of(&[&HEADER[..], &record].concat());
        assert!(survey(&lie, Depth::Everything).is_err());
    }
}

#[test]
fn an_exchange_whose_parts_do_not_fit_is_refused() {
    let exchange = Exchange {
        at_ms: 1,
        request: asked("/a", b""),
        answer: Answered {
            status: 200,
            headers: Headers::default(),
            bytes: 4,
            sha256: Digest::of(b"body"),
            pieces: vec![Digest::of(b"body")],
            trailers: Headers::default(),
        },
        broken: None,
    };
    let written = |exchange: &Exchange, has_piece: bool| {
        let json = serde_json::to_vec(exchange).expect("JSON");
        let piece =
            if has_piece { frame::written(frame::Kind::Piece, Digest::of(b"body"), b"body") } else { Vec::new() };
        let record = frame::written(frame::Kind::Exchange, Digest::of(&json), &json);
        survey(&file_of(&[&HEADER[..], &piece, &record].concat()), Depth::Everything)
    };
    assert_eq!(written(&exchange, true).expect("good").exchanges, 1);
    assert!(written(&exchange, false).is_err(), "its piece is missing");
    let with = |change: &dyn Fn(&mut Exchange)| {
        let mut changed = exchange.clone();
        change(&mut changed);
        written(&changed, true)
    };
    assert!(with(&|exchange| exchange.answer.bytes = 5).is_err());
    assert!(with(&|exchange| exchange.answer.sha256 = Digest::of(b"other")).is_err());
    assert!(with(&|exchange| exchange.answer.status = 7).is_err());
    assert!(with(&|exchange| exchange.request.host = "10.0.0.1".into()).is_err());
    assert!(with(&|exchange| exchange.answer.headers = Headers(vec![("a b".into(), "c".into())])).is_err());
    assert!(with(&|exchange| exchange.answer.headers = Headers(vec![("a".into(), "\n".into())])).is_err());
}

#[test]
fn fuzz_recordings() {
    let recorded = file();
    let tape = tape(&recorded, LIMIT);
    record(&tape, "/a", b"some body").expect("recorded");
    tape.not_recorded("no HTTP", "ssh.example", 22);
    record(&tape, "/b", b"some body").expect("recorded");
    let example = bytes_of(&recorded);
    fuzz::run("recordings", &[&example, &HEADER[..]], |input| {
        let read = file_of(input);
        let summary = survey(&read, Depth::Everything);
        if let Ok(summary) = &summary {
            assert!(summary.bytes <= input.len() as u64);
            // What is whole is whole by itself.
            let whole = file_of(&input[..usize::try_from(summary.bytes).expect("short")]);
            let again = survey(&whole, Depth::Everything).expect("its whole part");
            assert_eq!((again.exchanges, again.bytes), (summary.exchanges, summary.bytes));
        }
        if let Ok(book) = Book::open(read) {
            let exchange = book.next(Key::of(&asked("/a", b"")));
            if let (Ok(Some(exchange)), Ok(_)) = (exchange, summary) {
                assert_eq!(body_of(&book, &exchange).len() as u64, exchange.answer.bytes);
            }
        }
    });
}
