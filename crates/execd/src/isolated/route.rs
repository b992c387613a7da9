//! From a path below `/v1/isolated/session/{id}` to what answers.

use std::rc::Rc;
use std::sync::Arc;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use protocol::execd::code;
use protocol::execd::isolated::{Changes, Run};

use super::changes::{self, Action};
use super::{Session, background, run};
use crate::blocking;
use crate::daemon::Daemon;
use crate::error::{ApiError, Result};
use crate::files;
use crate::http::{Answer, Query, json, not_found, read_json};

impl Session {
    pub(super) fn must_live(&self) -> Result<()> {
        if !self.shell.has_ended() {
            return Ok(());
        }
        Err(ApiError::body("the session's shell has ended; delete the session and make another"))
    }

    pub(super) fn next_run(&self) -> u64 {
        let next = self.run.get() + 1;
        self.run.set(next);
        next
    }
}

/// Answers a call to the session; `rest` stands behind its id.
///
/// # Errors
/// Those of the call; 404 for another session.
pub async fn route(daemon: &Daemon, id: &str, rest: &str, request: Request<Incoming>) -> Result<Answer> {
    let Some(session) = daemon.isolated.get().filter(|session| session.id() == id) else {
        let message = format!("there is no isolated session with the id {id:?}");
        return Err(ApiError::new(StatusCode::NOT_FOUND, code::SESSION_NOT_FOUND, message));
    };
    let session = Rc::clone(session);
    let segments: Vec<&str> = rest.split('/').skip(1).collect();
    let query = Query::of(&request);
    match (request.method(), segments.as_slice()) {
        (&Method::GET, []) => Ok(json(StatusCode::OK, &session.shown())),
        (&Method::POST, ["run"]) => {
            let body: Run = read_json(request).await?;
            let is_background = body.background.unwrap_or(false);
            let checked = run::check(body)?;
            if is_background { background::start(&session, checked) } else { run::foreground(&session, checked) }
        }
        (&Method::GET, ["runs", id]) => background::status(&session, id),
        (&Method::GET, ["runs", id, "logs"]) => background::logs(&session, id, &query).await,
        (&Method::GET, ["diff"]) => changes(&session, Action::Tell).await,
        (&Method::POST, ["commit"]) => {
            let _turn = session.turn.lock().await;
            changes(&session, Action::Commit).await
        }
        (_, ["files" | "directories", ..]) => files::route_with_counts(daemon.paths(), rest, request).await,
        _ => Ok(not_found()),
    }
}

async fn changes(session: &Rc<Session>, action: Action) -> Result<Answer> {
    let overlays = Arc::clone(&session.overlays);
    let walked = blocking::run_deep(move || changes::walk(&overlays, action)).await;
    let changes = walked.map_err(|error| ApiError::runtime(error.to_string()))??;
    Ok(json(StatusCode::OK, &Changes { session_id: session.id().to_owned(), changes }))
}

/// The answer of an execd that is no session's: the server makes sessions, and only its calls reach them.
///
/// # Errors
/// Always 503, as published.
pub fn unavailable() -> Result<Answer> {
    let message = "isolated sessions are made by the server: call it through the sandbox's endpoint";
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code::SERVICE_UNAVAILABLE, message))
}
