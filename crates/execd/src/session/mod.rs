//! Shell sessions: exported variables and the working directory last from one run to the next.
//!
//! No process lives between runs. Each run is a fresh shell that begins with the saved state and, when the
//! command has come to its end, writes the new state into a memory file that only the shell's last lines hold.
//! A command that leaves the shell by `exit` or `exec`, or is killed, leaves the state as it was. Runs of one
//! session are not serialised: each begins with the state at its start, and the last to end wins.
//!
//! ```text
//! POST /session --> kept --POST run--> (running, any number) --end--> state replaced
//!                     +--DELETE /session/{id} or /command?id=--> groups killed, forgotten
//! ```

mod exports;
mod lines;
mod run;
mod state;

pub use run::run;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::rc::Rc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use protocol::execd::code;
use protocol::execd::output::EndedBy;
use protocol::execd::session::{CreateSession, CreatedSession};

use crate::command::{self, Cause, Command};
use crate::daemon::Daemon;
use crate::environment::expand_path;
use crate::error::{ApiError, Result, system_text};
use crate::http::{Answer, empty, json, read_optional_json};
use crate::id;

use state::State;

/// Sessions at once. Each holds its variables in memory, [`state::MAX_ENV_BYTES`] at most.
const MAX_SESSIONS: usize = 256;

/// One session.
pub struct Session {
    id: String,
    state: RefCell<State>,
    runs: RefCell<Vec<Rc<Command>>>,
}

/// The sessions by id.
#[derive(Default)]
pub struct Sessions {
    by_id: RefCell<HashMap<String, Rc<Session>>>,
}

impl Sessions {
    fn get(&self, id: &str) -> Option<Rc<Session>> {
        self.by_id.borrow().get(id).cloned()
    }
}

impl Session {
    fn keeps(&self, command: &Rc<Command>) {
        let mut runs = self.runs.borrow_mut();
        runs.retain(|run| run.is_running());
        runs.push(Rc::clone(command));
    }
}

/// `POST /session`: makes a session, and its first directory where that is missing.
///
/// # Errors
/// 400 for a directory that cannot be made or entered, and when there are too many sessions.
pub async fn create(daemon: Rc<Daemon>, request: Request<Incoming>) -> Result<Answer> {
    let body: CreateSession = read_optional_json(request).await?.unwrap_or_default();
    if daemon.sessions.by_id.borrow().len() >= MAX_SESSIONS {
        return Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            code::RUNTIME_ERROR,
            format!("there are {MAX_SESSIONS} sessions already; delete one that is no longer needed"),
        ));
    }
    let env = daemon.env_with_file();
    let cwd = match body.cwd.filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => make_directory(&daemon, &expand_cwd(&cwd, &env, daemon.cwd())?)?,
        None => daemon.cwd().to_owned(),
    };
    let session_id = id::uuid();
    let state = State::new(env, cwd);
    let session = Session { id: session_id.clone(), state: RefCell::new(state), runs: RefCell::default() };
    daemon.sessions.by_id.borrow_mut().insert(session_id.clone(), Rc::new(session));
    Ok(json(StatusCode::OK, &CreatedSession { session_id }))
}

/// The directory that a request names, made where it is missing.
///
/// # Errors
/// 400 for one that cannot be made.
pub fn directory_for(daemon: &Daemon, cwd: &str) -> Result<String> {
    let env = daemon.env_with_file();
    make_directory(daemon, &expand_cwd(cwd, &env, daemon.cwd())?)
}

/// Expands a directory of a request.
///
/// # Errors
/// 400 naming `cwd`.
pub fn expand_cwd(cwd: &str, env: &crate::environment::Environment, base: &str) -> Result<String> {
    expand_path(cwd, env, base).map_err(|error| ApiError::body(error.message).context("cwd"))
}

/// Makes the directory and its parents where they are missing; new ones belong to the sandbox's user.
///
/// # Errors
/// 400 naming `cwd`.
pub fn make_directory(daemon: &Daemon, cwd: &str) -> Result<String> {
    let failed = |error: std::io::Error| ApiError::body(format!("cwd: make {cwd}: {}", system_text(&error)));
    let missing: Vec<&Path> =
        Path::new(cwd).ancestors().take_while(|path| fs::symlink_metadata(path).is_err()).collect();
    fs::create_dir_all(cwd).map_err(failed)?;
    if let Some(user) = daemon.user() {
        for made in missing {
            let _ = chown(made, Some(user.uid), Some(user.gid)); // else it is merely not writable for the user
        }
    }
    Ok(cwd.to_owned())
}

/// `DELETE /session/{id}`.
///
/// # Errors
/// 404 for an unknown id, 500 when a run does not end even by KILL.
pub async fn delete(daemon: Rc<Daemon>, id: &str) -> Result<Answer> {
    if remove(&daemon, id).await? {
        return Ok(empty());
    }
    let message = format!("no session has the id {id:?}");
    Err(ApiError::new(StatusCode::NOT_FOUND, code::CONTEXT_NOT_FOUND, message))
}

/// Forgets a session and kills the trees of its runs; false when there is none of this id.
///
/// # Errors
/// 500 when a run does not end even by KILL.
pub async fn remove(daemon: &Daemon, id: &str) -> Result<bool> {
    let Some(session) = daemon.sessions.by_id.borrow_mut().remove(id) else {
        return Ok(false);
    };
    let mut outcome = Ok(true);
    let runs = session.runs.take();
    for run in runs.iter().filter(|run| run.is_running()) {
        if let Err(error) = command::kill(run, Cause::By(EndedBy::SessionDeleted)).await
            && run.is_running()
        {
            outcome = Err(error);
        }
    }
    outcome
}
