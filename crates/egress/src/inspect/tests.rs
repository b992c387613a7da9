use proptest::prelude::*;

use super::*;

fn vector(width: usize, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("short").to_be_bytes();
    [&length[4 - width..], body].concat()
}

fn server_name(host: &[u8]) -> Vec<u8> {
    extension(0, &vector(2, &[&[0], &vector(2, host)[..]].concat()))
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector(2, body)].concat()
}

fn message(extensions: &[u8]) -> Vec<u8> {
    let body =
        [&[3, 3][..], &[7; 32], &vector(1, &[]), &vector(2, &[0x13, 0x01]), &vector(1, &[0]), &vector(2, extensions)]
            .concat();
    [&[1][..], &vector(3, &body)].concat()
}

fn record(part: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &vector(2, part)].concat()
}

fn hello(extensions: &[u8]) -> Vec<u8> {
    record(&message(extensions))
}

fn named(text: &str) -> Option<Name> {
    Some(Name::parse(text).expect("a name"))
}

#[test]
fn the_server_name_is_found_among_other_extensions() {
    let extensions = [extension(0x2a2a, &[]), server_name(b"API.example.com"), extension(16, &[0, 3, 2, b'h', b'2'])];
    assert_eq!(look(&hello(&extensions.concat())), Ok(Head::Tls(named("api.example.com"))));
    assert_eq!(look(&hello(&extension(16, &[0, 3, 2, b'h', b'2']))), Ok(Head::Tls(None)));
}

#[test]
fn every_prefix_of_a_hello_is_unfinished() {
    let whole = hello(&server_name(b"api.example.com"));
    for end in 1..whole.len() {
        assert_eq!(look(&whole[..end]), Ok(Head::Unfinished), "{end} of {}", whole.len());
    }
}

#[test]
fn a_record_before_the_hello_hides_nothing() {
    let hidden = hello(&server_name(b"evil.example"));
    for kind in [20, 21, 23, 24] {
        let record = [kind, 3, 1, 0, 2, 1, 100];
        assert_eq!(look(&[&record, &hidden[..]].concat()), Err(BadHead::Hello), "{kind}");
    }
}

#[test]
fn a_hello_in_many_records_is_one_hello() {
    let message = message(&server_name(b"api.example.com"));
    let split: Vec<u8> = message.chunks(3).flat_map(record).collect();
    assert_eq!(look(&split), Ok(Head::Tls(named("api.example.com"))));
}

#[test]
fn bytes_after_the_hello_do_not_matter() {
    let mut bytes = hello(&server_name(b"api.example.com"));
    bytes.extend_from_slice(b"early data");
    assert_eq!(look(&bytes), Ok(Head::Tls(named("api.example.com"))));
}

#[test]
fn two_server_names_are_refused() {
    let twice = [server_name(b"a.example"), server_name(b"b.example")].concat();
    assert_eq!(look(&hello(&twice)), Err(BadHead::Ambiguous));
    let entry = [&[0][..], &vector(2, b"a.example")].concat();
    let list = extension(0, &vector(2, &[entry.clone(), entry].concat()));
    assert_eq!(look(&hello(&list)), Err(BadHead::Ambiguous));
}

#[test]
fn a_server_name_that_is_no_name_is_refused() {
    for host in [&b"a.example\0.evil.test"[..], b"10.0.0.1", b"", b"a b", b"\xff\xfe", "bücher.example".as_bytes()] {
        assert!(matches!(look(&hello(&server_name(host))), Err(BadHead::Name(_))), "{host:?}");
    }
}

#[test]
fn lengths_that_contradict_each_other_are_refused() {
    let mut inner = message(&server_name(b"api.example.com"));
    // The length of the extension stands before that of its list, the entry's kind and length, and the host.
    let at = inner.len() - (15 + 2 + 1 + 2 + 2);
    inner[at] = 0xff;
    assert_eq!(look(&record(&inner)), Err(BadHead::Hello));
    assert_eq!(look(&[22, 3, 1, 0, 0]), Err(BadHead::Hello));
    assert_eq!(look(&[22, 3, 1, 0, 4, 2, 0, 0, 0]), Err(BadHead::Hello));
}

#[test]
fn a_hello_that_never_ends_is_too_long() {
    assert_eq!(look(&record(&[1, 0xff, 0xff, 0xff])), Err(BadHead::TooLong));
    let padded = message(&extension(21, &[0; HEAD_BYTES]));
    let first: Vec<u8> = padded.chunks(8192).flat_map(record).take(HEAD_BYTES).collect();
    assert_eq!(look(&first), Err(BadHead::TooLong));
}

#[test]
fn the_host_of_a_request_for_a_path_is_found() {
    let request = b"GET /x HTTP/1.1\r\nAccept: */*\r\nhOsT: API.example.com:8080\r\n\r\n";
    assert_eq!(look(request), Ok(Head::Http(named("api.example.com"))));
    assert_eq!(look(b"GET / HTTP/1.0\r\n\r\n"), Ok(Head::Http(None)));
    let line = "GET /x HTTP/1.1\r\n".len();
    for end in 1..request.len() {
        let expected = if end < line { Head::Unsure } else { Head::Unfinished };
        assert_eq!(look(&request[..end]), Ok(expected), "{end}");
    }
    assert_eq!(look(&[b"\r\n\n", &request[..]].concat()), Ok(Head::Http(named("api.example.com"))));
}

#[test]
fn two_hosts_are_refused() {
    assert_eq!(look(b"GET / HTTP/1.1\r\nHost: a.example\r\nHost : b.example\r\n\r\n"), Err(BadHead::Ambiguous));
}

#[test]
fn a_request_to_a_proxy_is_the_proxys_business() {
    assert_eq!(look(b"CONNECT b.example:443 HTTP/1.1\r\nHost: b.example\r\n\r\n"), Ok(Head::Opaque));
    assert_eq!(look(b"GET http://b.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n"), Ok(Head::Opaque));
}

#[test]
fn other_protocols_are_opaque_at_once() {
    for bytes in [
        &b"SSH-2.0-OpenSSH_9.2\r\n"[..],
        b"EHLO me\r\n",
        b"\0\0\0\x08\x04\xd2\x16\x2f",
        b"\x16\x02",
        b"PRI * HTTP/2.0\r\n",
        b"get / HTTP/1.1",
        b"GET /key\r\n",
    ] {
        assert_eq!(look(bytes), Ok(Head::Opaque), "{bytes:?}");
    }
}

#[test]
fn a_head_that_never_ends_is_too_long() {
    let endless = [&b"GET / HTTP/1.1\r\nX: "[..], &[b'a'; HEAD_BYTES]].concat();
    assert_eq!(look(&endless[..HEAD_BYTES]), Err(BadHead::TooLong));
}

#[test]
fn fuzz_first_bytes() {
    let tls = hello(&[extension(10, &[0, 2, 0, 29]), server_name(b"api.example.com")].concat());
    let http = b"GET /x HTTP/1.1\r\nAccept: */*\r\nHost: api.example.com:8080\r\n\r\n";
    fuzz::run("first bytes", &[&tls, http, b"SSH-2.0-x\r\n", b"\x15\x03\x01\x00\x02\x01\x64"], |input| {
        let seen = look(input);
        if let Ok(Head::Tls(Some(name)) | Head::Http(Some(name))) = &seen {
            assert_eq!(Name::from_ascii(name.as_str()).as_ref(), Ok(name), "a name is canonical");
        }
        // What is known does not change when more comes.
        if !matches!(seen, Ok(Head::Unfinished | Head::Unsure)) {
            assert_eq!(look(&[input, b"more\r\n"].concat()), seen);
        }
    });
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = look(&bytes);
        let _ = look(&[&[22, 3, 1], &bytes[..]].concat());
    }

    #[test]
    fn a_flipped_byte_never_panics(at in 0usize..100, to: u8) {
        let mut bytes = hello(&[extension(10, &[0, 2, 0, 29]), server_name(b"api.example.com")].concat());
        let length = bytes.len();
        bytes[at % length] = to;
        let _ = look(&bytes);
    }
}
