//! How to reach a port of a sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, OriginalUri, Path, State};
use http::{HeaderMap, header};
use protocol::error::code;
use protocol::lifecycle::Endpoint;
use secrecy::ExposeSecret as _;

use super::query::Query;
use crate::app::{App, Wake};
use crate::errors::ApiError;
use crate::middleware::Slot;
use crate::proxy::POLICY_PORT;
use ingress::EXECD_PORT;
use ingress::links::{Link, Scope, Version};
use ingress::target::parse_port;

/// `GET /sandboxes/{id}/endpoints/{port}`: while the sandbox is being made it waits for the outcome, because
/// the published clients ask right after a create and show whatever comes back.
pub(super) async fn look_up(
    State(app): State<Arc<App>>,
    Extension(slot): Extension<Slot>,
    Path((id, port)): Path<(String, String)>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Result<Json<Endpoint>, ApiError> {
    let port = parse_port(&port)?;
    let query = Query::of(&uri);
    let server_proxy = query.flag("use_server_proxy")?;
    let link = Asked::of(&app, &query, port)?;
    if server_proxy && link.is_some() {
        let problem = "expires: cannot be used together with use_server_proxy";
        return Err(ApiError::bad_request(code::INVALID_PARAMETER, problem));
    }
    slot.release();
    let mut sandbox = app.sandbox(&id)?;
    // The first access will wake it; to say where that goes need not.
    if !sandbox.row().wakes_on_access() {
        sandbox = app.running(&id, Wake::No).await?;
    }
    let authority = authority(&app, &headers)?;
    let prefix = if uri.path().starts_with("/v1/") { "/v1" } else { "" };
    if let Some(Asked { expires, version }) = link {
        let signed = app.auth.sign(Link { id: &id, port, expires }, &version);
        return Ok(Json(Endpoint {
            endpoint: format!("{authority}{prefix}/links/{id}/{port}/{signed}"),
            headers: None,
        }));
    }
    let token = app.auth.token(&id).expose_secret().to_owned();
    let mut headers = BTreeMap::new();
    let own = match port {
        EXECD_PORT => Some("X-EXECD-ACCESS-TOKEN"),
        POLICY_PORT => Some("OPENSANDBOX-EGRESS-AUTH"),
        _ => None,
    };
    if own.is_none() || sandbox.row().spec.access.secured {
        headers.insert("OpenSandbox-Secure-Access".to_owned(), token.clone());
    }
    if let Some(own) = own {
        headers.insert(own.to_owned(), token);
    }
    let endpoint = format!("{authority}{prefix}/sandboxes/{id}/proxy/{port}");
    Ok(Json(Endpoint { endpoint, headers: Some(headers) }))
}

/// A link that is asked for.
struct Asked {
    expires: u64,
    version: Version,
}

impl Asked {
    /// `expires` (published) asks for one; `version`, `method` and `path` are ours.
    fn of(app: &App, query: &Query, port: u16) -> Result<Option<Self>, ApiError> {
        let bad = |problem: String| ApiError::bad_request(code::INVALID_PARAMETER, problem);
        let (version, method, path) = (query.text("version"), query.text("method"), query.text("path"));
        let is_scoped = method.is_some() || path.is_some();
        let Some(expires) = query.text("expires") else {
            return match version.is_some() || is_scoped {
                true => {
                    Err(bad("expires: is needed where version, method or path say how a link is signed".to_owned()))
                }
                false => Ok(None),
            };
        };
        let digits = !expires.is_empty() && expires.bytes().all(|byte| byte.is_ascii_digit());
        let expires = expires.parse::<u64>().ok().filter(|_| digits).ok_or_else(|| {
            bad("expires: must be seconds since 1970 in decimal digits, at most 18446744073709551615".to_owned())
        })?;
        if expires <= app.now().as_second().unsigned_abs() {
            return Err(bad("expires: must lie in the future".to_owned()));
        }
        if port == POLICY_PORT {
            return Err(bad(format!(
                "expires: links do not open the network policy of a sandbox (port {POLICY_PORT})"
            )));
        }
        let version = match (version, is_scoped) {
            (None | Some("1"), false) => Version::V1,
            (None | Some("2"), _) => Version::V2(Scope::new(method, path).map_err(|error| bad(error.to_string()))?),
            (Some("1"), true) => {
                return Err(bad("version: links of version 1 cannot be bound to method or path".to_owned()));
            }
            (Some(_), _) => return Err(bad("version: must be 1 or 2".to_owned())),
        };
        Ok(Some(Self { expires, version }))
    }
}

/// `host[:port]` by which the caller reaches this server.
fn authority(app: &App, headers: &HeaderMap) -> Result<String, ApiError> {
    if let Some(eip) = &app.config.server.eip {
        return Ok(eip.clone());
    }
    headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .filter(|host| !host.is_empty())
        .map(str::to_owned)
        .ok_or_else(|| {
            ApiError::bad_request(code::INVALID_PARAMETER, "Host: is needed to say where the port is reached")
        })
}
