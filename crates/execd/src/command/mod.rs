//! Commands: started, streamed or kept in the background, asked about, read again, ended.
//!
//! Owns the table of commands and their records. The process itself belongs to [`crate::reaper`]; each
//! command has one keeper task that enforces its deadline and notes its end, and one pump task that takes its
//! output into the journal and, where there is a client, to that.
//!
//! ```text
//! POST /command --spawn fails--> failed (exit code 255)
//!      |
//!      +--> running --own process ends, deadline kills, DELETE--> finished --24 h or bound--> forgotten
//! ```

mod buffers;
mod cancel;
mod end;
mod journal;
mod lines;
mod list;
mod pump;
mod request;
mod run;
mod show;
mod spool;
mod stream;
mod table;

pub use buffers::release as release_buffers;
pub use cancel::{interrupt, kill};
pub use end::{Cause, Fault};
pub use lines::{Cut, Lines, Overlong, stdout_event};
pub use list::{detail, list};
pub use pump::{OnDisconnect, PING_EVERY, Published};
pub use request::{NO_SHELL, find_program, find_shell, make_plan, timeout_ms};
pub use run::{Launch, event_stream, on_disconnect, output_pipe, run, run_text, start_foreground};
pub use show::{logs, status, unfinished_character};
pub use spool::directories as private_directories;
pub use stream::stream;
pub use table::Commands;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use protocol::execd::output::{CommandKind, OutputEvent, Resource};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::clock;
use crate::reaper::Process;
use crate::resources::Counters;
use journal::Journal;

/// Events of a command besides its output; a resource that runs out again and again is not told for ever.
const MAX_NOTICES: usize = 64;

/// How long a question waits for output that is under way. It takes a moment; a full disk or machine takes longer.
const SYNC_WAIT: Duration = Duration::from_secs(1);

/// One command, from its start until it is forgotten.
pub struct Command {
    id: String,
    kind: CommandKind,
    session_id: Option<String>,
    content: String,
    /// By which its descendants are found: see [`crate::tree`].
    tag: u64,
    started_ms: i64,
    finished_ms: Cell<Option<i64>>,
    start: Start,
    journal: Rc<Journal>,
    notices: RefCell<Vec<OutputEvent>>,
    /// Resources whose lack was told and lasts.
    lacking: RefCell<Vec<Resource>>,
    cancelling: Cell<bool>,
    sync: Sync,
    /// Why it was ended from outside; the first one counts.
    cause: Cell<Option<Cause>>,
    fault: OnceCell<Fault>,
    counters: Rc<Counters>,
    oom_kills_before: u64,
    met_oom: OnceCell<bool>,
}

/// What became of the start.
enum Start {
    /// The process runs or ran.
    Process(Process),
    /// Nothing was started; the system's words.
    Failed(String),
}

/// How a log is asked to hold what was written before the question.
#[derive(Default)]
struct Sync {
    asked: Notify,
    done: Notify,
    /// Nobody writes any more, and everything is in the journal.
    over: Cell<bool>,
}

/// What a command is, apart from its process.
struct Origin {
    id: String,
    kind: CommandKind,
    session_id: Option<String>,
    content: String,
    tag: u64,
}

impl Command {
    fn new(origin: Origin, start: Start, journal: Rc<Journal>, counters: Rc<Counters>, oom_kills: u64) -> Rc<Self> {
        let now = clock::now_ms();
        let finished = matches!(start, Start::Failed(_)).then_some(now);
        Rc::new(Self {
            id: origin.id,
            kind: origin.kind,
            session_id: origin.session_id,
            content: origin.content,
            tag: origin.tag,
            started_ms: now,
            finished_ms: Cell::new(finished),
            start,
            journal,
            notices: RefCell::default(),
            lacking: RefCell::default(),
            cancelling: Cell::new(false),
            sync: Sync::default(),
            cause: Cell::new(None),
            fault: OnceCell::new(),
            counters,
            oom_kills_before: oom_kills,
            met_oom: OnceCell::new(),
        })
    }

    /// Whether its process lives.
    pub fn is_running(&self) -> bool {
        matches!(&self.start, Start::Process(process) if process.exit().is_none())
    }

    /// Whether a published client may take it for finished: its process has ended, and its log is complete.
    fn is_finished(&self) -> bool {
        !self.is_running() && (self.kind != CommandKind::Background || self.journal.extent().closed)
    }

    /// Waits until what the process has written so far is in the journal. A command that writes faster than
    /// that, or whose journal is full, is not waited for.
    async fn sync(&self) {
        let done = self.sync.done.notified();
        let extent = self.journal.extent();
        if self.sync.over.get() || extent.waiting {
            return;
        }
        self.sync.asked.notify_one();
        let _ = timeout(SYNC_WAIT, done).await; // what is there by then is answered
    }

    /// Waits until the output is complete, unless its journal waits for a reader.
    async fn complete(&self) {
        let complete = async {
            loop {
                let news = self.journal.news();
                if self.journal.extent().closed {
                    return;
                }
                news.await;
            }
        };
        let _ = timeout(SYNC_WAIT, complete).await; // it shows as running until then
    }

    /// Notes why it is ended, unless that is known already.
    fn because(&self, cause: Cause) {
        if self.cause.get().is_none() {
            self.cause.set(Some(cause));
        }
    }

    /// Notes what went wrong besides the command itself.
    pub fn fault(&self, fault: Fault) {
        let _ = self.fault.set(fault); // the first one counts
    }

    /// Puts an event beside the output, where that stands now.
    fn notice(&self, make: impl FnOnce(u64, u64) -> OutputEvent) {
        let mut notices = self.notices.borrow_mut();
        if notices.len() < MAX_NOTICES {
            let number = notices.len() as u64;
            notices.push(make(self.journal.extent().next, number));
            self.journal.touch();
        }
    }

    /// Tells that a resource ran out at some moment.
    pub fn ran_out(&self, resource: Resource, detail: &str) {
        let detail = detail.to_owned();
        self.notice(|offset, number| OutputEvent::Resource { offset, number, resource, detail });
    }

    /// Tells that a resource is used up, once as long as that lasts.
    pub fn lacks(&self, resource: Resource, lacks: bool, detail: &str) {
        let mut lacking = self.lacking.borrow_mut();
        let told = lacking.contains(&resource);
        if lacks && !told {
            lacking.push(resource);
            self.ran_out(resource, detail);
        } else if !lacks && told {
            lacking.retain(|known| *known != resource);
        }
    }
}
