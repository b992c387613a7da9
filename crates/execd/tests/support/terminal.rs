//! A client of terminals that writes and reads the bytes of the WebSocket itself.

use serde_json::{Value, json};

use super::{Connection, Target};

/// Something that came from the daemon.
#[derive(Debug)]
pub enum Frame {
    /// Bytes with their prefix.
    Binary(Vec<u8>),
    /// JSON.
    Text(Value),
    /// The daemon closes, with code and reason.
    Close(u16, String),
    /// An answer to a ping.
    Pong(Vec<u8>),
}

/// An attached client.
pub struct Terminal {
    connection: Connection,
}

/// What came up to some point: the output as it must have been, put together from live bytes and replays.
#[derive(Debug, Default)]
pub struct Seen {
    /// Offset of the first byte, where it is known from a replay.
    pub from: Option<u64>,
    /// Standard output, or the terminal, or what was replayed.
    pub out: Vec<u8>,
    /// Standard error.
    pub err: Vec<u8>,
    /// Text frames.
    pub texts: Vec<Value>,
    /// Offsets of replays.
    pub replays: Vec<u64>,
}

impl Seen {
    /// The output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    fn take(&mut self, bytes: &[u8]) {
        match bytes[0] {
            1 => self.out.extend_from_slice(&bytes[1..]),
            2 => self.err.extend_from_slice(&bytes[1..]),
            3 => {
                let offset = u64::from_be_bytes(bytes[1..9].try_into().expect("eight bytes"));
                self.from = self.from.or(Some(offset));
                self.replays.push(offset);
                self.out.extend_from_slice(&bytes[9..]);
            }
            prefix => panic!("prefix {prefix}"),
        }
    }
}

/// Creates a session.
pub fn create(target: &Target, body: &Value) -> String {
    let response = target.post("/pty", body);
    assert_eq!(response.status, 201, "{}", response.text());
    response.json()["session_id"].as_str().expect("an id").to_owned()
}

/// Its status.
pub fn status(target: &Target, id: &str) -> Value {
    target.get(&format!("/pty/{id}")).ok().json()
}

/// The headers of a handshake.
pub const HANDSHAKE: [(&str, &str); 4] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

impl Terminal {
    /// Attaches; `query` may be empty.
    pub fn attach(target: &Target, id: &str, query: &str) -> Self {
        let mut connection = Connection::open(target);
        connection.send_head("GET", &format!("/pty/{id}/ws?{query}"), &HANDSHAKE, "");
        let head = connection.head();
        assert_eq!((head.status, head.header("sec-websocket-accept")), (101, Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")));
        Self { connection }
    }

    /// Attaches and reads up to the frame that says so, with what was replayed before it.
    pub fn connect(target: &Target, id: &str, query: &str) -> (Self, Seen) {
        let mut terminal = Self::attach(target, id, query);
        let mut seen = Seen::default();
        terminal.read_until(&mut seen, |seen| seen.texts.iter().any(|text| text["type"] == "connected"));
        (terminal, seen)
    }

    /// Lets the system hold only a little of what comes and is not read.
    pub fn takes_little(&self) {
        self.connection.takes_little();
    }

    /// Sends a frame.
    pub fn send(&mut self, head: u8, payload: &[u8]) {
        let mut frame = vec![head];
        match payload.len() {
            length @ 0..=125 => frame.push(0x80 | length as u8),
            length @ 126..=0xffff => {
                frame.push(0x80 | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            length => {
                frame.push(0x80 | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        let mask = [0xa5, 0, 0xff, 0x11];
        frame.extend(mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.connection.write(&frame);
    }

    /// Types.
    pub fn type_in(&mut self, text: &str) {
        self.send(0x82, &[b"\0", text.as_bytes()].concat());
    }

    /// Sends a text frame.
    pub fn say(&mut self, frame: &Value) {
        self.send(0x81, frame.to_string().as_bytes());
    }

    /// Signals.
    pub fn signal(&mut self, name: &str) {
        self.say(&json!({"type": "signal", "signal": name}));
    }

    /// The next frame that is no ping.
    pub fn next(&mut self) -> Frame {
        loop {
            let head = self.connection.read_exact(2);
            assert_eq!(head[0] & 0xf0, 0x80, "frames of the daemon are whole");
            assert_eq!(head[1] & 0x80, 0, "frames of the daemon have no mask");
            let length = match head[1] {
                126 => u64::from(u16::from_be_bytes(self.connection.read_exact(2).try_into().expect("two bytes"))),
                127 => u64::from_be_bytes(self.connection.read_exact(8).try_into().expect("eight bytes")),
                length => length.into(),
            };
            let payload = self.connection.read_exact(length as usize);
            match head[0] & 0x0f {
                1 => return Frame::Text(serde_json::from_slice(&payload).expect("JSON")),
                2 => return Frame::Binary(payload),
                8 => {
                    let code = u16::from_be_bytes([payload[0], payload[1]]);
                    return Frame::Close(code, String::from_utf8_lossy(&payload[2..]).into_owned());
                }
                9 => self.send(0x8a, &payload),
                10 => return Frame::Pong(payload),
                opcode => panic!("opcode {opcode}"),
            }
        }
    }

    /// Reads until something was seen; a close before that fails the test.
    pub fn read_until(&mut self, seen: &mut Seen, done: impl Fn(&Seen) -> bool) {
        while !done(seen) {
            match self.next() {
                Frame::Binary(bytes) => seen.take(&bytes),
                Frame::Text(text) => seen.texts.push(text),
                Frame::Pong(_) => {}
                Frame::Close(code, reason) => panic!("closed with {code} {reason:?} after {:?}", seen.text()),
            }
        }
    }

    /// Reads until the output holds `text`.
    pub fn until(&mut self, text: &str) -> Seen {
        let mut seen = Seen::default();
        self.read_until(&mut seen, |seen| memchr::memmem::find(&seen.out, text.as_bytes()).is_some());
        seen
    }

    /// Reads to the close.
    pub fn until_close(&mut self) -> (Seen, u16, String) {
        let mut seen = Seen::default();
        loop {
            match self.next() {
                Frame::Binary(bytes) => seen.take(&bytes),
                Frame::Text(text) => seen.texts.push(text),
                Frame::Pong(_) => {}
                Frame::Close(code, reason) => return (seen, code, reason),
            }
        }
    }

    /// Reads to the exit frame and the close behind it.
    pub fn until_exit(&mut self) -> (Seen, Value) {
        let (mut seen, code, reason) = self.until_close();
        assert_eq!((code, reason.as_str()), (1000, "process exited"), "{:?}", seen.texts);
        let exit = seen.texts.pop().expect("an exit frame");
        assert_eq!(exit["type"], "exit");
        (seen, exit)
    }
}
