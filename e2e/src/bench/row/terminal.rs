//! The round trip of a key: through the terminal, a program that gives it back, and all that lies between.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use serde_json::{Value, json};

use super::super::Bench;
use super::super::client::Connection;
use super::super::peer::docker::Docker;
use super::super::report::{Figure, Row, Unit};
use super::super::sandbox::{Bed, Sandbox};
use super::millis;

/// Keys before the first that counts.
const WARM_UP: usize = 50;
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);
/// The program at both terminals: it says when it listens, then gives back each key.
const PROGRAM: &str = "stty raw -echo; echo listening; exec cat";
/// What it says.
const LISTENING: &[u8] = b"listening";

/// One key after the other, through the server and through `docker exec -it`.
pub async fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut bed = Bed::make(bench).await?;
    let sandbox = bed.sandbox().await?;
    let mut socket = Socket::attach(&mut bed.connection, bed.server.address(), &sandbox).await?;
    let ours = keys(bench.runs(2000), |key| socket.key(key))?;
    drop(socket);
    sandbox.delete(&mut bed.connection, &bed.key).await?;

    let docker = Docker::start(bench)?;
    let container = docker.sleeper()?;
    let mut client =
        Local::start(docker.command(&["exec", "--interactive", "--tty", &container, "sh", "-c", PROGRAM]))?;
    let theirs = keys(bench.runs(2000), |key| client.key(key))?;
    drop(client);

    let ours = Figure::new("osb", Unit::Millis, ours);
    let p50 = ours.p50();
    let theirs = Figure::new("docker exec -it", Unit::Millis, theirs);
    let note = "A key through `GET /pty/{id}/ws` to `cat` at a raw terminal and back, through the server; \
        `docker exec -it` by its client at a terminal.";
    Ok(vec![Row::new("terminal: round trip of a key", vec![ours, theirs], note).at_most("p50", p50, 3.0, " ms")])
}

fn keys(runs: usize, mut press: impl FnMut(u8) -> Result<()>) -> Result<Vec<f64>> {
    let mut samples = Vec::new();
    for run in 0..WARM_UP + runs {
        let start = Instant::now();
        press(b'a' + (run % 26) as u8)?;
        if run >= WARM_UP {
            samples.push(millis(start));
        }
    }
    Ok(samples)
}

fn listens(said: &[u8]) -> bool {
    said.ends_with(b"\n") && said.windows(LISTENING.len()).any(|window| window == LISTENING)
}

/// A client of a terminal of execd: bare frames, so that no library is measured.
struct Socket(TcpStream);

impl Socket {
    async fn attach(connection: &mut Connection, address: &str, sandbox: &Sandbox) -> Result<Self> {
        let path = format!("{}/pty", sandbox.execd);
        let made: Value =
            connection.json(hyper::Method::POST, &path, &sandbox.headers(), json!({ "command": PROGRAM })).await?;
        let id = made["session_id"].as_str().context("a session has an id")?;
        let mut head = format!(
            "GET {path}/{id}/ws HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        );
        for (name, value) in sandbox.headers() {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(head.as_bytes())?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            answer.push(byte[0]);
        }
        let answer = String::from_utf8_lossy(&answer);
        ensure!(answer.starts_with("HTTP/1.1 101"), "the terminal answers {answer}");
        let mut socket = Self(stream);
        let mut said = Vec::new();
        while !listens(&said) {
            said.extend(socket.output()?);
        }
        Ok(socket)
    }

    fn key(&mut self, key: u8) -> Result<()> {
        // A mask of zeroes leaves the bytes as they are.
        self.0.write_all(&[0x82, 0x82, 0, 0, 0, 0, 0, key])?;
        let back = self.output()?;
        ensure!(back == [key], "{key} came back as {back:?}");
        Ok(())
    }

    /// The output of the next frame that has some.
    fn output(&mut self) -> Result<Vec<u8>> {
        loop {
            let mut head = [0; 2];
            self.0.read_exact(&mut head)?;
            let length = match head[1] {
                length @ 0..126 => usize::from(length),
                126 => {
                    let mut length = [0; 2];
                    self.0.read_exact(&mut length)?;
                    usize::from(u16::from_be_bytes(length))
                }
                _ => bail!("a frame of that size was not asked for"),
            };
            let mut payload = vec![0; length];
            self.0.read_exact(&mut payload)?;
            match (head[0], payload.first()) {
                (0x82, Some(1)) => return Ok(payload.split_off(1)),
                (0x82, Some(3)) => return Ok(payload.split_off(9)),
                (0x88, _) => bail!("the terminal was closed: {}", String::from_utf8_lossy(&payload)),
                _ => {}
            }
        }
    }
}

/// A client program at a terminal of this machine.
struct Local {
    master: OwnedFd,
    child: Child,
}

impl Local {
    fn start(mut command: Command) -> Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        let end = || -> Result<Stdio> { Ok(slave.try_clone()?.into()) };
        let child = command.stdin(end()?).stdout(end()?).stderr(end()?).spawn().context("start the client")?;
        let mut local = Self { master, child };
        let mut said = Vec::new();
        while !listens(&said) {
            said.extend(local.read().with_context(|| String::from_utf8_lossy(&said).into_owned())?);
        }
        Ok(local)
    }

    fn key(&mut self, key: u8) -> Result<()> {
        rustix::io::write(&self.master, &[key])?;
        let back = self.read()?;
        ensure!(back == [key], "{key} came back as {back:?}");
        Ok(())
    }

    fn read(&mut self) -> Result<Vec<u8>> {
        let wait = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        ensure!(poll(&mut [PollFd::from_borrowed_fd(self.master.as_fd(), PollFlags::IN)], Some(&wait))? > 0, "silence");
        let mut buffer = [0; 4096];
        let length = rustix::io::read(&self.master, &mut buffer)?;
        Ok(buffer[..length].to_vec())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}
