//! How results and failures are written: tables for people, JSON and YAML for programs.
//!
//! Results go to standard output, everything else to standard error. What JSON and YAML show is stable: names are
//! those of the protocol and absent values are left out.

use std::io::{IsTerminal, Write};

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::failure::Failure;

pub mod table;

/// In which form results and failures are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Table,
    /// One JSON document
    Json,
    /// One YAML document
    Yaml,
    /// Bytes as they come, where a command streams; otherwise as table
    Raw,
}

impl Format {
    /// Whether programs read it.
    pub fn is_structured(self) -> bool {
        matches!(self, Self::Json | Self::Yaml)
    }

    /// Its name in flags, variables and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Json => "json",
            Self::Yaml => "yaml",
            Self::Raw => "raw",
        }
    }
}

/// Writes results and failures in the chosen form.
#[derive(Clone, Debug)]
pub struct Printer {
    /// The chosen form.
    pub format: Format,
    /// Whether tables and failures may be coloured.
    pub color: bool,
    /// Whether every request is told on standard error.
    pub verbose: bool,
}

impl Printer {
    /// Whether progress may be drawn on standard error.
    pub fn may_draw(&self) -> bool {
        !self.format.is_structured() && std::io::stderr().is_terminal()
    }

    /// Writes one document: `value` for programs, `human` for people.
    pub fn document(&self, value: &Value, human: impl FnOnce() -> String) -> Result<(), Failure> {
        match self.format {
            Format::Json => self.line(&pretty_json(value)),
            Format::Yaml => self.text(&yaml(value)?),
            Format::Table | Format::Raw => {
                let text = human();
                if text.is_empty() { Ok(()) } else { self.line(text.trim_end_matches('\n')) }
            }
        }
    }

    /// Writes that something was done: `{"status":"ok","message":...}` for programs.
    pub fn done(&self, message: &str) -> Result<(), Failure> {
        self.document(&json!({ "status": "ok", "message": message }), || message.to_owned())
    }

    /// Writes one line to standard output.
    pub fn line(&self, text: &str) -> Result<(), Failure> {
        self.text(&format!("{text}\n"))
    }

    /// Writes text to standard output as it is.
    pub fn text(&self, text: &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| output_failure(&error))
    }

    /// Tells people something on standard error; silent where programs read.
    pub fn note(&self, text: &str) {
        if !self.format.is_structured() {
            // Nobody is left to tell when standard error is closed.
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// Writes a failure to standard error in the chosen form.
    pub fn failure(&self, failure: &Failure) {
        let text = match self.format {
            Format::Json => pretty_json(&failure.to_value()),
            Format::Yaml => yaml(&failure.to_value()).unwrap_or_else(|_| failure.message.clone()),
            Format::Table | Format::Raw => self.failure_for_people(failure),
        };
        // Nobody is left to tell when standard error is closed.
        let _ = writeln!(std::io::stderr(), "{}", text.trim_end_matches('\n'));
    }

    fn failure_for_people(&self, failure: &Failure) -> String {
        let word = if self.color { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
        let mut text = format!("{word} {}", failure.message);
        if let Some(hint) = &failure.hint {
            text.push_str(&format!("\n  try: {hint}"));
        }
        if failure.status.is_some() || failure.request_id.is_some() {
            text.push_str(&format!("\n  code: {}", failure.code));
            if let Some(id) = &failure.request_id {
                text.push_str(&format!("  request: {id}"));
            }
        }
        text
    }
}

/// A failure to write to standard output. A closed pipe ends the program as the signal would.
pub fn output_failure(error: &std::io::Error) -> Failure {
    let mut failure = Failure::new("OUTPUT", format!("write to standard output: {error}"));
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        failure.exit = EXIT_BROKEN_PIPE;
        failure.code = "OUTPUT_CLOSED".into();
    }
    failure
}

/// 128 + SIGPIPE: what a shell reports for a program whose reader went away.
pub const EXIT_BROKEN_PIPE: u8 = 141;

fn pretty_json(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("a JSON value has only text keys")
}

fn yaml(value: &Value) -> Result<String, Failure> {
    serde_saphyr::to_string(value).map_err(|error| Failure::new("OUTPUT", format!("write YAML: {error}")))
}

#[cfg(test)]
mod tests;
