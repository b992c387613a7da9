//! The words that the program understands.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::commands::command::CommandCommand;
use crate::commands::config::ConfigCommand;
use crate::commands::file::FileCommand;
use crate::commands::fork::ForkArgs;
use crate::commands::image::ImageCommand;
use crate::commands::open::OpenArgs;
use crate::commands::policy::PolicyCommand;
use crate::commands::pool::PoolCommand;
use crate::commands::port_forward::PortForwardArgs;
use crate::commands::recording::RecordingCommand;
use crate::commands::run::RunArgs;
use crate::commands::sandbox::SandboxCommand;
use crate::commands::shell::ShellArgs;
use crate::commands::snapshot::SnapshotCommand;
use crate::commands::vault::VaultCommand;
use crate::commands::volume::VolumeCommand;
use crate::output::Format;
use crate::server_cmd::ServerArgs;

/// Sandboxes for code you do not trust: run it at once, here, without Docker.
#[derive(Parser, Debug)]
#[command(
    name = "osb",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 110,
    after_help = "Start here:\n  osb run -- python3 -c 'print(6*7)'     run one command in a sandbox of its own\n  osb server                             start a server; the commands below find it\n  osb sandbox create                     make a sandbox that stays\n  osb doctor                             what this machine can do, and what is missing"
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command. What is not given comes from the environment, the file, or a default, in this order.
#[derive(Args, Clone, Debug, Default)]
pub struct Global {
    /// API key of the server (OPEN_SANDBOX_API_KEY); a local server's key is found by itself
    #[arg(long, global = true, value_name = "KEY", help_heading = "Connection", hide_short_help = true)]
    pub api_key: Option<String>,
    /// Address of the server, host:port (OPEN_SANDBOX_DOMAIN); a local server is found by itself
    #[arg(long, global = true, value_name = "HOST:PORT", help_heading = "Connection", hide_short_help = true)]
    pub domain: Option<String>,
    /// http or https (OPEN_SANDBOX_PROTOCOL)
    #[arg(long, global = true, value_name = "PROTOCOL", help_heading = "Connection", hide_short_help = true)]
    pub protocol: Option<String>,
    /// Longest wait for an answer, for example 30 or 1m (OPEN_SANDBOX_REQUEST_TIMEOUT)
    #[arg(long, global = true, value_name = "DURATION", help_heading = "Connection", hide_short_help = true)]
    pub request_timeout: Option<String>,
    /// Reach sandboxes through the server only (OPEN_SANDBOX_USE_SERVER_PROXY)
    #[arg(
        long,
        global = true,
        overrides_with = "no_use_server_proxy",
        help_heading = "Connection",
        hide_short_help = true
    )]
    pub use_server_proxy: bool,
    /// Reach sandboxes at the address that the server names
    #[arg(
        long,
        global = true,
        overrides_with = "use_server_proxy",
        help_heading = "Connection",
        hide_short_help = true
    )]
    pub no_use_server_proxy: bool,
    /// Configuration file (~/.opensandbox/config.toml); for `osb server` the server's own
    #[arg(long, global = true, value_name = "PATH", help_heading = "Options", hide_short_help = true)]
    pub config: Option<PathBuf>,
    /// Form of results and failures
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", help_heading = "Options")]
    pub output: Option<Format>,
    /// Write no colours (NO_COLOR)
    #[arg(long, global = true, help_heading = "Options", hide_short_help = true)]
    pub no_color: bool,
    /// Tell every request on standard error
    #[arg(short, long, global = true, action = ArgAction::SetTrue, help_heading = "Options")]
    pub verbose: bool,
}

/// The commands.
#[derive(Subcommand, Debug)]
#[expect(clippy::enum_variant_names, reason = "`osb command` is a name of the published program")]
pub enum Command {
    /// Run one command in a sandbox of its own; nothing is left of it
    Run(Box<RunArgs>),
    /// Make, list, freeze and end sandboxes
    #[command(subcommand, visible_alias = "sb")]
    Sandbox(SandboxCommand),
    /// Keep the files of sandboxes, and make others from them
    #[command(subcommand, visible_alias = "snap")]
    Snapshot(SnapshotCommand),
    /// Make many sandboxes from the files of one as they are now
    Fork(ForkArgs),
    /// Run commands in a sandbox, in front or in the background
    #[command(subcommand, visible_alias = "cmd")]
    Command(CommandCommand),
    /// Open a terminal in a sandbox
    Shell(ShellArgs),
    /// Read, write and copy files of a sandbox
    #[command(subcommand)]
    File(FileCommand),
    /// Let ports of this machine lead to ports of a sandbox
    PortForward(PortForwardArgs),
    /// Make a link to a port of a sandbox and open it
    Open(OpenArgs),
    /// Show and change what a sandbox may reach, and watch what it tries
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Give a sandbox credentials that it uses without seeing them
    #[command(subcommand)]
    Vault(VaultCommand),
    /// Keep sandboxes ready, so that a create takes one at once
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Make, list and remove volumes that outlive sandboxes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Keep what sandboxes fetched, to serve it again with the network off
    #[command(subcommand, visible_alias = "rec")]
    Recording(RecordingCommand),
    /// Fetch, import and remove images
    #[command(subcommand)]
    Image(ImageCommand),
    /// Show what this machine can do, what is missing and how to get it
    Doctor,
    /// Show what the client commands assume
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Start the server, or show its configuration
    Server(ServerArgs),
    /// Show the version
    Version,
    /// Write a completion script for a shell
    #[command(after_help = "Example:\n  osb completion bash > /etc/bash_completion.d/osb")]
    Completion {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// The process that makes sandboxes; started by the server only
    #[command(hide = true)]
    Jailer {
        /// What the server tells it, as JSON
        settings: String,
    },
    /// The process through which everything leaves sandboxes; started by the server only
    #[command(hide = true)]
    EgressProxy,
    /// The process that answers the API; started by the server only
    #[command(hide = true)]
    ApiServer(ServerArgs),
}
