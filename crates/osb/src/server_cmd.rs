//! `osb server`: configuration on the way in, then the supervisor; `osb server config`; the API process's arguments.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use secrecy::ExposeSecret;
use serde_json::json;
use server::config::{Config, ConfigError, Effective, Sources};

use crate::cli::Global;
use crate::daemon::data_dir::{self, DataDir, Identity, Published};
use crate::daemon::supervisor::{self, Setup};
use crate::failure::Failure;
use crate::output::Printer;

/// Arguments of `osb server`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  osb server\n  osb server --port 9000 --config /etc/osb/server.toml\n  osb server config"
)]
pub struct ServerArgs {
    /// Address to listen on (127.0.0.1); anything else is reachable by others: keep the key secret
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
    /// Port to listen on (8080); 0 takes a free one
    #[arg(long)]
    pub port: Option<u16>,
    #[command(subcommand)]
    pub action: Option<ServerAction>,
}

/// What else `osb server` can do.
#[derive(Subcommand, Clone, Debug)]
pub enum ServerAction {
    /// Show the effective configuration and where each value comes from; secrets are masked
    Config,
}

/// Runs `osb server`; `global.config` is the server's configuration file. Called before any thread exists.
pub fn run(args: &ServerArgs, global: &Global, printer: &Printer) -> Result<ExitCode, Failure> {
    let (config, effective) = load(args, global)?;
    if let Some(ServerAction::Config) = args.action {
        show(&effective, printer)?;
        return Ok(ExitCode::SUCCESS);
    }
    telemetry::init(
        config.log.level.parse().map_err(|why: telemetry::UnknownLevel| Failure::usage(format!("log.level: {why}")))?,
    );
    let data = DataDir::open(&data_dir::locate()?, Identity::of_api())?;
    let api_key = match &config.server.api_key {
        Some(key) => key.expose_secret().to_owned(),
        None => data.api_key()?,
    };
    let key_file = data.root().join("api-key");
    let own_key = config.server.api_key.is_none();
    let ready = move |published: &Published| {
        // Standard output is for a person or a script that waits for this line.
        println!("osb server listens on {}", published.url);
        if own_key {
            println!("api key: {} (the osb command line finds it by itself)", key_file.display());
        }
        println!("next: osb run -- python3 -c 'print(6*7)'    stop: Ctrl-C");
    };
    let address = address(&config)?;
    let graceful = config.server.timeout_graceful_shutdown;
    let api_arguments = arguments(args, global);
    supervisor::run(Setup { data, address, api_arguments, api_key, config, graceful, ready: &ready })
}

/// Reads the configuration from file, environment and flags.
pub fn load(args: &ServerArgs, global: &Global) -> Result<(Config, Effective), Failure> {
    let mut flags = BTreeMap::new();
    flags.extend(args.host.clone().map(|host| ("server.host", host)));
    flags.extend(args.port.map(|port| ("server.port", port.to_string())));
    let env =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let sources = Sources { file: global.config.clone(), env: env.collect(), flags };
    server::config::load(&sources).map_err(|error| {
        let why = with_causes(&error);
        match error {
            ConfigError::Read { .. } => Failure::new("CONFIG", why),
            _ => Failure::usage(why),
        }
    })
}

/// An error and its causes in one line.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text += &format!(": {next}");
        cause = next.source();
    }
    text
}

/// The arguments with which the API process finds the same configuration.
fn arguments(args: &ServerArgs, global: &Global) -> Vec<OsString> {
    let mut arguments = Vec::new();
    let mut push = |flag: &str, value: OsString| arguments.extend([OsString::from(flag), value]);
    if let Some(path) = &global.config {
        push("--config", path.clone().into_os_string());
    }
    if let Some(host) = &args.host {
        push("--host", host.into());
    }
    if let Some(port) = args.port {
        push("--port", port.to_string().into());
    }
    arguments
}

fn address(config: &Config) -> Result<SocketAddr, Failure> {
    let (host, port) = (config.server.host.as_str(), config.server.port);
    let unbracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let found = (unbracketed, port).to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| {
        Failure::usage(format!(
            "server.host: \"{host}\" is no address of this machine; use 127.0.0.1, ::1, or 0.0.0.0 for all"
        ))
    })
}

fn show(effective: &Effective, printer: &Printer) -> Result<(), Failure> {
    let entries = effective.entries.iter().map(|entry| {
        json!({ "key": entry.key, "value": entry.value, "source": entry.source.to_string(), "purpose": entry.purpose })
    });
    let value = json!({ "file": effective.file, "entries": entries.collect::<Vec<_>>() });
    printer.document(&value, || effective.to_string())
}
