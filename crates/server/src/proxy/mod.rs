//! The way to what listens inside a sandbox: its execd and its ports, over HTTP and WebSocket.
//!
//! Everything goes through the sandbox's execd socket: execd itself answers for its own port, any other is
//! reached by a CONNECT tunnel that execd ends at the port. Bodies are streamed both ways as they come, with
//! the back-pressure of both sides; nothing is collected. A caller that leaves closes the connection behind it.
//!
//! Pages of a sandbox share this server's origin. They are harmless there, because nothing that a browser sends
//! by itself (cookies, basic authentication) opens anything, cookies do not pass, and a browser cannot navigate
//! to a page that wants a token in a header.

mod ask;
mod connect;
mod forward;
mod headers;
mod isolated;
pub(crate) mod pool;
pub(crate) mod target;
mod upgrade;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::Method;
use lifecycle::isolated::SessionId;
use lifecycle::runtime::ExecdAddress;
use lifecycle::spec::SandboxId;
use protocol::error::code;
use secrecy::SecretString;

use crate::app::App;
use crate::errors::ApiError;
pub(crate) use ask::ask;
use target::Target;

/// Port of execd's API (published).
pub(crate) const EXECD_PORT: u16 = 44772;
/// Port of the network policy API (published).
pub(crate) const POLICY_PORT: u16 = 18080;

/// One port of one running sandbox.
pub(crate) struct Backend {
    pub(crate) id: SandboxId,
    pub(crate) address: ExecdAddress,
    pub(crate) token: SecretString,
    pub(crate) port: u16,
    /// The isolated session whose execd this is; the sandbox's own otherwise.
    pub(crate) session: Option<SessionId>,
}

/// Answers a call to a port of a sandbox.
pub(crate) async fn call(State(app): State<Arc<App>>, request: Request) -> Response {
    match dispatch(&app, request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
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
    let id = target.id.to_owned();
    let rest = target.rest.to_owned();
    let sandbox = app.running(&id).await?;
    if port == POLICY_PORT {
        return crate::network::api::call(app, &sandbox, &rest, request).await;
    }
    let backend = Backend {
        address: app.runtime.execd(sandbox.id()),
        token: app.auth.token(&id),
        id: sandbox.id().clone(),
        port,
        session: None,
    };
    if port == EXECD_PORT && isolated::is_asked(&rest) {
        return isolated::call(app, backend, &rest, request).await;
    }
    let answer = if upgrade::is_asked(request.headers()) {
        upgrade::relay(app, &backend, request).await
    } else {
        forward::forward(app, &backend, request).await
    };
    if answer.as_ref().is_err_and(|error| error.code == code::BACKEND_CONNECTION_FAILED) && port == EXECD_PORT {
        // Its execd is gone: perhaps it has ended, and nobody has told its driver yet.
        sandbox.look();
    }
    answer
}
