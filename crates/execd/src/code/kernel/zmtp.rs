//! The part of ZMTP 3.0 that a client of kernels needs: one connection, no encryption, DEALER or SUB.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes of a frame; a kernel that says more at once is cut off.
pub const MAX_FRAME_BYTES: u64 = 24 * 1024 * 1024;
/// Bytes of a whole message.
const MAX_MESSAGE_BYTES: u64 = 2 * MAX_FRAME_BYTES;
/// Frames of a message; one of Jupyter has seven and its buffers.
const MAX_FRAMES: usize = 64;
/// Bytes of the handshake's greeting.
const GREETING_BYTES: usize = 64;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What we are to the kernel's socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// To its shell and control.
    Dealer,
    /// To what it publishes.
    Sub,
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the kernel's socket does not speak ZMTP 3: {what}"))
}

/// Greets, and subscribes to everything where that is what the socket is for.
///
/// # Errors
/// The connection broke, or the other side speaks something else.
pub async fn greet<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, kind: Kind, identity: &str) -> io::Result<()> {
    let mut greeting = [0u8; GREETING_BYTES];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await?;
    let mut theirs = [0u8; GREETING_BYTES];
    stream.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[9] != 0x7f || theirs[10] < 3 {
        return Err(malformed("its greeting is of an older version"));
    }
    if &theirs[12..17] != b"NULL\0" {
        return Err(malformed("it asks for another mechanism than NULL"));
    }
    let mut ready = b"\x05READY".to_vec();
    let mut property = |name: &str, value: &str| {
        ready.push(name.len() as u8); // names of ours are short
        ready.extend_from_slice(name.as_bytes());
        ready.extend_from_slice(&(value.len() as u32).to_be_bytes());
        ready.extend_from_slice(value.as_bytes());
    };
    match kind {
        Kind::Dealer => {
            property("Socket-Type", "DEALER");
            property("Identity", identity);
        }
        Kind::Sub => property("Socket-Type", "SUB"),
    }
    stream.write_all(&frame(COMMAND, &ready)).await?;
    let (flags, body) = read_frame(stream).await?;
    if flags & COMMAND == 0 || !body.starts_with(b"\x05READY") {
        return Err(malformed("it is not ready"));
    }
    if kind == Kind::Sub {
        stream.write_all(&frame(0, b"\x01")).await?;
    }
    Ok(())
}

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 9);
    match u8::try_from(body.len()) {
        Ok(length) => out.extend([flags, length]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
    out
}

/// A message as bytes.
pub fn encode(parts: &[Vec<u8>]) -> Vec<u8> {
    let last = parts.len().saturating_sub(1);
    parts.iter().enumerate().flat_map(|(at, part)| frame(if at == last { 0 } else { MORE }, part)).collect()
}

async fn read_frame<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<(u8, Vec<u8>)> {
    let flags = stream.read_u8().await?;
    let length = if flags & LONG == 0 { u64::from(stream.read_u8().await?) } else { stream.read_u64().await? };
    if length > MAX_FRAME_BYTES {
        return Err(malformed(&format!("a frame of {length} bytes is longer than {MAX_FRAME_BYTES}")));
    }
    let mut body = Vec::new(); // grows with what comes, not with what was said
    if stream.take(length).read_to_end(&mut body).await? as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((flags, body))
}

/// Reads a whole message.
///
/// # Errors
/// The connection ended or broke, or a bound was passed.
pub async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    let mut bytes = 0;
    loop {
        let (flags, body) = read_frame(stream).await?;
        if flags & COMMAND != 0 {
            continue; // heartbeats and the like concern newer versions
        }
        bytes += body.len() as u64;
        parts.push(body);
        if bytes > MAX_MESSAGE_BYTES || parts.len() > MAX_FRAMES {
            return Err(malformed("a message is too long"));
        }
        if flags & MORE == 0 {
            return Ok(parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{encode, read};

    fn messages(mut bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut messages = Vec::new();
            while let Ok(message) = read(&mut bytes).await {
                messages.push(message);
            }
            messages
        })
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let parts = vec![b"a".to_vec(), Vec::new(), vec![b'x'; 300], b"end".to_vec()];
        let bytes = [encode(&parts), encode(&[b"b".to_vec()])].concat();
        assert_eq!(messages(&bytes), [parts, vec![b"b".to_vec()]]);
    }

    #[test]
    fn a_frame_that_is_said_to_be_huge_is_refused() {
        assert!(messages(&[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).is_empty());
    }

    #[test]
    fn fuzz_frames() {
        let long = encode(&[b"<IDS|MSG>".to_vec(), vec![b'y'; 280], b"{}".to_vec()]);
        let examples: [&[u8]; 3] = [b"\x01\x01a\x00\x00", b"\x04\x06\x05READY\x00\x00", &long];
        fuzz::run_briefly("zmtp frames", &examples, |input| {
            let found = messages(input);
            let bytes: usize = found.iter().flatten().map(Vec::len).sum();
            assert!(bytes <= input.len() && messages(&encode_all(&found)) == found);
        });
    }

    fn encode_all(messages: &[Vec<Vec<u8>>]) -> Vec<u8> {
        messages.iter().flat_map(|parts| encode(parts)).collect()
    }
}
