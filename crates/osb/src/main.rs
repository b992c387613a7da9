//! `osb`: the one program that people install.
//!
//! Owns the command line, its output and its exit codes, and starts the other roles of the same program. It knows
//! no kernel and no store: sandboxes are reached over the protocol only, also when the server is in this process.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

mod cli;
mod engine;
mod execd;
mod failure;
mod jailer_cmd;
mod output;
mod server_cmd;

use cli::{Cli, Command};
use failure::Failure;
use output::{Format, Printer};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let printer = Printer {
        format: cli.global.output.unwrap_or_default(),
        color: !cli.global.no_color && std::env::var_os("NO_COLOR").is_none() && std::io::stderr().is_terminal(),
        verbose: cli.global.verbose,
    };
    let outcome = match &cli.command {
        Command::Jailer => return jailer_cmd::run(),
        Command::ApiServer => return server_cmd::run_api(),
        Command::Server(args) => server_cmd::run(args, &cli.global, &printer),
        Command::Version => version(&printer),
        Command::Completion { shell } => {
            clap_complete::generate(*shell, &mut Cli::command(), "osb", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    };
    outcome.unwrap_or_else(|failure| {
        printer.failure(&failure);
        failure.exit_code()
    })
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

fn version(printer: &Printer) -> Result<ExitCode, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let value = serde_json::json!({ "version": version, "execd_bytes": execd::EXECD.len() });
    printer.document(&value, || format!("osb {version}"))?;
    Ok(ExitCode::SUCCESS)
}
