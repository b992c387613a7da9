//! Logging, set up once per process.
//!
//! Owns the subscriber: level, form and destination. Knows no secrets and no domain type. Every program
//! but execd and the jailer calls [`init`] as its first act; events are short lower-case phrases with data
//! in fields.

use std::io::IsTerminal;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;

#[cfg(test)]
mod tests;

/// How much is logged. The names are those of the published configuration (`log.level`), in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Everything, for its authors.
    Debug,
    /// State changes worth a post-mortem. The default.
    Info,
    /// We coped, yet someone should know.
    Warning,
    /// An operator must act.
    Error,
}

impl Level {
    fn directive(self) -> &'static str {
        match self {
            Self::Debug => "info,server=debug,runtime_native=debug,image=debug,osb=debug",
            Self::Info => "info",
            Self::Warning => "warn",
            Self::Error => "error",
        }
    }
}

/// The text is none of the known levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownLevel(String);

impl std::fmt::Display for UnknownLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\" is no log level; use DEBUG, INFO, WARNING or ERROR", self.0)
    }
}

impl std::error::Error for UnknownLevel {}

impl FromStr for Level {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        match text.to_ascii_uppercase().as_str() {
            "DEBUG" => Ok(Self::Debug),
            "INFO" => Ok(Self::Info),
            "WARNING" | "WARN" => Ok(Self::Warning),
            "ERROR" | "CRITICAL" => Ok(Self::Error),
            _ => Err(UnknownLevel(text.to_owned())),
        }
    }
}

/// Sends events of `level` and above to standard error: one line each, coloured on a terminal only.
/// `OSB_LOG`, with the syntax of tracing directives (`server=debug,info`), overrides the level.
/// A second call in one process does nothing.
pub fn init(level: Level) {
    let filter = std::env::var("OSB_LOG")
        .ok()
        .and_then(|directives| EnvFilter::try_new(directives).ok())
        .unwrap_or_else(|| EnvFilter::new(level.directive()));
    // A second subscriber is refused by the crate; the first one stays, which is what we promise.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}
