//! `osb`: the one program that people install.
//!
//! Owns the command line, its output and its exit codes, and starts the other roles of the same program. It knows
//! no kernel and no store: sandboxes are reached over the protocol only, also when the server is in this process.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

mod cli;
mod client;
mod commands;
mod daemon;
mod engine;
mod execd;
mod failure;
mod output;
mod server_cmd;
mod settings;
mod units;

use cli::{Cli, Command, Global};
use commands::signals::Signals;
use commands::{
    Context, Outcome, command, config, doctor, file, fork, image, open, policy, pool, port_forward, recording, run,
    sandbox, shell, snapshot, vault, volume,
};
use failure::Failure;
use output::{Format, Printer};
use settings::Settings;

/// Secrets pass through buffers that are not ours (of HTTP, JSON, TLS) on their way; nothing of them is left in memory that
/// was given back.
#[global_allocator]
static MEMORY: zeroizing_alloc::ZeroAlloc<std::alloc::System> = zeroizing_alloc::ZeroAlloc(std::alloc::System);

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    // The roles of the server come first: they must see no thread, and no configuration of clients.
    let global = &cli.global;
    let printer = plain_printer(global);
    let outcome = match &cli.command {
        Command::Jailer { settings } => return daemon::jailer::run(settings),
        Command::ApiServer(args) => return daemon::api::run(args, global),
        Command::EgressProxy => return daemon::egress::run(),
        Command::Server(args) => server_cmd::run(args, global, &printer),
        Command::Version => version(&printer),
        Command::Completion { shell } => completion(*shell),
        Command::Doctor => doctor::run(&printer),
        command => return client(command, global, &printer),
    };
    finish(outcome, &printer)
}

/// Writes a failure, if there is one, and gives the exit code.
fn finish(outcome: Outcome, printer: &Printer) -> ExitCode {
    outcome.unwrap_or_else(|failure| {
        printer.failure(&failure);
        failure.exit_code()
    })
}

/// What flags and environment alone say about the form of results.
fn plain_printer(global: &Global) -> Printer {
    let plain = std::env::var("OPEN_SANDBOX_OUTPUT").ok();
    let plain = plain.and_then(|name| clap::ValueEnum::from_str(&name, true).ok());
    Printer {
        format: global.output.or(plain).unwrap_or_default(),
        color: !global.no_color && std::env::var_os("NO_COLOR").is_none() && std::io::stderr().is_terminal(),
        verbose: global.verbose,
    }
}

/// Runs a command that talks to a server.
fn client(command: &Command, global: &Global, plain: &Printer) -> ExitCode {
    let settings = match Settings::resolve(global, &|name| std::env::var(name).ok()) {
        Ok(settings) => settings,
        Err(failure) => return finish(Err(failure), plain),
    };
    let printer = Printer {
        format: settings.format.value,
        color: settings.color.value && std::io::stderr().is_terminal(),
        verbose: global.verbose,
    };
    for warning in &settings.warnings {
        printer.note(&format!("warning: {}: {warning}", settings.file.display()));
    }
    let runtime = match runtime(command) {
        Ok(runtime) => runtime,
        Err(error) => return finish(Err(Failure::new("CLIENT", format!("start: {error}"))), &printer),
    };
    let ctx = Context { settings, printer };
    let outcome = runtime.block_on(dispatch(command, &ctx));
    // A write to a pipe that nobody reads must not hold the program; what mattered has been flushed.
    runtime.shutdown_background();
    finish(outcome, &ctx.printer)
}

/// Threads for `osb run`, which may hold the server too; other commands wait for one thing at a time.
fn runtime(command: &Command) -> std::io::Result<tokio::runtime::Runtime> {
    /// One for the server's work and one for the client's.
    const ENGINE_THREADS: usize = 2;
    match command {
        Command::Run(_) => {
            tokio::runtime::Builder::new_multi_thread().worker_threads(ENGINE_THREADS).enable_all().build()
        }
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build(),
    }
}

async fn dispatch(command: &Command, ctx: &Context) -> Outcome {
    match command {
        Command::Run(args) => run::run(ctx, args).await,
        Command::Sandbox(command) => sandbox::run(ctx, command).await,
        Command::Snapshot(command) => interruptible(snapshot::run(ctx, command)).await,
        Command::Fork(args) => fork::run(ctx, args).await,
        Command::Command(command) => command::run(ctx, command).await,
        Command::Shell(args) => shell::run(ctx, args).await,
        Command::File(command) => interruptible(file::run(ctx, command)).await,
        Command::PortForward(args) => port_forward::run(ctx, args).await,
        Command::Open(args) => interruptible(open::run(ctx, args)).await,
        Command::Policy(command) => policy::run(ctx, command).await,
        Command::Vault(command) => vault::run(ctx, command).await,
        Command::Pool(command) => interruptible(pool::run(ctx, command)).await,
        Command::Volume(command) => interruptible(volume::run(ctx, command)).await,
        Command::Recording(command) => interruptible(recording::run(ctx, command)).await,
        Command::Image(command) => interruptible(image::run(ctx, command)).await,
        Command::Config(command) => config::run(ctx, command),
        Command::Server(_)
        | Command::Version
        | Command::Completion { .. }
        | Command::Doctor
        | Command::Jailer { .. }
        | Command::ApiServer(_)
        | Command::EgressProxy => unreachable!("answered before the configuration was read"),
    }
}

/// Gives work up when a signal comes, so that it can take back what it began.
async fn interruptible(work: impl Future<Output = Outcome>) -> Outcome {
    let mut signals = Signals::listen()?;
    tokio::select! {
        outcome = work => outcome,
        signal = signals.next() => Ok(ExitCode::from(128 + signal)),
    }
}

fn completion(shell: clap_complete::Shell) -> Outcome {
    use std::io::Write;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "osb", &mut script);
    std::io::stdout().write_all(&script).map_err(|error| output::output_failure(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Shows help and version as they are; puts a mistake into the form that the words ask for.
fn usage(error: &clap::Error) -> ExitCode {
    let format = requested_format(std::env::args().skip(1));
    if error.use_stderr() && format.is_structured() {
        let message = error.to_string();
        let failure = Failure::usage(message.trim().trim_start_matches("error: "));
        Printer { format, color: false, verbose: false }.failure(&failure);
    } else {
        // Nobody is left to tell when the output is closed.
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(failure::EXIT_USAGE))
}

/// The last `-o` among words that could not be parsed.
fn requested_format(words: impl Iterator<Item = String>) -> Format {
    let mut format = Format::Table;
    let mut words = words.take_while(|word| word != "--").peekable();
    while let Some(word) = words.next() {
        let value = match word.as_str() {
            "-o" | "--output" => words.peek().map(String::as_str),
            _ => word.strip_prefix("--output=").or_else(|| word.strip_prefix("-o")),
        };
        match value.map(|value| value.trim_start_matches('=')) {
            Some("json") => format = Format::Json,
            Some("yaml") => format = Format::Yaml,
            _ => {}
        }
    }
    format
}

fn version(printer: &Printer) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    let value = serde_json::json!({ "version": version, "execd_bytes": execd::EXECD.len() });
    printer.document(&value, || format!("osb {version}"))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;
