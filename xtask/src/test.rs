//! `cargo xtask test`: everything, from an empty machine to one verdict.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::results::{self, TestResult};
use crate::system::{self, TEST_USER, root, run as run_command, step, work};
use crate::{cargo, cases, contract, libtest};

/// What the tests need of the system.
const PACKAGES: [&str; 32] = [
    "busybox-static",       // an image of one program
    "apache2-utils",        // htpasswd for the registry that asks for a login
    "ca-certificates",      // pip and cargo
    "chromium",             // a browser in a sandbox
    "curl",                 // this and others: clients that must trust a sandbox's authority
    "default-jdk-headless", // another of those, and `keytool`
    "docker-registry",      // image pulls are tested against a real registry
    "e2fsprogs",            // disk limits
    "gcc",                  // C parts of dependencies
    "git",
    "golang-go", // another client, static and so for any image
    "iproute2",  // networks of a test's own
    "libc6-dev",
    "mariadb-server", // `sql` contexts of execd speak to one
    "mmdebstrap",     // the root of an emulated guest
    "nftables",       // rules of networks, read and made
    "node-typescript",
    "nodejs",  // JavaScript and TypeScript contexts
    "openssl", // the certificate of a registry
    "passwd",
    "procps", // tests run pgrep inside sandboxes
    "python3",
    "python3-matplotlib", // figures of Python contexts
    "python3-venv",
    "redis-server",    // a store of the published client's pools
    "qemu-system-x86", // a machine with cgroup v2 only, emulated
    "runsc",           // sandboxes on gVisor
    "skopeo",          // image archives of another program are imported
    "uidmap",          // sandboxes of an ordinary user
    "util-linux",
    "wget",
    "zstd", // layers compressed by another program
];

/// Seconds of each fuzz target; `OSB_FUZZ_SECONDS` says otherwise.
const FUZZ_SECONDS: &str = "60";

/// Parts of a run, in order; names can be given on the command line to run only those.
const PARTS: [&str; 5] = ["rust", "python", "python-user", "contract", "cases"];

/// Runs the tests; `chosen` limits them to some [`PARTS`].
///
/// # Errors
/// Something needed cannot be had, or a test failed.
pub fn run(chosen: &[String]) -> Result<()> {
    if let Some(unknown) = chosen.iter().find(|part| !PARTS.contains(&part.as_str())) {
        bail!("unknown part {unknown:?}; there are {}", PARTS.join(" "));
    }
    if !system::is_root() {
        bail!("the tests make namespaces, users and cgroups: run them as root (sudo -E cargo xtask test)");
    }
    let wanted = |part: &str| chosen.is_empty() || chosen.iter().any(|name| name == part);
    let started = Instant::now();
    fs::create_dir_all(work())?;
    step("packages of the system", || system::ensure_packages(&PACKAGES))?;
    step("an ordinary user for the tests", system::ensure_test_user)?;
    let programs = step("build osb and the test programs", || cargo::build(&["osb", "e2e"]))?;
    let osb = programs.get("osb").context("cargo built no osb")?;
    let recorder = programs.get("recorder").context("cargo built no recorder")?;

    // Results of parts that do not run now are kept from the last run.
    let mut results: Vec<TestResult> = if chosen.is_empty() { vec![] } else { results::load().unwrap_or_default() };
    let mut failures = Vec::new();
    if wanted("rust") {
        replace(&mut results, step("tests of the crates and of whole processes", || rust(osb))?);
    }
    let mut python_part = |part: &str, suite: &str, user: Option<&str>| -> Result<()> {
        if wanted(part) {
            let ran = step(&format!("published clients, server of {}", user.unwrap_or("root")), || {
                python(osb, recorder, suite, user)
            })?;
            replace(&mut results, ran);
        }
        Ok(())
    };
    python_part("python", "python as root", None)?;
    python_part("python-user", "python as user", Some(TEST_USER))?;
    results::save(&results)?;
    if wanted("contract") {
        check(&mut failures, step("contract", contract::run));
    }
    if wanted("cases") {
        check(&mut failures, step("cases", || cases::report(&results)));
    }
    summary(&results, failures, started)
}

fn check(failures: &mut Vec<String>, outcome: Result<()>) {
    if let Err(error) = outcome {
        println!("    {error:#}");
        failures.push(format!("{error:#}"));
    }
}

fn replace(results: &mut Vec<TestResult>, fresh: Vec<TestResult>) {
    let Some(first) = fresh.first() else { return };
    let suite = first.suite.clone();
    results.retain(|result| result.suite != suite);
    results.extend(fresh);
}

fn summary(results: &[TestResult], mut failures: Vec<String>, started: Instant) -> Result<()> {
    let mut counts: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for result in results {
        let counted = counts.entry(&result.suite).or_default();
        match result.outcome.as_str() {
            "passed" => counted[0] += 1,
            "failed" => counted[1] += 1,
            _ => counted[2] += 1,
        }
    }
    println!();
    for result in results.iter().filter(|result| result.outcome == "failed") {
        println!("FAILED {} [{}]", result.name, result.suite);
        result.reason.lines().for_each(|line| println!("    {line}"));
    }
    for (suite, [passed, failed, ignored]) in &counts {
        println!("{suite}: {passed} passed, {failed} failed, {ignored} ignored");
        if *failed > 0 {
            failures.push(format!("{suite}: {failed} failed"));
        }
        if *ignored > 0 {
            failures.push(format!("{suite}: {ignored} ignored, and nothing may be skipped"));
        }
    }
    let [passed, failed, _] =
        counts.values().fold([0; 3], |sum: [usize; 3], one| [sum[0] + one[0], sum[1] + one[1], sum[2] + one[2]]);
    println!("{passed} passed, {failed} failed in {:.0} s", started.elapsed().as_secs_f64());
    if !failures.is_empty() {
        bail!("{}", failures.join("; "));
    }
    Ok(())
}

/// All tests of the workspace; their output is shown as it comes.
fn rust(osb: &Path) -> Result<Vec<TestResult>> {
    let cargo = cargo::cargo();
    let program = cargo.get_program().to_owned();
    let mut shell = Command::new("sh");
    // One pipe for both streams keeps the names of test binaries before their tests.
    shell
        .args(["-c", "exec \"$0\" test --release --workspace --no-fail-fast 2>&1"])
        .arg(program)
        .current_dir(root())
        .env("OSB_BIN", osb)
        .env("OSB_FUZZ_SECONDS", std::env::var("OSB_FUZZ_SECONDS").unwrap_or_else(|_| FUZZ_SECONDS.into()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    for (name, value) in cargo.get_envs() {
        if value.is_none() {
            shell.env_remove(name);
        }
    }
    let mut child = shell.spawn().context("start cargo test")?;
    let stdout = child.stdout.take().context("cargo's output was not taken")?;
    let mut log = File::create(work().join("rust.log"))?;
    let mut reader = libtest::Reader::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        writeln!(log, "{line}")?;
        reader.line(&line);
    }
    let results = reader.into_results();
    let status = child.wait()?;
    if results.is_empty() || (!status.success() && results.iter().all(|one| one.outcome != "failed")) {
        bail!("cargo test ended with {status} without telling which test failed");
    }
    Ok(results)
}

/// The suite of the published clients against a server of `user` (or root).
fn python(osb: &Path, recorder: &Path, suite: &str, user: Option<&str>) -> Result<Vec<TestResult>> {
    let venv = venv()?;
    let who = if user.is_some() { "user" } else { "root" };
    let report = contract::report_path(who);
    let _ = fs::remove_file(&report);
    let written = work().join(format!("python-{who}.jsonl"));
    let _ = fs::remove_file(&written);
    let status = Command::new(venv.join("bin/python"))
        .args(["-m", "pytest", "-q", "--tb=short", "--color=no", "-p", "no:cacheprovider"])
        .current_dir(root().join("e2e/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("OSB_BIN", osb)
        .env("OSB_RECORDER", recorder)
        .env("OSB_E2E_USER", user.unwrap_or_default())
        .env("OSB_E2E_REPORT", &report)
        .env("OSB_E2E_RESULTS", &written)
        .stdin(Stdio::null())
        .status()
        .context("start pytest")?;
    let mut results = Vec::new();
    for line in fs::read_to_string(&written).unwrap_or_default().lines() {
        let value: Value = serde_json::from_str(line).context("a result of pytest")?;
        let field = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        results.push(TestResult {
            suite: suite.into(),
            name: field("name"),
            outcome: field("outcome"),
            reason: field("reason"),
        });
    }
    if results.is_empty() || (!status.success() && results.iter().all(|one| one.outcome == "passed")) {
        bail!("pytest ended with {status} without telling which test failed");
    }
    Ok(results)
}

/// The published clients in an environment of their own, made once per set of requirements.
fn venv() -> Result<PathBuf> {
    let venv = root().join("target/e2e-venv");
    let requirements = root().join("e2e/python/requirements.txt");
    let node = root().join("e2e/node");
    let wanted = fs::read_to_string(&requirements)? + &fs::read_to_string(node.join("package.json"))?;
    let stamp = venv.join("requirements.done");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(venv);
    }
    println!("    making {} with the published clients", venv.display());
    let _ = fs::remove_dir_all(&venv);
    run_command(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    run_command(Command::new(venv.join("bin/pip")).args(["install", "--quiet", "-r"]).arg(&requirements))?;
    let programs = format!("{}:{}", venv.join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let mut npm = Command::new(venv.join("bin/npm"));
    npm.args(["install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]);
    run_command(npm.current_dir(&node).env("PATH", programs))?;
    fs::write(&stamp, wanted)?;
    Ok(venv)
}
