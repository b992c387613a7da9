//! What the last run saw of the published contract.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::system::{root, work};

#[derive(Deserialize)]
struct Line {
    operation: String,
    asked: Option<String>,
    path: String,
    status: u16,
    outcome: String,
    client: String,
    violations: Vec<Violation>,
}

#[derive(Deserialize)]
struct Violation {
    kind: String,
    detail: String,
    erratum: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scope {
    operations: Vec<String>,
    never_refused: Vec<String>,
}

#[derive(Default)]
struct Row {
    successes: usize,
    refusals: usize,
    faults: usize,
    accepted: usize,
    violations: usize,
}

/// Report of the suite that ran as `who`.
#[must_use]
pub fn report_path(who: &str) -> PathBuf {
    work().join(format!("contract-{who}.jsonl"))
}

/// Prints the table.
///
/// # Errors
/// There is no report, a violation outside the errata, or an operation of this
/// release without a success or a refusal.
pub fn run() -> Result<()> {
    let mut lines = Vec::new();
    for who in ["root", "user"] {
        let path = report_path(who);
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for line in text.lines() {
            let line: Line =
                serde_json::from_str(line).with_context(|| format!("read a line of {}", path.display()))?;
            lines.push(line);
        }
    }
    if lines.is_empty() {
        bail!("nothing was recorded: run `cargo xtask test` first");
    }
    let path = root().join("specs/scope.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let scope: Scope = toml::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
    let rows = count(&lines);
    print_rows(&rows);
    let shown = print_violations(&lines);
    let uncovered = uncovered(&scope, &rows);
    for gap in &uncovered {
        println!("not covered: {gap}");
    }
    println!(
        "{} exchanges, {} operations, {shown} violations outside errata.toml, {} gaps",
        lines.len(),
        rows.len(),
        uncovered.len()
    );
    if shown > 0 || !uncovered.is_empty() {
        bail!("the contract is not kept");
    }
    Ok(())
}

fn count(lines: &[Line]) -> BTreeMap<String, Row> {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for line in lines {
        let operation = match line.operation.split_once(' ') {
            // Wrong paths are countless; they are one row.
            Some(("none", _)) => "none (no such operation)".to_owned(),
            _ => line.operation.clone(),
        };
        let row = rows.entry(operation).or_default();
        match line.outcome.as_str() {
            "success" => row.successes += 1,
            "refusal" => row.refusals += 1,
            _ => row.faults += 1,
        }
        row.accepted += line.violations.iter().filter(|one| one.erratum.is_some()).count();
        row.violations += line.violations.iter().filter(|one| one.erratum.is_none()).count();
        // Refused by the control plane in front of it is refused all the same.
        if let Some(asked) = line.asked.as_ref().filter(|_| line.outcome == "refusal") {
            rows.entry(asked.clone()).or_default().refusals += 1;
        }
    }
    rows
}

fn print_rows(rows: &BTreeMap<String, Row>) {
    println!(
        "{:<72} {:>9} {:>8} {:>6} {:>7} {:>10}",
        "operation", "successes", "refusals", "faults", "errata", "violations"
    );
    for (operation, row) in rows {
        println!(
            "{operation:<72} {:>9} {:>8} {:>6} {:>7} {:>10}",
            row.successes, row.refusals, row.faults, row.accepted, row.violations
        );
    }
}

/// Prints each sort of violation once, with an example; returns how many there are.
fn print_violations(lines: &[Line]) -> usize {
    let mut sorts: BTreeMap<(String, String, String), (usize, String)> = BTreeMap::new();
    let mut total = 0;
    for line in lines {
        for violation in line.violations.iter().filter(|one| one.erratum.is_none()) {
            total += 1;
            let key = (line.operation.clone(), violation.kind.clone(), violation.detail.clone());
            let example = format!("{} {} by {}", line.status, line.path, line.client);
            sorts.entry(key).or_insert((0, example)).0 += 1;
        }
    }
    for ((operation, kind, detail), (count, example)) in &sorts {
        println!("violation: {operation}: {kind}: {detail} ({count} times, e.g. {example})");
    }
    total
}

fn uncovered(scope: &Scope, rows: &BTreeMap<String, Row>) -> Vec<String> {
    let nothing = Row::default();
    let mut gaps = Vec::new();
    for operation in &scope.operations {
        let row = rows.get(operation).unwrap_or(&nothing);
        if row.successes == 0 {
            gaps.push(format!("{operation}: no success"));
        }
        if row.refusals == 0 && !scope.never_refused.contains(operation) {
            gaps.push(format!("{operation}: no refusal"));
        }
    }
    gaps
}
