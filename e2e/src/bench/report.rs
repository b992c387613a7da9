//! Figures, what they are compared with, and how they are shown.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

/// What a figure counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Unit {
    /// Milliseconds.
    #[serde(rename = "ms")]
    Millis,
    /// Million bytes in a second.
    #[serde(rename = "MB/s")]
    Megabytes,
    /// Mebibytes in a second.
    #[serde(rename = "MiB/s")]
    Mebibytes,
    /// Mebibytes.
    #[serde(rename = "MiB")]
    Memory,
    /// Events in a second.
    #[serde(rename = "/s")]
    Rate,
    /// Hundredths.
    #[serde(rename = "%")]
    Percent,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Millis => "ms",
            Self::Megabytes => "MB/s",
            Self::Mebibytes => "MiB/s",
            Self::Memory => "MiB",
            Self::Rate => "/s",
            Self::Percent => "%",
        }
    }
}

/// Samples of one subject.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Who was measured.
    pub subject: String,
    /// What the samples count.
    pub unit: Unit,
    samples: Vec<f64>,
}

impl Figure {
    /// A figure of at least one sample.
    pub fn new(subject: impl Into<String>, unit: Unit, mut samples: Vec<f64>) -> Self {
        assert!(!samples.is_empty(), "a figure has a sample");
        samples.sort_by(f64::total_cmp);
        Self { subject: subject.into(), unit, samples }
    }

    /// A figure that is one number.
    pub fn single(subject: impl Into<String>, unit: Unit, value: f64) -> Self {
        Self::new(subject, unit, vec![value])
    }

    /// The sample that `hundredths` of all do not exceed (nearest rank).
    pub fn percentile(&self, hundredths: usize) -> f64 {
        let rank = (self.samples.len() * hundredths).div_ceil(100).max(1);
        self.samples[rank - 1]
    }

    /// The middle sample.
    pub fn p50(&self) -> f64 {
        self.percentile(50)
    }

    /// Nearly the worst sample: of 100, one is worse. For what should be high, that is one of the low ones.
    pub fn p99(&self) -> f64 {
        match self.unit {
            Unit::Megabytes | Unit::Mebibytes | Unit::Rate => self.percentile(1),
            Unit::Millis | Unit::Memory | Unit::Percent => self.percentile(99),
        }
    }
}

/// A bound of `targets.md` and what was found.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// The bound in words.
    pub bound: String,
    /// What was found, in words.
    pub found: String,
    /// Whether it holds.
    pub met: bool,
}

/// One line of the targets with everybody who was measured for it.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// Ours first.
    pub figures: Vec<Figure>,
    /// Bounds.
    pub targets: Vec<Target>,
    /// What a reader must know to trust the figures.
    pub note: &'static str,
}

impl Row {
    /// A row without targets yet.
    pub fn new(what: impl Into<String>, figures: Vec<Figure>, note: &'static str) -> Self {
        Self { what: what.into(), figures, targets: Vec::new(), note }
    }

    /// Adds a bound from above.
    #[must_use]
    pub fn at_most(mut self, name: &str, found: f64, bound: f64, unit: &str) -> Self {
        self.targets.push(Target {
            bound: format!("{name} <= {bound}{unit}"),
            found: format!("{}{unit}", number(found)),
            // Nothing here can be negative; such a figure is noise and proves nothing.
            met: (0.0..=bound).contains(&found),
        });
        self
    }

    /// Adds a bound from below.
    #[must_use]
    pub fn at_least(mut self, name: &str, found: f64, bound: f64, unit: &str) -> Self {
        self.targets.push(Target {
            bound: format!("{name} >= {bound}{unit}"),
            found: format!("{}{unit}", number(found)),
            met: found >= bound,
        });
        self
    }

    /// The row for a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("  {}\n", self.what);
        for figure in &self.figures {
            let _ = writeln!(
                text,
                "    {:<34} p50 {:>9} p99 {:>9} {:<6} n {}",
                figure.subject,
                number(figure.p50()),
                number(figure.p99()),
                figure.unit.name(),
                figure.samples.len()
            );
        }
        for target in &self.targets {
            let _ = writeln!(
                text,
                "    {} {}: {}",
                if target.met { "met   " } else { "MISSED" },
                target.bound,
                target.found
            );
        }
        text
    }
}

/// Everything that one run of the bench found.
pub struct Report {
    /// The machine and the peers' versions, in the order of showing.
    pub facts: Vec<(String, String)>,
    /// What was measured.
    pub rows: Vec<Row>,
}

impl Report {
    /// A report without rows yet.
    pub fn new(facts: Vec<(String, String)>) -> Self {
        Self { facts, rows: Vec::new() }
    }

    /// The figures for programs.
    ///
    /// # Errors
    /// None in practice: all values are plain.
    pub fn json(&self) -> Result<String> {
        let rows: Vec<_> = self.rows.iter().map(row_json).collect();
        let facts: serde_json::Map<_, _> = self.facts.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
        Ok(serde_json::to_string_pretty(&json!({ "facts": facts, "rows": rows }))? + "\n")
    }

    /// The figures for people.
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "# Bench\n\nWritten by `cargo xtask bench`; do not edit. All figures are of one run on one machine, the peers \
             included: the ratio is the figure, the time is context.\n\n| fact | value |\n|---|---|\n",
        );
        for (name, value) in &self.facts {
            let _ = writeln!(text, "| {name} | {value} |");
        }
        text.push_str("\n## Targets\n\n| what | target | found | met |\n|---|---|---|---|\n");
        for row in &self.rows {
            for target in &row.targets {
                let verdict = if target.met { "yes" } else { "**no**" };
                let _ = writeln!(text, "| {} | {} | {} | {verdict} |", row.what, target.bound, target.found);
            }
        }
        text.push_str("\n## Figures\n");
        for row in &self.rows {
            let _ = writeln!(text, "\n### {}\n\n{}\n", row.what, row.note);
            text.push_str("| who | p50 | p99 | unit | runs |\n|---|---:|---:|---|---:|\n");
            for figure in &row.figures {
                let runs = figure.samples.len();
                let worst = if runs > 1 { number(figure.p99()) } else { String::new() };
                let (middle, unit) = (number(figure.p50()), figure.unit.name());
                let _ = writeln!(text, "| {} | {middle} | {worst} | {unit} | {runs} |", figure.subject);
            }
        }
        text
    }
}

fn row_json(row: &Row) -> serde_json::Value {
    let figures: Vec<_> = row
        .figures
        .iter()
        .map(|figure| {
            json!({
                "subject": figure.subject,
                "unit": figure.unit,
                "runs": figure.samples.len(),
                "min": figure.percentile(0),
                "p50": figure.p50(),
                "p99": figure.p99(),
                "max": figure.percentile(100),
            })
        })
        .collect();
    json!({ "what": row.what, "figures": figures, "targets": row.targets, "note": row.note })
}

/// Three significant digits, as far as people need them.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
