//! `POST /session/{id}/run`.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use protocol::execd::code;
use protocol::execd::output::CommandKind;
use protocol::execd::session::RunInSession;
use protocol::execd::stream::SESSION_STATE_ERROR_NAME;
use rustix::fs::{MemfdFlags, memfd_create};

use super::lines::SessionLines;
use super::state::{STATUS_VARIABLE, State};
use super::{Session, expand_cwd};
use crate::command::{self, Fault, Launch, NO_SHELL, OnDisconnect, Published};
use crate::daemon::Daemon;
use crate::error::{ApiError, Result, system_text};
use crate::http::{Answer, read_json};
use crate::identity::{self, Accounts};
use crate::spawn::Plan;

/// A run that names no timeout is killed after this long, as published.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// The command travels in pieces, since the kernel takes 128 KiB in one argument.
const PIECE_BYTES: usize = 100 * 1024;
/// Pieces that the script puts together: a shell knows `$1` to `$9`.
const MAX_PIECES: usize = 9;
/// Bytes of a command.
const MAX_COMMAND_BYTES: usize = PIECE_BYTES * MAX_PIECES;

/// What every run's shell executes. It is one line, so that all of it is read before the command can change
/// how the shell reads. The command itself runs without descriptor 3 (the shell keeps that aside for the time,
/// closed for other programs), without arguments and with its own line numbers. What follows it is silent
/// under `set -x` and free of functions that have a builtin's name.
fn script() -> String {
    let command: String = (1..=MAX_PIECES).map(|number| format!("${{{number}}}")).collect();
    format!(
        "eval \"set --; {command}\" 3>&-; \
         {{ {STATUS_VARIABLE}=$?; set +x; unset -f pwd printf export exit; }} 2>&-; \
         {{ pwd; printf '\\0'; export -p; printf '\\0'; }} >&3; exit \"${STATUS_VARIABLE}\""
    )
}

/// Runs a command in a session and answers with its stream of events.
///
/// # Errors
/// 400 for an unknown session and for a request that cannot be obeyed, 500 when descriptors or memory are out.
pub async fn run(daemon: Rc<Daemon>, id: &str, request: Request<Incoming>) -> Result<Answer> {
    let on_disconnect = command::on_disconnect(request.headers(), OnDisconnect::Kill)?;
    let body: RunInSession = read_json(request).await?;
    // Looked up after the body has come: a session that was deleted meanwhile is gone.
    let session = daemon.sessions.get(id).ok_or_else(|| {
        let message = format!("no session has the id {id:?}; it may have been deleted");
        ApiError::new(StatusCode::BAD_REQUEST, code::CONTEXT_NOT_FOUND, message)
    })?;
    let command = body.command.filter(|command| !command.is_empty());
    let command = command.ok_or_else(|| ApiError::body("command: is required and not empty"))?;
    let default_ms = DEFAULT_TIMEOUT.as_millis() as u64;
    let timeout_ms = command::timeout_ms(body.timeout)?.unwrap_or(default_ms);
    let cwd = directory(&session, body.cwd.as_deref())?;
    let state = session.state.borrow().at(cwd);
    let plan = plan(&daemon, &state, &command)?;
    let failed = |error: std::io::Error| ApiError::runtime(format!("make the run's state file: {error}"));
    let mut dump = File::from(memfd_create("session", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?);
    let writer = dump.try_clone().map_err(failed)?;

    let published = Published {
        init: Some(session.id.clone()),
        on_disconnect,
        stdout: Box::<SessionLines>::default(),
        stderr: None,
        close: {
            let session = Rc::clone(&session);
            Box::new(move || take_state(&session, &state, &mut dump))
        },
    };
    let launch = Launch {
        plan,
        kind: CommandKind::Session,
        session_id: Some(session.id.clone()),
        content: command,
        timeout_ms: Some(timeout_ms),
        overflow: body.overflow.unwrap_or_default(),
        descriptor: Some(writer.as_fd()),
    };
    let (started, answer) = command::start_foreground(&daemon, launch, published)?;
    session.keeps(&started);
    Ok(answer)
}

/// Where the run begins.
fn directory(session: &Session, cwd: Option<&str>) -> Result<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    let state = session.state.borrow();
    let cwd = match cwd.filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => {
            let base = String::from_utf8_lossy(&state.cwd);
            expand_cwd(cwd, &state.environment(), &base)?.into_bytes()
        }
        None => state.cwd.clone(),
    };
    let path = Path::new(std::ffi::OsStr::from_bytes(&cwd));
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(cwd),
        Ok(_) => Err(ApiError::body(format!("cwd: {} is not a directory", path.display()))),
        Err(error) => Err(ApiError::body(format!(
            "cwd: {}: {}; make it, or give another cwd",
            path.display(),
            system_text(&error)
        ))),
    }
}

/// The shell that runs the command, or why there can be none.
fn plan(daemon: &Daemon, state: &State, command: &str) -> Result<std::result::Result<Plan, String>> {
    if command.len() > MAX_COMMAND_BYTES {
        return Err(ApiError::body(format!(
            "command: {} bytes are more than {MAX_COMMAND_BYTES}; upload it as a file and run that",
            command.len()
        )));
    }
    let c_string = |field: &str, bytes: &[u8]| {
        CString::new(bytes).map_err(|_| ApiError::body(format!("{field}: holds a NUL byte")))
    };
    let Some((shell, path)) = command::find_shell(&state.environment(), "/") else {
        return Ok(Err(NO_SHELL.into()));
    };
    let mut argv = vec![c_string("shell", shell.as_bytes())?];
    if shell == "bash" {
        argv.extend([c"--noprofile".to_owned(), c"--norc".to_owned()]);
    }
    argv.extend([c"-c".to_owned(), c_string("script", script().as_bytes())?, c_string("shell", shell.as_bytes())?]);
    for piece in command.as_bytes().chunks(PIECE_BYTES) {
        argv.push(c_string("command", piece)?);
    }
    let identity = daemon.user().map(|user| Accounts::load().identity(user.uid, Some(user.gid)));
    Ok(Ok(Plan {
        programs: vec![c_string("shell", path.as_bytes())?],
        argv,
        env: state.entries(),
        cwd: c_string("cwd", &state.cwd)?,
        identity: identity.filter(|identity| !identity::is_own(identity)),
    }))
}

/// Saves what the run left; a fault when that cannot be kept.
fn take_state(session: &Session, before: &State, dump: &mut File) -> Option<Fault> {
    match before.after(dump) {
        Ok(None) => None,
        Ok(Some(after)) => {
            session.state.replace(after);
            None
        }
        Err(why) => {
            let why = format!("the run has ended, but its variables and directory are not kept: {why}");
            Some(Fault { name: SESSION_STATE_ERROR_NAME, why })
        }
    }
}
