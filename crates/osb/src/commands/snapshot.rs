//! `osb snapshot`: files of sandboxes, kept to make others from them.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use protocol::snapshot::Snapshot;

use super::{Context, Outcome, Progress, Rows, next_page, to_value};
use crate::client::Client;
use crate::client::snapshots::Filter;
use crate::failure::Failure;
use crate::output::table;
use crate::units;

/// How often a snapshot that is being taken is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The commands about snapshots.
#[derive(Subcommand, Debug)]
pub enum SnapshotCommand {
    /// Take a snapshot of a running or paused sandbox and wait until it is ready
    #[command(after_help = "\
A snapshot keeps the files that the sandbox wrote, changed and deleted; not its memory, its volumes, its variables, its
labels or its credentials. The sandbox stands still while they are copied, and goes on.

Examples:
  osb snapshot create SANDBOX --name with-dependencies
  osb sandbox create --snapshot SNAPSHOT
  osb run --snapshot SNAPSHOT -- make test")]
    Create {
        /// The sandbox
        sandbox: String,
        /// A name by which it is found again; no two have the same
        #[arg(long)]
        name: Option<String>,
        /// Return as soon as it is accepted
        #[arg(long)]
        no_wait: bool,
        /// Longest wait until it is ready
        #[arg(long, value_name = "DURATION", value_parser = units::parse_duration, default_value = "30m")]
        ready_timeout: Duration,
    },
    /// List snapshots, the newest first
    #[command(visible_alias = "ls", after_help = "Example:\n  osb snapshot list --name with-dependencies -o json")]
    List(ListArgs),
    /// Show one snapshot
    Get {
        /// The snapshot
        id: String,
    },
    /// Remove snapshots that no sandbox stands on
    Rm {
        /// The snapshots
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

/// Arguments of `osb snapshot list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Only of this sandbox
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
    /// Only with exactly this name
    #[arg(long)]
    name: Option<String>,
    /// Only these states: Creating, Ready, Failed, Deleting; may be repeated
    #[arg(short, long)]
    state: Vec<String>,
    /// Page, from 1
    #[arg(long)]
    page: Option<u32>,
    /// Snapshots on a page, 1 to 200
    #[arg(long)]
    page_size: Option<u32>,
    /// Show ids only
    #[arg(short, long)]
    quiet: bool,
}

/// Runs one of the commands.
pub async fn run(ctx: &Context, command: &SnapshotCommand) -> Outcome {
    let client = ctx.client()?;
    match command {
        SnapshotCommand::Create { sandbox, name, no_wait, ready_timeout } => {
            let mut snapshot = client.create_snapshot(sandbox, name.as_deref()).await?;
            if !no_wait {
                let progress = Progress::waiting(&ctx.printer, &format!("taking snapshot {}", snapshot.id));
                snapshot = settled(&client, snapshot, *ready_timeout).await?;
                drop(progress);
            }
            ctx.printer.document(&to_value(&snapshot), || {
                format!(
                    "{}\nmake a sandbox of it: osb sandbox create --snapshot {}",
                    detail(&snapshot).trim_end(),
                    snapshot.id
                )
            })?;
        }
        SnapshotCommand::List(args) => list(ctx, &client, args).await?,
        SnapshotCommand::Get { id } => {
            let snapshot = client.snapshot(id).await?;
            ctx.printer.document(&to_value(&snapshot), || detail(&snapshot))?;
        }
        SnapshotCommand::Rm { ids } => {
            let mut rows = Rows::default();
            for id in ids {
                rows.push("id", id, client.remove_snapshot(id).await.map(|()| "removed"));
            }
            return rows.finish(&ctx.printer);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until a snapshot is ready; one that failed is a failure with its reason.
async fn settled(client: &Client, mut snapshot: Snapshot, within: Duration) -> Result<Snapshot, Failure> {
    let until = Instant::now() + within;
    while snapshot.status.state == "Creating" {
        if Instant::now() >= until {
            let message = format!("snapshot {} is not ready after {within:.0?}", snapshot.id);
            let hint = format!("`osb snapshot get {}` shows how far it is", snapshot.id);
            return Err(Failure::new("NOT_READY", message).hint(hint));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
        snapshot = client.snapshot(&snapshot.id).await?;
    }
    match snapshot.status.state.as_str() {
        "Ready" => Ok(snapshot),
        state => {
            let why = snapshot.status.message.clone().unwrap_or_default();
            let code = snapshot.status.reason.clone().unwrap_or_else(|| "SNAPSHOT_FAILED".to_owned());
            Err(Failure::new(&code, format!("snapshot {} is {state}: {why}", snapshot.id)))
        }
    }
}

async fn list(ctx: &Context, client: &Client, args: &ListArgs) -> Result<(), Failure> {
    let filter = Filter {
        sandbox: args.sandbox.clone(),
        name: args.name.clone(),
        states: args.state.clone(),
        page: args.page,
        page_size: args.page_size,
    };
    let page = client.snapshots(&filter).await?;
    if args.quiet && !ctx.printer.format.is_structured() {
        return ctx.printer.text(&page.items.iter().map(|snapshot| format!("{}\n", snapshot.id)).collect::<String>());
    }
    ctx.printer.document(&to_value(&page), || {
        let now = jiff::Timestamp::now();
        let rows = page.items.iter().map(|snapshot| row(snapshot, now)).collect();
        let mut text = table::rows(&["id", "name", "state", "image", "size", "taken", "sandbox"], rows);
        text.push_str(&next_page(&page.pagination));
        text
    })
}

fn row(snapshot: &Snapshot, now: jiff::Timestamp) -> Vec<String> {
    vec![
        snapshot.id.clone(),
        snapshot.name.clone().unwrap_or_default(),
        snapshot.status.state.clone(),
        snapshot.image.clone().unwrap_or_default(),
        snapshot.size_bytes.map(units::size).unwrap_or_default(),
        units::relative(&snapshot.created_at, now),
        snapshot.sandbox_id.clone(),
    ]
}

fn detail(snapshot: &Snapshot) -> String {
    table::facts(&[
        ("id", Some(snapshot.id.clone())),
        ("name", snapshot.name.clone()),
        ("state", Some(snapshot.status.state.clone())),
        ("message", snapshot.status.message.clone()),
        ("sandbox", Some(snapshot.sandbox_id.clone())),
        ("image", snapshot.image.clone()),
        ("taken", Some(snapshot.created_at.clone())),
        ("size", snapshot.size_bytes.map(units::size)),
        ("entries", snapshot.entries.map(|count| count.to_string())),
        ("digest", snapshot.digest.clone()),
        ("stood still", snapshot.frozen_ms.map(|time| format!("{time} ms"))),
    ])
}
