//! `osb run`: one command in a sandbox of its own.
//!
//! Whatever happens, the sandbox is gone at the end: it is deleted when the command ends, when a signal comes and
//! when anything fails; should this program be killed outright, its short lifetime runs out, or its engine's lease
//! ends it at once.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use protocol::egress::{NetworkPolicy, NetworkRule};
use protocol::execd::command::RunCommand;
use protocol::execd::pty::CreateTerminal;
use protocol::lifecycle::{CreateSandboxRequest, CredentialProxyConfig, ImageSpec};

use super::exec::{self, Captured, EXIT_NOT_RUN, End};
use super::recording::{Lent, Saved};
use super::shell::{self, Terms};
use super::signals::Signals;
use super::vault::VaultFile;
use super::volume::{self, Mount};
use super::{Context, Outcome, Progress};
use crate::client::Client;
use crate::client::execd::Execd;
use crate::engine::{self, Engine};
use crate::failure::Failure;
use crate::units::{self, Limit};

/// Lifetime of the sandbox, renewed while the command runs: how long it outlives a killed `osb run` on a server.
/// Long enough for a laptop that sleeps a few minutes or a stopped job.
const LIFETIME: Duration = Duration::from_secs(600);
/// How often a lifetime is renewed before it would end: three tries may fail.
const RENEWALS_PER_LIFETIME: u32 = 4;
/// Longest wait for the question whether a server answers.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for the sandbox; a large image over a slow line takes this long.
const READY_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a dropped connection to the command's terminal is taken up again.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of `osb run`.
#[derive(Args, Debug)]
#[command(
    after_help = "The exit code is the command's own; 128+n when signal n ended it, 127 when there is no such program,\n\
125 when it could not be run at all. Standard input is passed on with -i only. With -it, Enter ~ . ends everything.\n\n\
Examples:\n  osb run -it -- bash\n  osb run -- python3 -c 'print(6*7)'\n  osb run --image alpine --memory 256Mi --timeout 1m -- sh -c 'cat /etc/os-release'\n  \
osb run --allow index.example.org:443 --allow files.example.org:443 -- pip download requests\n  \
osb run -v ./project:/work -w /work -- make test\n  osb run --snapshot SNAPSHOT -- make test\n  \
osb run --record web.rec -- python3 agent.py\n  osb run --replay web.rec -- python3 agent.py\n  osb run -e GREETING=hello --keep -- sh -c 'echo $GREETING > /tmp/file'"
)]
pub struct RunArgs {
    /// Pass standard input on
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal; with -i it is this one
    #[arg(short, long)]
    tty: bool,
    /// Image: a name to pull, or `host` for this machine's own programs
    #[arg(long)]
    image: Option<String>,
    /// Take the sandbox out of this pool of a server (`osb pool`); `*` leaves the choice
    #[arg(long, value_name = "POOL", conflicts_with = "image")]
    pool: Option<String>,
    /// Snapshot to start from instead of an image (`osb snapshot`); needs a server
    #[arg(long, value_name = "SNAPSHOT", conflicts_with_all = ["image", "pool"])]
    snapshot: Option<String>,
    /// Environment variable; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    env: Vec<(String, String)>,
    /// Working directory inside the sandbox
    #[arg(short = 'w', long, visible_alias = "workdir", value_name = "DIR")]
    cwd: Option<String>,
    /// Memory limit, for example 512Mi
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    memory: Option<String>,
    /// Cores, for example 2 or 0.5
    #[arg(long, value_name = "CORES", value_parser = units::parse_cpu)]
    cpu: Option<String>,
    /// Disk limit, for example 2Gi
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    disk: Option<String>,
    /// Most processes
    #[arg(long, value_name = "COUNT")]
    pids: Option<u32>,
    /// Let it reach this and nothing else, for example index.example.org:443; may be repeated
    #[arg(long, value_name = "TARGET", value_parser = super::policy::parse_target)]
    allow: Vec<NetworkRule>,
    /// Credentials and where they are used, as JSON of the API; their hosts are allowed
    #[arg(long, value_name = "FILE")]
    vault: Option<PathBuf>,
    /// Mount a volume: NAME:/PATH[:ro], or a path of this machine: /HOST/PATH:/PATH[:ro]; may be repeated
    #[arg(short, long, value_name = "SOURCE:/PATH[:ro]", value_parser = super::volume::parse_mount)]
    volume: Vec<Mount>,
    /// Tell every request on standard error
    #[arg(long, action = clap::ArgAction::SetTrue, help_heading = "Options")]
    verbose: bool,
    /// Record what it fetches, and write that into this file at the end
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    record: Option<PathBuf>,
    /// Answer it from this recording; nothing leaves it
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// End the command after this time, for example 90, 10m or none
    #[arg(long, value_name = "DURATION", value_parser = units::parse_limit, default_value = "none")]
    timeout: Limit,
    /// Label of the sandbox; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    metadata: Vec<(String, String)>,
    /// Name of the sandbox: the label `name`
    #[arg(long)]
    name: Option<String>,
    /// Keep the sandbox when the command has ended (needs a running server)
    #[arg(long)]
    keep: bool,
    /// The command and its arguments, run without a shell
    #[arg(required = true, last = true, value_name = "COMMAND")]
    argv: Vec<String>,
}

/// Runs the command. Every failure of ours ends with [`EXIT_NOT_RUN`], so that it cannot be taken for the command's.
pub async fn run(ctx: &Context, args: &RunArgs) -> Outcome {
    in_sandbox(ctx, args).await.map_err(|mut failure| {
        if failure.exit == crate::failure::EXIT_FAILURE {
            failure.exit = EXIT_NOT_RUN;
        }
        failure
    })
}

async fn in_sandbox(ctx: &Context, args: &RunArgs) -> Outcome {
    if args.interactive || args.tty {
        shell::refuse_documents(&ctx.printer, "run")?;
    }
    if args.tty {
        shell::require_terminal()?;
    }
    let mut signals = Signals::listen()?;
    let server = Server::choose(ctx, args).await?;
    let outcome = with_server(ctx, args, &server.client, &mut signals).await;
    server.stop().await;
    outcome
}

async fn with_server(ctx: &Context, args: &RunArgs, client: &Client, signals: &mut Signals) -> Outcome {
    let vault = args.vault.as_deref().map(VaultFile::read).transpose()?;
    let saved = args.record.as_deref().map(Saved::begin).transpose()?;
    let lent = match &args.replay {
        Some(file) => Some(Lent::send(ctx, client, file).await?),
        None => None,
    };
    let outcome = with_recording(ctx, args, client, (vault.as_ref(), saved, lent.as_ref()), signals).await;
    if let Some(lent) = lent.filter(|_| !args.keep) {
        lent.take_back(ctx, client).await;
    }
    outcome
}

/// Runs the command, with what it is recorded to or answered from.
async fn with_recording(
    ctx: &Context,
    args: &RunArgs,
    client: &Client,
    (vault, saved, lent): (Option<&VaultFile>, Option<Saved>, Option<&Lent>),
    signals: &mut Signals,
) -> Outcome {
    // The answer carries the id without which nothing could be removed, so it is awaited also when a signal came.
    let sandbox = client.create(&request(ctx, args, vault, lent)?).await?;
    let id = sandbox.id.as_str();
    let outcome = tokio::select! {
        outcome = command_in(ctx, args, client, (id, vault), signals) => outcome,
        never = renew(client, id, lifetime(ctx, args)) => match never {},
    };
    // While there is a sandbox, there is its recording.
    let recorded = match (saved, &args.record) {
        (Some(saved), Some(file)) if outcome.is_ok() => Some((file, saved.fill(client, id).await)),
        _ => None,
    };
    if args.keep && outcome.is_ok() {
        ctx.printer.note(&format!("osb: the sandbox stays: {id} (end it with `osb sandbox kill {id}`)"));
    } else {
        remove(ctx, client, id, signals).await;
    }
    let (end, captured) = outcome?;
    let reported = exec::report(&ctx.printer, id, &end, &captured);
    if let Some((file, contents)) = recorded {
        super::recording::tell(ctx, file, &contents?);
    }
    reported
}

/// Waits for the sandbox and runs the command in it.
async fn command_in(
    ctx: &Context,
    args: &RunArgs,
    client: &Client,
    (id, vault): (&str, Option<&VaultFile>),
    signals: &mut Signals,
) -> Result<(End, Captured), Failure> {
    let execd = tokio::select! {
        execd = ready(ctx, client, id) => execd?,
        signal = signals.next() => {
            return Ok((End { exit: 128 + signal, signal: Some(signal), ..End::default() }, Captured::default()));
        }
    };
    if let Some(vault) = vault {
        client.create_vault(id, &vault.request).await?;
    }
    if args.interactive || args.tty {
        let outcome = terminal_in(ctx, args, &execd, signals).await;
        return match outcome {
            Err(failure) if failure.exit == crate::failure::EXIT_FAILURE => {
                Err(why_it_broke(client, id, failure).await)
            }
            outcome => outcome.map(|end| (end, Captured::default())),
        };
    }
    let command = RunCommand {
        argv: Some(args.argv.clone()),
        cwd: args.cwd.clone(),
        timeout: match args.timeout {
            Limit::None => None,
            Limit::After(time) => Some(i64::try_from(time.as_millis().max(1)).unwrap_or(i64::MAX)),
        },
        ..RunCommand::default()
    };
    let outcome = exec::foreground(&execd, &command, signals, &ctx.printer).await;
    match outcome {
        Err(failure) if matches!(failure.code.as_str(), "STREAM_CUT" | "STREAM_BROKEN") => {
            Err(why_it_broke(client, id, failure).await)
        }
        other => other,
    }
}

/// Runs the command with standard input, on a terminal or on pipes.
async fn terminal_in(ctx: &Context, args: &RunArgs, execd: &Execd, signals: &mut Signals) -> Result<End, Failure> {
    let body = CreateTerminal { cwd: args.cwd.clone(), command: Some(shell::exec_words(&args.argv)) };
    let id = execd.create_terminal(&body).await?;
    let terms = Terms {
        tty: args.tty,
        input: args.interactive,
        may_detach: false,
        reconnect: Some(RECONNECT_TIMEOUT),
        was_there: false,
    };
    let used = shell::use_terminal(execd, &id, 0, &terms, signals, &ctx.printer);
    let Limit::After(limit) = args.timeout else {
        return Ok(used.await?.unwrap_or_default());
    };
    match tokio::time::timeout(limit, used).await {
        Ok(end) => Ok(end?.unwrap_or_default()),
        Err(_) => {
            // Without --keep the sandbox is removed next, and the command with it.
            if args.keep
                && let Err(failure) = execd.end_terminal(&id).await
            {
                ctx.printer.note(&format!("osb: terminal {id} could not be removed: {failure}"));
            }
            Ok(End {
                exit: 128 + 9,
                signal: Some(9),
                message: Some(format!("the time limit of {limit:?} was reached")),
                ..End::default()
            })
        }
    }
}

async fn ready(ctx: &Context, client: &Client, id: &str) -> Result<Execd, Failure> {
    let progress = Progress::waiting(&ctx.printer, "making the sandbox");
    client.ready(id, READY_TIMEOUT, &|text| progress.say(text)).await
}

/// A stream that breaks mostly means that the sandbox ended; then its own reason says more.
async fn why_it_broke(client: &Client, id: &str, mut failure: Failure) -> Failure {
    if let Ok(sandbox) = client.get(id).await
        && !matches!(sandbox.status.state.as_str(), "Running" | "Pending")
    {
        let status = sandbox.status;
        let detail = status.message.or(status.exit.and_then(|exit| exit.detail)).unwrap_or_default();
        let reason = status.reason.unwrap_or_default();
        failure.message = format!("the sandbox ended before the command did: {} {reason} {detail}", status.state);
        failure.message = failure.message.trim_end().to_owned();
        failure.code = "SANDBOX_ENDED".into();
    }
    failure
}

/// Removes the sandbox, without a grace: what it was made for has ended. Two signals stop waiting for that.
async fn remove(ctx: &Context, client: &Client, id: &str, signals: &mut Signals) {
    let twice = async {
        signals.next().await;
        signals.next().await;
    };
    let removed = tokio::select! {
        removed = client.delete(id, Some(Duration::ZERO)) => removed,
        () = twice => return ctx.printer.note(&format!("osb: sandbox {id} is still being removed")),
    };
    match removed {
        Err(failure) if failure.status != Some(404) => ctx.printer.note(&format!(
            "osb: sandbox {id} could not be removed: {failure}; it ends by itself within {}, or with `osb sandbox kill {id}`",
            units::duration(LIFETIME.as_secs())
        )),
        _ => {}
    }
}

/// How long the sandbox lives without being renewed; `None` for ever.
fn lifetime(ctx: &Context, args: &RunArgs) -> Option<Duration> {
    if !args.keep {
        return Some(LIFETIME);
    }
    match ctx.settings.timeout.value {
        Limit::None => None,
        Limit::After(time) => Some(time),
    }
}

/// Keeps the sandbox alive for as long as this is polled.
async fn renew(client: &Client, id: &str, lifetime: Option<Duration>) -> Infallible {
    let Some(lifetime) = lifetime else { return std::future::pending().await };
    loop {
        tokio::time::sleep(lifetime / RENEWALS_PER_LIFETIME).await;
        // A failed renewal is tried again in time; if it keeps failing the sandbox ends, and the stream says so.
        let _ = client.renew(id, lifetime).await;
    }
}

fn request(
    ctx: &Context,
    args: &RunArgs,
    vault: Option<&VaultFile>,
    lent: Option<&Lent>,
) -> Result<CreateSandboxRequest, Failure> {
    let mut limits = BTreeMap::new();
    let pids = args.pids.map(|pids| pids.to_string());
    for (name, value) in [("memory", &args.memory), ("cpu", &args.cpu), ("disk", &args.disk), ("pids", &pids)] {
        if let Some(value) = value {
            limits.insert(name.to_owned(), value.clone());
        }
    }
    let mut metadata: BTreeMap<String, String> = args.metadata.iter().cloned().collect();
    metadata.extend(args.name.clone().map(|name| ("name".to_owned(), name)));
    let env: BTreeMap<_, _> = args.env.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
    let allowed = super::policy::permitting(&args.allow);
    let recorded = args.record.as_ref().map(|_| super::recording::recorded());
    let recording = recorded.or(lent.map(|lent| super::recording::replayed(lent.id())));
    let pool = args.pool.clone().map(|pool| ("poolRef".to_owned(), pool));
    let extensions: BTreeMap<String, String> = recording.into_iter().chain(pool).collect();
    Ok(CreateSandboxRequest {
        image: (args.pool.is_none() && args.snapshot.is_none()).then(|| ImageSpec {
            uri: args.image.clone().unwrap_or_else(|| ctx.settings.image.value.clone()),
            auth: None,
        }),
        snapshot_id: args.snapshot.clone(),
        timeout: lifetime(ctx, args).and_then(|time| Limit::After(time).seconds()),
        resource_limits: Some(limits),
        env: (!env.is_empty()).then_some(env),
        metadata: (!metadata.is_empty()).then_some(metadata),
        entrypoint: Some(super::sandbox::idle_entrypoint()),
        network_policy: (!args.allow.is_empty() || vault.is_some()).then(|| NetworkPolicy {
            egress: allowed.egress.into_iter().chain(vault.into_iter().flat_map(VaultFile::rules)).collect(),
            ..allowed
        }),
        volumes: (!args.volume.is_empty()).then(|| volume::requested(&args.volume)),
        extensions: (!extensions.is_empty()).then_some(extensions),
        credential_proxy: vault.map(|_| CredentialProxyConfig { enabled: true }),
        ..CreateSandboxRequest::default()
    })
}

/// The server that runs the command.
struct Server {
    client: Client,
    engine: Option<Engine>,
}

impl Server {
    /// A running server if there is one; otherwise an engine in this process.
    async fn choose(ctx: &Context, args: &RunArgs) -> Result<Self, Failure> {
        let named = ctx.settings.names_a_server();
        let found = ctx.settings.local.as_ref().is_some_and(|server| server.api_key.is_some());
        if named || found {
            let client = ctx.client()?;
            if named || client.answers(PROBE_TIMEOUT).await {
                return Ok(Self { client, engine: None });
            }
        }
        if args.keep {
            return Err(Failure::usage("--keep needs a server that outlives this command, and none answers here")
                .hint("start one with `osb server`"));
        }
        if args.pool.is_some() {
            return Err(Failure::usage("--pool needs a server that keeps one, and none answers here")
                .hint("start one with `osb server`, and make a pool with `osb pool create`"));
        }
        if args.snapshot.is_some() {
            return Err(Failure::usage("--snapshot needs the server that has it, and none answers here")
                .hint("start it with `osb server`"));
        }
        // The machine is this person's, so what the command line names is allowed, and nothing else.
        let engine = engine::start(volume::own_paths(&args.volume)?).await?;
        let timeout = ctx.settings.request_timeout.value;
        let client = Client::at(&engine.url, Some(&engine.key), timeout, false, ctx.printer.verbose)?;
        Ok(Self { client, engine: Some(engine) })
    }

    async fn stop(self) {
        if let Some(engine) = self.engine {
            engine.guard.stop().await;
        }
    }
}
