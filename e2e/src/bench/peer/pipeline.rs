//! A plain pipeline of as many hops as the output of a command takes: pipe, unix socket, TCP, without HTTP, events
//! or JSON. The relays are processes of their own, as execd and the server are.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

/// Bytes of one read: the size of a pipe.
const CHUNK_BYTES: usize = 64 << 10;

/// Runs `command` by the shell and reads what comes out at the end; returns million bytes in a second.
///
/// # Errors
/// Another number of bytes than `expected` arrives.
pub fn run(scratch: &Path, command: &str, expected: u64) -> Result<f64> {
    let program = std::env::current_exe()?;
    let socket = tempfile::Builder::new().prefix("pipeline-").tempdir_in(scratch)?;
    let path = socket.path().join("socket");
    let unix = UnixListener::bind(&path)?;
    let tcp = TcpListener::bind("127.0.0.1:0")?;
    let to = tcp.local_addr()?.to_string();
    let start = Instant::now();
    let mut source = Command::new("bash").args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let pipe = source.stdout.take().context("its output is a pipe")?;
    let mut first = relay_process(&program, &["unix", &path.display().to_string()], pipe.into())?;
    let (between, _) = unix.accept()?;
    let mut second = relay_process(&program, &["tcp", &to], std::os::fd::OwnedFd::from(between).into())?;
    let (mut end, _) = tcp.accept()?;
    let bytes = count(&mut end)?;
    let seconds = start.elapsed().as_secs_f64();
    for child in [&mut source, &mut first, &mut second] {
        let status = child.wait()?;
        ensure!(status.success(), "a part of the pipeline ended with {status}");
    }
    ensure!(bytes == expected, "the pipeline delivered {bytes} of {expected} bytes");
    Ok(bytes as f64 / 1e6 / seconds)
}

fn relay_process(program: &Path, words: &[&str], input: Stdio) -> Result<Child> {
    Command::new(program).arg("relay").args(words).stdin(input).spawn().context("start a relay")
}

/// Copies standard input to a socket, to the end.
///
/// # Errors
/// Either side breaks.
pub fn relay(kind: &str, to: &str) -> Result<()> {
    let mut input = std::io::stdin().lock();
    match kind {
        "unix" => copy(&mut input, std::os::unix::net::UnixStream::connect(to)?),
        "tcp" => copy(&mut input, std::net::TcpStream::connect(to)?),
        other => bail!("a relay goes to unix or tcp, not to {other}"),
    }
}

fn copy(from: &mut impl std::os::fd::AsFd, mut to: impl std::io::Write) -> Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match rustix::io::read(from.as_fd(), &mut buffer)? {
            0 => return Ok(()),
            length => to.write_all(&buffer[..length])?,
        }
    }
}

/// Reads to the end and counts.
///
/// # Errors
/// The reader breaks.
pub fn count(from: &mut impl Read) -> Result<u64> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(bytes),
            length => bytes += length as u64,
        }
    }
}
