//! Generated histories of a terminal, against a model that keeps everything.

use std::rc::Rc;

use tokio::sync::oneshot::{Receiver, error::TryRecvError};

use super::{MAX_VIEWERS, Seat, Terminal};
use crate::pty::ring::{Cursor, Piece, Ring, Stream};
use fuzz::Random;

const HISTORIES: u64 = 10_000;
const STEPS: usize = 60;
const CAPACITY: usize = 64;

/// Everything that was written, and who holds the terminal.
#[derive(Default)]
struct Model {
    output: Vec<(Stream, u8)>,
    holder: Option<usize>,
}

struct Client {
    seat: Seat,
    evicted: Option<Receiver<()>>,
    cursor: Cursor,
    /// Where the client is, by what it was told.
    at: u64,
    /// It has missed output, or has just come: only a replay may follow.
    lost: bool,
}

struct History {
    terminal: Rc<Terminal>,
    model: Model,
    clients: Vec<Option<Client>>,
    random: Random,
}

impl History {
    fn oldest(&self) -> u64 {
        self.model.output.len().saturating_sub(CAPACITY) as u64
    }

    fn write(&mut self) {
        let stream = *self.random.pick(&[Stream::Out, Stream::Out, Stream::Err]);
        let most = if self.random.chance(8) { 3 * CAPACITY } else { 12 };
        let length = self.random.below(most);
        let bytes: Vec<u8> = (0..length).map(|_| self.random.number() as u8).collect();
        self.terminal.push(stream, &bytes);
        self.model.output.extend(bytes.into_iter().map(|byte| (stream, byte)));
        let oldest = self.oldest();
        for client in self.clients.iter_mut().flatten() {
            client.lost |= client.at < oldest;
        }
    }

    fn attach(&mut self) {
        let index = self.clients.len();
        let (seat, evicted) = match self.random.below(3) {
            0 => (Seat::viewer(&self.terminal), None),
            1 => match Seat::holder(&self.terminal) {
                Some((seat, evicted)) => {
                    assert!(self.model.holder.replace(index).is_none(), "two holders");
                    (Some(seat), Some(evicted))
                }
                None => {
                    assert!(self.model.holder.is_some(), "refused, though nobody holds it");
                    return;
                }
            },
            _ => {
                let seat = Seat::candidate(&self.terminal);
                let evicted = seat.take();
                if let Some(before) = self.model.holder.replace(index) {
                    let before = self.clients[before].as_mut().expect("the holder is attached");
                    assert_eq!(before.evicted.as_mut().expect("it held").try_recv(), Ok(()), "it was not told");
                }
                (Some(seat), Some(evicted))
            }
        };
        let viewers = self.clients.iter().flatten().filter(|client| client.seat.is_viewer()).count();
        let Some(seat) = seat else {
            assert_eq!(viewers, MAX_VIEWERS);
            return;
        };
        let end = self.model.output.len() as u64;
        let since = match self.random.below(4) {
            0 => 0,
            1 => end,
            2 => end + 1 + self.random.below(9) as u64,
            _ => self.random.below(end as usize + 1) as u64,
        };
        let cursor = self.terminal.with_output(|ring| Cursor::new(ring, since));
        self.clients.push(Some(Client { seat, evicted, cursor, at: since.min(end), lost: true }));
        self.read(index);
        if let Some(client) = &mut self.clients[index] {
            client.cursor.follow();
            client.lost = false;
        }
    }

    /// One client takes what comes next, which must be what the model has there.
    fn read(&mut self, index: usize) -> bool {
        let oldest = self.oldest();
        let Some(client) = &mut self.clients[index] else { return false };
        let piece = self.terminal.with_output(|ring| client.cursor.next(ring, u64::MAX));
        client.seat.has_sent(client.cursor.at());
        let at = client.at.max(oldest);
        let rest = &self.model.output[at as usize..];
        let Some(piece) = piece else {
            assert!(rest.is_empty(), "{} bytes were kept back", rest.len());
            return false;
        };
        let bytes = match piece {
            Piece::Replay { offset, bytes } => {
                assert!(client.lost, "a replay for a client that knows where it is");
                assert_eq!((offset, bytes.len()), (at, rest.len()), "a replay is all there is, from its true offset");
                bytes
            }
            Piece::Live { stream, bytes } => {
                assert!(!client.lost, "live output for a client that missed some");
                assert!(rest[..bytes.len()].iter().all(|one| one.0 == stream), "bytes of the other stream");
                bytes
            }
        };
        assert!(!bytes.is_empty() && bytes.iter().eq(rest[..bytes.len()].iter().map(|one| &one.1)), "other bytes");
        (client.at, client.lost) = (at + bytes.len() as u64, false);
        assert_eq!(client.at, client.cursor.at());
        true
    }

    fn leave(&mut self, index: usize) {
        if self.clients[index].take().is_some() && self.model.holder == Some(index) {
            self.model.holder = None;
        }
    }

    fn check(&mut self) {
        let status = self.terminal.status();
        assert_eq!((status.output_offset, status.replay_offset), (self.model.output.len() as u64, self.oldest()));
        let attached = self.clients.iter().flatten().count();
        let viewers = self.clients.iter().flatten().filter(|client| client.seat.is_viewer()).count();
        assert_eq!((status.attached, status.viewers), (self.model.holder.is_some(), viewers));
        assert_eq!(*self.terminal.clients().borrow(), attached);
        for (index, client) in self.clients.iter_mut().enumerate() {
            let Some(client) = client else { continue };
            let holds = self.model.holder == Some(index);
            assert_eq!(client.seat.holds(), holds);
            if let (true, Some(evicted)) = (holds, &mut client.evicted) {
                assert_eq!(evicted.try_recv(), Err(TryRecvError::Empty), "told, though nobody took its place");
            }
        }
    }
}

#[test]
fn os_066_generated_histories_are_as_the_model_says() {
    let (mut wrapped, mut taken_over) = (0u64, 0u64);
    for seed in 1..=HISTORIES {
        let terminal = Terminal::with_ring("/".into(), None, Ring::new(CAPACITY));
        let mut history = History {
            terminal: Rc::new(terminal),
            model: Model::default(),
            clients: Vec::new(),
            random: Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        };
        for _ in 0..STEPS {
            let holder = history.model.holder;
            match history.random.below(8) {
                0..3 => history.write(),
                3 => history.attach(),
                4 if !history.clients.is_empty() => {
                    let index = history.random.below(history.clients.len());
                    history.leave(index);
                }
                _ if !history.clients.is_empty() => {
                    let index = history.random.below(history.clients.len());
                    history.read(index);
                }
                _ => {}
            }
            taken_over +=
                u64::from(holder.is_some() && history.model.holder.is_some() && holder != history.model.holder);
            history.check();
        }
        for index in 0..history.clients.len() {
            while history.read(index) {}
        }
        wrapped += u64::from(history.oldest() > 0);
    }
    assert!(wrapped > HISTORIES / 2 && taken_over > HISTORIES / 2, "{wrapped} wrapped, {taken_over} takeovers");
}
