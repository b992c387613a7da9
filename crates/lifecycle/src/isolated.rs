//! Isolated sessions: what may be asked of them, and what a runtime must be able to do.
//!
//! A session is a part of its sandbox: its ids, limits and disk are the sandbox's, and it ends with it. Only its mounts,
//! its processes and, if asked for, its network are its own.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use protocol::execd::code;
use protocol::execd::isolated::{CreateSession, Mode, Overlay, Profile, UidMode};
use serde::{Deserialize, Serialize};

use crate::runtime::{BoxFuture, RuntimeError};
use crate::spec::SandboxId;

#[cfg(test)]
mod tests;

/// Most mounts of a session (published).
pub const MAX_MOUNTS: usize = 16;
/// Most binds and writable places together; each is a mount.
pub const MAX_BINDS: usize = 64;
/// Most names of variables.
const MAX_KEYS: usize = 1_000;
/// Longest path, as the kernel takes it.
const MAX_PATH_BYTES: usize = 4095;
/// Where sources of binds and writable places may lie (published).
pub const ALLOWED_SOURCES: &[&str] = &["/workspace", "/mnt", "/media", "/data"];
/// Places that a session has of its own and no mount may cover.
const OWN_PLACES: &[&str] = &["/proc", "/sys", "/dev"];
/// Largest id; the one above it means "no id" to the kernel.
const MAX_ID: u32 = u32::MAX - 1;

/// Identifier of a session: a lower-case UUID, never reused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(String);

impl SessionId {
    /// Accepts a UUID in lower case with its four dashes.
    pub fn parse(text: &str) -> Option<Self> {
        let ok = text.len() == 36
            && text.bytes().enumerate().all(|(at, byte)| match at {
                8 | 13 | 18 | 23 => byte == b'-',
                _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
            });
        ok.then(|| Self(text.to_owned()))
    }

    /// The identifier as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for SessionId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("\"{text}\" is not a session id"))
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.0
    }
}

/// What a session is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSpec {
    /// Its workspaces.
    pub mounts: Vec<Mount>,
    /// Directories and files at other or the same places.
    pub binds: Vec<Bind>,
    /// Whether `/tmp` is its own.
    pub own_tmp: bool,
    /// Whether it has a network of its own, without a way out.
    pub own_network: bool,
    /// User and group of a workspace that has to be made; root when absent.
    pub owner: Option<(u32, u32)>,
}

/// One workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Absolute and clean.
    pub path: String,
    /// How it is shown.
    pub kind: MountKind,
}

/// How a workspace is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountKind {
    /// The sandbox's directory, writable.
    Rw,
    /// The sandbox's directory, read-only.
    Ro,
    /// Writes go to a directory of the session on the sandbox's disk.
    Overlay,
    /// Writes go to memory.
    Ephemeral,
}

/// A directory or file of the sandbox in the session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// Absolute and clean; links are resolved, and what they lead to must lie below [`ALLOWED_SOURCES`].
    pub source: String,
    /// Absolute and clean.
    pub dest: String,
    /// Whether it cannot be written to.
    pub read_only: bool,
}

/// What is kept of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Which one.
    pub id: SessionId,
    /// Unix milliseconds.
    pub created_ms: i64,
    /// What was asked for, defaults filled in.
    pub asked: CreateSession,
}

/// A session and whether its processes live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// What is kept of it.
    pub record: Record,
    /// Whether its first process lives.
    pub alive: bool,
}

/// One request to make a session.
pub struct Start<'a> {
    /// The sandbox.
    pub sandbox: &'a SandboxId,
    /// What is kept.
    pub record: Record,
    /// What to make.
    pub spec: SessionSpec,
    /// What its execd is told: [`protocol::execd::boot::BootConfig`] as JSON.
    pub boot: Vec<u8>,
}

/// What a runtime can do about sessions on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Means {
    /// Whether the runs can have other ids than the sandbox's root.
    pub other_ids: bool,
    /// What is weaker or missing here, one sentence each.
    pub weaker: Vec<String>,
}

/// Making and ending sessions. Every call may be repeated.
pub trait Isolated: Send + Sync {
    /// What can be done here.
    fn means(&self) -> Means;
    /// Makes a session; returns when its execd answers. A failure leaves nothing behind but directories it made in the sandbox for mounts.
    fn start<'a>(&'a self, start: Start<'a>) -> BoxFuture<'a, Result<(), RuntimeError>>;
    /// Ends a session and removes everything of it; unknown ones succeed.
    fn end<'a>(&'a self, sandbox: &'a SandboxId, id: &'a SessionId) -> BoxFuture<'a, Result<(), RuntimeError>>;
    /// Every session of which anything exists, oldest first.
    fn list<'a>(&'a self, sandbox: &'a SandboxId) -> BoxFuture<'a, Result<Vec<Seen>, RuntimeError>>;
    /// Where a session's execd listens. Pure: answers for any id.
    fn address(&self, sandbox: &SandboxId, id: &SessionId) -> PathBuf;
}

/// A request that cannot be obeyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// HTTP status: 400 or 503.
    pub status: u16,
    /// One of [`protocol::execd::code`].
    pub code: &'static str,
    /// A sentence that begins with the field.
    pub message: String,
}

/// Decides whether a session can be made as asked; also gives back what was asked with the defaults filled in.
///
/// # Errors
/// The field at fault and what to do.
pub fn admit(asked: CreateSession, means: &Means) -> Result<(SessionSpec, CreateSession), Refusal> {
    let mut overlays = asked.overlays.clone().unwrap_or_default();
    if let Some(workspace) = &asked.workspace {
        overlays.insert(0, Overlay { path: workspace.path.clone(), mode: workspace.mode, persist: None });
    }
    if overlays.is_empty() {
        return refuse("workspace: one of workspace and overlays is needed");
    }
    if overlays.len() > MAX_MOUNTS {
        return refuse(format!("overlays: {} mounts are more than {MAX_MOUNTS}", overlays.len()));
    }
    let mut places = BTreeSet::new();
    let mut mounts = Vec::new();
    for overlay in &mut overlays {
        clean("overlays.path", &overlay.path)?;
        own_place("overlays.path", &overlay.path)?;
        if !places.insert(overlay.path.clone()) {
            return refuse(format!("overlays.path: {} is named twice", overlay.path));
        }
        let mode = *overlay.mode.get_or_insert_default();
        if mode != Mode::Overlay && overlay.persist.is_some() {
            return refuse(format!(
                "overlays.persist: only means something in mode overlay; leave it out for {}",
                overlay.path
            ));
        }
        let kind = match mode {
            Mode::Rw => MountKind::Rw,
            Mode::Ro => MountKind::Ro,
            Mode::Overlay if *overlay.persist.get_or_insert(true) => MountKind::Overlay,
            Mode::Overlay => MountKind::Ephemeral,
        };
        mounts.push(Mount { path: overlay.path.clone(), kind });
    }
    let binds = binds(&asked, &mut places)?;
    identity(&asked, means)?;
    if let Some(keys) = asked.env_passthrough.as_ref().and_then(|passthrough| passthrough.keys.as_ref()) {
        if keys.len() > MAX_KEYS {
            return refuse(format!("env_passthrough.keys: {} names are more than {MAX_KEYS}", keys.len()));
        }
        if keys.iter().any(|key| key.is_empty() || key.contains(['=', '\0'])) {
            return refuse("env_passthrough.keys: a name is empty or holds '=' or NUL");
        }
    }
    let profile = asked.profile.unwrap_or_default();
    let share_net = asked.share_net.unwrap_or(true);
    let spec = SessionSpec { mounts, binds, own_tmp: profile == Profile::Strict, own_network: !share_net, owner: None };
    let echoed = CreateSession {
        profile: Some(profile),
        workspace: asked.workspace.filter(|_| overlays.len() == 1).map(|mut workspace| {
            workspace.mode.get_or_insert_default();
            workspace
        }),
        overlays: Some(overlays),
        share_net: Some(share_net),
        uid_mode: Some(asked.uid_mode.unwrap_or_default()),
        idle_timeout_seconds: Some(asked.idle_timeout_seconds.unwrap_or(0).max(0)),
        ..asked
    };
    Ok((spec, echoed))
}

fn binds(asked: &CreateSession, places: &mut BTreeSet<String>) -> Result<Vec<Bind>, Refusal> {
    let mut binds = Vec::new();
    for bind in asked.binds.iter().flatten() {
        clean("binds.source", &bind.source)?;
        let dest = bind.dest.clone().filter(|dest| !dest.is_empty()).unwrap_or_else(|| bind.source.clone());
        clean("binds.dest", &dest)?;
        own_place("binds.dest", &dest)?;
        if !places.insert(dest.clone()) {
            return refuse(format!("binds.dest: {dest} is named twice"));
        }
        binds.push(Bind { source: bind.source.clone(), dest, read_only: bind.readonly.unwrap_or(false) });
    }
    for path in asked.extra_writable.iter().flatten() {
        clean("extra_writable", path)?;
        if !places.insert(path.clone()) {
            return refuse(format!("extra_writable: {path} is named twice"));
        }
        binds.push(Bind { source: path.clone(), dest: path.clone(), read_only: false });
    }
    if binds.len() > MAX_BINDS {
        return refuse(format!("binds: {} with extra_writable are more than {MAX_BINDS}", binds.len()));
    }
    Ok(binds)
}

fn identity(asked: &CreateSession, means: &Means) -> Result<(), Refusal> {
    let unsupported = |message: &str| Refusal { status: 503, code: code::NOT_SUPPORTED, message: message.to_owned() };
    if asked.uid_mode == Some(UidMode::Userns) {
        return Err(unsupported(
            "uid_mode: userns is not available, a sandbox is in a user namespace already; use setpriv",
        ));
    }
    if asked.gid.is_some() && asked.uid.is_none() {
        return refuse("gid: needs uid");
    }
    for (name, id) in [("uid", asked.uid), ("gid", asked.gid)] {
        if id.is_some_and(|id| id > MAX_ID) {
            return refuse(format!("{name}: must lie between 0 and {MAX_ID}"));
        }
        if id.is_some_and(|id| id != 0) && !means.other_ids {
            return Err(unsupported(&format!(
                "{name}: this machine maps no other id than 0 into sandboxes; leave it out, or give the user a range in /etc/subuid"
            )));
        }
    }
    Ok(())
}

/// Whether a path is absolute and has neither an empty part nor `.` nor `..`.
pub fn is_clean(path: &str) -> bool {
    let mut parts = path.split('/');
    path.len() <= MAX_PATH_BYTES
        && !path.contains('\0')
        && parts.next() == Some("")
        && parts.all(|part| !matches!(part, "" | "." | ".."))
}

fn clean(field: &str, path: &str) -> Result<(), Refusal> {
    if is_clean(path) {
        return Ok(());
    }
    refuse(format!("{field}: {path:?} is not a clean absolute path below /"))
}

fn own_place(field: &str, path: &str) -> Result<(), Refusal> {
    match OWN_PLACES.iter().find(|place| is_below(path, place)) {
        Some(place) => refuse(format!("{field}: {path} lies in {place}, which every session has of its own")),
        None => Ok(()),
    }
}

/// Whether `path` is `place` or lies in it; both are clean.
pub fn is_below(path: &str, place: &str) -> bool {
    path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn refuse<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { status: 400, code: code::INVALID_REQUEST_BODY, message: message.into() })
}
