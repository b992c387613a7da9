//! What a client's message means, and the daemon's text frames.

use protocol::execd::pty::{ClientFrame, STDIN, ServerFrame};
use rustix::process::Signal;

use crate::http::websocket::Message;

/// A client's wish.
#[derive(Debug, PartialEq, Eq)]
pub enum Wish {
    /// Bytes for the shell.
    Input(Vec<u8>),
    /// The end of the shell's input.
    Eof,
    /// A signal for the shell.
    Signal(Signal),
    /// A new size of the window.
    Resize { cols: u16, rows: u16 },
    /// A sign of life in a text frame.
    Ping,
    /// One that is answered with an error.
    Refused(String),
    /// One that is passed over, as published: malformed JSON, an unknown prefix, an unknown signal.
    Nothing,
}

/// Reads a message that is no control frame.
pub fn wish(message: &mut Message) -> Wish {
    match message {
        Message::Binary(bytes) if bytes.first() == Some(&STDIN) => {
            bytes.remove(0);
            Wish::Input(std::mem::take(bytes))
        }
        Message::Text(text) => match serde_json::from_slice(text) {
            Ok(frame) => text_wish(frame),
            Err(_) => Wish::Nothing,
        },
        _ => Wish::Nothing,
    }
}

fn text_wish(frame: ClientFrame) -> Wish {
    match frame.kind.as_str() {
        "stdin" => Wish::Input(frame.data.unwrap_or_default().into_bytes()),
        "eof" => Wish::Eof,
        "signal" => frame.signal.as_deref().and_then(signal).map_or(Wish::Nothing, Wish::Signal),
        "resize" => {
            let side = |value: Option<i64>| value.and_then(|value| u16::try_from(value).ok()).filter(|side| *side > 0);
            match (side(frame.cols), side(frame.rows)) {
                (Some(cols), Some(rows)) => Wish::Resize { cols, rows },
                _ => Wish::Nothing,
            }
        }
        "ping" => Wish::Ping,
        kind => {
            const SHOWN_LETTERS: usize = 40;
            let kind: String = kind.chars().take(SHOWN_LETTERS).collect();
            Wish::Refused(format!("type: {kind:?} is not stdin, eof, signal, resize or ping"))
        }
    }
}

fn signal(name: &str) -> Option<Signal> {
    Some(match name {
        "SIGINT" => Signal::INT,
        "SIGTERM" => Signal::TERM,
        "SIGKILL" => Signal::KILL,
        "SIGQUIT" => Signal::QUIT,
        "SIGHUP" => Signal::HUP,
        _ => return None,
    })
}

/// A text frame as it is sent.
pub fn text(frame: &ServerFrame) -> Vec<u8> {
    serde_json::to_vec(frame).expect("a frame has only text keys")
}

/// An error as it is sent.
pub fn error(code: &str, error: impl Into<String>) -> Vec<u8> {
    text(&ServerFrame::Error { code: code.into(), error: error.into() })
}

/// The name of a signal; others are shown by number.
pub fn signal_name(number: i32) -> String {
    let name = match number {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        number => return format!("signal {number}"),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use rustix::process::Signal;

    use super::{Wish, wish};
    use crate::http::websocket::Message;

    fn of_text(text: &str) -> Wish {
        wish(&mut Message::Text(text.into()))
    }

    #[test]
    fn frames_mean_what_is_published() {
        assert_eq!(wish(&mut Message::Binary(b"\0a\0".into())), Wish::Input(b"a\0".into()));
        assert_eq!(of_text(r#"{"type":"stdin","data":"ä"}"#), Wish::Input("ä".into()));
        assert_eq!(of_text(r#"{"type":"signal","signal":"SIGQUIT"}"#), Wish::Signal(Signal::QUIT));
        assert_eq!(of_text(r#"{"type":"resize","cols":120,"rows":40}"#), Wish::Resize { cols: 120, rows: 40 });
        assert_eq!((of_text(r#"{"type":"ping"}"#), of_text(r#"{"type":"eof"}"#)), (Wish::Ping, Wish::Eof));
        assert!(matches!(of_text(r#"{"type":"dance"}"#), Wish::Refused(why) if why.contains("dance")));
    }

    #[test]
    fn what_is_malformed_is_passed_over() {
        for text in [
            "",
            "{",
            r#"{"type":"resize","cols":0,"rows":1}"#,
            r#"{"type":"resize","cols":70000,"rows":1}"#,
            r#"{"type":"resize","cols":-1,"rows":1}"#,
            r#"{"type":"resize"}"#,
            r#"{"type":"signal","signal":"SIGUSR1"}"#,
            r#"{"type":"signal"}"#,
        ] {
            assert_eq!(of_text(text), Wish::Nothing, "{text}");
        }
        for bytes in [&b""[..], b"\x01a", b"\xff"] {
            assert_eq!(wish(&mut Message::Binary(bytes.into())), Wish::Nothing);
        }
    }

    #[test]
    fn fuzz_terminal_frames() {
        let examples: [&[u8]; 6] = [
            br#"{"type":"stdin","data":"ls\n"}"#,
            br#"{"type":"signal","signal":"SIGINT"}"#,
            br#"{"type":"resize","cols":80,"rows":24}"#,
            br#"{"type":"ping"}"#,
            b"\0ls -l\n",
            b"\x03",
        ];
        fuzz::run("terminal frames", &examples, |input| {
            if let Wish::Input(bytes) = wish(&mut Message::Binary(input.into())) {
                assert_eq!((input[0], bytes.as_slice()), (0, &input[1..]));
            }
            match wish(&mut Message::Text(input.into())) {
                Wish::Resize { cols, rows } => assert!(cols > 0 && rows > 0),
                Wish::Input(bytes) => assert!(std::str::from_utf8(&bytes).is_ok() && bytes.len() <= input.len()),
                _ => {}
            }
        });
    }
}
