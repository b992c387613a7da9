//! `osb jailer`: the single-threaded process that makes sandboxes, started by the server only.

use std::process::ExitCode;

/// Runs the jailer on the descriptors that it inherited. Called before any thread exists.
pub fn run() -> ExitCode {
    ExitCode::FAILURE
}
