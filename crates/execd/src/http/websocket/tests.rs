use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::{Broken, MAX_MESSAGE_BYTES, Message, Reader, Writer, accept_key};

/// A frame as a client sends it.
fn masked(head: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![head];
    match payload.len() {
        length @ 0..=125 => frame.push(0x80 | length as u8),
        length => {
            frame.push(0x80 | 126);
            frame.extend((length as u16).to_be_bytes());
        }
    }
    let mask = [1, 2, 3, 4];
    frame.extend(mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

/// Bytes in memory never make a reader wait.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("memory does not wait"),
    }
}

fn read_all(mut bytes: &[u8]) -> (Vec<Message>, Broken) {
    let mut reader = Reader::new(&mut bytes);
    let mut messages = Vec::new();
    loop {
        match at_once(reader.next()) {
            Ok(message) => messages.push(message),
            Err(broken) => return (messages, broken),
        }
    }
}

#[test]
fn the_key_is_answered_as_in_the_standard() {
    assert_eq!(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}

#[test]
fn parts_make_a_message_and_control_frames_come_between_them() {
    let long = vec![b'x'; 300];
    let frames =
        [masked(0x01, b"ab"), masked(0x89, b"p"), masked(0x00, b"c"), masked(0x80, b""), masked(0x82, &long)].concat();
    let (messages, end) = read_all(&frames);
    assert_eq!(messages, [Message::Ping(b"p".into()), Message::Text(b"abc".into()), Message::Binary(long)]);
    assert!(matches!(end, Broken::Gone));
}

#[test]
fn what_breaks_the_protocol_is_named_by_its_close_code() {
    let mut unmasked = masked(0x82, b"a");
    unmasked[1] &= 0x7f;
    let mut huge = vec![0x82, 0xff];
    huge.extend((MAX_MESSAGE_BYTES as u64 + 1).to_be_bytes());
    huge.extend([0; 4]);
    for (bytes, code) in [
        (unmasked, 1002),
        (masked(0xc2, b"a"), 1002),
        (masked(0x80, b"a"), 1002),
        (masked(0x09, b"a"), 1002),
        (masked(0x89, &[0; 126]), 1002),
        (masked(0x83, b"a"), 1002),
        ([masked(0x01, b"a"), masked(0x81, b"b")].concat(), 1002),
        (huge, 1009),
    ] {
        let (messages, end) = read_all(&bytes);
        assert!(messages.is_empty() && matches!(end, Broken::Protocol(found) if found == code), "{bytes:?}: {end:?}");
    }
}

#[test]
fn what_is_written_has_the_right_head() {
    for (length, head) in
        [(0, vec![0x82, 0]), (126, vec![0x82, 126, 0, 126]), (65536, vec![0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0])]
    {
        let mut written = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(Writer::new(&mut written).binary(&[&vec![7; length]])).expect("memory");
        assert_eq!((&written[..head.len()], written.len()), (head.as_slice(), head.len() + length));
    }
}

#[test]
fn fuzz_websocket_frames() {
    let parts = [masked(0x01, b"ab"), masked(0x80, b"c")].concat();
    let examples: [&[u8]; 4] = [&masked(0x82, &[0; 130]), &parts, &masked(0x88, b"\x03\xe8bye"), &masked(0x89, b"p")];
    fuzz::run("websocket frames", &examples, |input| {
        let (messages, _) = read_all(input);
        let bytes = |message: &Message| match message {
            Message::Text(bytes) | Message::Binary(bytes) | Message::Ping(bytes) => bytes.len(),
            Message::Pong | Message::Close => 0,
        };
        assert!(messages.iter().map(bytes).sum::<usize>() <= input.len(), "bytes from nowhere");
    });
}
