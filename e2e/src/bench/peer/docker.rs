//! A docker daemon of our own: own data, own socket, no bridge, no rules.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::super::Bench;

/// Name of the image with busybox.
pub const IMAGE: &str = "bench:1";
/// How long the daemon may take to answer or to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// A running daemon; it and its containers are ended when dropped.
pub struct Docker {
    daemon: Child,
    directory: PathBuf,
}

impl Docker {
    /// Starts the daemon and imports the image.
    ///
    /// # Errors
    /// It cannot be started; its log is in the error.
    pub fn start(bench: &Bench) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("docker-").tempdir_in(bench.scratch.path())?.keep();
        fs::write(directory.join("daemon.json"), "{}")?;
        let log = File::create(directory.join("log"))?;
        let daemon = Command::new("dockerd")
            .arg("--data-root")
            .arg(directory.join("data"))
            .arg("--exec-root")
            .arg(directory.join("exec"))
            .arg("--pidfile")
            .arg(directory.join("pid"))
            .arg("--config-file")
            .arg(directory.join("daemon.json"))
            .arg("--host")
            .arg(format!("unix://{}", directory.join("sock").display()))
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start dockerd: is docker.io installed?")?;
        let mut docker = Self { daemon, directory };
        docker.await_ready()?;
        docker.import()?;
        Ok(docker)
    }

    fn await_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while !self.command(&["version"]).output()?.status.success() {
            if let Some(status) = self.daemon.try_wait()? {
                bail!("dockerd ended with {status}:\n{}", self.log());
            }
            ensure!(start.elapsed() < PATIENCE, "dockerd did not answer within {PATIENCE:?}:\n{}", self.log());
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn import(&self) -> Result<()> {
        let root = super::root_filesystem(&self.directory.join("rootfs"))?;
        let archive = self.directory.join("image.tar");
        let packed = Command::new("tar")
            .arg("--create")
            .arg("--file")
            .arg(&archive)
            .arg("--directory")
            .arg(&root)
            .arg(".")
            .status()?;
        ensure!(packed.success(), "tar ended with {packed}");
        self.ask(&["import", &archive.display().to_string(), IMAGE]).map(drop)
    }

    /// A call of the client.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.arg("--host").arg(format!("unix://{}", self.directory.join("sock").display())).args(arguments);
        command.env("DOCKER_CONFIG", self.directory.join("config")).stdin(Stdio::null());
        command
    }

    /// Calls the client and returns what it said.
    ///
    /// # Errors
    /// It does not end with 0.
    pub fn ask(&self, arguments: &[&str]) -> Result<String> {
        let Output { status, stdout, stderr } = self.command(arguments).output().context("start docker")?;
        ensure!(status.success(), "docker {arguments:?} ended with {status}: {}", String::from_utf8_lossy(&stderr));
        Ok(String::from_utf8_lossy(&stdout).trim().to_owned())
    }

    /// As [`Docker::ask`], with its milliseconds.
    ///
    /// # Errors
    /// As there.
    pub fn time(&self, arguments: &[&str]) -> Result<f64> {
        let start = Instant::now();
        self.ask(arguments)?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }

    /// A container that sleeps, with a network namespace of its own.
    ///
    /// # Errors
    /// It does not start.
    pub fn sleeper(&self) -> Result<String> {
        let limits = ["--memory", "512m", "--cpus", "2", "--pids-limit", "1024"];
        let mut arguments = vec!["run", "--detach", "--network", "none"];
        arguments.extend(limits);
        arguments.extend([IMAGE, "/bin/sleep", "100000"]);
        self.ask(&arguments)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    fn end(&mut self) -> Result<()> {
        let containers = self.ask(&["ps", "--all", "--quiet"])?;
        let mut arguments = vec!["rm", "--force"];
        arguments.extend(containers.lines());
        if arguments.len() > 2 {
            self.ask(&arguments)?;
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.daemon), rustix::process::Signal::TERM)?;
        let start = Instant::now();
        while self.daemon.try_wait()?.is_none() {
            if start.elapsed() > PATIENCE {
                self.daemon.kill()?;
                self.daemon.wait()?;
                bail!("dockerd still ran {PATIENCE:?} after TERM");
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("bench: end docker: {error:#}");
        }
    }
}
