//! A small blocking HTTP/1.1 client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

/// A test that waits longer than this for bytes has failed.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Where a daemon listens, and its token.
#[derive(Clone)]
pub enum Target {
    Tcp(SocketAddr, Option<String>),
    Unix(PathBuf, Option<String>),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buffer),
            Self::Unix(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One connection; requests go one after the other.
pub struct Connection {
    stream: BufReader<Stream>,
    token: Option<String>,
}

/// A whole answer.
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// Status and headers; the body is still to be read.
pub struct Head {
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// A header's value, by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }
}

impl Response {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("JSON, not {:?}", self.text()))
    }

    /// A header's value, by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }

    /// Asserts a refusal with status and code, whose message holds `word`.
    #[track_caller]
    pub fn refuses(&self, status: u16, code: &str, word: &str) {
        assert_eq!(self.status, status, "{}", self.text());
        let body = self.json();
        assert_eq!(body["code"], code, "{body}");
        assert!(body["message"].as_str().is_some_and(|message| message.contains(word)), "{word:?} in {body}");
    }

    /// Asserts success and returns the answer.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.status, 200, "{}", self.text());
        self
    }
}

impl Connection {
    /// Connects.
    pub fn open(target: &Target) -> Self {
        let (stream, token) = match target {
            Target::Tcp(address, token) => {
                let stream = TcpStream::connect(address).expect("execd listens");
                stream.set_read_timeout(Some(READ_TIMEOUT)).expect("a timeout");
                (Stream::Tcp(stream), token)
            }
            Target::Unix(path, token) => {
                let stream = UnixStream::connect(path).expect("execd listens");
                stream.set_read_timeout(Some(READ_TIMEOUT)).expect("a timeout");
                (Stream::Unix(stream), token)
            }
        };
        Self { stream: BufReader::with_capacity(256 * 1024, stream), token: token.clone() }
    }

    /// Lets the system hold only a little of what comes and is not read.
    pub fn takes_little(&self) {
        const BYTES: usize = 64 * 1024;
        match self.stream.get_ref() {
            Stream::Tcp(stream) => rustix::net::sockopt::set_socket_recv_buffer_size(stream, BYTES),
            Stream::Unix(stream) => rustix::net::sockopt::set_socket_recv_buffer_size(stream, BYTES),
        }
        .expect("a smaller buffer");
    }

    /// Sends a request with a body of known length.
    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        self.send_head(method, path, headers, &format!("Content-Length: {}\r\n", body.len()));
        self.write(body);
    }

    /// Sends a request's head; `framing` is one or more whole header lines.
    pub fn send_head(&mut self, method: &str, path: &str, headers: &[(&str, &str)], framing: &str) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: execd\r\n{framing}");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(token) = &self.token {
            head.push_str(&format!("X-EXECD-ACCESS-TOKEN: {token}\r\n"));
        }
        head.push_str("\r\n");
        self.write(head.as_bytes());
    }

    /// Sends raw bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("execd reads");
    }

    /// Sends and reads the whole answer.
    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        self.send(method, path, headers, body);
        self.response(method)
    }

    /// Reads a whole answer.
    pub fn response(&mut self, method: &str) -> Response {
        let head = self.head();
        let mut body = Vec::new();
        if method != "HEAD" && head.status != 304 {
            self.each_piece(&head, |piece| body.extend_from_slice(piece)).expect("a whole body");
        }
        Response { status: head.status, headers: head.headers, body }
    }

    /// Reads status and headers.
    pub fn head(&mut self) -> Head {
        let status = self.line();
        let status = status
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or_else(|| panic!("a status line: {status:?}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(':') else {
                return Head { status, headers };
            };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// Gives the body's pieces to `take`; an error when the body is cut off.
    pub fn each_piece(&mut self, head: &Head, mut take: impl FnMut(&[u8])) -> std::io::Result<()> {
        if let Some(length) = head.header("content-length") {
            return self.copy(length.parse().expect("a length"), &mut take);
        }
        while let Some(length) = self.chunk_length()? {
            self.copy(length, &mut take)?;
            self.line();
        }
        Ok(())
    }

    /// The next event of a stream; `None` at its end.
    pub fn event(&mut self) -> Option<Value> {
        let piece = self.chunk()?;
        let mut events = crate::support::Run::parse(&piece).events;
        assert_eq!(events.len(), 1, "the test expects one event in a piece");
        events.pop()
    }

    /// The next chunk of a chunked body; `None` at its end.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let length = self.chunk_length().expect("a chunk")?;
        let mut chunk = vec![0; length as usize];
        self.stream.read_exact(&mut chunk).expect("a whole chunk");
        self.line();
        Some(chunk)
    }

    fn chunk_length(&mut self) -> std::io::Result<Option<u64>> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let length = u64::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("a chunk's length: {line:?}"));
        if length == 0 {
            self.line();
        }
        Ok((length > 0).then_some(length))
    }

    fn copy(&mut self, mut left: u64, take: &mut impl FnMut(&[u8])) -> std::io::Result<()> {
        while left > 0 {
            let piece = self.stream.fill_buf()?;
            let length = piece.len().min(left as usize);
            if length == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            take(&piece[..length]);
            self.stream.consume(length);
            left -= length as u64;
        }
        Ok(())
    }

    /// Reads exactly so many raw bytes.
    pub fn read_exact(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).expect("raw bytes");
        bytes
    }

    /// Reads up to the end of the connection.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes).expect("the end of the connection");
        bytes
    }

    /// Ends our sending side.
    pub fn shutdown_write(&mut self) {
        match self.stream.get_mut() {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
        .expect("a live connection");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a line of the answer");
        line.trim_end().to_owned()
    }
}
