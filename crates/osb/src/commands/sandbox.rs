//! `osb sandbox`: sandboxes from their making to their end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use protocol::egress::NetworkRule;
use protocol::lifecycle::{CreateSandboxRequest, CredentialProxyConfig, ImageAuth, ImageSpec};
use serde_json::{Value, json};

use self::view::{detail, row, usage};
use super::signals::Signals;
use super::vault::VaultFile;
use super::volume::{self, Mount};
use super::{Context, Outcome, Progress, Rows, next_page, to_value};
use crate::client::sandboxes::Filter;
use crate::failure::Failure;
use crate::output::table;
use crate::units::{self, Limit};

pub mod many;
mod view;

/// Main process of a sandbox for which none is named: waits and does nothing.
const IDLE_ENTRYPOINT: [&str; 3] = ["tail", "-f", "/dev/null"];
/// Sandboxes of one call; the server takes no more.
const MAX_COUNT: usize = 1000;
/// How often `metrics --watch` asks.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Largest request file, in bytes; the server takes no larger body.
const MAX_REQUEST_FILE: u64 = 4 * 1024 * 1024;

/// The commands about sandboxes.
#[derive(Subcommand, Debug)]
pub enum SandboxCommand {
    /// Make a sandbox and wait until it answers
    Create(Box<CreateArgs>),
    /// List sandboxes, the newest first
    #[command(visible_alias = "ls", after_help = "Example:\n  osb sandbox list -s running -m team=blue -o json")]
    List(ListArgs),
    /// Show one sandbox and what the kernel really applied to it
    Get {
        /// The sandbox
        id: String,
    },
    /// End sandboxes and remove everything of them
    #[command(visible_alias = "rm", after_help = "Example:\n  osb sandbox kill $(osb sandbox list -q)")]
    Kill {
        /// The sandboxes
        #[arg(required = true)]
        ids: Vec<String>,
        /// Time between TERM and KILL, for example 0 or 10s (the server's own if absent)
        #[arg(long, value_name = "DURATION", value_parser = units::parse_duration)]
        grace: Option<Duration>,
    },
    /// Freeze a sandbox; its memory is kept
    Pause {
        /// The sandbox
        id: String,
    },
    /// Thaw a sandbox
    Resume {
        /// The sandbox
        id: String,
    },
    /// Move a sandbox's deadline
    #[command(after_help = "Example:\n  osb sandbox renew ID -t 1h30m")]
    Renew {
        /// The sandbox
        id: String,
        /// From now on, for example 600, 10m or 1h30m
        #[arg(short, long, value_name = "DURATION", value_parser = units::parse_duration)]
        timeout: Duration,
    },
    /// Set or remove labels
    #[command(after_help = "Example:\n  osb sandbox label ID team=blue draft-")]
    Label {
        /// The sandbox
        id: String,
        /// KEY=VALUE sets a label, KEY- removes it
        #[arg(required = true)]
        labels: Vec<String>,
    },
    /// Show how to reach a port of a sandbox
    #[command(after_help = "Example:\n  osb sandbox endpoint ID -p 8000 -o json")]
    Endpoint {
        /// The sandbox
        id: String,
        /// The port inside
        #[arg(short, long)]
        port: u16,
    },
    /// Tell whether the daemon inside answers; exit code 1 if not
    Health {
        /// The sandbox
        id: String,
    },
    /// Show what a sandbox uses
    Metrics {
        /// The sandbox
        id: String,
        /// Go on showing it until interrupted
        #[arg(long)]
        watch: bool,
    },
    /// Show what the main process wrote
    Logs {
        /// The sandbox
        id: String,
        /// container or all
        #[arg(short, long, default_value = "all")]
        scope: String,
    },
    /// Show what happened to a sandbox
    Events {
        /// The sandbox
        id: String,
        /// runtime or all
        #[arg(short, long, default_value = "all")]
        scope: String,
    },
}

/// Arguments of `osb sandbox create`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  osb sandbox create\n  osb sandbox create -i python:3.12 -t 1h -e DEBUG=1 -m team=blue --memory 1Gi --cpu 2\n  \
osb sandbox create --allow index.example.org:443 --allow files.example.org:443\n  osb sandbox create --count 20 -o json\n  osb sandbox create --snapshot SNAPSHOT\n  osb sandbox create -f request.json -o json"
)]
pub struct CreateArgs {
    /// Image: a name to pull, or `host` for this machine's own programs
    #[arg(short, long)]
    image: Option<String>,
    /// User name for the image's registry
    #[arg(long, requires = "image_auth_password")]
    image_auth_username: Option<String>,
    /// Password for the image's registry; `-` reads it from standard input
    #[arg(long, requires = "image_auth_username")]
    image_auth_password: Option<String>,
    /// Snapshot to start from instead of an image (`osb snapshot`)
    #[arg(long = "snapshot", visible_alias = "snapshot-id", value_name = "SNAPSHOT", conflicts_with = "image")]
    snapshot_id: Option<String>,
    /// Template to start from instead of an image
    #[arg(long, conflicts_with_all = ["image", "snapshot_id"])]
    template: Option<String>,
    /// Take one out of this pool (`osb pool`); `*` leaves the choice
    #[arg(long, value_name = "POOL", conflicts_with_all = ["snapshot_id", "template"])]
    pool: Option<String>,
    /// Request body as JSON; flags go before what it says. `-` reads standard input
    #[arg(short, long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Lifetime, for example 600, 10m or none
    #[arg(short, long, value_name = "DURATION", value_parser = units::parse_limit)]
    timeout: Option<Limit>,
    /// Environment variable; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    env: Vec<(String, String)>,
    /// Label; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    metadata: Vec<(String, String)>,
    /// Name: the label `name`
    #[arg(long)]
    name: Option<String>,
    /// Extension; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    extension: Vec<(String, String)>,
    /// Limit by its name in the protocol, for example memory=1Gi; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    resource: Vec<(String, String)>,
    /// Memory limit, for example 512Mi
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    memory: Option<String>,
    /// Cores, for example 2 or 0.5
    #[arg(long, value_name = "CORES", value_parser = units::parse_cpu)]
    cpu: Option<String>,
    /// Disk limit, for example 2Gi
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    disk: Option<String>,
    /// One word of the main process; repeat it for each word
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    entrypoint: Vec<String>,
    /// Let it reach this and nothing else, for example index.example.org:443; may be repeated
    #[arg(long, value_name = "TARGET", value_parser = super::policy::parse_target, conflicts_with = "network_policy_file")]
    allow: Vec<NetworkRule>,
    /// Network policy as JSON
    #[arg(long, value_name = "PATH")]
    network_policy_file: Option<PathBuf>,
    /// Let it have credentials that it never sees (`osb vault`)
    #[arg(long)]
    credential_proxy: bool,
    /// Credentials and where they are used, as JSON of the API; their hosts are allowed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["no_wait", "network_policy_file"])]
    vault: Option<PathBuf>,
    /// Mount a volume: NAME:/PATH[:ro], or a path that the server allows: /HOST/PATH:/PATH[:ro]; may be repeated
    #[arg(short, long, value_name = "SOURCE:/PATH[:ro]", value_parser = super::volume::parse_mount)]
    volume: Vec<Mount>,
    /// Tell every request on standard error
    #[arg(long, action = clap::ArgAction::SetTrue, help_heading = "Options")]
    verbose: bool,
    /// Record what it fetches (`osb recording export` writes it to a file)
    #[arg(long, conflicts_with = "replay")]
    record: bool,
    /// Answer it from this recording (`osb recording import`); nothing leaves it
    #[arg(long, value_name = "RECORDING")]
    replay: Option<String>,
    /// Volumes as JSON
    #[arg(long, value_name = "PATH")]
    volumes_file: Option<PathBuf>,
    /// How many of them, 1 to 1000
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "1", conflicts_with = "vault")]
    count: usize,
    /// Return as soon as the sandbox is accepted
    #[arg(long, visible_alias = "skip-health-check")]
    no_wait: bool,
    /// Longest wait until it answers
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration, default_value = "5m")]
    ready_timeout: Duration,
}

/// Arguments of `osb sandbox list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Only these states; may be repeated
    #[arg(short, long)]
    state: Vec<String>,
    /// Only with this label; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    metadata: Vec<(String, String)>,
    /// Page, from 1
    #[arg(long)]
    page: Option<u32>,
    /// Sandboxes on a page, 1 to 200
    #[arg(long)]
    page_size: Option<u32>,
    /// Show ids only
    #[arg(short, long)]
    quiet: bool,
}

/// How many sandboxes one call may make.
pub fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=MAX_COUNT).contains(&count) => Ok(count),
        _ => Err(format!("must be a whole number from 1 to {MAX_COUNT}")),
    }
}

/// The main process of a sandbox for which none is named.
pub fn idle_entrypoint() -> Vec<String> {
    IDLE_ENTRYPOINT.map(str::to_owned).to_vec()
}

/// Runs one of the commands.
pub async fn run(ctx: &Context, command: &SandboxCommand) -> Outcome {
    match command {
        SandboxCommand::Create(args) => return create(ctx, args).await,
        SandboxCommand::List(args) => list(ctx, args).await?,
        SandboxCommand::Get { id } => {
            let sandbox = ctx.client()?.get(id).await?;
            ctx.printer.document(&to_value(&sandbox), || detail(&sandbox))?;
        }
        SandboxCommand::Kill { ids, grace } => return kill(ctx, ids, *grace).await,
        SandboxCommand::Pause { id } => {
            ctx.client()?.pause(id).await?;
            ctx.printer.done(&format!("sandbox {id} is paused"))?;
        }
        SandboxCommand::Resume { id } => {
            ctx.client()?.resume(id).await?;
            ctx.printer.done(&format!("sandbox {id} runs again"))?;
        }
        SandboxCommand::Renew { id, timeout } => {
            let renewed = ctx.client()?.renew(id, *timeout).await?;
            ctx.printer.document(&to_value(&renewed), || format!("sandbox {id} ends at {}", renewed.expires_at))?;
        }
        SandboxCommand::Label { id, labels } => {
            let sandbox = ctx.client()?.patch_metadata(id, &patch(labels)?).await?;
            ctx.printer.document(&to_value(&sandbox), || detail(&sandbox))?;
        }
        SandboxCommand::Endpoint { id, port } => endpoint(ctx, id, *port).await?,
        SandboxCommand::Health { id } => return health(ctx, id).await,
        SandboxCommand::Metrics { id, watch } => metrics(ctx, id, *watch).await?,
        SandboxCommand::Logs { id, scope } => diagnostics(ctx, id, "logs", scope).await?,
        SandboxCommand::Events { id, scope } => diagnostics(ctx, id, "events", scope).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(ctx: &Context, args: &CreateArgs) -> Outcome {
    let vault = args.vault.as_deref().map(VaultFile::read).transpose()?;
    let request = request(ctx, args, vault.as_ref())?;
    if args.count > 1 {
        return many::create(ctx, args, &request).await;
    }
    let client = ctx.client()?;
    let mut sandbox = client.create(&request).await?;
    if !args.no_wait {
        let progress = Progress::waiting(&ctx.printer, &format!("making sandbox {}", sandbox.id));
        let mut signals = Signals::listen()?;
        let id = sandbox.id.clone();
        let say = |text: &str| progress.say(text);
        let ready = tokio::select! {
            ready = client.ready(&id, args.ready_timeout, &say) => ready,
            signal = signals.next() => {
                drop(progress);
                client.delete(&id, Some(Duration::ZERO)).await?;
                ctx.printer.note(&format!("sandbox {id} is removed again"));
                return Ok(ExitCode::from(128 + signal));
            }
        };
        drop(progress);
        if let Err(failure) = ready {
            return Err(match failure.hint {
                Some(_) => failure,
                None => failure.hint(format!(
                    "`osb sandbox events {id}` tells more; `osb sandbox kill {id}` removes what is left"
                )),
            });
        }
        if let Some(vault) = &vault
            && let Err(failure) = client.create_vault(&id, &vault.request).await
        {
            // Without them it is not what was asked for.
            client.delete(&id, Some(Duration::ZERO)).await?;
            return Err(failure.hint("the sandbox is removed again"));
        }
        sandbox = client.get(&id).await?;
    }
    ctx.printer.document(&to_value(&sandbox), || {
        format!("{}\nrun something in it: osb command run {} -- COMMAND", detail(&sandbox).trim_end(), sandbox.id)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn request(ctx: &Context, args: &CreateArgs, vault: Option<&VaultFile>) -> Result<CreateSandboxRequest, Failure> {
    let mut request = match &args.file {
        Some(path) => read_json(path)?,
        None => CreateSandboxRequest::default(),
    };
    if let Some(id) = &args.snapshot_id {
        request.snapshot_id = Some(id.clone());
    } else if let Some(id) = &args.template {
        request.template_id = Some(id.clone());
    } else if args.image.is_some()
        || (args.pool.is_none()
            && request.image.is_none()
            && request.snapshot_id.is_none()
            && request.template_id.is_none())
    {
        let auth = match (&args.image_auth_username, &args.image_auth_password) {
            (Some(username), Some(password)) => {
                Some(ImageAuth { username: Some(username.clone()), password: Some(super::image::password(password)?) })
            }
            _ => None,
        };
        let uri = args.image.clone().unwrap_or_else(|| ctx.settings.image.value.clone());
        request.image = Some(ImageSpec { uri, auth });
    }
    let from_template = request.template_id.is_some();
    match args.timeout {
        Some(limit) => request.timeout = limit.seconds(),
        None if args.file.is_none() => request.timeout = ctx.settings.timeout.value.seconds(),
        None => {}
    }
    extend(&mut request.env, args.env.iter().map(|(key, value)| (key.clone(), Some(value.clone()))), false);
    let name = args.name.clone().map(|name| ("name".to_owned(), name));
    extend(&mut request.metadata, args.metadata.iter().cloned().chain(name), false);
    let recorded = args.record.then(super::recording::recorded);
    let recording = recorded.or(args.replay.as_deref().map(super::recording::replayed));
    let pool = args.pool.clone().map(|pool| ("poolRef".to_owned(), pool));
    extend(&mut request.extensions, args.extension.iter().cloned().chain(recording).chain(pool), false);
    let named = [("memory", &args.memory), ("cpu", &args.cpu), ("disk", &args.disk)];
    let named = named.into_iter().filter_map(|(name, value)| value.clone().map(|value| (name.to_owned(), value)));
    extend(&mut request.resource_limits, args.resource.iter().cloned().chain(named), !from_template);
    if !args.entrypoint.is_empty() {
        request.entrypoint = Some(args.entrypoint.clone());
    } else if request.entrypoint.is_none() && request.image.is_some() {
        request.entrypoint = Some(idle_entrypoint());
    }
    if let Some(path) = &args.network_policy_file {
        request.network_policy = Some(read_json(path)?);
    } else if !args.allow.is_empty() {
        request.network_policy = Some(super::policy::permitting(&args.allow));
    }
    if let Some(vault) = vault {
        let policy = request.network_policy.get_or_insert_with(|| super::policy::permitting(&[]));
        policy.egress.extend(vault.rules());
    }
    if args.credential_proxy || vault.is_some() {
        request.credential_proxy = Some(CredentialProxyConfig { enabled: true });
    }
    if let Some(path) = &args.volumes_file {
        request.volumes = Some(read_json(path)?);
    }
    if !args.volume.is_empty() {
        request.volumes.get_or_insert_default().extend(volume::requested(&args.volume));
    }
    Ok(request)
}

/// Adds entries to a map that is absent while it is empty, unless it must be there.
fn extend<V>(map: &mut Option<BTreeMap<String, V>>, entries: impl Iterator<Item = (String, V)>, required: bool) {
    let mut all = map.take().unwrap_or_default();
    all.extend(entries);
    *map = (required || !all.is_empty()).then_some(all);
}

/// A JSON document from a file or from standard input.
pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &std::path::Path) -> Result<T, Failure> {
    use std::io::Read;
    let mut text = String::new();
    let read = if path == std::path::Path::new("-") {
        std::io::stdin().lock().take(MAX_REQUEST_FILE).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_REQUEST_FILE).read_to_string(&mut text))
    };
    read.map_err(|error| Failure::file("read", path, &error))?;
    serde_json::from_str(&text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

fn patch(labels: &[String]) -> Result<BTreeMap<String, Option<String>>, Failure> {
    let one = |label: &String| match (label.split_once('='), label.strip_suffix('-')) {
        (Some((key, value)), _) if !key.is_empty() => Ok((key.to_owned(), Some(value.to_owned()))),
        (None, Some(key)) if !key.is_empty() => Ok((key.to_owned(), None)),
        _ => Err(Failure::usage(format!("`{label}` is neither KEY=VALUE nor KEY-"))),
    };
    labels.iter().map(one).collect()
}

async fn list(ctx: &Context, args: &ListArgs) -> Result<(), Failure> {
    let filter = Filter {
        states: args.state.clone(),
        metadata: args.metadata.clone(),
        page: args.page,
        page_size: args.page_size,
    };
    let page = ctx.client()?.list(&filter).await?;
    if args.quiet && !ctx.printer.format.is_structured() {
        return ctx.printer.text(&page.items.iter().map(|sandbox| format!("{}\n", sandbox.id)).collect::<String>());
    }
    ctx.printer.document(&to_value(&page), || {
        let now = jiff::Timestamp::now();
        let rows = page.items.iter().map(|sandbox| row(sandbox, now)).collect();
        let mut text = table::rows(&["id", "state", "image", "created", "ends", "labels"], rows);
        text.push_str(&next_page(&page.pagination));
        text
    })
}

async fn kill(ctx: &Context, ids: &[String], grace: Option<Duration>) -> Outcome {
    let client = ctx.client()?;
    let mut rows = Rows::default();
    let ends = futures_util::future::join_all(ids.iter().map(|id| client.delete(id, grace))).await;
    for (id, end) in ids.iter().zip(ends) {
        rows.push("id", id, end.map(|()| "removed"));
    }
    rows.finish(&ctx.printer)
}

async fn endpoint(ctx: &Context, id: &str, port: u16) -> Result<(), Failure> {
    let endpoint = ctx.client()?.endpoint(id, port).await?;
    let protocol = &ctx.settings.protocol.value;
    let mut value = to_value(&endpoint);
    value["url"] = json!(format!("{protocol}://{}", endpoint.endpoint));
    ctx.printer.document(&value, || {
        let mut text = format!("{protocol}://{}\n", endpoint.endpoint);
        for (name, value) in endpoint.headers.iter().flatten() {
            text.push_str(&format!("{name}: {value}\n"));
        }
        text
    })
}

async fn health(ctx: &Context, id: &str) -> Outcome {
    let client = ctx.client()?;
    let healthy = match client.execd(id).await {
        Ok(execd) => execd.ping(ctx.settings.request_timeout.value).await,
        Err(failure) if failure.status == Some(404) => return Err(failure),
        Err(failure) => Err(failure),
    };
    let reason = healthy.as_ref().err().map(ToString::to_string);
    let mut value = json!({ "id": id, "healthy": healthy.is_ok() });
    if let Some(reason) = &reason {
        value["message"] = json!(reason);
    }
    ctx.printer
        .document(&value, || reason.map_or_else(|| "healthy".into(), |reason| format!("not healthy: {reason}")))?;
    Ok(if healthy.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn metrics(ctx: &Context, id: &str, watch: bool) -> Result<(), Failure> {
    let execd = ctx.client()?.execd(id).await?;
    let mut signals = Signals::listen()?;
    loop {
        let metrics = execd.metrics().await?;
        if watch && ctx.printer.format == crate::output::Format::Json {
            // One document on a line, so that a program can read them as they come.
            ctx.printer.line(&to_value(&metrics).to_string())?;
        } else {
            ctx.printer.document(&to_value(&metrics), || usage(&metrics))?;
        }
        if !watch {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(WATCH_INTERVAL) => {}
            _ = signals.next() => return Ok(()),
        }
    }
}

async fn diagnostics(ctx: &Context, id: &str, kind: &str, scope: &str) -> Result<(), Failure> {
    let document = ctx.client()?.diagnostics(id, kind, scope).await?;
    for warning in document["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        ctx.printer.note(&format!("note: {warning}"));
    }
    ctx.printer.document(&document, || document["content"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests;
