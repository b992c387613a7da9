//! What a runtime tells execd when it starts it as PID 1: private to one version, never on the network.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::isolated::CreateSession;
use crate::hooks::Hooks;

/// Descriptor of the listening socket that execd inherits.
pub const LISTENER_FD: i32 = 3;
/// Descriptor from which execd reads its [`BootConfig`] as JSON, to the end.
pub const CONFIG_FD: i32 = 4;
/// Descriptor on which execd writes its [`StatusLine`]s.
pub const STATUS_FD: i32 = 5;

/// The argument with which execd, as PID 1 where nothing but standard descriptors can be inherited, takes everything else
/// from a packet socket at standard input. It first sends one byte. The answer brings two descriptors, for what
/// [`CONFIG_FD`] and [`STATUS_FD`] are otherwise; every packet after that brings one connection to serve or, without a
/// descriptor, is the number of a signal that execd is to take as its own.
pub const HANDED_FLAG: &str = "--handed";

/// First descriptor of the overlays of an isolated session: two for each, the directory below and the one written to.
pub const OVERLAY_FD: i32 = 6;

/// Everything that execd is told at its start.
#[derive(Clone, Serialize, Deserialize)]
pub struct BootConfig {
    /// The sandbox's id; children see it as `OPENSANDBOX_ID`.
    pub sandbox_id: String,
    /// The token that every request must carry; `None` leaves the API open.
    pub token: Option<String>,
    /// Environment of the sandbox: image first, then the create request.
    pub env: BTreeMap<String, String>,
    /// The main process; its end is the sandbox's end.
    pub entrypoint: Vec<String>,
    /// Working directory of the main process and default of commands; `/` when absent.
    pub cwd: Option<String>,
    /// Identity of the main process and default of commands; execd's own when absent.
    pub user: Option<BootUser>,
    /// Milliseconds between TERM and KILL when the sandbox is asked to end.
    pub grace_ms: u64,
    /// Commands that run before the main process and beside it.
    #[serde(default)]
    pub hooks: Hooks,
    /// What makes this execd the init of an isolated session; there is no main process then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolated: Option<IsolatedBoot>,
}

/// What the execd of an isolated session is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolatedBoot {
    /// The session's id, a UUID.
    pub session_id: String,
    /// Unix milliseconds.
    pub created_ms: i64,
    /// What was asked for, defaults filled in.
    pub asked: CreateSession,
}

/// A numeric identity inside the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootUser {
    /// User id inside the sandbox.
    pub uid: u32,
    /// Primary group id inside the sandbox.
    pub gid: u32,
}

/// What execd reports on [`STATUS_FD`], one line each. It is hostile input to its reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusLine {
    /// The API answers, and the main process, where there is one to start, was started.
    Ready,
    /// The hook before the main process failed, with the reason; there is no main process then.
    HookFailed(String),
    /// The main process could not be started, with the system's words.
    EntrypointFailed(String),
    /// The main process ended with this code.
    Exited(i32),
    /// The main process was ended by this signal.
    Signaled(i32),
}

impl StatusLine {
    /// Reads one line without its terminator; `None` for anything else than the five forms.
    pub fn parse(line: &str) -> Option<Self> {
        if line == "ready" {
            return Some(Self::Ready);
        }
        let (word, rest) = line.split_once(' ')?;
        match word {
            "hook-failed" => Some(Self::HookFailed(rest.to_owned())),
            "entrypoint-failed" => Some(Self::EntrypointFailed(rest.to_owned())),
            "exited" => rest.parse().ok().map(Self::Exited),
            "signaled" => rest.parse().ok().map(Self::Signaled),
            _ => None,
        }
    }
}

impl std::fmt::Display for StatusLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::HookFailed(why) => write!(f, "hook-failed {}", why.replace('\n', " ")),
            Self::EntrypointFailed(why) => write!(f, "entrypoint-failed {}", why.replace('\n', " ")),
            Self::Exited(code) => write!(f, "exited {code}"),
            Self::Signaled(signal) => write!(f, "signaled {signal}"),
        }
    }
}
