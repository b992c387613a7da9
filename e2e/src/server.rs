//! Starts `osb server` with a data directory of its own and knows its processes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use tempfile::TempDir;

use crate::client::Client;
use crate::trace::Tracer;

/// How long a server may take to be ready on a loaded machine; the target is 50 ms.
const READY: Duration = Duration::from_secs(20);
/// How long a clean stop may take.
const STOP: Duration = Duration::from_secs(20);
/// Between two looks at a file or process that has no event to wait for.
const LOOK: Duration = Duration::from_millis(5);

/// What a system's own shell has; this run's own `PATH` may hold toolchains.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A running server; it is stopped and its directory removed when dropped.
pub struct Server {
    child: Child,
    scratch: TempDir,
    program: PathBuf,
    facts: Facts,
    key: String,
}

/// What a running server tells about itself in its data directory.
#[derive(Clone, Debug, Deserialize)]
struct Facts {
    url: String,
}

impl Server {
    /// Starts a server with an empty data directory.
    ///
    /// # Errors
    /// The program is not built, or the server does not become ready.
    pub fn start() -> Result<Self> {
        Self::begin(None)
    }

    /// The same for a server that is traced from its first instruction on.
    ///
    /// # Errors
    /// As [`Server::start`], or it cannot be traced.
    pub fn start_traced(tracer: &mut Tracer) -> Result<Self> {
        Self::begin(Some(tracer))
    }

    fn begin(tracer: Option<&mut Tracer>) -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("osb-e2e-").tempdir()?;
        set_mode(scratch.path(), 0o755)?;
        let data = scratch.path().join("data");
        fs::create_dir(&data)?;
        // A copy: its path tells this server's processes from everybody else's.
        let program = scratch.path().join("osb");
        copy_program(&built("OSB_BIN", "osb")?, &program)?;
        let (child, facts) = launch(&program, scratch.path(), tracer)?;
        let key = fs::read_to_string(data.join("api-key")).context("read the API key")?;
        Ok(Self { child, scratch, program, facts, key: key.trim().to_owned() })
    }

    /// Starts it again after its supervisor was killed, over the same data.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_again(&mut self) -> Result<()> {
        self.replace(None)
    }

    /// The same, traced.
    ///
    /// # Errors
    /// As [`Server::start_traced`].
    pub fn start_again_traced(&mut self, tracer: &mut Tracer) -> Result<()> {
        self.replace(Some(tracer))
    }

    fn replace(&mut self, tracer: Option<&mut Tracer>) -> Result<()> {
        let _ = self.child.kill();
        self.child.wait().context("reap the old server")?;
        let (child, facts) = launch(&self.program, self.scratch.path(), tracer)?;
        self.child = child;
        self.facts = facts;
        Ok(())
    }

    /// The server's data directory.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    /// A client with the server's key.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.facts.url.trim_end_matches('/'), &self.key)
    }

    /// The process that was started.
    #[must_use]
    pub fn supervisor(&self) -> u32 {
        self.child.id()
    }

    /// The living processes of this server by role: `server`, `api-server`, `jailer`, ...
    /// (the first argument after the program's name). Monitors are listed with the jailer's role.
    #[must_use]
    pub fn processes(&self) -> BTreeMap<u32, String> {
        processes_of(&self.program)
    }

    /// Every process of this server and of its sandboxes.
    #[must_use]
    pub fn everything(&self) -> Vec<u32> {
        crate::census::members(self).into_iter().collect()
    }

    /// The one process of a role that is a child of the supervisor.
    #[must_use]
    pub fn child_of_role(&self, role: &str) -> Option<u32> {
        self.processes()
            .into_iter()
            .find_map(|(pid, found)| (found == role && parent(pid) == Some(self.supervisor())).then_some(pid))
    }

    /// An `osb` command that finds this server by itself.
    #[must_use]
    pub fn osb(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", self.scratch.path())
            .env("OSB_DATA_DIR", self.data())
            .current_dir("/")
            .stdin(Stdio::null());
        command
    }

    /// What the server wrote to its standard error.
    #[must_use]
    pub fn log(&self) -> String {
        tail(&self.scratch.path().join("server.log"))
    }

    /// Asks the server to stop and waits for its end.
    ///
    /// # Errors
    /// It does not end in time, or not with 0.
    pub fn stop(&mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let deadline = Instant::now() + STOP;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                anyhow::ensure!(status.success(), "server ended with {status}:\n{}", self.log());
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        bail!("server still runs {STOP:?} after TERM:\n{}", self.log());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait()
            && self.stop().is_err()
        {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn launch(program: &Path, scratch: &Path, tracer: Option<&mut Tracer>) -> Result<(Child, Facts)> {
    let data = scratch.join("data");
    let ready = data.join("server.json");
    let _ = fs::remove_file(&ready);
    let log = File::options().create(true).append(true).open(scratch.join("server.log"))?;
    let mut command = if tracer.is_some() {
        // It stops itself until the tracer has it, and then becomes the server.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "kill -STOP $$; exec \"$0\" \"$@\""]).arg(program);
        shell
    } else {
        Command::new(program)
    };
    let mut child = command
        .args(["server", "--host", "127.0.0.1", "--port", "0"])
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", std::env::var_os("HOME").unwrap_or_default())
        .env("OSB_DATA_DIR", &data)
        // These tests count what is there; what waits by itself is the subject of others.
        .env("OSB_WARM_MAX_MEMORY_BYTES", "0")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("start {}", program.display()))?;
    let deadline = Instant::now() + READY;
    if let Some(tracer) = tracer {
        let traced = stopped(child.id(), deadline).and_then(|()| tracer.follow(child.id(), &data, program));
        if let Err(error) = traced {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
    }
    loop {
        if let Ok(text) = fs::read(&ready)
            && let Ok(facts) = serde_json::from_slice::<Facts>(&text)
        {
            return Ok((child, facts));
        }
        let log = || tail(&scratch.join("server.log"));
        if let Some(status) = child.try_wait()? {
            bail!("server ended with {status} before it was ready:\n{}", log());
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            bail!("server not ready after {READY:?}:\n{}", log());
        }
        std::thread::sleep(LOOK);
    }
}

/// Waits until a process has stopped itself.
fn stopped(pid: u32, deadline: Instant) -> Result<()> {
    loop {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("look at the server's process")?;
        if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')) {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "the server's process did not stop itself");
        std::thread::sleep(LOOK);
    }
}

/// A built program: named by an environment variable, else in the target directory
/// next to the running test.
///
/// # Errors
/// It is not there.
pub fn built(variable: &str, name: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    let test = std::env::current_exe()?;
    let beside = test.ancestors().nth(2).map(|directory| directory.join(name));
    match beside {
        Some(path) if path.exists() => Ok(path),
        _ => bail!("{name} is not built: cargo build --release -p osb, or name it in {variable}"),
    }
}

/// Copies a program to where it will be started.
///
/// By a process of its own: a child that another test forks meanwhile would hold the copy open for writing until
/// it executes, and to start the copy would fail with "text file busy".
///
/// # Errors
/// `cp` says why.
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let copy = Command::new("cp").arg("--").arg(from).arg(to).output().context("start cp")?;
    anyhow::ensure!(copy.status.success(), "copy {}: {}", from.display(), String::from_utf8_lossy(&copy.stderr));
    Ok(())
}

/// Every living process whose executable is `program`, with its role.
pub(crate) fn processes_of(program: &Path) -> BTreeMap<u32, String> {
    let mut found = BTreeMap::new();
    for pid in crate::census::pids() {
        let Ok(executable) = fs::read_link(format!("/proc/{pid}/exe")) else { continue };
        if executable != program {
            continue;
        }
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let role = line.split(|byte| *byte == 0).nth(1).unwrap_or_default();
        found.insert(pid, String::from_utf8_lossy(role).into_owned());
    }
    found
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")).and_then(|rest| rest.trim().parse().ok())
}

fn tail(path: &Path) -> String {
    const SHOWN_BYTES: usize = 8_000;
    let text = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&text[text.len().saturating_sub(SHOWN_BYTES)..]).into_owned()
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(())
}
