//! `osb file watch`: what changes in a directory of a sandbox, as it happens.
//!
//! A connection that drops is made again behind the last event, so that nothing is missed; where the daemon
//! could not keep everything it says so, and so do we.

use std::time::{Duration, Instant};

use clap::Args;
use protocol::execd::watch::{WatchEvent, kind};

use super::signals::until_signal;
use super::{Context, Outcome, to_value};
use crate::client::Client;
use crate::client::stream::{EventStream, STREAM_BROKEN};
use crate::failure::Failure;
use crate::output::Format;

/// First wait before a lost connection is made again; it doubles.
const RECONNECT_FIRST: Duration = Duration::from_millis(100);
/// Longest wait between two tries.
const RECONNECT_MAX: Duration = Duration::from_secs(5);
/// How long it is tried: after this the daemon has given up a watch that nobody reads.
const RECONNECT_LIMIT: Duration = Duration::from_secs(600);

/// What to watch.
#[derive(Args, Debug)]
#[command(
    after_help = "With -o json each event is one line of JSON. Its `cursor`, given as --cursor, goes on behind it. After\n\
`rescan` something was lost: list that path again.\n\n\
Examples:\n  osb file watch ID /workspace --recursive\n  osb file watch ID /workspace -r -o json | jq .path"
)]
pub struct WatchArgs {
    /// The sandbox
    id: String,
    /// The directory
    path: String,
    /// Also what is below its directories
    #[arg(short, long)]
    recursive: bool,
    /// Go on behind the event that carried this cursor
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

/// Writes events until the directory is gone or a signal comes.
pub async fn run(ctx: &Context, args: &WatchArgs) -> Outcome {
    until_signal(follow(ctx, args)).await
}

async fn follow(ctx: &Context, args: &WatchArgs) -> Result<(), Failure> {
    let client = ctx.client()?;
    let mut cursor = args.cursor.clone();
    let mut stream = open(&client, args, cursor.as_deref()).await?;
    let mut connections = 1;
    loop {
        let why = loop {
            let event = match stream.next_change().await {
                Ok(Some(event)) => event,
                Ok(None) => break "it ended".to_owned(),
                Err(failure) if failure.code == STREAM_BROKEN => break failure.message,
                Err(failure) => return Err(failure),
            };
            if event.cursor.is_some() {
                cursor.clone_from(&event.cursor);
            }
            let is_news = event.kind != kind::PING && (event.kind != kind::WATCHING || connections == 1);
            if is_news {
                show(ctx, &event)?;
            }
            if event.kind == kind::ENDED {
                return Ok(());
            }
        };
        ctx.printer.note(&format!("osb: the stream is lost ({why}); going on behind its last event"));
        stream = again(async || open(&client, args, cursor.as_deref()).await).await?;
        connections += 1;
    }
}

async fn open(client: &Client, args: &WatchArgs, cursor: Option<&str>) -> Result<EventStream, Failure> {
    client.execd(&args.id).await?.watch(&args.path, args.recursive, cursor).await
}

/// Opens a stream that was lost, until it is open or cannot be.
pub async fn again(open: impl AsyncFn() -> Result<EventStream, Failure>) -> Result<EventStream, Failure> {
    let begun = Instant::now();
    let mut wait = RECONNECT_FIRST;
    loop {
        tokio::time::sleep(wait).await;
        match open().await {
            Err(failure) if may_pass(&failure) && begun.elapsed() < RECONNECT_LIMIT => {}
            settled => return settled,
        }
        wait = (wait * 2).min(RECONNECT_MAX);
    }
}

/// Whether the next try may succeed: nobody answered, or whoever did could not reach the sandbox just then.
fn may_pass(failure: &Failure) -> bool {
    match failure.status {
        Some(status) => matches!(status, 429 | 502..=504),
        None => matches!(failure.code.as_str(), "CONNECTION_FAILED" | "REQUEST_TIMEOUT"),
    }
}

fn show(ctx: &Context, event: &WatchEvent) -> Result<(), Failure> {
    let path = printable(event.path.as_deref().unwrap_or_default());
    let reason = event.reason.as_deref().map(printable).unwrap_or_default();
    if event.kind == kind::RESCAN {
        ctx.printer.note(&format!("osb: events below {path} were lost ({reason}); list it again"));
    }
    match ctx.printer.format {
        Format::Json => ctx.printer.line(&serde_json::to_string(event).expect("an event has only text keys")),
        Format::Yaml => {
            ctx.printer.line("---")?;
            ctx.printer.document(&to_value(event), String::new)
        }
        Format::Table | Format::Raw => {
            let from = event.from.as_deref().map(|from| format!("{} -> ", printable(from))).unwrap_or_default();
            let slash = if event.directory && path != "/" { "/" } else { "" };
            let reason = if reason.is_empty() { reason } else { format!("  ({reason})") };
            ctx.printer.line(&format!("{:<10} {from}{path}{slash}{reason}", event.kind))
        }
    }
}

/// A name from the sandbox without what a terminal would obey.
pub fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}
