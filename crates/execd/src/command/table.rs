//! The commands that are remembered, and whose output is kept.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use protocol::execd::output::{CommandKind, EndedBy};

use super::{Cause, Command};
use crate::clock;

/// A finished command can be asked about, and its output read, for this long.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// How often what is beyond its retention is removed.
const SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);
/// Commands that are remembered; beyond it the oldest finished ones go first.
const MAX_REMEMBERED: usize = 4096;
/// Bytes of command text that are remembered in all.
const MAX_REMEMBERED_BYTES: usize = 4 * 1024 * 1024;
/// Finished background commands whose output is kept: each holds a descriptor.
const MAX_KEPT_BACKGROUND: usize = 1024;
/// Other finished commands whose output is kept: their clients have read it once already.
const MAX_KEPT_FOREGROUND: usize = 256;
/// Bytes of output that finished commands keep together; on a small disk an eighth of it.
const MAX_KEPT_BYTES: u64 = 1024 * 1024 * 1024;
const KEPT_PART_OF_DISK: u64 = 8;

/// The table.
#[derive(Default)]
pub struct Commands {
    table: RefCell<Table>,
    kept: Rc<Kept>,
}

#[derive(Default)]
struct Table {
    by_id: HashMap<String, Rc<Command>>,
    /// Oldest first.
    order: VecDeque<Rc<Command>>,
    content_bytes: usize,
}

/// Finished commands whose output is kept, in the order of their ends.
#[derive(Default)]
pub struct Kept {
    finished: RefCell<VecDeque<Rc<Command>>>,
}

impl Commands {
    pub(super) fn insert(&self, command: &Rc<Command>) {
        let mut table = self.table.borrow_mut();
        table.content_bytes += command.content.len();
        table.by_id.insert(command.id.clone(), Rc::clone(command));
        table.order.push_back(Rc::clone(command));
        table.trim(clock::now_ms());
    }

    /// The command with this id.
    pub(super) fn get(&self, id: &str) -> Option<Rc<Command>> {
        self.table.borrow().by_id.get(id).cloned()
    }

    /// All of them, the newest first.
    pub(super) fn newest_first(&self) -> Vec<Rc<Command>> {
        self.table.borrow().order.iter().rev().cloned().collect()
    }

    /// Those whose process lives.
    pub fn running(&self) -> Vec<Rc<Command>> {
        self.table.borrow().order.iter().filter(|command| command.is_running()).cloned().collect()
    }

    /// When the last of those that are remembered ended, in milliseconds since 1970.
    pub fn last_end_ms(&self) -> Option<i64> {
        self.table.borrow().order.iter().filter_map(|command| command.finished_ms.get()).max()
    }

    /// Notes that all commands that run are ended now because execd ends.
    pub fn shutting_down(&self) {
        self.running().iter().for_each(|command| command.because(Cause::By(EndedBy::Shutdown)));
    }

    /// The output of finished commands.
    pub(super) fn kept(&self) -> &Rc<Kept> {
        &self.kept
    }

    /// Forgets commands beyond their retention, until execd ends.
    pub async fn sweep_hourly(&self) {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            let now_ms = clock::now_ms();
            self.kept.trim(now_ms);
            self.table.borrow_mut().trim(now_ms);
        }
    }
}

fn is_expired(command: &Command, now_ms: i64) -> bool {
    command.finished_ms.get().is_some_and(|finished_ms| finished_ms <= now_ms - RETENTION.as_millis() as i64)
}

impl Table {
    fn trim(&mut self, now_ms: i64) {
        let mut count = self.order.len();
        let mut bytes = self.content_bytes;
        let by_id = &mut self.by_id;
        self.order.retain(|command| {
            if command.finished_ms.get().is_none() {
                return true;
            }
            if !(is_expired(command, now_ms) || count > MAX_REMEMBERED || bytes > MAX_REMEMBERED_BYTES) {
                return true;
            }
            count -= 1;
            bytes -= command.content.len();
            by_id.remove(&command.id);
            false
        });
        self.content_bytes = bytes;
    }
}

impl Kept {
    /// Keeps the output of a command that has just ended, if it left any.
    pub fn add(&self, command: &Rc<Command>) {
        if command.journal.kept_bytes() == 0 {
            return;
        }
        self.finished.borrow_mut().push_back(Rc::clone(command));
        self.trim(clock::now_ms());
    }

    /// Gives up the output of the command that ended first; false when there is none to give up.
    pub fn free_oldest(&self) -> bool {
        let mut finished = self.finished.borrow_mut();
        let now = Instant::now();
        let Some(at) = finished.iter().position(|command| command.journal.forget("room was needed", now)) else {
            return false;
        };
        finished.remove(at);
        true
    }

    fn trim(&self, now_ms: i64) {
        let mut finished = self.finished.borrow_mut();
        let is_background = |command: &Command| command.kind == CommandKind::Background;
        let mut background = finished.iter().filter(|command| is_background(command)).count();
        let mut foreground = finished.len() - background;
        let mut bytes: u64 = finished.iter().map(|command| command.journal.kept_bytes()).sum();
        let disk = finished.back().and_then(|command| command.journal.file_system_bytes());
        let max_bytes = disk.map_or(MAX_KEPT_BYTES, |disk| MAX_KEPT_BYTES.min(disk / KEPT_PART_OF_DISK));
        let now = Instant::now();
        finished.retain(|command| {
            let (count, max) = match is_background(command) {
                true => (&mut background, MAX_KEPT_BACKGROUND),
                false => (&mut foreground, MAX_KEPT_FOREGROUND),
            };
            let held = command.journal.kept_bytes();
            let must_go = *count > max || bytes > max_bytes || is_expired(command, now_ms);
            if !must_go || !command.journal.forget("it was kept as long as there was room", now) {
                return true;
            }
            *count -= 1;
            bytes -= held;
            false
        });
    }
}
