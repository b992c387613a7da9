//! An environment with a real Jupyter kernel and server, made once from the Python package index.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};
use serde_json::json;

/// What is installed; the rest follows from it.
const PACKAGES: [&str; 2] = ["ipykernel==7.4.0", "jupyter_server==2.21.1"];

/// The environment's directory.
pub fn environment() -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(root).expect("the directory of tests");
    let directory = root.join("jupyter");
    // Several test programs may want it at once.
    let lock = File::create(root.join("jupyter.lock")).expect("a lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("the lock");
    let stamp = directory.join("packages");
    let wanted = PACKAGES.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return directory;
    }
    let _ = fs::remove_dir_all(&directory);
    run(Command::new("python3").args(["-m", "venv"]).arg(&directory));
    run(Command::new(directory.join("bin/pip")).args(["install", "--quiet"]).args(PACKAGES));
    fs::write(&stamp, wanted).expect("the stamp");
    directory
}

fn run(command: &mut Command) {
    let status = command.status().expect("python3 with venv is installed");
    assert!(status.success(), "{command:?}: {status}");
}

/// Installs a spec of the environment's kernel under `directory`, for a language of its own name.
pub fn install(environment: &Path, directory: &Path, language: &str, interrupt_mode: &str) {
    let place = directory.join("kernels").join(language);
    fs::create_dir_all(&place).expect("the kernel's directory");
    let python = environment.join("bin/python");
    let spec = json!({
        "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": language, "language": language, "interrupt_mode": interrupt_mode,
        "env": { "FROM_SPEC": "${HOME}/spec" },
    });
    fs::write(place.join("kernel.json"), spec.to_string()).expect("the spec");
}
