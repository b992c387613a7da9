//! Isolated sessions: `/v1/isolated/*`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where these calls begin.
pub const PREFIX: &str = "/v1/isolated/";
/// Response header with the end of the part of a background run's log that was sent.
pub const TAIL_CURSOR: &str = "EXECD-ISOLATED-TAIL-CURSOR";
/// `ename` of a run that ended with another code than 0.
pub const EXIT_ERROR_NAME: &str = "ExitError";
/// `ename` of a run that did not come to its own end.
pub const RUNTIME_ERROR_NAME: &str = "RuntimeError";
/// Directory of background runs below the first mount.
pub const RUNS_DIRECTORY: &str = ".execd/background-runs";

/// How a mount of a session shows the sandbox's directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The directory itself.
    Rw,
    /// Reads come from the directory, writes go beside it.
    #[default]
    Overlay,
    /// The directory itself, not writable.
    Ro,
}

/// The published short form of one mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workspace {
    /// Absolute.
    #[serde(default)]
    pub path: String,
    /// [`Mode::Overlay`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

/// One mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    /// Absolute.
    #[serde(default)]
    pub path: String,
    /// [`Mode::Overlay`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// For overlays: whether what is written lies on the sandbox's disk (when absent, too) or in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persist: Option<bool>,
}

/// A directory or file of the sandbox at another place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// Absolute; links are resolved.
    #[serde(default)]
    pub source: String,
    /// The source's own path when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dest: Option<String>,
    /// Writable when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readonly: Option<bool>,
}

/// Which variables of the sandbox a session sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvPassthrough {
    /// `deny` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<EnvMode>,
    /// Names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<String>>,
}

/// Meaning of the names of [`EnvPassthrough`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnvMode {
    /// All but these; without names, all but those that look like secrets.
    #[default]
    Deny,
    /// These alone.
    Allow,
}

/// How much of the sandbox a session shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// `/tmp` is the session's own.
    #[default]
    Strict,
    /// `/tmp` is the sandbox's.
    Balanced,
}

/// How a session takes on another identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UidMode {
    /// By switching to it.
    #[default]
    Setpriv,
    /// By a user namespace that has nothing else.
    Userns,
}

/// Body of `POST /v1/isolated/session`, and what is echoed of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateSession {
    /// [`Profile::Strict`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// The first mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    /// The other mounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlays: Option<Vec<Overlay>>,
    /// Directories that stay writable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_writable: Option<Vec<String>>,
    /// Directories and files at other places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binds: Option<Vec<Bind>>,
    /// Whether the session has the sandbox's network (when absent, too) or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_net: Option<bool>,
    /// Variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_passthrough: Option<EnvPassthrough>,
    /// User of the runs; the sandbox's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group of the runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// [`UidMode::Setpriv`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid_mode: Option<UidMode>,
    /// Seconds without a run after which the session ends; 0 and less mean never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<i64>,
}

/// Answer of `POST /v1/isolated/session` and of `GET /v1/isolated/session/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// A UUID.
    pub session_id: String,
    /// `active` or `dead`.
    pub status: String,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339; the creation when there was no run.
    pub last_run_at: String,
    /// Absent without an idle time-out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_remaining_seconds: Option<i64>,
    /// What was asked for, defaults filled in.
    #[serde(flatten)]
    pub asked: CreateSession,
}

/// Answer of `GET /v1/isolated/sessions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sessions {
    /// Oldest first.
    pub sessions: Vec<Session>,
}

/// Body of `POST /v1/isolated/session/{id}/run`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Shell text; not empty.
    #[serde(default)]
    pub code: Option<String>,
    /// Variables of this run alone, which then changes nothing in the shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envs: Option<BTreeMap<String, String>>,
    /// Seconds until a foreground run is interrupted; 0 or absent means never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i64>,
    /// Whether to answer at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<bool>,
}

/// Answer to a background run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedRun {
    /// The session.
    pub session_id: String,
    /// A UUID.
    pub run_id: String,
    /// RFC 3339.
    pub started_at: String,
}

/// Answer of `GET /v1/isolated/session/{id}/runs/{run}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStatus {
    /// The session.
    pub session_id: String,
    /// The run.
    pub run_id: String,
    /// Whether it goes on.
    pub running: bool,
    /// Its exit code, once it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// RFC 3339.
    pub started_at: String,
    /// RFC 3339; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
}

/// What became of one file of an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// It was not there.
    Added,
    /// Its content, mode, owner or target is another.
    Modified,
    /// It is gone, with everything below it.
    Deleted,
}

/// One difference between a session's overlay and the directory below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Absolute, as the session sees it.
    pub path: String,
    /// What became of it.
    pub change: ChangeKind,
    /// `file`, `directory`, `symlink` or `other`: what it is now, or was before it was deleted.
    #[serde(rename = "type")]
    pub kind: String,
    /// Bytes of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// Answer of `GET …/diff` and of `POST …/commit`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The session.
    pub session_id: String,
    /// In order of their paths; parents first.
    pub changes: Vec<Change>,
}

/// Answer of `GET /v1/isolated/capabilities`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Whether sessions can be made.
    pub available: bool,
    /// What makes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolator: Option<String>,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Why not, or what is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether [`UidMode::Setpriv`] exists.
    pub setpriv_available: bool,
    /// Whether [`UidMode::Userns`] exists.
    pub userns_available: bool,
    /// Whether commit exists.
    pub commit_supported: bool,
    /// Whether diff exists.
    pub diff_supported: bool,
    /// What stands around user code, read back from the kernel in the sandbox itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardening: Option<super::hardening::Hardening>,
}

/// Answer of execd's own `GET /v1/environment`: what a session of this sandbox begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surroundings {
    /// Variables, those of the env file included.
    pub env: BTreeMap<String, String>,
    /// Identity of commands; execd's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<super::boot::BootUser>,
}
