//! Lossless output: `GET /v1/commands`, `GET /v1/commands/{id}` and `GET /v1/commands/{id}/stream`.
//!
//! Additions to the published API. Every byte that a command writes has an offset; both streams are one
//! sequence. See `docs/streams.md`.

use serde::{Deserialize, Serialize};

/// What goes when a command writes more than its spool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// Nothing that was not delivered: the command waits.
    #[default]
    Wait,
    /// The oldest bytes; readers are told which.
    DropOldest,
}

/// Who wrote a byte. What is one stream (background commands, session runs) is standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamName {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

/// How a command was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CommandKind {
    /// `POST /command`.
    Foreground,
    /// `POST /command` with `background`.
    Background,
    /// `POST /session/{id}/run`.
    Session,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// By itself; `exit_code` says how.
    Exited,
    /// By a signal whose sender is not known; `signal` says which.
    Signaled,
    /// The kernel ended it because the sandbox's memory was used up.
    Oom,
    /// Its timeout was reached.
    TimedOut,
    /// Somebody asked for its end; `by` says who.
    Killed,
    /// There was no process; `detail` says why.
    NotStarted,
    /// It ended and nobody can say how; `detail` says why.
    Unknown,
}

/// Who asked for the end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// `DELETE /command`.
    Request,
    /// The end of its client's connection.
    Disconnect,
    /// The end of its session.
    SessionDeleted,
    /// A line of output beyond the bound of a session's form.
    OutputLine,
    /// The end of execd.
    Shutdown,
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandEnd {
    /// In one word.
    pub outcome: Outcome,
    /// Set by [`Outcome::Exited`], also where a signal was handled and the command then exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Number of the signal that ended the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Set when somebody asked for the end, however the process then ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<EndedBy>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What is kept of a command's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputExtent {
    /// Offset of the oldest byte that can be read.
    pub oldest: u64,
    /// Offset of the next byte: how many there were.
    pub next: u64,
    /// What goes when the spool is full.
    pub overflow: Overflow,
    /// The command waits, because its spool is full of output that nobody has read.
    pub waiting: bool,
    /// No more comes.
    pub complete: bool,
}

/// A command that runs or has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The id of its `init` event; for session runs an id of their own.
    pub id: String,
    /// How it was asked for.
    pub kind: CommandKind,
    /// The session of a session run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The shell text, or argv as a JSON array; cut to 1 KiB in lists.
    pub content: String,
    /// Whether its own process lives.
    pub running: bool,
    /// RFC 3339.
    pub started_at: String,
    /// RFC 3339; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// Absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<CommandEnd>,
    /// What is kept of its output.
    pub output: OutputExtent,
}

/// Answer of `GET /v1/commands`: the newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandList {
    /// The commands.
    pub commands: Vec<Command>,
    /// How many fit the question, those that were left out included.
    pub total: usize,
}

/// A resource of the sandbox that ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// The kernel ended a process for memory.
    Memory,
    /// A process could not be started because of the limit of processes.
    Pids,
    /// A file system has no free bytes.
    Disk,
    /// A file system has no free inodes.
    Inodes,
}

/// One event of an output stream. `offset` is where it stands in the output; to go on behind it, ask for the
/// stream from `next` on (`offset` where there is no `next`), which is also the event's SSE id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputEvent {
    /// The first event.
    Begin {
        /// Where the stream begins.
        offset: u64,
        /// The command as it is now.
        command: Command,
    },
    /// Bytes of one stream; exactly one of `text` and `base64` is set.
    Output {
        /// Whose they are.
        stream: StreamName,
        /// Offset of the first byte.
        offset: u64,
        /// Offset behind the last byte.
        next: u64,
        /// The bytes as text. What is not UTF-8 is U+FFFD, and `lossy` is true.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// The bytes, exactly.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
        /// Whether `text` stands for other bytes.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        lossy: bool,
    },
    /// Bytes that cannot be read any more, or never could.
    Lost {
        /// The first of them.
        offset: u64,
        /// The first that is not lost.
        next: u64,
        /// Why, for people.
        reason: String,
    },
    /// A resource of the sandbox ran out while the command ran: whoever used it up, this command met it.
    Resource {
        /// Where in the output.
        offset: u64,
        /// Counts the events of this command, so that one that comes again after a resume is known.
        number: u64,
        /// Which.
        resource: Resource,
        /// For people.
        detail: String,
    },
    /// The spool became full for the first time, and the command waits until somebody reads.
    SpoolFull {
        /// Where in the output.
        offset: u64,
    },
    /// All that there is now was sent, to a reader that does not follow.
    More {
        /// Where to go on.
        offset: u64,
    },
    /// The command has ended and all its output was sent.
    End {
        /// Length of the output.
        offset: u64,
        /// How it ended.
        end: CommandEnd,
    },
}
