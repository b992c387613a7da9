//! The workspace's own commands: `cargo xtask demo|test|check|contract|cases|newcomer|bench`.
//!
//! Owns what must happen around cargo: packages of the system, the published
//! clients, the order of a whole run and its tables. Depends on next to
//! nothing, because it is the first thing a newcomer's machine compiles.

mod bench;
mod cargo;
mod cases;
mod check;
mod contract;
mod demo;
mod libtest;
mod newcomer;
mod results;
mod system;
mod test;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  demo       install what is needed, build, run a sandbox and show it
  test       install what the tests need and run all of them, or the parts that are named:
             rust python python-user contract cases
  check      format, lints and tidiness: quick, before every commit
  contract   print what the last test run saw of the published contract
  cases      print the cases of specs/cases.toml and the tests that prove them
  bench      measure everything beside its peers and write docs/bench.md (--quick for a tenth, names for single rows)
  newcomer   run demo and test, or the one that is named, in a fresh Debian 12 root with only a Rust toolchain";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("demo") => demo::run(),
        Some("test") => test::run(&arguments[1..]),
        Some("check") => check::run(),
        Some("contract") => contract::run(),
        Some("cases") => cases::run(),
        Some("bench") => bench::run(&arguments[1..]),
        Some("newcomer") => newcomer::run(&arguments[1..]),
        Some("help" | "-h" | "--help") | None => {
            println!("{USAGE}");
            Ok(())
        }
        Some(other) => unknown(other),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn unknown(command: &str) -> Result<()> {
    bail!("unknown command {command:?}\n{USAGE}")
}
