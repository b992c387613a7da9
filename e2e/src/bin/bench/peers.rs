//! The peers: each starts one static program in its kind of sandbox and reaps it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::report::Row;

/// The row in which sandboxes are started from nothing.
pub const COLD: &str = "cold: start to first output";
/// Docker takes half a second each: fewer runs say as much.
const DOCKER_RUNS: usize = 20;
/// A daemon that is not up by then will not come.
const DOCKERD: Duration = Duration::from_secs(60);

/// The yardstick; a C program because it is nothing but system calls.
///
/// # Errors
/// It cannot be compiled or run.
pub fn floor(runs: usize, who: &str, rows: &mut Vec<Row>) -> Result<()> {
    let place = TempDir::new()?;
    open_to_all(place.path())?;
    for directory in ["lower/proc", "scratch"] {
        fs::create_dir_all(place.path().join(directory))?;
    }
    open_to_all(&place.path().join("lower"))?;
    let program = place.path().join("lower/floor");
    compile(&program)?;
    let output = Command::new(&program)
        .arg(place.path())
        .arg((runs + runs / 10).to_string())
        .output()
        .context("start floor")?;
    if !output.status.success() {
        bail!("floor: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout)?;
    let times = text.lines().skip(runs / 10).map(|line| line.parse().map(Duration::from_nanos));
    rows.push(Row::times(COLD, who, times.collect::<Result<_, _>>()?));
    Ok(())
}

fn compile(program: &Path) -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/floor.c");
    let status =
        Command::new("cc").args(["-O2", "-static", "-o"]).arg(program).arg(source).status().context("start cc")?;
    anyhow::ensure!(status.success(), "cc ended with {status}");
    Ok(())
}

fn open_to_all(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// bwrap, crun, runc and docker, as far as they work on this machine; one that
/// does not is a row that says so.
///
/// # Errors
/// The bundle they run cannot be made.
pub fn all(runs: usize, rows: &mut Vec<Row>) -> Result<()> {
    let place = TempDir::new()?;
    let bundle = place.path().join("bundle");
    fs::create_dir_all(bundle.join("rootfs/proc"))?;
    for directory in ["dev", "sys", "tmp"] {
        fs::create_dir_all(bundle.join("rootfs").join(directory))?;
    }
    // With no argument the yardstick exits at once: a static `true`.
    compile(&bundle.join("rootfs/true"))?;
    let mut measured = |who: &str, outcome: Result<Vec<Duration>>| {
        rows.push(match outcome {
            Ok(times) => Row::times(COLD, who, times),
            Err(error) => Row::figure(COLD, who, format!("does not work here: {error:#}").replace('\n', " ")),
        });
    };
    measured("bwrap", repeat(runs, |_| bwrap(&bundle)));
    spec(&bundle)?;
    measured("runc", repeat(runs, |number| oci("runc", &bundle, number)));
    match Plain::make() {
        Ok(plain) => measured("crun", repeat(runs, |number| plain.enter(oci("crun", &bundle, number)))),
        Err(error) => measured("crun", Err(error)),
    }
    match Docker::start(place.path(), &bundle.join("rootfs")) {
        Ok(docker) => {
            measured("docker run", repeat(DOCKER_RUNS, |_| docker.run()));
            docker.others(rows);
        }
        Err(error) => measured("docker run", Err(error)),
    }
    Ok(())
}

fn repeat(runs: usize, command: impl Fn(usize) -> Command) -> Result<Vec<Duration>> {
    let warm_up = (runs / 10).max(1);
    let mut times = Vec::with_capacity(runs);
    for number in 0..runs + warm_up {
        let took = once(command(number))?;
        if number >= warm_up {
            times.push(took);
        }
    }
    Ok(times)
}

/// Runs one command to its end.
fn once(mut command: Command) -> Result<Duration> {
    command.stdin(Stdio::null());
    let started = Instant::now();
    let output = command.output().with_context(|| format!("start {:?}", command.get_program()))?;
    let took = started.elapsed();
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(took)
}

fn bwrap(bundle: &Path) -> Command {
    let mut command = Command::new("bwrap");
    command
        .args(["--unshare-all", "--die-with-parent", "--ro-bind"])
        .arg(bundle.join("rootfs"))
        .args(["/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "/true"]);
    command
}

/// The same plain configuration for both OCI runtimes, from the template of one.
fn spec(bundle: &Path) -> Result<()> {
    let path = bundle.join("config.json");
    let _ = fs::remove_file(&path);
    once({
        let mut command = Command::new("runc");
        command.arg("spec").current_dir(bundle);
        command
    })?;
    let mut config: Value = serde_json::from_slice(&fs::read(&path)?)?;
    config["process"]["terminal"] = json!(false);
    config["process"]["args"] = json!(["/true"]);
    // crun manages no groups on a hybrid machine, so neither may a group be asked for.
    for (list, key, value) in [("/linux/namespaces", "type", "cgroup"), ("/mounts", "type", "cgroup")] {
        if let Some(entries) = config.pointer_mut(list).and_then(Value::as_array_mut) {
            entries.retain(|entry| entry[key] != value);
        }
    }
    fs::write(&path, serde_json::to_vec(&config)?)?;
    Ok(())
}

fn oci(runtime: &str, bundle: &Path, number: usize) -> Command {
    let mut command = Command::new(runtime);
    if runtime == "crun" {
        command.args(["--cgroup-manager", "disabled"]);
    }
    command.args(["run", "--bundle"]).arg(bundle).arg(format!("bench-{runtime}-{number}"));
    command
}

/// A mount namespace without the second tree of a hybrid machine's control groups:
/// crun refuses to start where it sees one.
struct Plain(Child);

impl Plain {
    fn make() -> Result<Self> {
        let script = "umount -l /sys/fs/cgroup/unified 2>/dev/null; echo; exec sleep 1000000";
        let mut child = Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("start unshare")?;
        let mut ready = child.stdout.take().context("its output was not taken")?;
        std::io::Read::read_exact(&mut ready, &mut [0]).context("make a mount namespace")?;
        Ok(Self(child))
    }

    fn enter(&self, command: Command) -> Command {
        let mut entered = Command::new("nsenter");
        entered.args(["--mount", "--target", &self.0.id().to_string()]);
        entered.arg(command.get_program()).args(command.get_args());
        entered
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Docker daemon of our own, with an image of one static program.
struct Docker {
    daemon: Child,
    socket: String,
}

impl Docker {
    fn start(place: &Path, rootfs: &Path) -> Result<Self> {
        let socket = format!("unix://{}", place.join("docker.sock").display());
        let log = fs::File::create(place.join("dockerd.log"))?;
        let daemon = Command::new("dockerd")
            .args(["--host", &socket, "--bridge", "none", "--iptables=false", "--ip6tables=false"])
            .args(["--data-root", &place.join("docker").display().to_string()])
            .args(["--exec-root", &place.join("docker-exec").display().to_string()])
            .args(["--pidfile", &place.join("docker.pid").display().to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start dockerd")?;
        let mut docker = Self { daemon, socket };
        let deadline = Instant::now() + DOCKERD;
        while once(docker.command(&["version"])).is_err() {
            let ended = docker.daemon.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(place.join("dockerd.log")).unwrap_or_default();
                let last = log.lines().last().unwrap_or_default().to_owned();
                bail!("dockerd did not come up: {last}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let tar = place.join("image.tar");
        once({
            let mut command = Command::new("tar");
            command.arg("-C").arg(rootfs).arg("-cf").arg(&tar).arg(".");
            command
        })?;
        once(docker.command(&["import", &tar.display().to_string(), "bench:1"]))?;
        Ok(docker)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.args(["--host", &self.socket]).args(arguments);
        command
    }

    fn run(&self) -> Command {
        self.command(&["run", "--rm", "--network", "none", "bench:1", "/true"])
    }

    /// `docker exec`, pause and removal of one container, as the other rows' peers.
    fn others(&self, rows: &mut Vec<Row>) {
        let mut fails = || -> Result<()> {
            // The yardstick with a directory that is not there would end; `tail` is not in the image.
            let host = "/usr:/usr:ro";
            let links = ["--volume", "/lib:/lib:ro", "--volume", "/lib64:/lib64:ro"];
            let mut start = self.command(&["run", "--detach", "--name", "bench", "--network", "none", "--volume", host]);
            start.args(links).args(["bench:1", "/usr/bin/sleep", "1000"]);
            once(start)?;
            let exec = repeat(DOCKER_RUNS, |_| self.command(&["exec", "bench", "/true"]))?;
            rows.push(Row::times("exec of true", "docker exec", exec));
            let mut pauses = Vec::new();
            for _ in 0..DOCKER_RUNS {
                pauses.push(once(self.command(&["pause", "bench"]))?);
                once(self.command(&["unpause", "bench"]))?;
            }
            rows.push(Row::times("pause", "docker pause", pauses));
            let end = once(self.command(&["rm", "-f", "bench"]))?;
            rows.push(Row::times("end", "docker rm -f", vec![end]));
            Ok(())
        };
        if let Err(error) = fails() {
            println!("docker's other rows: {error:#}");
        }
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.daemon.id())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.daemon.wait();
    }
}
