//! The bench program; `cargo xtask bench` builds what it needs and starts it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use e2e::bench::{Length, Options, relay, repeat, run};
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "usage: bench --osb PATH --floor PATH --execd PATH --way-out PATH --mitmdump PATH --json PATH --markdown PATH [--revision TEXT] [--quick] [ROW ...]";

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [role, kind, to] = words.as_slice()
        && role == "relay"
    {
        return relay(kind, to);
    }
    if let [role, times, command @ ..] = words.as_slice()
        && role == "repeat"
    {
        return repeat(times.parse().context("repeat how often?")?, command);
    }
    let options = options(words)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(until_told(run(options)))
}

/// Gives up in order when it is told to, so that servers, sandboxes and daemons end with it.
async fn until_told(work: impl Future<Output = Result<()>>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        done = work => done,
        _ = terminate.recv() => bail!("told to end"),
        _ = interrupt.recv() => bail!("told to end"),
    }
}

fn options(words: Vec<String>) -> Result<Options> {
    let mut words = words.into_iter();
    let (mut osb, mut floor, mut execd, mut json, mut markdown) = (None, None, None, None, None);
    let (mut way_out, mut mitmdump) = (None, None);
    let mut revision = String::from("unknown");
    let mut length = Length::Full;
    let mut only = Vec::new();
    while let Some(word) = words.next() {
        let place = match word.as_str() {
            "--osb" => &mut osb,
            "--floor" => &mut floor,
            "--execd" => &mut execd,
            "--way-out" => &mut way_out,
            "--mitmdump" => &mut mitmdump,
            "--json" => &mut json,
            "--markdown" => &mut markdown,
            "--revision" => {
                revision = words.next().context(USAGE)?;
                continue;
            }
            "--quick" => {
                length = Length::Quick;
                continue;
            }
            row if !row.starts_with('-') => {
                only.push(word);
                continue;
            }
            _ => bail!("{word} is unknown; {USAGE}"),
        };
        *place = Some(PathBuf::from(words.next().context(USAGE)?));
    }
    Ok(Options {
        osb: osb.context(USAGE)?,
        floor: floor.context(USAGE)?,
        execd: execd.context(USAGE)?,
        way_out: way_out.context(USAGE)?,
        mitmdump: mitmdump.context(USAGE)?,
        json: json.context(USAGE)?,
        markdown: markdown.context(USAGE)?,
        length,
        only,
        revision,
    })
}
