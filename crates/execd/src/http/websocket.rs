//! The server's side of a WebSocket: the handshake, and messages over an upgraded connection.
//!
//! Reading and writing are independent, so that a client who does not read can still be heard. Both hold little
//! memory: a reader one message of at most [`MAX_MESSAGE_BYTES`], a writer the frame that it sends (a replay: 1 MiB)
//! and at most [`KEPT_BYTES`] between frames. A client that breaks the protocol is told by the close code that [`Broken`] names.

use std::io;
use std::time::Duration;

use base64::Engine;
use http::header::{self, HeaderValue};
use http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use protocol::execd::code;
use protocol::execd::pty::{CLOSE_PROTOCOL, CLOSE_TOO_BIG};
use sha1::{Digest, Sha1};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::{Answer, Body};
use crate::error::{ApiError, Result};

/// Bytes of one message from a client.
pub const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// A client that takes no byte for so long is given up.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that are read at once.
const READ_BYTES: usize = 8 * 1024;
/// Bytes of a control frame, by the protocol.
const MAX_CONTROL_BYTES: usize = 125;
/// What the protocol appends to a key before hashing it.
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Bytes of a key when decoded.
const KEY_BYTES: usize = 16;

/// Bytes of the largest head of a frame.
const MAX_HEAD_BYTES: usize = 10;
/// Bytes of memory that a writer keeps between frames.
const KEPT_BYTES: usize = 4096;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// What came from the client.
#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    /// Text; whether it is UTF-8 is the reader's business.
    Text(Vec<u8>),
    /// Bytes.
    Binary(Vec<u8>),
    /// A ping, to be answered with the same bytes.
    Ping(Vec<u8>),
    /// An answer to our ping.
    Pong,
    /// The client ends the connection.
    Close,
}

/// Why nothing more can be read.
#[derive(Debug)]
pub enum Broken {
    /// The connection is gone.
    Gone,
    /// The client broke the protocol; the close code.
    Protocol(u16),
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// Checks the handshake and prepares the answer that accepts it, and the connection that follows it.
///
/// # Errors
/// 400 naming the header that is missing or wrong, 426 for a request that is no WebSocket's.
pub fn accept(request: Request<Incoming>) -> Result<(Answer, OnUpgrade)> {
    let headers = request.headers();
    if !has_token(headers, &header::UPGRADE, "websocket") || !has_token(headers, &header::CONNECTION, "upgrade") {
        let message = "this path is a WebSocket: send the headers Connection: Upgrade and Upgrade: websocket";
        return Err(ApiError::new(StatusCode::UPGRADE_REQUIRED, code::INVALID_REQUEST_BODY, message));
    }
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(ApiError::body("Sec-WebSocket-Version: must be 13"));
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes).unwrap_or_default();
    let decoded = base64::engine::general_purpose::STANDARD.decode(key);
    if !decoded.is_ok_and(|decoded| decoded.len() == KEY_BYTES) {
        return Err(ApiError::body("Sec-WebSocket-Key: must be 16 bytes in base64"));
    }
    let accepted = HeaderValue::try_from(accept_key(key)).expect("base64 makes a header value");
    let mut answer = Response::new(Body::Whole(None));
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    answer.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    answer.headers_mut().insert(header::SEC_WEBSOCKET_ACCEPT, accepted);
    Ok((answer, hyper::upgrade::on(request)))
}

fn accept_key(key: &[u8]) -> String {
    let hash = Sha1::new().chain_update(key).chain_update(KEY_SUFFIX).finalize();
    base64::engine::general_purpose::STANDARD.encode(hash)
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(token))
}

/// Messages from a client.
pub struct Reader<R> {
    stream: BufReader<R>,
    /// Opcode and bytes of a message whose last part has not come.
    partial: Option<(u8, Vec<u8>)>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads from an upgraded connection.
    pub fn new(stream: R) -> Self {
        Self { stream: BufReader::with_capacity(READ_BYTES, stream), partial: None }
    }

    /// The next message. Not to be called again after an error, nor when a call was dropped.
    ///
    /// # Errors
    /// When the connection has ended or the client broke the protocol.
    pub async fn next(&mut self) -> std::result::Result<Message, Broken> {
        loop {
            let (head, payload) = self.frame().await?;
            let (is_last, opcode) = (head & 0x80 != 0, head & 0x0f);
            match opcode {
                CLOSE => return Ok(Message::Close),
                PING => return Ok(Message::Ping(payload)),
                PONG => return Ok(Message::Pong),
                _ => {}
            }
            let (opcode, bytes) = match (opcode, self.partial.take()) {
                (CONTINUATION, Some((opcode, mut bytes))) => {
                    bytes.extend_from_slice(&payload);
                    (opcode, bytes)
                }
                (TEXT | BINARY, None) => (opcode, payload),
                _ => return Err(Broken::Protocol(CLOSE_PROTOCOL)),
            };
            if !is_last {
                self.partial = Some((opcode, bytes));
            } else if opcode == TEXT {
                return Ok(Message::Text(bytes));
            } else {
                return Ok(Message::Binary(bytes));
            }
        }
    }

    /// One frame: its first byte and its bytes without the mask.
    async fn frame(&mut self) -> std::result::Result<(u8, Vec<u8>), Broken> {
        let mut head = [0; 2];
        self.stream.read_exact(&mut head).await?;
        let [first, second] = head;
        let is_control = first & 0x08 != 0;
        let is_masked = second & 0x80 != 0;
        if first & 0x70 != 0 || !is_masked {
            return Err(Broken::Protocol(CLOSE_PROTOCOL));
        }
        let length = match second & 0x7f {
            126 => u64::from(self.stream.read_u16().await?),
            127 => self.stream.read_u64().await?,
            length => u64::from(length),
        };
        if is_control && (length > MAX_CONTROL_BYTES as u64 || first & 0x80 == 0) {
            return Err(Broken::Protocol(CLOSE_PROTOCOL));
        }
        let held = self.partial.as_ref().map_or(0, |(_, bytes)| bytes.len());
        if length > (MAX_MESSAGE_BYTES - held) as u64 {
            return Err(Broken::Protocol(CLOSE_TOO_BIG));
        }
        let mut mask = [0; 4];
        self.stream.read_exact(&mut mask).await?;
        // Grows with what really comes, and not with what the client announces.
        let mut payload = Vec::new();
        (&mut self.stream).take(length).read_to_end(&mut payload).await?;
        if payload.len() as u64 != length {
            return Err(Broken::Gone);
        }
        payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        Ok((first, payload))
    }
}

/// Messages to a client. A call that is dropped on its way leaves the rest to the next one, so that frames stay whole.
pub struct Writer<W> {
    stream: W,
    pending: Vec<u8>,
    written: usize,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    /// Writes to an upgraded connection.
    pub fn new(stream: W) -> Self {
        Self { stream, pending: Vec::new(), written: 0 }
    }

    /// Sends text.
    ///
    /// # Errors
    /// When the client is gone or takes nothing any more.
    pub async fn text(&mut self, text: &[u8]) -> io::Result<()> {
        self.frame(TEXT, &[text]).await
    }

    /// Sends bytes, given in parts.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub async fn binary(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.frame(BINARY, parts).await
    }

    /// Asks for a sign of life.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub async fn ping(&mut self) -> io::Result<()> {
        self.frame(PING, &[]).await
    }

    /// Answers a ping.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub async fn pong(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.frame(PONG, &[bytes]).await
    }

    /// Says that nothing more will come, and why.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub async fn close(&mut self, close_code: u16, reason: &str) -> io::Result<()> {
        self.frame(CLOSE, &[&close_code.to_be_bytes(), reason.as_bytes()]).await
    }

    async fn frame(&mut self, opcode: u8, parts: &[&[u8]]) -> io::Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.pending.reserve(length + MAX_HEAD_BYTES);
        self.pending.push(0x80 | opcode);
        match length {
            0..=125 => self.pending.push(length as u8),
            126..=0xffff => {
                self.pending.push(126);
                self.pending.extend_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                self.pending.push(127);
                self.pending.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        parts.iter().for_each(|part| self.pending.extend_from_slice(part));
        while self.written < self.pending.len() {
            match timeout(WRITE_PATIENCE, self.stream.write(&self.pending[self.written..])).await?? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => self.written += written,
            }
        }
        self.pending.clear();
        self.pending.shrink_to(KEPT_BYTES);
        self.written = 0;
        timeout(WRITE_PATIENCE, self.stream.flush()).await?
    }
}

#[cfg(test)]
mod tests;
