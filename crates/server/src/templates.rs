//! Templates: what a create has in common with others, and an image that is there before the first of them.
//!
//! A template of this runtime is an image that was fetched and unpacked once, and a kind of sandbox of which one waits. Its
//! root is the image's; what a running program wrote is not part of it.

use std::sync::Arc;

use lifecycle::admit::{Refusal, admit};
use lifecycle::spec::{HOST_IMAGE, SandboxSpec};
use protocol::error::code;
use protocol::lifecycle::{CreateSandboxRequest, CreateTemplateRequest, ImageSpec, Template, TemplateStatus};

use crate::app::App;
use crate::errors::ApiError;
use crate::pools;

/// The one form of a template here.
const NATIVE: &str = "native";
/// Longest name under which a template is known.
const MAX_PUBLISH_BYTES: usize = 253;
/// A phase.
const PENDING: &str = "Pending";
/// A phase.
const BUILDING: &str = "Building";
/// A phase: the only one in which creates are taken.
const SUCCEEDED: &str = "Succeeded";
/// A phase.
const FAILED: &str = "Failed";

/// A template that can be built.
///
/// # Errors
/// The first field that cannot be so here.
pub(crate) fn accept(app: &App, request: CreateTemplateRequest) -> Result<Template, ApiError> {
    if app.leased {
        let message = "templates outlive sandboxes: they need a server (`osb server`)";
        return Err(ApiError::not_implemented(code::TEMPLATE_NOT_SUPPORTED, message));
    }
    let unsupported = |field: &str, problem: &str| Refusal::of(400, code::TEMPLATE_NOT_SUPPORTED, field, problem);
    match request.format.as_deref() {
        None | Some(NATIVE) => {}
        Some("overlaybd") => {
            return Err(unsupported("format", "overlaybd is a form of micro-VMs; use native or leave it out").into());
        }
        Some(other) => return Err(Refusal::of(422, code::INVALID_PARAMETER, "format", unknown(other)).into()),
    }
    let asks_for_readiness =
        request.readiness.as_ref().and_then(serde_json::Value::as_object).is_some_and(|readiness| {
            readiness.values().any(|value| !value.is_null() && value.as_i64() != Some(0) && value.as_str() != Some(""))
        });
    if asks_for_readiness {
        let problem = "nothing runs while a template is built here, so there is nothing to wait for; leave it out";
        return Err(unsupported("readiness", problem).into());
    }
    let publish = request.publish.trim();
    if publish.is_empty() || publish.len() > MAX_PUBLISH_BYTES || !publish.bytes().all(|byte| byte.is_ascii_graphic()) {
        let problem = "must be 1 to 253 printable characters without spaces: the name under which it is known";
        return Err(Refusal::of(422, code::INVALID_PARAMETER, "publish", problem).into());
    }
    if publish.contains("://") {
        let problem = "nothing is uploaded anywhere; give a name under which the template is known, for example tools";
        return Err(unsupported("publish", problem).into());
    }
    let now = app.now().to_string();
    let template = Template {
        template_id: format!("tpl-{}", uuid::Uuid::new_v4().hyphenated()),
        image: request.image.trim().to_owned(),
        resource_limits: request.resource_limits,
        entrypoint: request.entrypoint,
        env: request.env,
        metadata: request.metadata,
        publish: publish.to_owned(),
        format: NATIVE.to_owned(),
        status: TemplateStatus { phase: PENDING.to_owned(), manifest_ref: None, message: None },
        created_at: now.clone(),
        updated_at: now,
    };
    lifecycle::admit::check_labels(&template.metadata.clone().unwrap_or_default())?;
    spec(app, &template)?;
    Ok(template)
}

fn unknown(word: &str) -> String {
    format!("\"{word}\" is unknown; use native")
}

/// The create that a template stands for.
fn base(template: &Template) -> CreateSandboxRequest {
    let variables = template.env.clone().unwrap_or_default();
    let idle = || ["tail", "-f", "/dev/null"].map(str::to_owned).to_vec();
    CreateSandboxRequest {
        image: Some(ImageSpec { uri: template.image.clone(), auth: None }),
        resource_limits: Some(template.resource_limits.clone().unwrap_or_default()),
        entrypoint: Some(template.entrypoint.clone().unwrap_or_else(idle)),
        env: Some(variables.into_iter().map(|(name, value)| (name, Some(value))).collect()),
        ..CreateSandboxRequest::default()
    }
}

fn spec(app: &App, template: &Template) -> Result<SandboxSpec, ApiError> {
    let capabilities = app.capabilities();
    let mut spec = admit(base(template), &capabilities, &pools::rules(app))?.spec;
    spec.network = app.network.shape(None, &capabilities.network)?;
    Ok(spec)
}

/// What a create by a template asks for.
///
/// # Errors
/// The template is not there or not built, or the create says what the template says.
pub(crate) async fn join(app: &App, id: &str, request: CreateSandboxRequest) -> Result<CreateSandboxRequest, ApiError> {
    let own = [
        ("credentialProxy", request.credential_proxy.is_some()),
        ("entrypoint", request.entrypoint.is_some()),
        ("env", request.env.is_some()),
        ("image", request.image.is_some()),
        ("lifecycle", request.lifecycle.is_some()),
        ("platform", request.platform.is_some()),
        ("resourceLimits", request.resource_limits.is_some()),
        ("resourceRequests", request.resource_requests.is_some()),
        ("secureAccess", request.secure_access == Some(true)),
        ("snapshotId", request.snapshot_id.is_some()),
        ("volumes", request.volumes.is_some()),
    ];
    let own: Vec<&str> = own.iter().filter(|(_, is_there)| *is_there).map(|(name, _)| *name).collect();
    if !own.is_empty() {
        let problem = format!("says what a sandbox is; leave out {}", own.join(", "));
        return Err(Refusal::of(422, code::INVALID_PARAMETER, "templateId", problem).into());
    }
    if request.timeout.is_none() {
        return Err(Refusal::of(422, code::INVALID_PARAMETER, "timeout", "is required with a template").into());
    }
    if request.extensions.as_ref().is_some_and(|extensions| extensions.contains_key("poolRef")) {
        let problem = "a create names a template or a pool, not both";
        return Err(Refusal::of(400, code::UNSUPPORTED_POOL_REF, "extensions.poolRef", problem).into());
    }
    let missing = || ApiError::missing(code::TEMPLATE_NOT_FOUND, "template", id);
    let template = app.store.template(id).await?.ok_or_else(missing)?;
    if template.status.phase != SUCCEEDED {
        let why = template.status.message.map_or(String::new(), |message| format!(": {message}"));
        let message =
            format!("template \"{id}\" is {}{why}; only one that Succeeded can be used", template.status.phase);
        return Err(ApiError::new(http::StatusCode::NOT_FOUND, code::TEMPLATE_NOT_FOUND, message));
    }
    let common = base(&template);
    Ok(CreateSandboxRequest {
        template_id: None,
        image: common.image,
        resource_limits: common.resource_limits,
        entrypoint: common.entrypoint,
        env: common.env,
        ..request
    })
}

/// Builds a template in the background, to its end.
pub(crate) fn build(app: &Arc<App>, template: Template) {
    let work = app.clone();
    app.tasks.spawn(async move {
        tokio::select! {
            // It says Building, and is built again at the next start.
            () = work.closing.cancelled() => {}
            () = build_now(&work, template) => {}
        }
    });
}

async fn build_now(app: &Arc<App>, mut template: Template) {
    if !change(app, &mut template, BUILDING, None, None).await {
        return;
    }
    match fetch(app, &template.image).await {
        Ok(manifest) => {
            if change(app, &mut template, SUCCEEDED, manifest, None).await {
                pin(app, &template);
            }
        }
        Err(message) => {
            tracing::warn!(template = %template.template_id, error = message, "a template could not be built");
            change(app, &mut template, FAILED, None, Some(message)).await;
        }
    }
}

/// Has one wait, as long as the template is there.
fn pin(app: &App, template: &Template) {
    let Some(warm) = app.runtime.warm().filter(|_| !app.leased) else { return };
    if let Ok(spec) = spec(app, template)
        && let Some(kind) = warm.kind(&spec)
    {
        app.warm.pin(&template.template_id, kind, pools::base(app, &spec));
    }
}

/// Fetches and unpacks an image; its digest, if it has one.
async fn fetch(app: &App, image: &str) -> Result<Option<String>, String> {
    if image == HOST_IMAGE {
        return Ok(None);
    }
    let images = app.images.as_ref().ok_or("this server has no images beside \"host\"")?;
    let plain_http_hosts = app.config.images.plain_http_hosts.clone();
    let options = image::EnsureOptions { credentials: None, platform: None, plain_http_hosts };
    let fetched = images.ensure(image, options, &|_| {}).await;
    fetched.map(|image| Some(image.id.to_string())).map_err(|error| protocol::error::chain(&error))
}

async fn change(
    app: &App,
    template: &mut Template,
    phase: &str,
    manifest_ref: Option<String>,
    message: Option<String>,
) -> bool {
    template.status = TemplateStatus { phase: phase.to_owned(), manifest_ref, message };
    template.updated_at = app.now().to_string();
    match app.store.change_template(template).await {
        Ok(is_there) => is_there,
        Err(error) => {
            tracing::error!(template = %template.template_id, error = %protocol::error::chain(&error), "a phase could not be stored");
            false
        }
    }
}

/// Goes on with every template that is remembered.
pub(crate) async fn adopt(app: &Arc<App>) -> Result<(), crate::store::Error> {
    for template in app.store.templates().await? {
        match template.status.phase.as_str() {
            SUCCEEDED => pin(app, &template),
            PENDING | BUILDING => build(app, template),
            _ => {}
        }
    }
    Ok(())
}
