//! Calls to what listens inside a sandbox: who may make them, in which state, and to which of its daemons. The way
//! itself is [`ingress`].
//!
//! Pages of a sandbox share this server's origin. They are harmless there, because nothing that a browser sends
//! by itself (cookies, basic authentication) opens anything, cookies do not pass, and a browser cannot navigate
//! to a page that wants a token in a header.

mod ask;
mod isolated;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::Method;
use ingress::target::Target;
use ingress::{Address, Backend, EXECD_PORT, ErrorKind, Reuse};
use lifecycle::runtime::ExecdAddress;
use lifecycle::spec::SandboxId;
use protocol::error::code;

use crate::accept::Peer;
use crate::app::App;
use crate::errors::ApiError;
pub(crate) use ask::ask;

/// Port of the network policy API (published).
pub(crate) const POLICY_PORT: u16 = 18080;

/// One call on its way.
struct Call {
    backend: Backend,
    peer: Option<SocketAddr>,
    request: Request,
}

impl Call {
    async fn pass_on(self, app: &Arc<App>) -> Result<Response, ingress::Error> {
        app.ports.call(&self.backend, self.peer, self.request, ()).await
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
    app.auth.check_access(target.id, request.headers())?;
    let port = target.port()?;
    if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
        return Err(ApiError::new(
            http::StatusCode::METHOD_NOT_ALLOWED,
            code::METHOD_NOT_ALLOWED,
            format!("{} is not passed on to sandboxes", request.method()),
        ));
    }
    let sandbox = app.running(target.id).await?;
    if port == POLICY_PORT {
        let rest = target.rest.to_owned();
        return crate::network::api::call(app, &sandbox, &rest, request).await;
    }
    let to_sessions = port == EXECD_PORT && isolated::is_asked(target.rest);
    let backend = backend(app, sandbox.id(), port);
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let call = Call { backend, peer, request };
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

/// A port of a sandbox, by its own execd.
fn backend(app: &App, id: &SandboxId, port: u16) -> Backend {
    let address = match app.runtime.execd(id) {
        ExecdAddress::Unix(path) => Address::Unix(path),
        ExecdAddress::Tcp(address) => Address::Tcp(address),
    };
    Backend { id: id.as_str().into(), address, token: app.auth.token(id.as_str()), port, reuse: Reuse::Keep }
}
