//! Standard input, and the keys that mean something to this side.

use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

/// Bytes of input that are sent at once.
const PIECE_BYTES: usize = 16 * 1024;
/// Bytes that wait here while the connection takes none; a wish to leave is still seen behind them.
const HELD_BYTES: usize = 64 * 1024;

/// A wish to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// And to end the terminal.
    End,
    /// And to let it run.
    Detach,
}

/// Passes standard input on until it ends. The end of a terminal's input is the end of the terminal.
pub async fn read(pieces: mpsc::Sender<Vec<u8>>, leave: mpsc::Sender<Leave>, raw: bool, may_detach: bool) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0; PIECE_BYTES];
    let mut keys = Keys { state: State::LineStart, may_detach };
    let mut held = Vec::new();
    loop {
        let length = tokio::select! {
            room = pieces.reserve(), if !held.is_empty() => match room {
                Ok(room) => {
                    room.send(std::mem::take(&mut held));
                    continue;
                }
                Err(_) => return,
            },
            read = stdin.read(&mut buffer), if held.len() < HELD_BYTES => match read {
                Ok(0) | Err(_) => break,
                Ok(length) => length,
            },
        };
        let wish = if raw {
            keys.feed(&buffer[..length], &mut held)
        } else {
            held.extend_from_slice(&buffer[..length]);
            None
        };
        if let Some(wish) = wish {
            let _ = pieces.try_send(held); // what was typed before it, where there is room
            let _ = leave.send(wish).await; // else this side is ending already
            return;
        }
    }
    if raw {
        let _ = pieces.try_send(held); // as above
        let _ = leave.send(Leave::End).await;
    } else if !held.is_empty() {
        let _ = pieces.send(held).await; // else nobody takes input any more
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    LineStart,
    InLine,
    Tilde,
}

/// Finds the keys; the others pass.
struct Keys {
    state: State,
    may_detach: bool,
}

impl Keys {
    fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Option<Leave> {
        for &byte in input {
            match (self.state, byte) {
                (State::LineStart, b'~') => {
                    self.state = State::Tilde;
                    continue;
                }
                (State::Tilde, b'.') => return Some(Leave::End),
                (State::Tilde, b'd') if self.may_detach => return Some(Leave::Detach),
                (State::Tilde, b'~') => {}
                (State::Tilde, _) => out.push(b'~'),
                _ => {}
            }
            out.push(byte);
            self.state = if matches!(byte, b'\r' | b'\n') { State::LineStart } else { State::InLine };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{Keys, Leave, State};

    fn typed(pieces: &[&str], may_detach: bool) -> (String, Option<Leave>) {
        let mut keys = Keys { state: State::LineStart, may_detach };
        let mut out = Vec::new();
        let left = pieces.iter().find_map(|piece| keys.feed(piece.as_bytes(), &mut out));
        (String::from_utf8(out).expect("text"), left)
    }

    #[test]
    fn keys_count_at_the_start_of_a_line_only() {
        assert_eq!(typed(&["ls ~.\r", "~", "."], true), ("ls ~.\r".into(), Some(Leave::End)));
        assert_eq!(typed(&["~d"], true), (String::new(), Some(Leave::Detach)));
        assert_eq!(typed(&["a~d~~"], true), ("a~d~~".into(), None));
    }

    #[test]
    fn a_tilde_that_was_held_back_comes_with_what_follows() {
        assert_eq!(typed(&["~", "~."], true), ("~.".into(), None));
        assert_eq!(typed(&["~/x\r~", "a"], true), ("~/x\r~a".into(), None));
        assert_eq!(typed(&["~d"], false), ("~d".into(), None));
        assert_eq!(typed(&["~\r~."], true), ("~\r".into(), Some(Leave::End)));
    }
}
