//! From method and path to the code that answers.

use std::rc::Rc;

use http::{HeaderName, Method, Request, StatusCode};
use hyper::body::Incoming;
use protocol::execd::code;
use protocol::execd::isolated::{Capabilities, Surroundings};
use protocol::headers;

use super::{Answer, Query, proxy, refuse, tunnel};
use crate::daemon::Daemon;
use crate::error::{ApiError, Result};
use crate::{command, files, isolated, metrics, session};

const REQUEST_ID: HeaderName = HeaderName::from_static(headers::REQUEST_ID);

/// Answers one request; never fails, since a refusal is an answer.
pub async fn route(daemon: Rc<Daemon>, request: Request<Incoming>) -> Answer {
    let request_id = request.headers().get(&REQUEST_ID).cloned();
    let token = request.headers().get(headers::EXECD_ACCESS_TOKEN).map(|value| value.as_bytes());
    let mut answer =
        if daemon.admits(token) { dispatch(daemon, request).await.unwrap_or_else(refuse) } else { unauthorized() };
    if let Some(id) = request_id {
        answer.headers_mut().entry(REQUEST_ID).or_insert(id);
    }
    answer
}

/// The published answer, and the two keys that clients ask of every error.
fn unauthorized() -> Answer {
    #[derive(serde::Serialize)]
    struct Unauthorized {
        error: &'static str,
        code: &'static str,
        message: &'static str,
    }
    let message = "Unauthorized: invalid or missing header X-EXECD-ACCESS-TOKEN";
    super::json(StatusCode::UNAUTHORIZED, &Unauthorized { error: message, code: code::UNAUTHORIZED, message })
}

async fn dispatch(daemon: Rc<Daemon>, request: Request<Incoming>) -> Result<Answer> {
    if request.method() == Method::CONNECT {
        return tunnel::connect(request).await;
    }
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let query = Query::of(&request);
    match (request.method(), segments.as_slice()) {
        (&Method::GET, ["ping" | "ready"]) => Ok(super::empty()),

        (&Method::POST, ["command"]) => command::run(daemon, request).await,
        (&Method::DELETE, ["command"]) => command::interrupt(daemon, &query).await,
        (&Method::GET, ["command", "status", id]) => command::status(&daemon, id),
        (&Method::GET, ["command", id, "logs"]) => command::logs(&daemon, id, &query).await,
        (&Method::GET, ["v1", "commands"]) => command::list(&daemon, &query),
        (&Method::GET, ["v1", "commands", id]) => command::detail(&daemon, id),
        (&Method::GET, ["v1", "commands", id, "stream"]) => command::stream(&daemon, id, request.headers(), &query),

        (&Method::POST, ["session"]) => session::create(daemon, request).await,
        (&Method::POST, ["session", id, "run"]) => session::run(daemon, id, request).await,
        (&Method::DELETE, ["session", id]) => session::delete(daemon, id).await,

        (_, ["files" | "directories", ..]) => files::route(daemon.paths(), &path, request).await,
        (_, ["v1", "archive"]) => files::route(daemon.paths(), "/archive", request).await,
        (&Method::GET, ["v1", "files", "watch"]) => files::watch(daemon, request).await,
        (_, ["v1", "filesystem", uid, gid, "files" | "directories" | "archive", ..]) => {
            let prefix = "/v1/filesystem/".len() + uid.len() + 1 + gid.len();
            files::forward_to_worker(&daemon, request, uid, gid, &path[prefix..]).await
        }

        (&Method::GET, ["metrics"]) => metrics::get(&daemon).await,
        (&Method::GET, ["metrics", "watch"]) => Ok(metrics::watch(daemon)),

        (_, ["proxy", port, ..]) => {
            let (port, path) = (port.to_string(), path["/proxy/".len() + port.len()..].to_owned());
            proxy::forward(request, &port, &path).await
        }

        (&Method::GET, ["v1", "isolated", "capabilities"]) => Ok(isolated_capabilities()),
        (_, ["v1", "isolated", "session", id, ..]) if daemon.isolated.get().is_some() => {
            let rest = &path["/v1/isolated/session/".len() + id.len()..];
            isolated::route(&daemon, id, rest, request).await
        }
        (_, ["v1", "isolated", ..]) => isolated::unavailable(),
        (&Method::GET, ["v1", "environment"]) => {
            let env = daemon.env_with_file().into_iter().collect();
            Ok(super::json(StatusCode::OK, &Surroundings { env, user: daemon.user() }))
        }
        // The rooms of a later issue; a client learns at once that they are empty.
        (_, ["code", ..]) => not_yet("code contexts"),
        (_, ["pty", ..]) => not_yet("terminals"),
        _ => Ok(super::not_found()),
    }
}

fn not_yet(what: &str) -> Result<Answer> {
    let message = format!("this execd does not support {what} yet");
    Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, code::NOT_SUPPORTED, message))
}

/// Always 200, because clients ask here whether they may ask elsewhere. The server answers in our place.
fn isolated_capabilities() -> Answer {
    let message = "isolated sessions are made by the server: call it through the sandbox's endpoint".to_owned();
    super::json(StatusCode::OK, &Capabilities { message: Some(message), ..Capabilities::default() })
}
