//! What every request may use: settings of this sandbox, the table of commands, the reaper.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use protocol::execd::boot::BootUser;
use protocol::hooks::Hooks;

use crate::code::{Contexts, Limits, Origin};
use crate::command::Commands;
use crate::environment::{self, DEFAULT_ENV_FILE, DEFAULT_PATH, Environment, Paths};
use crate::files;
use crate::identity::Accounts;
use crate::metrics::Sampler;
use crate::pty::Terminals;
use crate::reaper::Reaper;
use crate::resources::Counters;
use crate::session::Sessions;

/// Bytes of the env file that are read for a command.
const MAX_ENV_FILE_BYTES: u64 = 1024 * 1024;
/// The variable that names the env file.
const ENV_FILE_VARIABLE: &str = "EXECD_ENVS";

/// What execd was told at its start, however it was started.
pub struct Settings {
    /// The token that requests must carry.
    pub token: Option<String>,
    /// The sandbox's id, shown to children.
    pub sandbox_id: Option<String>,
    /// Environment of the sandbox.
    pub env: Environment,
    /// Default directory of commands, and where relative paths begin.
    pub cwd: String,
    /// Default identity of commands.
    pub user: Option<BootUser>,
    /// Commands that the sandbox runs by itself.
    pub hooks: Hooks,
}

/// The shared state; it lives on one thread.
pub struct Daemon {
    token: Option<String>,
    paths: Arc<Paths>,
    user: Option<BootUser>,
    null: OwnedFd,
    /// Commands that the sandbox runs by itself.
    pub hooks: Hooks,
    /// Commands by id.
    pub commands: Commands,
    /// Sessions by id.
    pub sessions: Sessions,
    /// Terminals by id.
    pub terminals: Terminals,
    /// Code contexts.
    pub contexts: Contexts,
    /// The owner of `wait`.
    pub reaper: Rc<Reaper>,
    /// What of the sandbox's resources ran out.
    pub counters: Rc<Counters>,
    /// File calls under other identities.
    pub file_workers: files::Workers,
    /// Directories that are watched.
    pub watches: files::Watches,
    /// Metrics of the sandbox.
    pub metrics: Sampler,
    /// The isolated session whose init this execd is.
    pub isolated: std::cell::OnceCell<Rc<crate::isolated::Session>>,
}

impl Daemon {
    /// Completes the environment with what every process expects to find.
    ///
    /// # Errors
    /// When not even a pipe can be made to stand in for a missing `/dev/null`.
    pub fn new(settings: Settings) -> std::io::Result<Self> {
        let mut env = settings.env;
        let jupyter = Origin::of(&env);
        for name in environment::PRIVATE_NAMES {
            env.remove(name);
        }
        let uid = settings.user.map_or_else(|| rustix::process::geteuid().as_raw(), |user| user.uid);
        env.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into());
        env.entry("HOME".into())
            .or_insert_with(|| Accounts::load().user(uid).map_or_else(|| "/".into(), |user| user.home));
        env.entry(ENV_FILE_VARIABLE.into()).or_insert_with(|| DEFAULT_ENV_FILE.into());
        if let Some(id) = settings.sandbox_id {
            env.insert("OPENSANDBOX_ID".into(), id);
        }
        let terminals = Terminals::new(&env);
        let contexts = Contexts::new(Limits::of(&env), jupyter);
        Ok(Self {
            token: settings.token.filter(|token| !token.is_empty()),
            paths: Arc::new(Paths { env, cwd: settings.cwd }),
            user: settings.user,
            null: null_input()?,
            hooks: settings.hooks,
            commands: Commands::default(),
            sessions: Sessions::default(),
            terminals,
            contexts,
            reaper: Rc::new(Reaper::default()),
            counters: Counters::find(),
            file_workers: files::Workers::default(),
            watches: files::Watches::default(),
            metrics: Sampler::start(),
            isolated: std::cell::OnceCell::new(),
        })
    }

    /// Whether a request with this token header may pass; the comparison takes the same time for all
    /// tokens of the right length.
    pub fn admits(&self, presented: Option<&[u8]>) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let Some(presented) = presented else {
            return false;
        };
        let difference = token.bytes().zip(presented).fold(0, |found, (a, b)| found | (a ^ b));
        std::hint::black_box(difference) == 0 && token.len() == presented.len()
    }

    /// The sandbox's environment and default directory.
    pub fn paths(&self) -> &Arc<Paths> {
        &self.paths
    }

    /// Default working directory.
    pub fn cwd(&self) -> &str {
        &self.paths.cwd
    }

    /// Default identity of commands; `None` is execd's own.
    pub fn user(&self) -> Option<BootUser> {
        self.user
    }

    /// Standard input of every process: always at its end.
    pub fn null(&self) -> &OwnedFd {
        &self.null
    }

    /// The sandbox's environment with the env file's entries on top.
    pub fn env_with_file(&self) -> Environment {
        let mut env = self.paths.env.clone();
        let Some(path) = env.get(ENV_FILE_VARIABLE).filter(|path| !path.is_empty()).cloned() else {
            return env;
        };
        match File::open(&path) {
            Ok(file) => {
                let mut bytes = Vec::new();
                // An unreadable file is as if it were missing: commands must go on working.
                let _ = file.take(MAX_ENV_FILE_BYTES).read_to_end(&mut bytes);
                environment::apply_env_file(&String::from_utf8_lossy(&bytes), &mut env);
            }
            Err(_) => self.create_env_file(Path::new(&path)),
        }
        env
    }

    /// Makes the empty env file, so that a command can append to it; where that cannot be, nothing is lost.
    fn create_env_file(&self, path: &Path) {
        let Some(parent) = path.parent() else { return };
        let _ = std::fs::create_dir_all(parent);
        let Ok(file) = OpenOptions::new().append(true).create_new(true).mode(0o644).open(path) else {
            return;
        };
        if let Some(user) = self.user {
            let _ = fchown(&file, Some(user.uid), Some(user.gid)); // else only execd's own user may append
        }
    }
}

fn null_input() -> std::io::Result<OwnedFd> {
    if let Ok(null) = File::open("/dev/null") {
        return Ok(null.into());
    }
    let (reader, _writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok(reader)
}
