//! `osb doctor`: what this machine can do, what is missing, and how to get it.
//!
//! Facts are read or tried, never assumed from a version where a try is possible.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::output::{Printer, table};

use super::Outcome;

mod checks;
mod machine;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is there.
    Ok,
    /// Sandboxes run, with less protection, fewer limits or less speed.
    Weaker,
    /// No sandbox can run.
    Missing,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Weaker => "weaker",
            Self::Missing => "missing",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug)]
pub struct Check {
    /// What it is.
    pub name: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do, where something can be done.
    pub remedy: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), remedy: None }
    }

    fn weaker(name: &'static str, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Weaker, ..Self::ok(name, found) }
    }

    fn missing(name: &'static str, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Missing, ..Self::ok(name, found) }
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// Looks at the machine. Exit code 1 if no sandbox can run here.
pub fn run(printer: &Printer) -> Outcome {
    let checks = checks::all(&machine::Machine::look());
    let can_run = checks.iter().all(|check| check.verdict != Verdict::Missing);
    let mode = if rustix::process::geteuid().is_root() { "root" } else { "user" };
    let items: Vec<Value> = checks.iter().map(item).collect();
    printer
        .document(&json!({ "can_run": can_run, "mode": mode, "checks": items }), || people(&checks, can_run, mode))?;
    Ok(if can_run { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn item(check: &Check) -> Value {
    let mut item = json!({ "name": check.name, "verdict": check.verdict.name(), "found": check.found });
    if let Some(remedy) = &check.remedy {
        item["remedy"] = json!(remedy);
    }
    item
}

fn people(checks: &[Check], can_run: bool, mode: &str) -> String {
    let row = |check: &Check| vec![check.name.to_owned(), check.verdict.name().to_owned(), check.found.clone()];
    let mut text = table::rows(&["what", "verdict", "found"], checks.iter().map(row).collect());
    let remedies: Vec<_> =
        checks.iter().filter_map(|check| check.remedy.as_ref().map(|how| (check.name, how))).collect();
    if !remedies.is_empty() {
        text.push_str("\nto do:\n");
        for (name, how) in remedies {
            text.push_str(&format!("  {name}: {how}\n"));
        }
    }
    text.push_str(&match (can_run, mode) {
        (true, "root") => "\nsandboxes run here, as root\n".to_owned(),
        (true, _) => "\nsandboxes run here, as an ordinary user\n".to_owned(),
        (false, _) => "\nno sandbox can run here until what is missing is there\n".to_owned(),
    });
    text
}

#[cfg(test)]
mod tests;
