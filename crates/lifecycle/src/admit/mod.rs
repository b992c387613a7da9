//! Decides whether a create request can be obeyed: the only place that says "unsupported".
//!
//! Pure. Takes the wire type in and gives the domain's [`SandboxSpec`] out, or a [`Refusal`] that names the
//! field and what to do. Every field is obeyed or refused; none is ignored.

use std::collections::BTreeMap;

use protocol::egress::NetworkPolicy;
use protocol::error::code;
use protocol::hooks::Hooks;
use protocol::lifecycle::{CreateSandboxRequest, ImageSpec, PlatformSpec};

use crate::runtime::{Capabilities, PullAuth};
use crate::snapshot::Origin;
use crate::spec::{Access, HOST_IMAGE, Network, Platform, SandboxSpec, VaultDemands};

mod labels;
mod limits;
mod taping;
#[cfg(test)]
mod tests;
mod vault;
mod volumes;

pub use labels::{check as check_labels, metadata_patch};
pub use volumes::{VolumeRules, named_volume};

/// Shortest lifetime that can be asked for, in seconds (published).
pub const MIN_TIMEOUT_SECONDS: i64 = 60;
/// Longest lifetime that can be represented, in seconds: 1,000 years keep every date below year 9999.
pub const MAX_TIMEOUT_SECONDS: i64 = 1_000 * 366 * 86_400;
/// Most environment entries: real requests have tens; the bound keeps a record small.
pub const MAX_ENV_ENTRIES: usize = 1_000;
/// Most bytes of one environment entry or argument: the kernel takes 128 KiB for one string.
pub const MAX_STRING_BYTES: usize = 128 * 1024 - 1;
/// Most bytes of the whole environment and argument vector: well under the kernel's 2 MiB for both.
pub const MAX_EXEC_BYTES: usize = 512 * 1024;
/// Longest image reference: registries allow 255 for the name, a digest adds 72.
pub const MAX_IMAGE_BYTES: usize = 512;
/// Main process of a sandbox from a snapshot for which none is named (published).
const RESTORED_ENTRYPOINT: [&str; 3] = ["tail", "-f", "/dev/null"];
/// Prefix of the extensions that are stored and echoed (published).
const ECHOED_EXTENSIONS: &str = "opensandbox.extensions.";
/// Renews a sandbox with every access (published).
const RENEW_EXTENSION: &str = "access.renew.extend.seconds";
/// Pauses a sandbox that is not accessed, until it is (ours).
const IDLE_EXTENSION: &str = "access.idle.pause.seconds";
/// Seconds by which an access may renew (published).
const RENEW_RANGE: std::ops::RangeInclusive<u32> = 300..=86_400;
/// Seconds of idleness after which a sandbox may be paused: a shorter time would pause between two clicks.
const IDLE_RANGE: std::ops::RangeInclusive<u32> = 5..=86_400;

/// [`Capabilities::network`] of a machine where nothing can leave.
pub const NO_NETWORK: &str = "none";

/// What the operator allows, beyond what the runtime can.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Longest lifetime in seconds; `None` allows any.
    pub max_timeout_seconds: Option<u64>,
    /// Whether the sandboxes of this engine end with it (`osb run` without a server).
    pub leased: bool,
    /// Whether an access may renew a sandbox (`renew_intent.enabled`).
    pub renews_on_access: bool,
    /// What volumes there may be.
    pub volumes: VolumeRules,
    /// The snapshot that the request names, which was looked up.
    pub origin: Option<Origin>,
}

/// A request that can be obeyed.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// What to make; durable.
    pub spec: SandboxSpec,
    /// Login for the pull; never stored.
    pub pull_auth: Option<PullAuth>,
    /// What is demanded of its credential vault; durable, and nothing that a runtime would know.
    pub vault_demands: VaultDemands,
}

/// A request that cannot be obeyed, with the field at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// HTTP status: 400, 409 or 422.
    pub status: u16,
    /// Code of [`protocol::error::code`].
    pub code: &'static str,
    /// Path of the field, for example `resourceLimits.cpu`.
    pub field: String,
    /// Names the field, what is wrong and what to do.
    pub message: String,
}

impl Refusal {
    fn new(status: u16, code: &'static str, field: impl Into<String>, problem: impl AsRef<str>) -> Self {
        let field = field.into();
        let message = format!("{field}: {}", problem.as_ref());
        Self { status, code, field, message }
    }

    /// A refusal with a status and a code of its own.
    pub fn of(status: u16, code: &'static str, field: impl Into<String>, problem: impl AsRef<str>) -> Self {
        Self::new(status, code, field, problem)
    }

    /// A value of the wrong form or outside its range, where the published server answers 400.
    pub(crate) fn bad(field: impl Into<String>, problem: impl AsRef<str>) -> Self {
        Self::new(400, code::INVALID_PARAMETER, field, problem)
    }

    /// A request that does not fit its schema, where the published server answers 422.
    pub(crate) fn invalid(field: impl Into<String>, problem: impl AsRef<str>) -> Self {
        Self::new(422, code::INVALID_PARAMETER, field, problem)
    }

    /// A well-formed request for something that does not exist here.
    pub(crate) fn unsupported(field: impl Into<String>, problem: impl AsRef<str>) -> Self {
        Self::new(400, code::NOT_SUPPORTED, field, problem)
    }
}

/// Decides on a create request.
///
/// # Errors
/// A [`Refusal`] for the first field that cannot be obeyed.
pub fn admit(request: CreateSandboxRequest, runtime: &Capabilities, rules: &Rules) -> Result<Admitted, Refusal> {
    refuse_what_does_not_exist(&request)?;
    let credential_proxy = vault::is_asked_for(&request, runtime)?;
    let (image, pull_auth, origin) = stand(request.image, request.snapshot_id.as_deref(), rules.origin.as_ref())?;
    let private_pull = pull_auth.is_some();
    let asked =
        request.entrypoint.or_else(|| origin.is_some().then(|| RESTORED_ENTRYPOINT.map(str::to_owned).to_vec()));
    let entrypoint = entrypoint(asked)?;
    let metadata = request.metadata.unwrap_or_default();
    labels::check(&metadata)?;
    let platform = platform(request.platform, runtime)?;
    let timeout_seconds = timeout(request.timeout, rules)?;
    let policy = network_policy(request.network_policy, runtime)?;
    let Some(asked) = request.resource_limits else {
        return Err(Refusal::invalid("resourceLimits", "is required; {} takes the defaults"));
    };
    let limits = limits::parse(&asked, runtime)?;
    let mut asked = request.env.unwrap_or_default();
    let vault_demands = vault::demands(&mut asked, credential_proxy)?;
    let env = env(asked, &entrypoint)?;
    let hooks = hooks(request.lifecycle)?;
    let volumes = volumes::parse(request.volumes.unwrap_or_default(), runtime, &rules.volumes, rules.leased)?;
    let mut extensions_asked = request.extensions.unwrap_or_default();
    let taping = taping::asked(&mut extensions_asked, runtime)?;
    let (extensions, mut access) = extensions(extensions_asked, runtime, rules)?;
    access.secured = request.secure_access == Some(true);
    if access.renew_extend_seconds.is_some() && timeout_seconds.is_none() {
        let problem = "a sandbox without a timeout has no deadline that could be renewed; give it a timeout";
        return Err(Refusal::bad(format!("extensions.{RENEW_EXTENSION}"), problem));
    }
    let spec = SandboxSpec {
        image,
        private_pull,
        platform,
        entrypoint,
        env,
        limits,
        metadata,
        extensions,
        timeout_seconds,
        leased: rules.leased,
        hooks,
        network: Network::None,
        policy,
        policy_revision: 0,
        credential_proxy,
        taping,
        access,
        volumes,
        pool: None,
        template: None,
        origin,
    };
    Ok(Admitted { spec, pull_auth, vault_demands })
}

fn hooks(asked: Option<serde_json::Value>) -> Result<Hooks, Refusal> {
    let asked = asked.filter(|asked| !asked.is_null());
    let hooks: Hooks = match asked.map(serde_json::from_value).transpose() {
        Ok(hooks) => hooks.unwrap_or_default(),
        Err(error) => return Err(Refusal::invalid("lifecycle", error.to_string())),
    };
    match hooks.check() {
        Ok(()) => Ok(hooks),
        Err(mistake) => Err(Refusal::invalid(format!("lifecycle.{}", mistake.field), mistake.problem)),
    }
}

fn refuse_what_does_not_exist(request: &CreateSandboxRequest) -> Result<(), Refusal> {
    if request.template_id.is_some() {
        return Err(Refusal::unsupported("templateId", "no template of this server has that id; name an image"));
    }
    if let Some(requests) = &request.resource_requests
        && !requests.is_empty()
    {
        return Err(Refusal::unsupported(
            "resourceRequests",
            "this runtime reserves nothing for a sandbox; leave them out and use resourceLimits",
        ));
    }
    Ok(())
}

/// What the sandbox stands on: an image, or a snapshot in place of one.
fn stand(
    asked: Option<ImageSpec>,
    snapshot: Option<&str>,
    origin: Option<&Origin>,
) -> Result<(String, Option<PullAuth>, Option<Origin>), Refusal> {
    let Some(snapshot) = snapshot else {
        let (image, pull_auth) = image(asked)?;
        return Ok((image, pull_auth, None));
    };
    if asked.is_some_and(|image| !image.uri.trim().is_empty()) {
        return Err(Refusal::invalid("snapshotId", "comes in place of an image; name one of the two"));
    }
    match origin.filter(|origin| origin.id.as_str() == snapshot) {
        Some(origin) => Ok((origin.image.clone(), None, Some(origin.clone()))),
        None => Err(Refusal::unsupported("snapshotId", "snapshots do not exist here; name an image")),
    }
}

fn image(image: Option<ImageSpec>) -> Result<(String, Option<PullAuth>), Refusal> {
    let Some(image) = image.filter(|image| !image.uri.trim().is_empty()) else {
        return Err(Refusal::invalid(
            "image",
            format!("is required; name an image, for example \"{HOST_IMAGE}\" for this machine's own programs"),
        ));
    };
    let uri = image.uri.trim();
    if uri.len() > MAX_IMAGE_BYTES || !uri.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Refusal::bad(
            "image.uri",
            format!("must be an image reference of at most {MAX_IMAGE_BYTES} printable characters without spaces"),
        ));
    }
    let auth = match image.auth {
        None => None,
        Some(auth) => match (auth.username, auth.password) {
            (None, None) => None,
            (Some(username), Some(password)) if !username.is_empty() => Some(PullAuth { username, password }),
            _ => return Err(Refusal::bad("image.auth", "needs both username and password")),
        },
    };
    if auth.is_some() && uri == HOST_IMAGE {
        return Err(Refusal::bad(
            "image.auth",
            format!("the image \"{HOST_IMAGE}\" is not pulled; leave the login out"),
        ));
    }
    Ok((uri.to_owned(), auth))
}

fn entrypoint(entrypoint: Option<Vec<String>>) -> Result<Vec<String>, Refusal> {
    let bad = |problem| Refusal::new(400, code::INVALID_ENTRYPOINT, "entrypoint", problem);
    let Some(argv) = entrypoint else {
        return Err(bad("is required with an image, for example [\"tail\", \"-f\", \"/dev/null\"]"));
    };
    let Some(program) = argv.first() else {
        return Err(Refusal::invalid("entrypoint", "needs at least one element"));
    };
    if program.trim().is_empty() {
        return Err(bad("the first element is the program and must not be blank"));
    }
    if argv.iter().any(|arg| arg.contains('\0')) {
        return Err(bad("must not contain NUL bytes"));
    }
    if argv.iter().any(|arg| arg.len() > MAX_STRING_BYTES) {
        return Err(bad("an element is longer than the kernel takes (128 KiB); put the data into a file"));
    }
    Ok(argv)
}

fn platform(platform: Option<PlatformSpec>, runtime: &Capabilities) -> Result<Option<Platform>, Refusal> {
    let Some(platform) = platform else { return Ok(None) };
    let (os, arch) = (platform.os.trim().to_ascii_lowercase(), platform.arch.trim().to_ascii_lowercase());
    match os.as_str() {
        "linux" => {}
        "windows" => return Err(Refusal::unsupported("platform.os", "Windows sandboxes do not exist here; use linux")),
        _ => return Err(Refusal::bad("platform.os", format!("\"{os}\" is unknown; use linux"))),
    }
    if !["amd64", "arm64"].contains(&arch.as_str()) {
        return Err(Refusal::bad("platform.arch", format!("\"{arch}\" is unknown; use amd64 or arm64")));
    }
    if arch != runtime.arch {
        let problem = format!("this machine runs {} only", runtime.arch);
        return Err(Refusal::unsupported("platform.arch", problem));
    }
    Ok(Some(Platform { os, arch }))
}

fn timeout(timeout: Option<i64>, rules: &Rules) -> Result<Option<u64>, Refusal> {
    let Some(seconds) = timeout else { return Ok(None) };
    if seconds < MIN_TIMEOUT_SECONDS {
        let problem = format!(
            "{seconds} is too short; use at least {MIN_TIMEOUT_SECONDS} seconds, or leave it out for no deadline"
        );
        return Err(Refusal::invalid("timeout", problem));
    }
    if seconds > MAX_TIMEOUT_SECONDS {
        return Err(Refusal::bad(
            "timeout",
            format!("{seconds} seconds lead to a date that cannot be represented; leave it out for no deadline"),
        ));
    }
    let seconds = seconds.unsigned_abs();
    if let Some(max) = rules.max_timeout_seconds.filter(|max| seconds > *max) {
        return Err(Refusal::bad("timeout", format!("{seconds} is above this server's limit of {max} seconds")));
    }
    Ok(Some(seconds))
}

/// Passes the policy on, whose meaning is checked where it is put in force. A policy by which nothing leaves holds anywhere.
fn network_policy(policy: Option<NetworkPolicy>, runtime: &Capabilities) -> Result<Option<NetworkPolicy>, Refusal> {
    if runtime.network == NO_NETWORK && policy.as_ref().is_some_and(NetworkPolicy::opens) {
        let problem = "sandboxes have no way out on this machine, so nothing can be allowed; `osb doctor` says what is \
                       missing; leave the policy out or allow nothing";
        return Err(Refusal::unsupported("networkPolicy", problem));
    }
    Ok(policy)
}

fn env(env: BTreeMap<String, Option<String>>, entrypoint: &[String]) -> Result<BTreeMap<String, String>, Refusal> {
    let mut kept = BTreeMap::new();
    let mut bytes: usize = entrypoint.iter().map(|arg| arg.len() + 1).sum();
    for (name, value) in env {
        let Some(value) = value else { continue };
        let field = format!("env.{name}");
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(Refusal::bad(field, "a name must not be empty nor contain \"=\" or NUL"));
        }
        if value.contains('\0') {
            return Err(Refusal::bad(field, "a value must not contain NUL bytes"));
        }
        if name == "OPENSANDBOX_LIFECYCLE" {
            return Err(Refusal::invalid(field, "is reserved for the platform"));
        }
        if name.len() + value.len() + 2 > MAX_STRING_BYTES {
            return Err(Refusal::bad(field, "is longer than the kernel takes (128 KiB); put the data into a file"));
        }
        bytes += name.len() + value.len() + 2;
        kept.insert(name, value);
    }
    if kept.len() > MAX_ENV_ENTRIES || bytes > MAX_EXEC_BYTES {
        let problem =
            format!("at most {MAX_ENV_ENTRIES} entries and {MAX_EXEC_BYTES} bytes together with the entrypoint");
        return Err(Refusal::bad("env", problem));
    }
    Ok(kept)
}

/// The extensions that are echoed, and those that say what an access does.
fn extensions(
    extensions: BTreeMap<String, String>,
    runtime: &Capabilities,
    rules: &Rules,
) -> Result<(BTreeMap<String, String>, Access), Refusal> {
    let mut kept = BTreeMap::new();
    let mut access = Access::default();
    for (key, value) in extensions {
        let field = format!("extensions.{key}");
        match key.as_str() {
            "poolRef" => {
                return Err(Refusal::new(
                    400,
                    code::UNSUPPORTED_POOL_REF,
                    field,
                    "no pool of this server has that name; name an image",
                ));
            }
            RENEW_EXTENSION => {
                let seconds = within(&field, &value, RENEW_RANGE)?;
                if !rules.renews_on_access {
                    let problem = "this server does not renew on access (renew_intent.enabled); renew by call";
                    return Err(Refusal::unsupported(field, problem));
                }
                access.renew_extend_seconds = Some(seconds);
            }
            IDLE_EXTENSION => {
                let seconds = within(&field, &value, IDLE_RANGE)?;
                if !runtime.pause {
                    let problem = format!("the runtime {} cannot pause sandboxes on this machine", runtime.runtime);
                    return Err(Refusal::unsupported(field, problem));
                }
                access.idle_pause_seconds = Some(seconds);
            }
            "bootstrap.execd.isolation" => {
                return Err(Refusal::unsupported(field, "isolated sessions do not exist here yet; leave it out"));
            }
            _ if key.starts_with(ECHOED_EXTENSIONS) && key.len() > ECHOED_EXTENSIONS.len() => {
                kept.insert(key, value);
            }
            _ => {
                return Err(Refusal::bad(
                    field,
                    format!("is unknown; keys of your own start with \"{ECHOED_EXTENSIONS}\" and are echoed"),
                ));
            }
        }
    }
    Ok((kept, access))
}

/// Whole seconds within a range, in plain digits.
fn within(field: &str, value: &str, range: std::ops::RangeInclusive<u32>) -> Result<u32, Refusal> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    match value.parse::<u32>() {
        Ok(seconds) if digits && range.contains(&seconds) => Ok(seconds),
        _ => {
            let problem = format!("\"{value}\" must be an integer from {} to {}", range.start(), range.end());
            Err(Refusal::bad(field, problem))
        }
    }
}
