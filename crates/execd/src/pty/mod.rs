//! Terminals: shells that clients attach to by WebSocket, leave, and come back to.
//!
//! ```text
//! POST /pty --> kept --attach--> shell runs --its end--> kept, output still there --attach--> a new shell runs
//!                 +--DELETE, or nobody attached for the idle limit--> the whole tree killed, forgotten
//! ```
//!
//! Published: one client holds a terminal and may write; it can be taken over; what it missed is replayed from an
//! offset. Ours: any number of viewers up to a limit, `GET /v1/pty`, and the limits themselves.

mod client;
mod frames;
mod pump;
mod ring;
mod session;
mod shell;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use protocol::execd::code;
use protocol::execd::pty::{CreateTerminal, CreatedTerminal, TerminalList};

use crate::config;
use crate::daemon::Daemon;
use crate::environment::Environment;
use crate::error::{ApiError, Result};
use crate::http::{Answer, Query, empty, json, read_optional_json, websocket};
use crate::session::{expand_cwd, make_directory};

use client::Attach;
use session::{MAX_VIEWERS, Seat, Terminal};
use shell::{Mode, Size};

/// Sessions at once. Each holds its output in memory, 1 MiB at most.
const MAX_SESSIONS: usize = 64;
/// A session that nobody is attached to for so long ends.
const DEFAULT_IDLE: Duration = Duration::from_secs(60 * 60);
/// The sandbox's variable that says otherwise, as Go writes durations; 0s means never.
const IDLE_VARIABLE: &str = "EXECD_PTY_IDLE_TIMEOUT";

/// The sessions, oldest first.
pub struct Terminals {
    sessions: RefCell<Vec<Rc<Terminal>>>,
    /// `None` is never.
    idle: Option<Duration>,
}

impl Terminals {
    /// None yet; the sandbox's environment may set the idle limit.
    pub fn new(env: &Environment) -> Self {
        let idle = env.get(IDLE_VARIABLE).filter(|text| !text.is_empty()).map(|text| config::duration(text));
        let idle = idle.transpose().unwrap_or_else(|why| {
            eprintln!("execd: {IDLE_VARIABLE}: {why}; the default of {DEFAULT_IDLE:?} holds");
            None
        });
        let idle = idle.unwrap_or(DEFAULT_IDLE);
        Self { sessions: RefCell::default(), idle: Some(idle).filter(|idle| !idle.is_zero()) }
    }

    /// How many have a living shell.
    pub fn running(&self) -> usize {
        self.sessions.borrow().iter().filter(|terminal| terminal.live_run().is_some()).count()
    }

    fn get(&self, id: &str) -> Result<Rc<Terminal>> {
        let found = self.sessions.borrow().iter().find(|terminal| terminal.id() == id).map(Rc::clone);
        found.ok_or_else(|| unknown(id))
    }

    /// Forgets it; false when somebody else has.
    fn remove(&self, terminal: &Rc<Terminal>) -> bool {
        let mut sessions = self.sessions.borrow_mut();
        let before = sessions.len();
        sessions.retain(|kept| !Rc::ptr_eq(kept, terminal));
        sessions.len() < before
    }
}

fn unknown(id: &str) -> ApiError {
    let message = format!("no terminal has the id {id:?}; it may have been deleted, or have ended by its idle limit");
    ApiError::new(StatusCode::NOT_FOUND, code::CONTEXT_NOT_FOUND, message)
}

/// `POST /pty`: makes a session, and its directory where that is missing; its shell starts with the first client.
///
/// # Errors
/// 400 for a directory that cannot be made or entered, and when there are too many sessions.
pub async fn create(daemon: Rc<Daemon>, request: Request<Incoming>) -> Result<Answer> {
    let body: CreateTerminal = read_optional_json(request).await?.unwrap_or_default();
    if daemon.terminals.sessions.borrow().len() >= MAX_SESSIONS {
        let message = format!(
            "there are {MAX_SESSIONS} terminals already; DELETE /pty/ID one that is no longer needed \
             (GET /v1/pty lists them)"
        );
        return Err(ApiError::new(StatusCode::BAD_REQUEST, code::RUNTIME_ERROR, message));
    }
    let command = body.command.filter(|command| !command.is_empty());
    if command.as_ref().is_some_and(|command| command.contains('\0')) {
        return Err(ApiError::body("command: holds a NUL byte"));
    }
    let cwd = match body.cwd.filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => make_directory(&daemon, &expand_cwd(&cwd, &daemon.env_with_file(), daemon.cwd())?)?,
        None => daemon.cwd().to_owned(),
    };
    let terminal = Rc::new(Terminal::new(cwd, command));
    let session_id = terminal.id().to_owned();
    daemon.terminals.sessions.borrow_mut().push(Rc::clone(&terminal));
    if let Some(idle) = daemon.terminals.idle {
        tokio::task::spawn_local(end_when_idle(daemon, terminal, idle));
    }
    Ok(json(StatusCode::CREATED, &CreatedTerminal { session_id }))
}

/// Ends a session when nobody was attached for the limit; returns when it is gone.
async fn end_when_idle(daemon: Rc<Daemon>, terminal: Rc<Terminal>, idle: Duration) {
    let (mut clients, mut progress) = (terminal.clients(), terminal.progress());
    loop {
        let is_idle = *clients.borrow_and_update() == 0;
        tokio::select! {
            gone = progress.wait_for(|progress| progress.closed) => {
                drop(gone);
                return;
            }
            _ = clients.changed() => {}
            () = tokio::time::sleep(idle), if is_idle => break,
        }
    }
    if daemon.terminals.remove(&terminal) && !terminal.end().await {
        eprintln!("execd: processes of terminal {} are still there after SIGKILL", terminal.id());
    }
}

/// `GET /v1/pty`.
pub fn list(daemon: &Daemon) -> Answer {
    let sessions = daemon.terminals.sessions.borrow();
    let sessions: Vec<_> = sessions.iter().map(|terminal| terminal.status()).collect();
    let idle_timeout_seconds = daemon.terminals.idle.map_or(0, |idle| idle.as_secs());
    let count = sessions.len();
    json(StatusCode::OK, &TerminalList { sessions, count, limit: MAX_SESSIONS, idle_timeout_seconds })
}

/// `GET /pty/{id}`.
///
/// # Errors
/// 404 for an unknown id.
pub fn status(daemon: &Daemon, id: &str) -> Result<Answer> {
    Ok(json(StatusCode::OK, &daemon.terminals.get(id)?.status()))
}

/// `DELETE /pty/{id}`: answers when everything that its shells have started is gone.
///
/// # Errors
/// 404 for an unknown id, 500 when a process does not end even by KILL.
pub async fn delete(daemon: &Daemon, id: &str) -> Result<Answer> {
    let terminal = daemon.terminals.get(id)?;
    daemon.terminals.remove(&terminal);
    // Goes on when the caller leaves: nobody could ask for it again.
    let ended = tokio::task::spawn_local(async move { terminal.end().await });
    if ended.await.unwrap_or(false) {
        return Ok(empty());
    }
    Err(ApiError::runtime(format!("processes of terminal {id} are still there after SIGKILL")))
}

/// `GET /pty/{id}/ws`: attaches a client.
///
/// # Errors
/// 404 for an unknown id, 409 when another client holds it or too many look on, 400 for a malformed parameter.
pub fn attach(daemon: Rc<Daemon>, id: &str, request: Request<Incoming>, query: &Query) -> Result<Answer> {
    let terminal = daemon.terminals.get(id)?;
    let attach = Attach {
        since: number(query, "since")?.unwrap_or(0),
        mode: if query.get("pty") == Some("0") { Mode::Pipe } else { Mode::Pty },
        size: size(query)?,
        resume: query.get("resume") == Some("1"),
    };
    let is_viewer = match query.get("mode") {
        None | Some("" | "writer") => false,
        Some("viewer") => true,
        Some(mode) => return Err(ApiError::body(format!("mode: {mode:?} is not viewer or writer"))),
    };
    let conflict = |message: String| ApiError::new(StatusCode::CONFLICT, code::ALREADY_CONNECTED, message);
    let (seat, evicted) = if is_viewer {
        let too_many = || conflict(format!("{MAX_VIEWERS} viewers look at this terminal already"));
        (Seat::viewer(&terminal).ok_or_else(too_many)?, None)
    } else if query.get("takeover") == Some("1") {
        (Seat::candidate(&terminal), None)
    } else {
        let taken = || conflict("another client holds this terminal; add takeover=1 or mode=viewer".into());
        Seat::holder(&terminal).map(|(seat, evicted)| (seat, Some(evicted))).ok_or_else(taken)?
    };
    let (answer, upgrade) = websocket::accept(request)?;
    tokio::task::spawn_local(client::serve(daemon, seat, evicted, attach, upgrade));
    Ok(answer)
}

fn number(query: &Query, name: &str) -> Result<Option<u64>> {
    let parse = |text: &str| {
        text.parse().map_err(|_| ApiError::body(format!("{name}: {text:?} is not a whole number from 0 on")))
    };
    query.get(name).filter(|text| !text.is_empty()).map(parse).transpose()
}

fn size(query: &Query) -> Result<Option<Size>> {
    let side = |name: &str| -> Result<Option<u16>> {
        match number(query, name)? {
            None => Ok(None),
            Some(side) => u16::try_from(side)
                .ok()
                .filter(|side| *side > 0)
                .map(Some)
                .ok_or_else(|| ApiError::body(format!("{name}: {side} is not between 1 and 65535"))),
        }
    };
    Ok(side("cols")?.zip(side("rows")?).map(|(cols, rows)| Size { cols, rows }))
}
