//! `cargo xtask demo`: the first minute with `osb`, from a bare toolchain.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo;
use crate::system::{self, output, root, step};

/// What a machine needs to build and run a sandbox.
const PACKAGES: [&str; 6] = [
    "e2fsprogs", // disk limits
    "gcc",       // C parts of dependencies
    "libc6-dev",
    "python3", // the `host` image is what this machine has
    "uidmap",  // sandboxes of an ordinary user
    "ca-certificates",
];
/// Longest wait for the server.
const READY: Duration = Duration::from_secs(20);

/// Runs the demo.
///
/// # Errors
/// Something is missing, or a step fails.
pub fn run() -> Result<()> {
    step("what this machine needs", packages)?;
    let programs = step("build osb (the first time takes some minutes)", || cargo::build(&["osb"]))?;
    let osb = programs.get("osb").context("cargo built no osb")?;
    let scratch = Scratch::make()?;
    let server = step("start a server", || Server::start(osb, &scratch.0))?;
    let shown = step("a sandbox at work", || show(&server));
    let stopped = step("stop the server and clean up", || server.stop());
    drop(scratch);
    shown?;
    stopped?;
    let osb = osb.strip_prefix(root()).unwrap_or(osb);
    println!(
        "
What to type next:
  {osb} run -- python3 -c 'print(6*7)'   one command in a sandbox of its own, no server needed
  {osb} server                           a server; the commands below find it by themselves
  {osb} sandbox create                   a sandbox that stays, then: {osb} command run ID -- ls /
  {osb} doctor                           what this machine can do, and what is missing",
        osb = osb.display()
    );
    Ok(())
}

/// Installs as root; for an ordinary user only tells what is missing and matters.
fn packages() -> Result<()> {
    if system::is_root() || system::find("apt-get").is_none() {
        return match system::ensure_packages(&PACKAGES) {
            // Another system has other names for them; what is really missing shows itself below.
            Err(error) if system::find("apt-get").is_none() => {
                println!("    {error:#}");
                Ok(())
            }
            other => other,
        };
    }
    if system::find("cc").is_none() {
        bail!("no C compiler: sudo apt-get install -y gcc libc6-dev");
    }
    for (program, package, why) in [
        ("python3", "python3", "the Python line of this demo"),
        ("newuidmap", "uidmap", "sandboxes with more than one user id"),
    ] {
        if system::find(program).is_none() {
            println!("    {program} is missing ({why}): sudo apt-get install -y {package}");
        }
    }
    Ok(())
}

/// A directory that goes away with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("osb-demo-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Server {
    child: Child,
    osb: PathBuf,
    data: PathBuf,
}

impl Server {
    fn start(osb: &Path, scratch: &Path) -> Result<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(scratch, fs::Permissions::from_mode(0o755))?;
        let data = scratch.join("data");
        fs::create_dir(&data)?;
        // A checkout in somebody's home is closed to the identity that the server takes on.
        let program = scratch.join("osb");
        fs::copy(osb, &program)?;
        let log = fs::File::create(scratch.join("server.log"))?;
        let started = Instant::now();
        let mut child = Command::new(&program)
            .args(["server", "--port", "0"])
            .env("OSB_DATA_DIR", &data)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start osb server")?;
        while !data.join("server.json").exists() {
            let log = || fs::read_to_string(scratch.join("server.log")).unwrap_or_default();
            if let Some(status) = child.try_wait()? {
                bail!("osb server ended with {status}:\n{}", log());
            }
            if started.elapsed() > READY {
                let _ = child.kill();
                bail!("osb server is not ready after {READY:?}:\n{}", log());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        println!("    ready after {:.0} ms", started.elapsed().as_secs_f64() * 1000.0);
        Ok(Self { child, osb: program, data })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.osb);
        command.args(arguments).env("OSB_DATA_DIR", &self.data);
        // Somebody's own server must not be taken for this one.
        for name in ["OPEN_SANDBOX_DOMAIN", "OPEN_SANDBOX_API_KEY", "OPEN_SANDBOX_PROTOCOL"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs one `osb` command, shows it with its time, returns its output.
    fn timed(&self, arguments: &[&str]) -> Result<String> {
        let started = Instant::now();
        let told = output(&mut self.command(arguments))?;
        let took = started.elapsed();
        println!("    $ osb {}", quoted(arguments));
        for line in told.lines().take(12) {
            println!("      {line}");
        }
        println!("      [{:.1} ms]", took.as_secs_f64() * 1000.0);
        Ok(told)
    }

    fn stop(mut self) -> Result<()> {
        // The shell's own `kill`: a small machine has no program of that name.
        system::run(Command::new("sh").args(["-c", "kill -TERM \"$0\"", &self.child.id().to_string()]))?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("osb server ended with {status}");
        }
        Ok(())
    }
}

fn show(server: &Server) -> Result<()> {
    let made = server.timed(&["sandbox", "create", "--image", "host", "--timeout", "10m", "-o", "json"])?;
    let made: Value = serde_json::from_str(&made).context("osb sandbox create -o json")?;
    let id = made["id"].as_str().context("create told no id")?;
    server.timed(&["command", "run", id, "--", "uname", "-sr"])?;
    server.timed(&["command", "run", id, "--", "id"])?;
    let answer = server.timed(&["command", "run", id, "--", "python3", "-c", "print(6*7)"])?;
    if answer.trim() != "42" {
        bail!("python3 said {answer:?}");
    }
    server.timed(&["file", "write", id, "/tmp/note.txt", "-c", "hello from outside"])?;
    let note = server.timed(&["file", "cat", id, "/tmp/note.txt"])?;
    if note.trim_end() != "hello from outside" {
        bail!("the file holds {note:?}");
    }
    server.timed(&["sandbox", "get", id])?;
    server.timed(&["sandbox", "kill", id])?;
    Ok(())
}

/// The words as a person would type them.
fn quoted(arguments: &[&str]) -> String {
    let plain =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=:".contains(c));
    let words = arguments
        .iter()
        .map(|word| if plain(word) { (*word).to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) });
    words.collect::<Vec<_>>().join(" ")
}
