//! `osb command`: commands in a sandbox that exists.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use protocol::execd::command::{CommandStatus, RunCommand};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::exec::{self, EXIT_NOT_RUN};
use super::signals::Signals;
use super::{Context, Outcome, to_value};
use crate::client::execd::{Execd, piece};
use crate::client::stream::Event;
use crate::failure::{EXIT_FAILURE, Failure};
use crate::output::{output_failure, table};
use crate::units::{self, Limit};

/// How often `logs --follow` and `wait` look for news.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Most of a log that is put into one JSON document, in bytes; more is a failure, never a cut.
const MAX_LOG_DOCUMENT: usize = 64 * 1024 * 1024;

/// The commands about commands.
#[derive(Subcommand, Debug)]
pub enum CommandCommand {
    /// Run a command; its output comes here and its exit code becomes ours
    Run(RunArgs),
    /// Show how a command is doing
    Status(Which),
    /// Show the output of a background command
    Logs {
        #[command(flatten)]
        which: Which,
        /// Byte to begin with; the answer tells where to go on
        #[arg(long, default_value_t = 0)]
        cursor: u64,
        /// Go on until the command ends
        #[arg(short, long)]
        follow: bool,
    },
    /// Wait for a background command; its exit code becomes ours
    Wait(Which),
    /// End a command: TERM to its processes, then KILL
    Interrupt(Which),
}

/// Which command of which sandbox.
#[derive(Args, Debug)]
pub struct Which {
    /// The sandbox
    id: String,
    /// The command, as `run --background` named it
    command: String,
}

/// Arguments of `osb command run`.
#[derive(Args, Debug)]
#[command(after_help = "One word is shell text; several words are a program and its arguments. The exit code is the\n\
command's own; 128+n when signal n ended it, 125 when it could not be run at all.\n\n\
Examples:\n  osb command run ID -- python3 -c 'print(6*7)'\n  osb command run ID -- 'ls | wc -l'\n  \
osb command run ID --background -- sleep 60")]
pub struct RunArgs {
    /// The sandbox
    id: String,
    /// Return at once; `osb command logs` shows the output
    #[arg(short = 'd', long)]
    background: bool,
    /// Working directory
    #[arg(short = 'w', long = "workdir", visible_alias = "cwd", value_name = "DIR")]
    workdir: Option<String>,
    /// End the command after this time, for example 90, 10m or none
    #[arg(short, long, value_name = "DURATION", value_parser = units::parse_limit, default_value = "none")]
    timeout: Limit,
    /// Environment variable; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    env: Vec<(String, String)>,
    /// User id to run as
    #[arg(long)]
    uid: Option<u32>,
    /// Group id to run as
    #[arg(long, requires = "uid")]
    gid: Option<u32>,
    /// Take one word as a program, too, not as shell text
    #[arg(long)]
    argv: bool,
    /// The command
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs one of the commands.
pub async fn run(ctx: &Context, command: &CommandCommand) -> Outcome {
    match command {
        CommandCommand::Run(args) if args.background => background(ctx, args).await?,
        CommandCommand::Run(args) => {
            return foreground(ctx, args).await.map_err(|mut failure| {
                if failure.exit == EXIT_FAILURE {
                    failure.exit = EXIT_NOT_RUN;
                }
                failure
            });
        }
        CommandCommand::Status(which) => {
            let status = ctx.client()?.execd(&which.id).await?.status(&which.command).await?;
            ctx.printer.document(&to_value(&status), || detail(&status))?;
        }
        CommandCommand::Logs { which, cursor, follow } => logs(ctx, which, *cursor, *follow).await?,
        CommandCommand::Wait(which) => return wait(ctx, which).await,
        CommandCommand::Interrupt(which) => {
            ctx.client()?.execd(&which.id).await?.interrupt(&which.command).await?;
            ctx.printer.done(&format!("command {} is ended", which.command))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn foreground(ctx: &Context, args: &RunArgs) -> Outcome {
    let mut signals = Signals::listen()?;
    let execd = ctx.client()?.execd(&args.id).await?;
    let (end, captured) = exec::foreground(&execd, &request(args), &mut signals, &ctx.printer).await?;
    exec::report(&ctx.printer, &args.id, &end, &captured)
}

async fn background(ctx: &Context, args: &RunArgs) -> Result<(), Failure> {
    let execd = ctx.client()?.execd(&args.id).await?;
    let mut stream = execd.run(&request(args)).await?;
    let mut id = None;
    while let Some(event) = stream.next().await? {
        match event {
            Event::Init(text) => id = Some(text),
            Event::Complete(_) => break,
            Event::Failed(error) => return Err(Failure::new(&error.ename, error.evalue)),
            Event::Fault(code, message) => return Err(Failure::new(&code, message)),
            Event::Stdout(_) | Event::Stderr(_) | Event::Other => {}
        }
    }
    let id = id.ok_or_else(|| Failure::new("STREAM_CUT", "the stream ended before it named the command"))?;
    let sandbox = &args.id;
    ctx.printer.document(&json!({ "sandbox_id": sandbox, "command_id": id }), || {
        format!("{id}\nits output: osb command logs {sandbox} {id} --follow")
    })
}

fn request(args: &RunArgs) -> RunCommand {
    let shell = args.command.len() == 1 && !args.argv;
    let env: BTreeMap<_, _> = args.env.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
    RunCommand {
        command: shell.then(|| args.command[0].clone()),
        argv: (!shell).then(|| args.command.clone()),
        cwd: args.workdir.clone(),
        background: args.background.then_some(true),
        timeout: match args.timeout {
            Limit::None => None,
            Limit::After(time) => Some(i64::try_from(time.as_millis().max(1)).unwrap_or(i64::MAX)),
        },
        uid: args.uid.map(i64::from),
        gid: args.gid.map(i64::from),
        envs: (!env.is_empty()).then_some(env),
        overflow: None,
    }
}

fn detail(status: &CommandStatus) -> String {
    table::facts(&[
        ("id", Some(status.id.clone())),
        ("command", Some(status.content.clone())),
        ("running", Some(if status.running { "yes" } else { "no" }.into())),
        ("exit code", status.exit_code.map(|code| code.to_string())),
        ("error", status.error.clone().filter(|error| !error.is_empty())),
        ("started", Some(status.started_at.clone())),
        ("finished", status.finished_at.clone()),
    ])
}

async fn logs(ctx: &Context, which: &Which, mut cursor: u64, follow: bool) -> Result<(), Failure> {
    let execd = ctx.client()?.execd(&which.id).await?;
    let structured = ctx.printer.format.is_structured();
    let mut kept = Vec::new();
    let mut out = tokio::io::stdout();
    loop {
        // Asked before the log is read: what a command wrote before it ended is in the log by then.
        let ended = !follow || !execd.status(&which.command).await?.running;
        let (mut answer, next) = execd.logs(&which.command, cursor).await?;
        while let Some(bytes) = piece(&mut answer).await? {
            if structured {
                if kept.len() + bytes.len() > MAX_LOG_DOCUMENT {
                    let message = format!("the log is larger than {MAX_LOG_DOCUMENT} bytes, too much for one document");
                    return Err(Failure::new("OUTPUT_TOO_LARGE", message).hint("stream it with -o raw"));
                }
                kept.extend_from_slice(&bytes);
            } else {
                let written = async {
                    out.write_all(&bytes).await?;
                    out.flush().await
                };
                written.await.map_err(|error| output_failure(&error))?;
            }
        }
        let news = next > cursor;
        cursor = next;
        if ended {
            break;
        }
        if !news {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    if structured {
        let content = String::from_utf8_lossy(&kept);
        ctx.printer.document(&json!({ "content": content, "cursor": cursor }), String::new)?;
    } else if !follow {
        ctx.printer.note(&format!("osb: next cursor {cursor}"));
    }
    Ok(())
}

async fn wait(ctx: &Context, which: &Which) -> Outcome {
    let mut signals = Signals::listen()?;
    let execd = ctx.client()?.execd(&which.id).await?;
    let status = tokio::select! {
        status = ended(&execd, &which.command) => status?,
        signal = signals.next() => return Ok(ExitCode::from(128 + signal)),
    };
    ctx.printer.document(&to_value(&status), || detail(&status))?;
    let code = status.exit_code.and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(EXIT_UNKNOWN)))
}

/// Exit code where the daemon tells only that a signal ended the command.
const EXIT_UNKNOWN: u8 = 255;

async fn ended(execd: &Execd, command: &str) -> Result<CommandStatus, Failure> {
    loop {
        let status = execd.status(command).await?;
        if !status.running {
            return Ok(status);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
