//! Commands: started, streamed or kept in the background, asked about, interrupted.
//!
//! Owns the table of commands and their records. The process itself belongs to [`crate::reaper`]; each
//! command has one keeper task that enforces its deadline and notes its end.
//!
//! ```text
//! POST /command --spawn fails--> failed (exit code 255)
//!      |
//!      +--> running --own process ends, deadline kills, DELETE--> finished --24 h or bound--> forgotten
//! ```

mod cancel;
mod lines;
mod pump;
mod request;
mod run;
mod show;
mod spool;

pub use cancel::interrupt;
pub use pump::release_buffers;
pub use request::make_plan;
pub use run::run;
pub use show::{logs, status};
pub use spool::directories as private_directories;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use crate::clock;
use crate::reaper::{Exit, Process};

/// A finished command can be asked about for this long.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// How often what is beyond its retention is removed.
const SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);
/// Commands that are remembered; beyond it the oldest finished ones go first.
const MAX_REMEMBERED: usize = 4096;
/// Bytes of command text that are remembered in all.
const MAX_REMEMBERED_BYTES: usize = 4 * 1024 * 1024;
/// Finished background commands whose log is kept: each holds a descriptor.
const MAX_LOGS: usize = 1024;
/// Exit code of a command that could not be started.
const NOT_STARTED: i32 = 255;
/// Exit code of a command that a signal ended.
const SIGNALED: i32 = -1;

/// One command, from its start until it is forgotten.
pub struct Command {
    id: String,
    content: String,
    started_ms: i64,
    finished_ms: Cell<Option<i64>>,
    outcome: Outcome,
    log: Option<spool::Log>,
    cancelling: Cell<bool>,
    deadline_passed: OnceCell<i64>,
}

enum Outcome {
    /// The process runs or ran.
    Started(Process),
    /// Nothing was started; the system's words.
    Failed(String),
}

impl Command {
    fn new(id: String, content: String, outcome: Outcome, log: Option<spool::Log>) -> Rc<Self> {
        let now = clock::now_ms();
        let finished = matches!(outcome, Outcome::Failed(_)).then_some(now);
        Rc::new(Self {
            id,
            content,
            started_ms: now,
            finished_ms: Cell::new(finished),
            outcome,
            log,
            cancelling: Cell::new(false),
            deadline_passed: OnceCell::new(),
        })
    }

    /// How it ended; `None` while it runs.
    fn end(&self) -> Option<End> {
        match &self.outcome {
            Outcome::Failed(why) => Some(End { code: NOT_STARTED, evalue: why.clone(), detail: vec![why.clone()] }),
            Outcome::Started(process) => process.exit().map(|exit| self.end_of(exit)),
        }
    }

    fn end_of(&self, exit: Exit) -> End {
        let mut end = match exit {
            Exit::Code(0) => End { code: 0, evalue: "0".into(), detail: Vec::new() },
            Exit::Code(code) => End { code, evalue: code.to_string(), detail: vec![format!("exit status {code}")] },
            Exit::Signal { number, dumped } => {
                let core = if dumped { " (core dumped)" } else { "" };
                let detail = vec![format!("signal: {}{core}", signal_name(number))];
                End { code: SIGNALED, evalue: SIGNALED.to_string(), detail }
            }
        };
        match self.deadline_passed.get() {
            Some(timeout_ms) if end.code != 0 => end.detail.push(format!("the timeout of {timeout_ms} ms was reached")),
            _ => {}
        }
        end
    }
}

/// The end of a command as clients see it.
struct End {
    code: i32,
    evalue: String,
    /// Empty after success.
    detail: Vec<String>,
}

/// The published daemon's words for signals; others are shown by number.
fn signal_name(number: i32) -> String {
    let name = match number {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGILL => "illegal instruction",
        libc::SIGTRAP => "trace/breakpoint trap",
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGKILL => "killed",
        libc::SIGUSR1 => "user defined signal 1",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGUSR2 => "user defined signal 2",
        libc::SIGPIPE => "broken pipe",
        libc::SIGALRM => "alarm clock",
        libc::SIGTERM => "terminated",
        libc::SIGXCPU => "CPU time limit exceeded",
        libc::SIGXFSZ => "file size limit exceeded",
        libc::SIGSYS => "bad system call",
        number => return format!("signal {number}"),
    };
    name.to_owned()
}

/// The commands that are remembered, oldest first.
#[derive(Default)]
pub struct Commands {
    table: RefCell<Table>,
    spool: spool::Spool,
}

#[derive(Default)]
struct Table {
    by_id: HashMap<String, Rc<Command>>,
    order: VecDeque<Rc<Command>>,
    content_bytes: usize,
}

impl Commands {
    fn insert(&self, command: &Rc<Command>) {
        let mut table = self.table.borrow_mut();
        table.content_bytes += command.content.len();
        table.by_id.insert(command.id.clone(), Rc::clone(command));
        table.order.push_back(Rc::clone(command));
        table.trim(clock::now_ms());
    }

    /// The command with this id.
    fn get(&self, id: &str) -> Option<Rc<Command>> {
        self.table.borrow().by_id.get(id).cloned()
    }

    /// Forgets commands beyond their retention, until execd ends.
    pub async fn sweep_hourly(&self) {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            self.table.borrow_mut().trim(clock::now_ms());
        }
    }
}

impl Table {
    fn trim(&mut self, now_ms: i64) {
        let expired_ms = now_ms - RETENTION.as_millis() as i64;
        let mut logs = self.order.iter().filter(|command| command.log.is_some()).count();
        let mut count = self.order.len();
        let mut bytes = self.content_bytes;
        let by_id = &mut self.by_id;
        self.order.retain(|command| {
            let Some(finished_ms) = command.finished_ms.get() else {
                return true;
            };
            let too_many_logs = command.log.is_some() && logs > MAX_LOGS;
            let expired = finished_ms <= expired_ms;
            if !(expired || count > MAX_REMEMBERED || bytes > MAX_REMEMBERED_BYTES || too_many_logs) {
                return true;
            }
            count -= 1;
            bytes -= command.content.len();
            logs -= usize::from(command.log.is_some());
            by_id.remove(&command.id);
            false
        });
        self.content_bytes = bytes;
    }
}
