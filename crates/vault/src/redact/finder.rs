//! Finds values in a text that comes in parts, also where they overlap.

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind};

use super::{FILL, MARK};
use crate::encode;

/// Some values. The state of the automaton is the longest end of the text with which a value begins.
pub(super) struct Finder {
    automaton: NFA,
    start: StateID,
    /// Whether a value begins with this byte.
    begins: [bool; 256],
    /// By state: how long the end of the text is with which a value begins that is not over yet.
    open: Vec<(StateID, u32)>,
}

/// Where a text has been looked at up to. Places are counted from the first byte that was not forgotten.
pub(super) struct Cursor {
    state: StateID,
    length: usize,
    /// What values take up: apart from each other and in order.
    pub regions: Vec<Region>,
}

/// Bytes that are to be masked: values that overlap are one region.
#[derive(Clone, Copy)]
pub(super) struct Region {
    pub start: usize,
    pub end: usize,
    /// How many bytes of it were forgotten.
    forgotten: usize,
}

impl Finder {
    /// `None` where there is nothing to find. The values are sorted, each is there once, and none is empty.
    pub(super) fn new(values: &[encode::Bytes]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let mut builder = NFA::builder();
        // Bytes are given one by one; what looks ahead for all of them is `begins`.
        builder.match_kind(MatchKind::Standard).prefilter(false);
        let automaton = builder.build(values).expect("the number of values and their length are limited");
        let start = automaton.start_state(Anchored::No).expect("it is built for searches without an anchor");
        let mut begins = [false; 256];
        values.iter().filter_map(|value| value.first()).for_each(|byte| begins[usize::from(*byte)] = true);
        let mut finder = Self { automaton, start, begins, open: Vec::new() };
        finder.open = finder.open_states(values);
        Some(finder)
    }

    /// The states in which a value has begun and is not over; of a state that is only an end, those that it falls back to.
    fn open_states(&self, values: &[encode::Bytes]) -> Vec<(StateID, u32)> {
        let mut open = Vec::new();
        for value in values {
            let mut state = self.start;
            for (length, byte) in (1..value.len()).zip(value.iter()) {
                state = self.automaton.next_state(Anchored::No, state, *byte);
                open.push((state, u32::try_from(length).expect("the length of values is limited")));
            }
        }
        open.sort_unstable();
        open.dedup();
        let mut ends = Vec::new();
        for value in values {
            let state = self.after(value);
            if find(&open, state).is_none() {
                ends.push((state, self.open_behind(&open, value)));
            }
        }
        open.extend(ends);
        open.sort_unstable();
        open
    }

    /// How long the longest end of a value is, not all of it, with which a value begins that is not over yet.
    fn open_behind(&self, open: &[(StateID, u32)], value: &[u8]) -> u32 {
        let mut end = &value[1..];
        loop {
            let state = self.after(end);
            if state == self.start {
                return 0;
            }
            if let Some(length) = find(open, state) {
                return length;
            }
            // It is a value and nothing begins so: on with the ends of that.
            end = &end[end.len() - self.longest(state) + 1..];
        }
    }

    /// The length of the longest value that ends in a state in which one ends.
    fn longest(&self, state: StateID) -> usize {
        let patterns = (0..self.automaton.match_len(state)).map(|index| self.automaton.match_pattern(state, index));
        patterns.map(|pattern| self.automaton.pattern_len(pattern)).max().unwrap_or_default()
    }

    fn after(&self, text: &[u8]) -> StateID {
        text.iter().fold(self.start, |state, byte| self.automaton.next_state(Anchored::No, state, *byte))
    }

    pub(super) fn cursor(&self) -> Cursor {
        Cursor { state: self.start, length: 0, regions: Vec::new() }
    }

    /// Looks at the next part of a text.
    pub(super) fn scan(&self, cursor: &mut Cursor, text: &[u8]) {
        let before = cursor.length;
        let mut state = cursor.state;
        let mut at = 0;
        while at < text.len() {
            if state == self.start {
                let skipped = text[at..].iter().position(|byte| self.begins[usize::from(*byte)]);
                let Some(skipped) = skipped else { break };
                at += skipped;
            }
            state = self.automaton.next_state(Anchored::No, state, text[at]);
            at += 1;
            if self.automaton.is_special(state) && self.automaton.is_match(state) {
                let length = self.longest(state);
                cursor.found(before + at - length, before + at);
            }
        }
        cursor.state = state;
        cursor.length += text.len();
    }

    /// How long the end of the text is that may be the beginning of a value.
    pub(super) fn open(&self, cursor: &Cursor) -> usize {
        find(&self.open, cursor.state).unwrap_or_default() as usize
    }
}

fn find(open: &[(StateID, u32)], state: StateID) -> Option<u32> {
    open.binary_search_by_key(&state, |(state, _)| *state).ok().map(|at| open[at].1)
}

impl Cursor {
    fn found(&mut self, start: usize, end: usize) {
        let mut region = Region { start, end, forgotten: 0 };
        while let Some(last) = self.regions.pop_if(|last| last.end > region.start) {
            region.start = region.start.min(last.start);
            region.forgotten = last.forgotten;
        }
        self.regions.push(region);
    }

    /// Forgets the first bytes, which went on.
    pub(super) fn forget(&mut self, length: usize) {
        self.length -= length;
        self.regions.retain(|region| region.end > length);
        for region in &mut self.regions {
            region.forgotten += length.saturating_sub(region.start);
            region.start = region.start.saturating_sub(length);
            region.end -= length;
        }
    }
}

impl Region {
    /// Its length, with what was forgotten.
    pub(super) fn len(&self) -> usize {
        self.forgotten + self.end - self.start
    }

    /// What takes the place of the byte at a place within it.
    pub(super) fn mask(&self, at: usize) -> u8 {
        let has_room = self.len() >= MARK.len();
        MARK.get(self.forgotten + at - self.start).copied().filter(|_| has_room).unwrap_or(FILL)
    }
}
