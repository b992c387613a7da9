//! The egress process alone, for this crate's tests and for the bench: control socket as standard input. People run
//! `osb`, which re-executes itself.

use std::os::fd::AsFd;
use std::process::ExitCode;

fn main() -> ExitCode {
    match std::io::stdin().as_fd().try_clone_to_owned() {
        Ok(control) => egress::run(control),
        Err(error) => {
            eprintln!("egress-proxy: {error}");
            ExitCode::FAILURE
        }
    }
}
