//! The bench: whole processes over HTTP, with the peers in the same run on the same machine.
//!
//! Owns the rows of `docs/bench.md`. Machines differ and are noisy, so what is slow on its own merits shows in the
//! ratio to a peer, and above all to `floor`, the least that the kernel can do. A peer that cannot be started is an
//! error, never a gap. Knows the public protocol and the command lines only.

mod client;
mod machine;
mod peer;
mod process;
mod report;
mod row;
mod sandbox;
mod server;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use report::{Report, Row};

pub use peer::launcher::repeat;
pub use peer::pipeline::relay;

/// What to run and where its results go.
pub struct Options {
    /// The program under test.
    pub osb: PathBuf,
    /// The example `floor` of the native runtime.
    pub floor: PathBuf,
    /// execd as `osb` carries it.
    pub execd: PathBuf,
    /// The example `way-out` of the egress process's crate.
    pub way_out: PathBuf,
    /// mitmproxy's program without a screen.
    pub mitmdump: PathBuf,
    /// Full or short.
    pub length: Length,
    /// Only these rows; all when empty.
    pub only: Vec<String>,
    /// Where the figures go as JSON.
    pub json: PathBuf,
    /// Where the table goes as Markdown.
    pub markdown: PathBuf,
    /// Which build is measured, for the table.
    pub revision: String,
}

/// How much of the bench to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// As many runs as the targets ask for.
    Full,
    /// A tenth, to check that the bench itself works.
    Quick,
}

impl Length {
    /// This many in a full run, a tenth in a quick one.
    fn of(self, full: usize) -> usize {
        match self {
            Self::Full => full,
            Self::Quick => full.div_ceil(10),
        }
    }
}

/// What every row works with.
struct Bench {
    options: Options,
    scratch: tempfile::TempDir,
}

/// Runs the bench and writes the table.
///
/// # Errors
/// A peer or the server cannot be started, or answers what it must not.
pub async fn run(options: Options) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("osb-bench-").tempdir()?;
    std::fs::set_permissions(scratch.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let bench = Bench { options, scratch };
    let mut report = Report::new(machine::facts(&bench.options.revision, &bench.options.mitmdump.to_string_lossy())?);
    macro_rules! rows {
        ($($name:literal => $run:expr),+ $(,)?) => {
            bench.know(&[$($name),+])?;
            $(if bench.wants($name) {
                eprintln!("bench: {}", $name);
                let rows: Vec<Row> = $run(&bench).await.with_context(|| format!("row {}", $name))?;
                for row in rows {
                    eprint!("{}", row.text());
                    report.rows.push(row);
                }
            })+
        };
    }
    rows! {
        "server" => row::footprint::server,
        "execd" => row::footprint::execd,
        "create" => row::create::cold,
        "warm" => row::pool::warm,
        "pool" => row::pool::hundred,
        "rate" => row::create::rate,
        "exec" => row::exec::run,
        "isolated" => row::isolated::run,
        "pause" => row::pause::run,
        "snapshot" => row::snapshot::run,
        "end" => row::end::run,
        "output" => row::output::run,
        "transfer" => row::transfer::run,
        "proxy" => row::proxy::run,
        "egress" => row::egress::run,
        "terminal" => row::terminal::run,
        "memory" => row::memory::run,
        "alive" => row::alive::run,
    }
    std::fs::write(&bench.options.json, report.json()?).context("write the figures")?;
    std::fs::write(&bench.options.markdown, report.markdown()).context("write the table")?;
    eprintln!("bench: {} and {}", bench.options.json.display(), bench.options.markdown.display());
    Ok(())
}

impl Bench {
    /// Refuses rows that do not exist.
    fn know(&self, names: &[&str]) -> Result<()> {
        match self.options.only.iter().find(|only| !names.contains(&only.as_str())) {
            Some(unknown) => bail!("there is no row {unknown:?}; rows are {}", names.join(", ")),
            None => Ok(()),
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.options.only.is_empty() || self.options.only.iter().any(|only| only == name)
    }

    fn runs(&self, full: usize) -> usize {
        self.options.length.of(full)
    }
}
