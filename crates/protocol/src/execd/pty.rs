//! Terminals: `POST /pty`, `GET` and `DELETE /pty/{id}`, and the frames of `GET /pty/{id}/ws`.
//!
//! A binary frame is a prefix byte and bytes of the terminal; a text frame is JSON. Parts that are additions to the
//! published contract say so.

use serde::{Deserialize, Serialize};

/// First byte of a binary frame with bytes for the shell's standard input (from the client).
pub const STDIN: u8 = 0;
/// First byte of a binary frame with bytes of the terminal, or of standard output in pipe mode.
pub const STDOUT: u8 = 1;
/// First byte of a binary frame with bytes of standard error; in pipe mode only.
pub const STDERR: u8 = 2;
/// First byte of a replay: then come eight bytes of offset, most significant first, and the output from there on.
pub const REPLAY: u8 = 3;
/// Bytes of a replay before its output.
pub const REPLAY_HEAD_BYTES: usize = 9;

/// Close code after the shell's end, and after a deliberate end by the client.
pub const CLOSE_NORMAL: u16 = 1000;
/// Close code when the session is gone: deleted, or ended by the idle limit.
pub const CLOSE_GONE: u16 = 1001;
/// Close code after a frame that breaks the WebSocket protocol.
pub const CLOSE_PROTOCOL: u16 = 1002;
/// Close code after a message that is too large.
pub const CLOSE_TOO_BIG: u16 = 1009;
/// Close code when the shell could not be started or its input failed.
pub const CLOSE_FAILED: u16 = 1011;
/// Close code of the client whose place another one took.
pub const CLOSE_TAKEN_OVER: u16 = 4001;

/// Codes of `error` frames.
pub mod error_code {
    /// The session was deleted or ended by its idle limit.
    pub const SESSION_GONE: &str = "SESSION_GONE";
    /// The shell could not be started.
    pub const START_FAILED: &str = "START_FAILED";
    /// The shell no longer takes input.
    pub const STDIN_WRITE_FAILED: &str = "STDIN_WRITE_FAILED";
    /// A frame of an unknown type, or one that a viewer may not send.
    pub const INVALID_FRAME: &str = "INVALID_FRAME";
    /// Another client took this one's place.
    pub const TAKEN_OVER: &str = "TAKEN_OVER";
}

/// Body of `POST /pty`; an absent body is an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateTerminal {
    /// Working directory, made when it is missing; the sandbox's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Shell text to run in place of an interactive shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// Answer of `POST /pty`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedTerminal {
    /// A UUID.
    pub session_id: String,
}

/// Answer of `GET /pty/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalStatus {
    /// A UUID.
    pub session_id: String,
    /// Whether its shell runs now.
    pub running: bool,
    /// Bytes of output so far: where the next byte will be.
    pub output_offset: u64,
    /// Offset of the oldest byte that can still be replayed; an addition.
    #[serde(default)]
    pub replay_offset: u64,
    /// Whether a client holds the terminal; an addition.
    #[serde(default)]
    pub attached: bool,
    /// Clients that only look on; an addition.
    #[serde(default)]
    pub viewers: usize,
    /// Exit code of the shell that ended last, -1 after a signal; an addition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// Answer of `GET /v1/pty`, an addition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalList {
    /// All sessions, oldest first.
    pub sessions: Vec<TerminalStatus>,
    /// How many there are.
    pub count: usize,
    /// How many there can be.
    pub limit: usize,
    /// Seconds without any client after which a session ends; 0 means never.
    pub idle_timeout_seconds: u64,
}

/// A text frame of the client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientFrame {
    /// `stdin`, `signal`, `resize`, `ping`; and `eof`, an addition: the end of standard input.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Text for the shell, of `stdin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// `SIGINT`, `SIGTERM`, `SIGKILL`, `SIGQUIT` or `SIGHUP`, of `signal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Width, of `resize`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cols: Option<i64>,
    /// Height, of `resize`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<i64>,
}

impl ClientFrame {
    /// The frame that tells the window's size.
    pub fn resize(cols: u16, rows: u16) -> Self {
        Self { kind: "resize".into(), cols: Some(cols.into()), rows: Some(rows.into()), ..Self::default() }
    }

    /// A frame of a kind that needs nothing more.
    pub fn plain(kind: &str) -> Self {
        Self { kind: kind.into(), ..Self::default() }
    }
}

/// A text frame of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ServerFrame {
    /// The client is attached; what comes next is live.
    Connected {
        /// The session.
        session_id: String,
        /// `pty` or `pipe`.
        mode: String,
        /// `writer` or `viewer`; an addition.
        #[serde(default)]
        role: String,
    },
    /// The shell has ended and all of its output was sent.
    Exit {
        /// -1 after a signal.
        exit_code: i32,
        /// The signal's name; an addition.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<String>,
    },
    /// Something was refused or failed.
    Error {
        /// One of [`error_code`].
        code: String,
        /// For people.
        error: String,
    },
    /// Answer of `ping`.
    Pong,
}
