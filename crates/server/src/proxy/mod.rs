//! Calls to what listens inside a sandbox: who may make them, in which state, and to which of its daemons. The way
//! itself is [`ingress`].
//!
//! Pages of a sandbox lie at this server's address. They are harmless there, because nothing that a browser sends
//! by itself (cookies, basic authentication) opens anything, cookies do not pass, a browser cannot navigate to a
//! page that wants a token in a header, and a page that a link opens is an origin of its own.

mod ask;
mod isolated;
mod quiet;
mod shorten;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::Method;
use ingress::links::Claim;
use ingress::target::Target;
use ingress::{Address, Backend, Daemon, EXECD_PORT, ErrorKind, Reuse};
use lifecycle::runtime::ExecdAddress;
use lifecycle::spec::SandboxId;
use protocol::error::code;
use protocol::headers;

use crate::accept::Peer;
use crate::app::{App, Wake};
use crate::auth::Secured;
use crate::driver::Access;
use crate::errors::ApiError;
pub(crate) use ask::ask;
pub(crate) use quiet::quiet;
pub(crate) use shorten::shorten;

/// Port of the network policy API (published).
pub(crate) const POLICY_PORT: u16 = 18080;

/// Value of the header with which a call is no access (published).
const SKIP: &str = "skip";

/// One call on its way.
struct Call {
    backend: Backend,
    peer: Option<SocketAddr>,
    request: Request,
    /// Held until the answer has ended.
    access: Option<Access>,
}

impl Call {
    async fn pass_on(self, app: &Arc<App>) -> Result<Response, ingress::Error> {
        app.ports.call(&self.backend, self.peer, self.request, self.access).await
    }
}

/// Answers a call to a port of a sandbox.
pub(crate) async fn call(app: &Arc<App>, request: Request) -> Response {
    match dispatch(app, request).await {
        Ok(response) => response,
        Err(error) => {
            let mut response = error.into_response();
            ingress::mark_platform(response.headers_mut());
            response
        }
    }
}

async fn dispatch(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let target = Target::parse(request.uri().path())
        .ok_or_else(|| ApiError::bad_request(code::INVALID_PARAMETER, "this is not the path of a port"))?;
    if target.port().is_ok_and(|port| port == POLICY_PORT)
        && let Some(refused) = crate::network::api::refuse_active(target.rest, request.method())
    {
        return Err(refused);
    }
    let port = authorize(app, &target, &request)?;
    if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
        return Err(ApiError::new(
            http::StatusCode::METHOD_NOT_ALLOWED,
            code::METHOD_NOT_ALLOWED,
            format!("{} is not passed on to sandboxes", request.method()),
        ));
    }
    // Whoever only watches neither renews a sandbox nor keeps it awake.
    let is_access = request.headers().get(headers::ACCESS_RENEW).is_none_or(|value| value != SKIP);
    let access = app.sandboxes.get(target.id).filter(|_| is_access).map(|sandbox| sandbox.access());
    let sandbox = app.running(target.id, if is_access { Wake::Yes } else { Wake::No }).await?;
    if is_access {
        sandbox.renew_by_access(app.config.renew_intent.min_interval);
    }
    if port == POLICY_PORT {
        let rest = target.rest.to_owned();
        return crate::network::api::call(app, &sandbox, &rest, request).await;
    }
    let to_sessions = port == EXECD_PORT && isolated::is_asked(target.rest);
    let backend = Backend { daemon: sandbox.daemon(|id| daemon(app, id)), port };
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let call = Call { backend, peer, request, access };
    if to_sessions {
        return isolated::call(app, sandbox.id(), call).await;
    }
    let answer = call.pass_on(app).await;
    if answer.as_ref().is_err_and(|error| error.kind == ErrorKind::Unreachable) {
        // Its execd is gone: perhaps it has ended, and nobody has told its driver yet.
        sandbox.look();
    }
    Ok(answer?)
}

/// The port, if the call may reach it.
fn authorize(app: &App, target: &Target<'_>, request: &Request) -> Result<u16, ApiError> {
    let sandbox = app.sandboxes.get(target.id);
    let secured = match &sandbox {
        Some(sandbox) if sandbox.row().spec.access.secured => Secured::Yes,
        _ => Secured::No,
    };
    // A token that is sent counts alone, also beside a link (published).
    let Some(signed) = target.link.filter(|_| !request.headers().contains_key(headers::SECURE_ACCESS)) else {
        let sent = request.headers();
        let asks_policy = target.port().is_ok_and(|port| port == POLICY_PORT);
        // Here too a wrong token is not made good by another.
        let check = |token| match asks_policy && !sent.contains_key(headers::SECURE_ACCESS) {
            true if app.auth.opens_policy(token, sent) => Ok(()),
            _ => app.auth.check_access(token, sent, secured),
        };
        match &sandbox {
            Some(sandbox) => check(&sandbox.daemon(|id| daemon(app, id)).token)?,
            None => check(&app.auth.token(target.id))?,
        }
        return Ok(target.port()?);
    };
    let port = target.port()?;
    if port == POLICY_PORT {
        return Err(ApiError::bad_request(code::NOT_SUPPORTED, "links do not open the network policy of a sandbox"));
    }
    let (method, rest) = (request.method(), target.rest);
    let (expires, signature) = (signed.expires, signed.signature);
    let claim = Claim { id: target.id, port, expires, signature, method, rest };
    let now = app.now().as_second().unsigned_abs();
    app.auth.check_link(&claim, now, sandbox.as_ref().map(|sandbox| sandbox.link_failures()))?;
    Ok(port)
}

/// A port of a sandbox, by its own execd.
fn backend(app: &App, id: &SandboxId, port: u16) -> Backend {
    Backend { daemon: Arc::new(daemon(app, id)), port }
}

fn daemon(app: &App, id: &SandboxId) -> Daemon {
    let address = match app.runtime.execd(id) {
        ExecdAddress::Unix(path) => Address::Unix(path),
        ExecdAddress::Tcp(address) => Address::Tcp(address),
    };
    Daemon { id: id.as_str().into(), address, token: app.auth.token(id.as_str()), reuse: Reuse::Keep }
}
