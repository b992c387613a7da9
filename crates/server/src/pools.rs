//! Pools: what their rows say is kept ready, and what a create out of one asks for.

use std::sync::Arc;

use lifecycle::admit::{Refusal, Rules, admit};
use lifecycle::pool::{self, Template};
use lifecycle::spec::SandboxSpec;
use lifecycle::warm::Kind;
use protocol::error::code;
use protocol::lifecycle::CreateSandboxRequest;

use crate::app::App;
use crate::errors::ApiError;
use crate::store::PoolRow;
use crate::templates;
use crate::warm::Place;

/// The extension by which a create names a pool (published).
const POOL_EXTENSION: &str = "poolRef";
/// Names whichever pool serves best (published).
const ANY: &str = "*";

/// Where a create comes from, beside its own words.
#[derive(Debug, Default)]
pub(crate) struct Origin {
    /// The pool that it counts against.
    pub(crate) pool: Option<String>,
    /// The template that it is made from.
    pub(crate) template: Option<String>,
}

/// What a pool's sandboxes are made by.
pub(crate) struct Shape {
    request: CreateSandboxRequest,
    kind: Kind,
    spec: SandboxSpec,
}

/// What the operator allows.
pub(crate) fn rules(app: &App) -> Rules {
    Rules {
        max_timeout_seconds: app.config.server.max_sandbox_timeout_seconds,
        leased: app.leased,
        renews_on_access: app.config.renew_intent.enabled,
        volumes: app.config.storage.rules(),
        origin: None,
    }
}

/// Takes the pool or the template out of a create, and gives the create that is meant.
pub(crate) async fn resolve(
    app: &App,
    mut request: CreateSandboxRequest,
) -> Result<(CreateSandboxRequest, Origin), ApiError> {
    if let Some(template) = request.template_id.clone() {
        let request = templates::join(app, &template, request).await?;
        return Ok((request, Origin { template: Some(template), ..Origin::default() }));
    }
    let asked = request.extensions.as_mut().and_then(|extensions| extensions.remove(POOL_EXTENSION));
    let Some(asked) = asked else { return Ok((request, Origin::default())) };
    if app.leased || app.runtime.warm().is_none() {
        return Err(refused(&no_stock(app)));
    }
    let image = request.image.as_ref().map(|image| image.uri.trim()).filter(|uri| !uri.is_empty());
    let pool = match asked.trim() {
        "" => {
            let field = format!("extensions.{POOL_EXTENSION}");
            return Err(Refusal::of(400, code::INVALID_PARAMETER, field, "names no pool; use a name or *").into());
        }
        ANY => app.warm.choose(image).ok_or_else(|| {
            let with = image.map_or(String::new(), |image| format!(" with the image \"{image}\""));
            let message = format!("extensions.{POOL_EXTENSION}: there is no pool{with}; make one or name an image");
            ApiError::new(http::StatusCode::NOT_FOUND, code::POOL_NOT_FOUND, message)
        })?,
        name => name.to_owned(),
    };
    let template = app.warm.template(&pool).ok_or_else(|| ApiError::missing(code::POOL_NOT_FOUND, "pool", &pool))?;
    let request = pool::join(&pool, &template, request)?;
    Ok((request, Origin { pool: Some(pool), ..Origin::default() }))
}

/// A place for a sandbox of this specification, if it comes out of a pool or if one of its kind waits.
///
/// # Errors
/// Its pool has none, also not until then.
pub(crate) async fn place(
    app: &Arc<App>,
    spec: &SandboxSpec,
    until: tokio::time::Instant,
) -> Result<Option<Place>, ApiError> {
    let kind = app.runtime.warm().filter(|_| !app.leased).and_then(|warm| warm.kind(spec));
    match (&spec.pool, kind) {
        (Some(pool), kind) => app.warm.take_from(pool, kind.as_ref(), until).await.map(Some),
        (None, Some(kind)) => Ok(app.warm.take(kind)),
        (None, None) => Ok(None),
    }
}

/// Why this server keeps nothing ready.
pub(crate) fn no_stock(app: &App) -> String {
    match app.leased {
        true => "pools outlive sandboxes: they need a server (`osb server`)".to_owned(),
        false => format!(
            "the runtime {} with {} keeps no sandboxes ready; name an image",
            app.runtime.name(),
            app.capabilities().isolation.kind
        ),
    }
}

fn refused(problem: &str) -> ApiError {
    Refusal::of(400, code::UNSUPPORTED_POOL_REF, format!("extensions.{POOL_EXTENSION}"), problem).into()
}

/// What the sandboxes of a pool with this template are.
///
/// # Errors
/// The first field that cannot be so.
pub(crate) fn shape(app: &App, template: &Template) -> Result<Shape, ApiError> {
    let Some(warm) = app.runtime.warm().filter(|_| !app.leased) else {
        return Err(ApiError::not_implemented(code::POOL_NOT_SUPPORTED, no_stock(app)));
    };
    let capabilities = app.capabilities();
    let request = pool::template(template, &capabilities.isolation.kind)?;
    let whole = pool::join("", &request, CreateSandboxRequest::default())?;
    let mut spec = admit(whole, &capabilities, &rules(app)).map_err(within_template)?.spec;
    spec.network = app.network.shape(spec.policy.as_ref(), &capabilities.network)?;
    let kind = warm.kind(&spec).ok_or_else(|| {
        let problem = "asks for what can only be made at a create";
        ApiError::from(Refusal::of(400, code::NOT_SUPPORTED, "template", problem))
    })?;
    Ok(Shape { request, kind, spec })
}

fn within_template(mut refusal: Refusal) -> Refusal {
    refusal.field = format!("template.{}", refusal.field);
    refusal.message = format!("template.{}", refusal.message);
    refusal
}

/// Begins to keep a pool as its row says.
pub(crate) fn open(app: &App, row: &PoolRow, shape: Shape) {
    let has = |row: &crate::store::Row, name: &str| row.spec.pool.as_deref() == Some(name) && row.state.is_live();
    let bound = app.sandboxes.all().into_iter().filter(|sandbox| has(&sandbox.row(), &row.name));
    let bound = bound.map(|sandbox| sandbox.id().clone()).collect();
    app.warm.open(row, shape.request, shape.kind, shape.spec, bound);
}

/// Begins to keep every pool that is remembered.
pub(crate) async fn adopt(app: &Arc<App>) -> Result<(), crate::store::Error> {
    for row in app.store.pools().await? {
        match shape(app, &row.template) {
            Ok(shape) => open(app, &row, shape),
            Err(error) => {
                tracing::error!(pool = %row.name, error = %error.message, "a pool cannot be kept by this server");
            }
        }
    }
    Ok(())
}

/// A sandbox runs that was just made: such are asked for.
pub(crate) fn made(app: &App, row: &crate::store::Row) {
    let kind = match (&row.spec.pool, app.runtime.warm()) {
        (None, Some(warm)) if !app.leased => warm.kind(&row.spec),
        _ => None,
    };
    app.warm.made(&row.id, kind, || base(app, &row.spec));
}

/// What others of its kind are made by: nothing in it is this one's.
pub(crate) fn base(app: &App, spec: &SandboxSpec) -> SandboxSpec {
    let network = app.network.shape(None, &app.capabilities().network).unwrap_or_else(|_| spec.network.clone());
    SandboxSpec {
        entrypoint: vec!["true".to_owned()],
        env: Default::default(),
        metadata: Default::default(),
        extensions: Default::default(),
        hooks: Default::default(),
        policy: None,
        policy_revision: 0,
        template: None,
        network,
        ..spec.clone()
    }
}

/// A sandbox that is in this state counts against its pool no more.
pub(crate) fn settle(app: &App, row: &crate::store::Row) {
    if !row.state.is_live() {
        app.warm.ended(&row.id, row.spec.pool.as_deref());
    }
}
