//! Measures the egress process beside its peers, in network namespaces of its own: the small internet of this crate's
//! tests. Needs root.
//!
//! `way-out WHAT SECONDS MITMDUMP PROGRAM [ARGUMENT ...]` measures `plain`, `tls`, `injection` or `fairness`, each step for
//! so many seconds, with the egress process that the program is, and prints [`Sample`]s as JSON.
//!
//! Direct is the same connection without anybody between: from the machine's namespace to the internet's. What sends and
//! what reads shares the cores with what is measured, for every subject alike.

#[path = "../../tests/common/mod.rs"]
mod common;
mod injection;
mod load;
mod peer;
mod plain;

use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

/// One figure.
#[derive(Serialize)]
struct Sample {
    /// What was measured.
    what: String,
    /// Who was measured.
    who: &'static str,
    /// The figures, in the unit that `what` means: milliseconds, million bytes in a second, mebibytes, or a number.
    values: Vec<f64>,
}

/// How to run.
struct Options {
    /// Of each step.
    length: Duration,
    mitmdump: String,
    /// The egress process and its arguments.
    program: Vec<String>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [what, seconds, mitmdump, program @ ..] = words.as_slice() else { return usage() };
    let Ok(seconds) = seconds.parse() else { return usage() };
    let options =
        Options { length: Duration::from_secs_f64(seconds), mitmdump: mitmdump.clone(), program: program.to_vec() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let samples = match what.as_str() {
        "plain" => runtime.block_on(plain::throughput(&options, plain::Hello::None)),
        "tls" => runtime.block_on(plain::throughput(&options, plain::Hello::Tls)),
        "injection" => runtime.block_on(injection::measure(&options)),
        "fairness" => runtime.block_on(plain::fairness(&options)),
        _ => return usage(),
    };
    println!("{}", serde_json::to_string(&samples).expect("plain values are JSON"));
    // Origins and loads are threads that wait for connections.
    std::process::exit(0)
}

fn usage() -> ExitCode {
    eprintln!("usage: way-out plain|tls|injection|fairness SECONDS MITMDUMP PROGRAM [ARGUMENT ...]");
    ExitCode::FAILURE
}
