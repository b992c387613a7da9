//! `osb recording`: what sandboxes fetched, kept to be served again with the network off.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use protocol::recording::{Contents, RECORD_EXTENSION, REPLAY_EXTENSION, Recording};
use serde_json::json;

use super::{Context, Outcome, Rows, to_value};
use crate::failure::Failure;
use crate::output::table;
use crate::units;

mod file;

pub use file::{Saved, send};

/// The commands about recordings.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "From the first run to the tenth:\n  osb run --record web.rec -- python3 agent.py      fetches, and writes what came into web.rec\n  osb run --replay web.rec -- python3 agent.py      the same bytes, and nothing leaves\n\n\
With a server and sandboxes that stay:\n  osb sandbox create --record\n  osb recording export SANDBOX web.rec\n  osb recording import web.rec\n  osb sandbox create --replay RECORDING"
)]
pub enum RecordingCommand {
    /// List the recordings that the server keeps
    #[command(visible_alias = "ls")]
    List,
    /// Send a recording to the server, which reads it through first
    #[command(
        after_help = "Example:\n  osb sandbox create --replay $(osb recording import web.rec -o json | jq -r .id)"
    )]
    Import {
        /// The file
        file: PathBuf,
    },
    /// Write what a sandbox has recorded until now into a file
    #[command(after_help = "Example:\n  osb recording export SANDBOX web.rec")]
    Export {
        /// The sandbox, made with --record
        sandbox: String,
        /// The file, which is replaced
        file: PathBuf,
    },
    /// Show what is in a recording, and what is not
    Show {
        /// The recording; with --sandbox a sandbox that is recorded
        id: String,
        /// The id is that of a sandbox
        #[arg(long)]
        sandbox: bool,
    },
    /// Remove recordings
    Rm {
        /// Their ids
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

/// Runs one of the commands.
pub async fn run(ctx: &Context, command: &RecordingCommand) -> Outcome {
    let client = ctx.client()?;
    match command {
        RecordingCommand::List => {
            let recordings = client.recordings().await?;
            ctx.printer.document(&json!({ "items": to_value(&recordings) }), || listing(&recordings))?;
        }
        RecordingCommand::Import { file } => {
            let recording = send(ctx, &client, file).await?;
            let say = || format!("recording {} is kept: {}", recording.id, in_short(&recording.contents));
            ctx.printer.document(&to_value(&recording), say)?;
        }
        RecordingCommand::Export { sandbox, file } => {
            let saved = Saved::begin(file)?;
            let contents = saved.fill(&client, sandbox).await?;
            let say = || format!("{}: {}", file.display(), in_short(&contents));
            ctx.printer.document(&to_value(&contents), say)?;
        }
        RecordingCommand::Show { id, sandbox: true } => {
            let contents = client.recorded(id).await?;
            ctx.printer.document(&to_value(&contents), || detail(&contents))?;
        }
        RecordingCommand::Show { id, sandbox: false } => {
            let recording = client.recording(id).await?;
            ctx.printer.document(&to_value(&recording), || detail(&recording.contents))?;
        }
        RecordingCommand::Rm { ids } => {
            let mut rows = Rows::default();
            for id in ids {
                rows.push("id", id, client.remove_recording(id).await.map(|()| "removed"));
            }
            return rows.finish(&ctx.printer);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What is in a recording, on one line.
pub fn in_short(contents: &Contents) -> String {
    let Contents { exchanges, broken, bytes, full, not_recorded, .. } = contents;
    let mut text = format!("{exchanges} exchanges, {}", units::size(*bytes));
    if *broken > 0 {
        text.push_str(&format!(", {broken} broke off"));
    }
    let missed: u64 = not_recorded.iter().map(|one| one.times).sum();
    if missed > 0 {
        text.push_str(&format!(", {missed} not recorded"));
    }
    if *full {
        text.push_str(", full: what came later is missing");
    }
    text
}

/// What is not in a recording, a line each.
pub fn missing(contents: &Contents) -> Vec<String> {
    let mut lines: Vec<String> = contents
        .not_recorded
        .iter()
        .map(|one| format!("not recorded: {}:{} ({} times): {}", one.host, one.port, one.times, one.why))
        .collect();
    if contents.not_recorded_more {
        lines.push("not recorded: more than is listed here".to_owned());
    }
    if contents.broken > 0 {
        lines.push(format!("{} answers broke off, and are not served again", contents.broken));
    }
    if let Some(why) = &contents.full_because {
        lines.push(format!("full: {why}; what came later is missing"));
    }
    lines
}

fn detail(contents: &Contents) -> String {
    let facts = table::facts(&[
        ("exchanges", Some(contents.exchanges.to_string())),
        ("broken", Some(contents.broken.to_string())),
        ("size", Some(units::size(contents.bytes))),
        ("full", Some(if contents.full { "yes" } else { "no" }.to_owned())),
    ]);
    let missing: String = missing(contents).iter().map(|line| format!("{line}\n")).collect();
    facts + &missing
}

fn listing(recordings: &[Recording]) -> String {
    let now = jiff::Timestamp::now();
    let row = |recording: &Recording| {
        let contents = &recording.contents;
        vec![
            recording.id.clone(),
            contents.exchanges.to_string(),
            units::size(contents.bytes),
            if contents.full { "yes" } else { "no" }.to_owned(),
            recording.created_at.as_ref().map(|time| units::relative(time, now)).unwrap_or_default(),
        ]
    };
    table::rows(&["id", "exchanges", "size", "full", "came"], recordings.iter().map(row).collect())
}

/// The extension of a create that is recorded.
pub fn recorded() -> (String, String) {
    (RECORD_EXTENSION.to_owned(), "on".to_owned())
}

/// The extension of a create that is answered from a recording.
pub fn replayed(id: &str) -> (String, String) {
    (REPLAY_EXTENSION.to_owned(), id.to_owned())
}

/// Tells what a recording lacks, on standard error.
pub fn tell(ctx: &Context, file: &std::path::Path, contents: &Contents) {
    ctx.printer.note(&format!("osb: {}: {}", file.display(), in_short(contents)));
    for line in missing(contents) {
        ctx.printer.note(&format!("osb:   {line}"));
    }
}

/// A recording that is sent for one sandbox, and removed after it.
pub struct Lent {
    id: String,
}

impl Lent {
    /// Sends it.
    pub async fn send(ctx: &Context, client: &crate::client::Client, file: &std::path::Path) -> Result<Self, Failure> {
        Ok(Self { id: send(ctx, client, file).await?.id })
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Removes it, when nothing is answered from it any more.
    pub async fn take_back(self, ctx: &Context, client: &crate::client::Client) {
        if let Err(failure) = client.remove_recording(&self.id).await {
            let remedy = format!("`osb recording rm {}` removes it", self.id);
            ctx.printer.note(&format!("osb: the recording stays on the server: {failure}; {remedy}"));
        }
    }
}
