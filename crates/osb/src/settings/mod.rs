//! Where to find the server and what to assume: flag, then environment, then file, then a local server, then default.
//!
//! Every value knows where it came from, which `osb config show` tells.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::Global;
use crate::failure::Failure;
use crate::output::Format;
use crate::units;

mod file;
mod local;

pub use local::LocalServer;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A flag of the command line.
    Flag,
    /// This variable of the environment.
    Env(&'static str),
    /// The configuration file.
    File,
    /// A server of this machine, found by the file it leaves.
    Local(PathBuf),
    /// Built in.
    Default,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Env(name) => write!(f, "env {name}"),
            Self::File => f.write_str("file"),
            Self::Local(path) => write!(f, "local server ({})", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub source: Source,
}

/// Everything that the client commands assume.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The key to send, if there is one. Never shown.
    pub api_key: Option<Setting<String>>,
    /// The server's `host:port`.
    pub domain: Setting<String>,
    /// `http` or `https`.
    pub protocol: Setting<String>,
    /// Longest wait for an answer.
    pub request_timeout: Setting<Duration>,
    /// Whether endpoints must lead through the server.
    pub use_server_proxy: Setting<bool>,
    /// Form of results.
    pub format: Setting<Format>,
    /// Whether colours are wanted.
    pub color: Setting<bool>,
    /// Image of a sandbox for which none is named.
    pub image: Setting<String>,
    /// Lifetime of a sandbox for which none is given.
    pub timeout: Setting<units::Limit>,
    /// The configuration file, whether or not it exists.
    pub file: PathBuf,
    /// What in the file nobody understands, one sentence each.
    pub warnings: Vec<String>,
    /// The server of this machine, if one is announced.
    pub local: Option<LocalServer>,
}

/// Where a server listens when nobody says otherwise.
pub const DEFAULT_DOMAIN: &str = "localhost:8080";
/// The machine's own root filesystem: runs at once, without a download.
pub const DEFAULT_IMAGE: &str = "host";
/// Longest wait for an answer, as in the published clients.
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Lifetime of a sandbox, as in the published clients.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(600);

/// Variables of the environment by name; the process's own, except in tests.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Settings {
    /// Settles every value.
    ///
    /// # Errors
    /// A file that cannot be read or is no TOML, or a value that is none of its kind; the message names where it is.
    pub fn resolve(global: &Global, env: Environment<'_>) -> Result<Self, Failure> {
        let home = env("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let path = match &global.config {
            Some(path) => path.clone(),
            None => home.clone().unwrap_or_default().join(".opensandbox/config.toml"),
        };
        let file = file::File::read(&path, global.config.is_some())?;
        let local = local::find(env, home.as_deref());
        let at = At { env, path: &path };

        let flag = (global.use_server_proxy || global.no_use_server_proxy).then_some(global.use_server_proxy);
        let mut domain = at.text(global.domain.as_ref(), "OPEN_SANDBOX_DOMAIN", file.connection.domain.as_ref());
        let mut protocol =
            at.text(global.protocol.as_ref(), "OPEN_SANDBOX_PROTOCOL", file.connection.protocol.as_ref());
        // An address may be a whole URL; its scheme is as explicit as the address itself.
        if let Some(setting) = &mut domain
            && let Some((scheme, rest)) = setting.value.split_once("://")
        {
            protocol = Some(Setting { value: scheme.to_owned(), source: setting.source.clone() });
            setting.value = rest.trim_end_matches('/').to_owned();
        }
        let domain = domain.unwrap_or_else(|| match &local {
            Some(server) => Setting { value: server.domain.clone(), source: Source::Local(server.file.clone()) },
            None => Setting { value: DEFAULT_DOMAIN.into(), source: Source::Default },
        });
        let protocol = protocol.unwrap_or_else(|| match (&local, &domain.source) {
            (Some(server), Source::Local(path)) => {
                Setting { value: server.protocol.clone(), source: Source::Local(path.clone()) }
            }
            _ => Setting { value: "http".into(), source: Source::Default },
        });
        if !matches!(protocol.value.as_str(), "http" | "https") {
            return Err(at.wrong(&protocol, &format!("protocol `{}` is neither http nor https", protocol.value)));
        }
        // The local server's key goes to the local server only, never to an address somebody else named.
        let local_key = || {
            let server = local.as_ref().filter(|server| server.is_at(&domain.value))?;
            server.api_key.clone().map(|value| Setting { value, source: Source::Local(server.key_file()) })
        };
        let api_key = at
            .text(global.api_key.as_ref(), "OPEN_SANDBOX_API_KEY", file.connection.api_key.as_ref())
            .filter(|key| !key.value.is_empty())
            .or_else(local_key);

        Ok(Self {
            api_key,
            domain,
            protocol,
            request_timeout: at.parsed(
                at.text(
                    global.request_timeout.as_ref(),
                    "OPEN_SANDBOX_REQUEST_TIMEOUT",
                    file.connection.request_timeout.as_ref(),
                ),
                DEFAULT_REQUEST_TIMEOUT,
                "request_timeout",
                |text| match units::parse_duration(text) {
                    Ok(Duration::ZERO) => Err("0 would give up before any answer; write at least 1ms".into()),
                    other => other,
                },
            )?,
            use_server_proxy: match flag {
                Some(value) => Setting { value, source: Source::Flag },
                None => at.parsed(
                    at.text(None, "OPEN_SANDBOX_USE_SERVER_PROXY", file.connection.use_server_proxy.as_ref()),
                    false,
                    "use_server_proxy",
                    parse_bool,
                )?,
            },
            format: match global.output {
                Some(value) => Setting { value, source: Source::Flag },
                None => at.parsed(
                    at.text(None, "OPEN_SANDBOX_OUTPUT", file.output.format.as_ref()),
                    Format::Table,
                    "output format",
                    |text| {
                        clap::ValueEnum::from_str(text, true)
                            .map_err(|_| format!("`{text}` is none of table, json, yaml, raw"))
                    },
                )?,
            },
            color: if global.no_color {
                Setting { value: false, source: Source::Flag }
            } else if env("NO_COLOR").is_some_and(|value| !value.is_empty()) {
                Setting { value: false, source: Source::Env("NO_COLOR") }
            } else {
                at.parsed(at.text(None, "", file.output.color.as_ref()), true, "color", parse_bool)?
            },
            image: at
                .text(None, "OPEN_SANDBOX_IMAGE", file.defaults.image.as_ref())
                .unwrap_or(Setting { value: DEFAULT_IMAGE.into(), source: Source::Default }),
            timeout: at.parsed(
                at.text(None, "OPEN_SANDBOX_TIMEOUT", file.defaults.timeout.as_ref()),
                units::Limit::After(DEFAULT_LIFETIME),
                "timeout",
                units::parse_limit,
            )?,
            warnings: file.warnings,
            file: path,
            local,
        })
    }

    /// The server's address with its scheme.
    pub fn url(&self) -> String {
        format!("{}://{}", self.protocol.value, self.domain.value)
    }

    /// Whether somebody named a server, rather than a local one being found or assumed.
    pub fn names_a_server(&self) -> bool {
        matches!(self.domain.source, Source::Flag | Source::Env(_) | Source::File)
    }
}

/// Where values are looked for, for choosing and for messages.
struct At<'a> {
    env: Environment<'a>,
    path: &'a Path,
}

impl At<'_> {
    /// The first of flag, variable and file that is given.
    fn text(&self, flag: Option<&String>, name: &'static str, file: Option<&String>) -> Option<Setting<String>> {
        let found = |value: String, source| Some(Setting { value, source });
        if let Some(value) = flag {
            return found(value.clone(), Source::Flag);
        }
        if let Some(value) = (self.env)(name).filter(|value| !name.is_empty() && !value.is_empty()) {
            return found(value, Source::Env(name));
        }
        file.and_then(|value| found(value.clone(), Source::File))
    }

    /// A value of another type than text, or its default.
    fn parsed<T>(
        &self,
        text: Option<Setting<String>>,
        default: T,
        what: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Setting<T>, Failure> {
        match text {
            None => Ok(Setting { value: default, source: Source::Default }),
            Some(setting) => match parse(&setting.value) {
                Ok(value) => Ok(Setting { value, source: setting.source }),
                Err(error) => Err(self.wrong(&setting, &format!("{what}: {error}"))),
            },
        }
    }

    fn wrong<T>(&self, setting: &Setting<T>, message: &str) -> Failure {
        match &setting.source {
            Source::File => Failure::usage(format!("{}: {message}", self.path.display())),
            source => Failure::usage(format!("{message} (from {source})")),
        }
    }
}

fn parse_bool(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(format!("`{text}` is neither true nor false")),
    }
}

#[cfg(test)]
mod tests;
