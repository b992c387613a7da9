//! The last events of one watch, within a bound.

use std::collections::VecDeque;

use protocol::execd::watch::WatchEvent;

use crate::clock;

/// Bytes of events that are kept for readers who come later: some 15,000 changes.
const MAX_BYTES: usize = 2 * 1024 * 1024;
/// Bytes that an entry costs beside its text.
const ENTRY_BYTES: usize = 48;
/// Bytes of events handed out at once.
const BATCH_BYTES: usize = 64 * 1024;

/// Events in order, each with its number; the oldest go first when the bound is reached.
pub struct Journal {
    generation: String,
    entries: VecDeque<Box<str>>,
    bytes: usize,
    /// Number of the first entry that is kept; the first of all is 1.
    first: u64,
}

/// Where a reader stands: the number of the last event that it knows.
pub type Position = u64;

/// What lies behind a position.
pub enum Read {
    /// Events as they go over the wire, and the position behind them.
    Events(String, Position),
    /// Nothing yet.
    None,
    /// Events between the position and the oldest one kept are gone.
    Lost,
}

impl Journal {
    /// An empty one; `generation` tells its cursors from those of all others.
    pub fn new(generation: String) -> Self {
        Self { generation, entries: VecDeque::new(), bytes: 0, first: 1 }
    }

    /// The position behind the last event.
    pub fn end(&self) -> Position {
        self.first + self.entries.len() as u64 - 1
    }

    /// The cursor that clients see for a position.
    pub fn cursor(&self, position: Position) -> String {
        format!("{}.{position}", self.generation)
    }

    /// The position of a cursor; `None` when it is of another generation or beyond the end.
    pub fn position(&self, cursor: &str) -> Option<Position> {
        let (generation, position) = cursor.split_once('.')?;
        let position = position.parse().ok()?;
        (generation == self.generation && position <= self.end()).then_some(position)
    }

    /// Adds an event.
    pub fn push(&mut self, event: WatchEvent) {
        let text = wire(WatchEvent { cursor: Some(self.cursor(self.end() + 1)), ..event });
        self.bytes += text.len() + ENTRY_BYTES;
        self.entries.push_back(text.into_boxed_str());
        while self.bytes > MAX_BYTES
            && let Some(oldest) = self.entries.pop_front()
        {
            self.bytes -= oldest.len() + ENTRY_BYTES;
            self.first += 1;
        }
    }

    /// The next events behind a position.
    pub fn read(&self, position: Position) -> Read {
        if position >= self.end() {
            return Read::None;
        }
        let Some(skipped) = (position + 1).checked_sub(self.first) else {
            return Read::Lost;
        };
        let (mut text, mut read) = (String::new(), position);
        for entry in self.entries.iter().skip(skipped as usize) {
            text.push_str(entry);
            read += 1;
            if text.len() >= BATCH_BYTES {
                break;
            }
        }
        Read::Events(text, read)
    }
}

/// An event as it goes over the wire, with the time of now.
pub fn wire(event: WatchEvent) -> String {
    let event = WatchEvent { timestamp: clock::now_ms(), ..event };
    let text = serde_json::to_string(&event).expect("texts and numbers can always be written as JSON");
    text + "\n\n"
}

/// Whether a text has the form of a cursor.
pub fn is_cursor(text: &str) -> bool {
    text.split_once('.').is_some_and(|(generation, position)| {
        !generation.is_empty()
            && generation.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && position.parse::<Position>().is_ok()
    })
}

#[cfg(test)]
mod tests {
    use protocol::execd::watch::WatchEvent;

    use super::{Journal, MAX_BYTES, Read, is_cursor};

    fn event(path: String) -> WatchEvent {
        WatchEvent { kind: "created".into(), path: Some(path), ..WatchEvent::default() }
    }

    #[test]
    fn a_reader_gets_every_event_once_and_in_order() {
        let mut journal = Journal::new("g".into());
        (1..=5000).for_each(|number| journal.push(event(format!("/{number}"))));
        let (mut position, mut text) = (0, String::new());
        while let Read::Events(more, next) = journal.read(position) {
            text.push_str(&more);
            position = next;
        }
        assert_eq!(position, journal.end());
        let paths: Vec<String> = text
            .split_terminator("\n\n")
            .map(|line| serde_json::from_str::<WatchEvent>(line).expect("an event").path.expect("a path"))
            .collect();
        assert_eq!(paths, (1..=5000).map(|number| format!("/{number}")).collect::<Vec<_>>());
    }

    #[test]
    fn the_bound_holds_and_a_position_before_it_is_lost() {
        let mut journal = Journal::new("g".into());
        (0..2000).for_each(|_| journal.push(event("x".repeat(4000))));
        assert!(journal.bytes <= MAX_BYTES && journal.bytes > MAX_BYTES / 2);
        assert!(matches!(journal.read(0), Read::Lost));
        assert!(matches!(journal.read(journal.first - 1), Read::Events(..)));
        assert!(matches!(journal.read(journal.first - 2), Read::Lost));
        assert!(matches!(journal.read(journal.end()), Read::None));
    }

    #[test]
    fn cursors_of_others_have_no_position() {
        let mut journal = Journal::new("a1".into());
        journal.push(event("/x".into()));
        assert_eq!(journal.position(&journal.cursor(1)), Some(1));
        for cursor in ["b1.1", "a1.2", "a1.", "a1", "", "a1.-1"] {
            assert_eq!(journal.position(cursor), None, "{cursor}");
        }
        assert!(is_cursor("a1.0") && !is_cursor("a1.x") && !is_cursor(".1") && !is_cursor("a/b.1"));
    }
}
