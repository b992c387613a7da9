//! `osb server` and its API process.

use std::net::IpAddr;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::cli::Global;
use crate::failure::Failure;
use crate::output::Printer;

/// Arguments of `osb server`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  osb server\n  osb server --port 9000 --config /etc/osb/server.toml")]
pub struct ServerArgs {
    /// Address to listen on; only loopback unless you say otherwise
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<IpAddr>,
    /// Port to listen on (8080)
    #[arg(long)]
    pub port: Option<u16>,
    #[command(subcommand)]
    pub action: Option<ServerAction>,
}

/// What else `osb server` can do.
#[derive(Subcommand, Debug)]
pub enum ServerAction {
    /// Show the effective configuration and where each value comes from; secrets are masked
    Config,
}

/// Runs `osb server`; `global.config` is the server's configuration file. Called before any thread exists.
pub fn run(_args: &ServerArgs, _global: &Global, _printer: &Printer) -> Result<ExitCode, Failure> {
    Err(Failure::new("NOT_BUILT", "this build has no server in it yet"))
}

/// Runs the API process that `osb server` starts. Called before any thread exists.
pub fn run_api() -> ExitCode {
    ExitCode::FAILURE
}
