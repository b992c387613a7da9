//! The client's side of a WebSocket: whole messages of text, pings answered.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

/// Bytes of a message; a server that says more at once is cut off.
pub const MAX_MESSAGE_BYTES: usize = 24 * 1024 * 1024;
/// Bytes of a ping, a pong or a close, by the protocol.
const MAX_CONTROL_BYTES: usize = 125;

const FINAL: u8 = 0x80;
const MASKED: u8 = 0x80;
/// Kinds of frames.
pub const TEXT: u8 = 1;
/// The answer to a ping.
pub const PONG: u8 = 10;
const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;

/// A frame of ours. The mask is for proxies, of which there is none here; it still must not be absent.
pub fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mask: [u8; 4] = (crate::id::tag() as u32).to_be_bytes();
    let mut out = vec![FINAL | kind];
    match payload.len() {
        length @ 0..=125 => out.push(MASKED | length as u8),
        length @ 126..=0xffff => {
            out.push(MASKED | 126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(MASKED | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&mask);
    out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    out
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

async fn read_frame<S: AsyncRead + Unpin>(stream: &mut S, room: usize) -> io::Result<(u8, Vec<u8>)> {
    let head = stream.read_u8().await?;
    let second = stream.read_u8().await?;
    if second & MASKED != 0 || head & 0x70 != 0 {
        return Err(malformed("the server masks its frames or uses what was not agreed"));
    }
    let length = match second {
        126 => u64::from(stream.read_u16().await?),
        127 => stream.read_u64().await?,
        short => u64::from(short),
    };
    let room = if head & 0x0f >= CLOSE { MAX_CONTROL_BYTES } else { room };
    if length > room as u64 {
        return Err(malformed("a message is too long"));
    }
    let mut payload = Vec::new(); // grows with what comes, not with what was said
    if stream.take(length).read_to_end(&mut payload).await? as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((head, payload))
}

/// Reads the next whole message; pings are answered through `outgoing`.
///
/// # Errors
/// The connection ended or broke, or a bound was passed.
pub async fn read<S: AsyncRead + Unpin>(stream: &mut S, outgoing: &mpsc::Sender<Vec<u8>>) -> io::Result<Vec<u8>> {
    let mut message = Vec::new();
    let mut has_begun = false;
    loop {
        let (head, payload) = read_frame(stream, MAX_MESSAGE_BYTES - message.len()).await?;
        match head & 0x0f {
            TEXT | BINARY if !has_begun => has_begun = true,
            CONTINUATION if has_begun => {}
            PING => {
                let _ = outgoing.try_send(frame(PONG, &payload)); // a full queue shows that we live
                continue;
            }
            PONG => continue,
            CLOSE => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => return Err(malformed("a frame that does not belong there")),
        }
        message.extend_from_slice(&payload);
        if head & FINAL != 0 {
            return Ok(message);
        }
    }
}

/// Writes frames until nobody sends any more.
pub async fn write<S: AsyncWrite + Unpin>(mut stream: S, mut frames: mpsc::Receiver<Vec<u8>>) {
    while let Some(frame) = frames.recv().await {
        if stream.write_all(&frame).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::{PONG, TEXT, frame, read};

    fn messages(mut bytes: &[u8]) -> (Vec<Vec<u8>>, usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let (sender, mut pongs) = mpsc::channel(1000);
            let mut found = Vec::new();
            while let Ok(message) = read(&mut bytes, &sender).await {
                found.push(message);
            }
            (found, std::iter::from_fn(|| pongs.try_recv().ok()).count())
        })
    }

    #[test]
    fn pieces_are_put_together_and_pings_answered() {
        let bytes = b"\x01\x02ab\x89\x01p\x80\x01c\x81\x01d\x8a\x00\x82\x00\x88\x00\x81\x01z";
        assert_eq!(messages(bytes), (vec![b"abc".to_vec(), b"d".to_vec(), Vec::new()], 1));
    }

    #[test]
    fn what_is_sent_is_masked_and_of_the_right_length() {
        for length in [0, 125, 126, 65_535, 65_536] {
            let sent = frame(TEXT, &vec![b'x'; length]);
            let head = match length {
                0..=125 => 2,
                126..=65_535 => 4,
                _ => 10,
            };
            assert_eq!((sent[0], sent[1] & 0x80, sent.len()), (0x81, 0x80, head + 4 + length));
            let mask = &sent[head..head + 4];
            assert!(sent[head + 4..].iter().zip(mask.iter().cycle()).all(|(byte, mask)| byte ^ mask == b'x'));
        }
        assert_eq!(frame(PONG, b"")[0], 0x8a);
    }

    #[test]
    fn fuzz_sockets() {
        let examples: [&[u8]; 4] =
            [b"\x81\x02{}", b"\x01\x01a\x80\x01b", b"\x89\x01p\x88\x00", b"\x82\x7e\x00\x80aaaaaaaaaaaaaaaaaaaaaa"];
        fuzz::run("web sockets", &examples, |input| {
            let (found, _) = messages(input);
            assert!(found.iter().map(Vec::len).sum::<usize>() <= input.len());
        });
    }
}
