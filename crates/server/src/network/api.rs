//! The policy of a sandbox over HTTP: the published calls of port 18080, and the same beneath the sandbox.

mod vault;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequest as _, Path, Request, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{Method, StatusCode, header};
use protocol::egress::{NetworkPolicy, NetworkRule};
use protocol::error::code;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use vault::refuse_active;

use super::Edit;
use crate::app::{App, Wake};
use crate::config::DefaultPolicy;
use crate::driver::Sandbox;
use crate::errors::ApiError;
use crate::routes::body::Body;
use crate::store::Row;
use crate::wire;

/// How policies are put in force here: names, addresses and connections together (published word).
const ENFORCEMENT: &str = "dns+nft";

/// The answer to a call.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    status: &'static str,
    mode: &'static str,
    enforcement_mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<NetworkPolicy>,
}

/// `/sandboxes/{id}/networkpolicy`.
pub(crate) async fn beneath(
    State(app): State<Arc<App>>,
    Path(parts): Path<BTreeMap<String, String>>,
    request: Request,
) -> Result<Response, ApiError> {
    let id = parts.get("id").map_or("", String::as_str);
    let sandbox = app.running(id, Wake::Yes).await?;
    policy(&app, &sandbox, request).await
}

/// A call to port 18080; `rest` is its path.
pub(crate) async fn call(app: &App, sandbox: &Sandbox, rest: &str, request: Request) -> Result<Response, ApiError> {
    match rest {
        "/policy" => policy(app, sandbox, request).await,
        "/healthz" => health(app).await,
        _ if vault::is_asked(rest) => vault::call(app, sandbox, rest, request).await,
        _ => Err(ApiError::new(
            StatusCode::NOT_FOUND,
            code::ROUTE_NOT_FOUND,
            "port 18080 answers /policy, /healthz and /credential-vault",
        )),
    }
}

async fn health(app: &App) -> Result<Response, ApiError> {
    if app.network.answers().await {
        return Ok((StatusCode::OK, "ok\n").into_response());
    }
    let message = "the egress process does not answer; nothing leaves sandboxes meanwhile";
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code::INTERNAL_ERROR, message).retry_after(1))
}

async fn policy(app: &App, sandbox: &Sandbox, request: Request) -> Result<Response, ApiError> {
    let method = request.method().clone();
    if method == Method::GET || method == Method::HEAD {
        return Ok(Json(shown(app, &sandbox.row())).into_response());
    }
    let edits = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    if !edits.contains(&method) {
        let error = ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            code::METHOD_NOT_ALLOWED,
            format!("the policy does not take {method}; use GET, PUT, POST, PATCH or DELETE"),
        );
        let mut answer = error.into_response();
        answer.headers_mut().insert(header::ALLOW, http::HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE"));
        return Ok(answer);
    }
    let Body(body) = Body::from_request(request, &()).await?;
    let mut reason = None;
    let edit = match method {
        Method::PATCH => {
            let rules = list::<NetworkRule>(&body, "an array of rules")?;
            if sandbox.row().spec.policy.is_none() {
                reason =
                    Some("the sandbox had no policy of its own; what no rule allows is denied from now on".to_owned());
            }
            Edit::Prepend(rules)
        }
        Method::DELETE => {
            let targets = list::<String>(&body, "an array of targets")?;
            let edit = Edit::Remove(targets);
            let before = sandbox.row().spec.policy.clone().unwrap_or_default();
            if edit.of(Some(&before)) == before {
                reason = Some("no matching targets found".to_owned());
            }
            edit
        }
        _ => {
            let asked: Option<NetworkPolicy> = match body.trim_ascii() {
                b"" => None,
                _ => read(&body)?,
            };
            let asked = asked.unwrap_or_default();
            if asked == NetworkPolicy::default() {
                reason = Some("policy reset to default deny-all".to_owned());
            }
            Edit::Replace(asked)
        }
    };
    let row = match &reason {
        Some(_) if method == Method::DELETE => sandbox.row(),
        _ => sandbox.change_policy(edit).await?,
    };
    Ok(Json(Status { reason, policy: None, ..shown(app, &row) }).into_response())
}

/// A body of these calls, which the published sidecar refuses with 400 where it is wrong.
fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    wire::decode(body).map_err(|error| ApiError::bad_request(code::INVALID_REQUEST_BODY, error.message))
}

fn list<T: DeserializeOwned>(body: &Bytes, what: &str) -> Result<Vec<T>, ApiError> {
    let items: Vec<T> = read(body)?;
    if items.is_empty() {
        return Err(ApiError::bad_request(code::INVALID_REQUEST_BODY, format!("the body must be {what}, not empty")));
    }
    Ok(items)
}

fn shown(app: &App, row: &Row) -> Status {
    let status = |mode, reason, policy| Status {
        status: "ok",
        mode,
        enforcement_mode: ENFORCEMENT,
        reason,
        policy: Some(policy),
    };
    if row.spec.network == lifecycle::spec::Network::None {
        let reason = "this sandbox was made without a way out; nothing leaves it".to_owned();
        return status("deny_all", Some(reason), NetworkPolicy::default());
    }
    let Some(policy) = row.spec.policy.clone() else {
        let (mode, action, reason) = match app.config.egress.default_policy {
            DefaultPolicy::Public => {
                ("allow_all", "allow", "no policy of its own: the public internet, nothing private")
            }
            DefaultPolicy::Nothing => {
                ("deny_all", "deny", "no policy of its own: nothing, by this server's configuration")
            }
            DefaultPolicy::All => {
                ("allow_all", "allow", "no policy of its own: everything, by this server's configuration")
            }
        };
        let policy = NetworkPolicy { default_action: Some(action.into()), ..NetworkPolicy::default() };
        return status(mode, Some(reason.to_owned()), policy);
    };
    let allows = policy.default_action.as_ref().is_some_and(|action| action.eq_ignore_ascii_case("allow"));
    let mode = match (policy.egress.is_empty(), allows) {
        (false, _) => "enforcing",
        (true, true) => "allow_all",
        (true, false) => "deny_all",
    };
    let default_action = Some(if allows { "allow" } else { "deny" }.to_owned());
    status(mode, None, NetworkPolicy { default_action, ..policy })
}
