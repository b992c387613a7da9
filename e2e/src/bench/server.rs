//! `osb server` with a data directory of its own.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use hyper::Method;
use serde::Deserialize;

use super::Bench;
use super::client::{Connection, Payload};
use super::process;

/// How long a server may take to be ready before the bench gives up; the target is 50 ms.
const READY: Duration = Duration::from_secs(20);
/// How long a clean stop may take with 200 sandboxes.
const STOP: Duration = Duration::from_secs(60);
/// Between two looks at a file that has no event: small against what is measured.
const LOOK: Duration = Duration::from_micros(500);
/// Path of the program on which every server of the bench runs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A running server, ended when dropped.
pub struct Server {
    child: Child,
    directory: PathBuf,
    facts: Facts,
    /// The key that its API asks for.
    pub key: String,
    /// From the start of the program to the first answer.
    pub started: Duration,
}

/// What a server keeps ready by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Warmth {
    /// Nothing: every create makes its sandbox.
    None,
    /// What it does by default.
    Default,
}

#[derive(Deserialize)]
struct Facts {
    url: String,
}

impl Server {
    /// Starts a server with an empty data directory.
    ///
    /// # Errors
    /// It does not become ready.
    pub async fn start(bench: &Bench) -> Result<Self> {
        Self::start_with(bench, Warmth::None).await
    }

    /// As [`Server::start`], with what it keeps ready by itself.
    ///
    /// # Errors
    /// It does not become ready.
    pub async fn start_with(bench: &Bench, warmth: Warmth) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("s-").tempdir_in(bench.scratch.path())?.keep();
        fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        Self::start_in(&bench.options.osb, directory, warmth).await
    }

    async fn start_in(program: &Path, directory: PathBuf, warmth: Warmth) -> Result<Self> {
        let data = directory.join("data");
        let _ = fs::create_dir(&data);
        let log = File::options().create(true).append(true).open(directory.join("log"))?;
        let start = Instant::now();
        let mut command = Command::new(program);
        command.env_clear();
        if warmth == Warmth::None {
            command.env("OSB_WARM_MAX_MEMORY_BYTES", "0");
        }
        let child = command
            .args(["server", "--host", "127.0.0.1", "--port", "0"])
            .env("PATH", PATH)
            .env("HOME", &directory)
            .env("OSB_DATA_DIR", &data)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let mut server =
            Self { child, directory, facts: Facts { url: String::new() }, key: String::new(), started: Duration::ZERO };
        server.facts = server.facts(&data.join("server.json"), start).await?;
        server.key = fs::read_to_string(data.join("api-key")).context("read the API key")?.trim().to_owned();
        server.connect().await?.ask(Method::GET, "/health", &[], Payload::Empty).await?;
        server.started = start.elapsed();
        Ok(server)
    }

    async fn facts(&mut self, path: &Path, start: Instant) -> Result<Facts> {
        loop {
            if let Some(facts) = fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
                return Ok(facts);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended with {status} before it was ready:\n{}", self.log());
            }
            ensure!(start.elapsed() < READY, "the server was not ready after {READY:?}:\n{}", self.log());
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A new connection to the API.
    ///
    /// # Errors
    /// Nobody answers.
    pub async fn connect(&self) -> Result<Connection> {
        Connection::open(self.address()).await
    }

    /// Where the API listens, as `host:port`.
    pub fn address(&self) -> &str {
        self.facts.url.trim_start_matches("http://").trim_end_matches('/')
    }

    /// The supervisor.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The processes that are there without a sandbox: the supervisor and its children.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn own_processes(&self) -> Result<Vec<u32>> {
        let parents = process::parents()?;
        let children = parents.iter().filter(|(_, parent)| **parent == self.pid()).map(|(pid, _)| *pid);
        Ok(children.chain([self.pid()]).collect())
    }

    /// The process that answers the API.
    ///
    /// # Errors
    /// There is none.
    pub fn api_process(&self) -> Result<u32> {
        let all = self.own_processes()?;
        all.into_iter()
            .find(|pid| process::words(*pid).get(1).is_some_and(|role| role == "api-server"))
            .context("the supervisor has no child of role api-server")
    }

    /// Its log, for errors.
    pub fn log(&self) -> String {
        const SHOWN_BYTES: usize = 4_000;
        let text = fs::read(self.directory.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(SHOWN_BYTES)..]).into_owned()
    }

    /// Ends it in order.
    ///
    /// # Errors
    /// It does not end, or not with 0.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    /// Deletes what a row left. Blocking, because it is also called while a failed row is dropped.
    fn delete_all(&self) -> Result<()> {
        if self.key.is_empty() {
            return Ok(());
        }
        let list = self.ask_blocking("GET", "/v1/sandboxes?pageSize=200")?;
        let list: serde_json::Value = serde_json::from_slice(&list).context("read the list of sandboxes")?;
        for id in list["items"].as_array().into_iter().flatten().filter_map(|item| item["id"].as_str()) {
            self.ask_blocking("DELETE", &format!("/v1/sandboxes/{id}?grace=0"))?;
        }
        Ok(())
    }

    /// The body of the answer to a request that closes its connection.
    fn ask_blocking(&self, method: &str, path: &str) -> Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.address())?;
        let (host, key) = (self.address(), &self.key);
        write!(stream, "{method} {path} HTTP/1.0\r\nhost: {host}\r\nopen-sandbox-api-key: {key}\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let head = answer.windows(4).position(|four| four == b"\r\n\r\n").context("an answer has a head")?;
        Ok(answer.split_off(head + 4))
    }

    fn end(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        // A server that stops leaves its sandboxes running; those of a failed row must not outlive it.
        self.delete_all()?;
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM)?;
        let deadline = Instant::now() + STOP;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the server ended with {status}:\n{}", self.log());
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        self.child.kill()?;
        self.child.wait()?;
        bail!("the server still ran {STOP:?} after TERM:\n{}", self.log())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("bench: {error:#}");
        }
    }
}
