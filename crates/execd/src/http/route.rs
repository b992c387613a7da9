//! From method and path to the code that answers.

use std::rc::Rc;

use http::{HeaderName, Method, Request, StatusCode};
use hyper::body::Incoming;
use protocol::execd::code;
use protocol::execd::isolated::{Capabilities, Surroundings};
use protocol::headers;

use super::{Answer, Query, proxy, refuse, tunnel};
use crate::daemon::Daemon;
use crate::error::Result;
use crate::{activity, code as contexts, command, files, hardening, hooks, isolated, metrics, pty, session};

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

        (&Method::POST, ["pty"]) => pty::create(daemon, request).await,
        (&Method::GET, ["v1", "pty"]) => Ok(pty::list(&daemon)),
        (&Method::GET, ["pty", id]) => pty::status(&daemon, id),
        (&Method::DELETE, ["pty", id]) => pty::delete(&daemon, id).await,
        (&Method::GET, ["pty", id, "ws"]) => pty::attach(daemon, id, request, &query),
        (&Method::POST, ["code"]) => contexts::run(daemon, request).await,
        (&Method::DELETE, ["code"]) => command::interrupt(daemon, &query).await,
        (&Method::POST, ["code", "context"]) => contexts::create(daemon, request).await,
        (&Method::GET, ["code", "contexts"]) => Ok(contexts::list(&daemon, &query)),
        (&Method::DELETE, ["code", "contexts"]) => contexts::delete_by_language(daemon, &query).await,
        (&Method::GET, ["code", "contexts", id]) => contexts::get(&daemon, id),
        (&Method::DELETE, ["code", "contexts", id]) => contexts::delete(daemon, id).await,

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

        (&Method::POST, ["v1", "hooks", name]) => hooks::trigger(&daemon, name).await,
        (&Method::GET, ["v1", "activity"]) => Ok(super::json(StatusCode::OK, &activity::activity(&daemon))),
        (&Method::GET, ["v1", "hardening"]) => Ok(super::json(StatusCode::OK, &hardening::report()?)),

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
        _ => Ok(super::not_found()),
    }
}

/// Always 200, because clients ask here whether they may ask elsewhere. The server answers in our place.
fn isolated_capabilities() -> Answer {
    let message = "isolated sessions are made by the server: call it through the sandbox's endpoint".to_owned();
    let hardening = hardening::report().ok().map(|report| report.layers);
    super::json(StatusCode::OK, &Capabilities { message: Some(message), hardening, ..Capabilities::default() })
}
