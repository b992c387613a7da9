//! `POST /command`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::rc::Rc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONNECTION};
use http::{HeaderName, HeaderValue, Request};
use hyper::body::Incoming;
use protocol::execd::{header, stream};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::Signal;
use tokio::net::unix::pipe::Receiver;

use super::pump::{self, Events, Foreground, OnDisconnect};
use super::request::{Checked, check};
use super::{Command, Outcome, cancel};
use crate::daemon::Daemon;
use crate::error::{ApiError, Result};
use crate::http::{Answer, ByteSender, read_json};
use crate::spawn::{Plan, Stdio, spawn};

/// Bytes of a pipe between a command and execd: fewer wake-ups in a flood.
const PIPE_BYTES: usize = 256 * 1024;
/// Longest timer that the runtime takes; a longer timeout is beyond any sandbox's life.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Starts a command and answers with its stream of events.
///
/// # Errors
/// 400 for a request that cannot be obeyed, 500 when descriptors or disk are out.
pub async fn run(daemon: Rc<Daemon>, request: Request<Incoming>) -> Result<Answer> {
    let on_disconnect = match request.headers().get(header::ON_DISCONNECT) {
        None => OnDisconnect::Continue,
        Some(value) if value == header::ON_DISCONNECT_CANCEL => OnDisconnect::Cancel,
        Some(value) => {
            return Err(ApiError::body(format!(
                "header {}: {value:?} is not {:?}",
                header::ON_DISCONNECT,
                header::ON_DISCONNECT_CANCEL
            )));
        }
    };
    let checked = check(&daemon, read_json(request).await?)?;
    if checked.background {
        start_background(&daemon, checked)
    } else {
        start_foreground(&daemon, checked, on_disconnect)
    }
}

fn start_foreground(daemon: &Rc<Daemon>, checked: Checked, on_disconnect: OnDisconnect) -> Result<Answer> {
    let (stdout, stdout_writer) = output_pipe()?;
    let (stderr, stderr_writer) = output_pipe()?;
    let outcome = start(daemon, &checked.plan, &stdout_writer, &stderr_writer);
    drop((stdout_writer, stderr_writer));
    let command = Command::new(new_id(), checked.content, outcome, None);
    daemon.commands.insert(&command);
    keep(&command, checked.timeout_ms);
    let (sender, answer) = event_stream();
    let events = Events::new(sender);
    tokio::task::spawn_local(async move {
        Foreground::new(&command, stdout, stderr, events).run(on_disconnect).await;
    });
    Ok(answer)
}

fn start_background(daemon: &Rc<Daemon>, checked: Checked) -> Result<Answer> {
    let id = new_id();
    let (log, writer) =
        daemon.commands.spool.create(&id).map_err(|error| ApiError::runtime(format!("keep the output: {error}")))?;
    let outcome = start(daemon, &checked.plan, &writer, &writer);
    drop(writer);
    // A start that failed leaves no file behind.
    let log = matches!(outcome, Outcome::Started(_)).then_some(log);
    let command = Command::new(id, checked.content, outcome, log);
    daemon.commands.insert(&command);
    keep(&command, checked.timeout_ms);
    let (sender, answer) = event_stream();
    let events = Events::new(sender);
    tokio::task::spawn_local(async move { pump::background(&command, events).await });
    Ok(answer)
}

fn start(daemon: &Daemon, plan: &std::result::Result<Plan, String>, stdout: &OwnedFd, stderr: &OwnedFd) -> Outcome {
    let plan = match plan {
        Ok(plan) => plan,
        Err(why) => return Outcome::Failed(why.clone()),
    };
    if let Some(identity) = &plan.identity {
        // So that /dev/stdout and /dev/stderr can be opened by the one who writes to them. A refusal leaves
        // the descriptors themselves, which work.
        for output in [stdout, stderr] {
            let _ = fchown(output, Some(identity.uid), Some(identity.gid));
        }
    }
    let stdio = Stdio { fds: [daemon.null(), stdout, stderr].map(|fd| Some(fd.as_fd())) };
    match spawn(plan, &stdio) {
        Ok(pid) => Outcome::Started(daemon.reaper.register(pid)),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

/// Enforces the deadline and notes the end, whether or not anybody listens.
fn keep(command: &Rc<Command>, timeout_ms: Option<u64>) {
    if !matches!(command.outcome, Outcome::Started(_)) {
        return;
    }
    let command = Rc::clone(command);
    tokio::task::spawn_local(async move {
        let Outcome::Started(process) = &command.outcome else {
            return;
        };
        if let Some(ms) = timeout_ms {
            let timeout = Duration::from_millis(ms).min(MAX_TIMEOUT);
            if tokio::time::timeout(timeout, process.wait()).await.is_err() {
                let _ = command.deadline_passed.set(i64::try_from(ms).unwrap_or(i64::MAX));
                process.signal_group(Signal::KILL);
            }
        }
        process.wait().await;
        command.finished_ms.set(Some(crate::clock::now_ms()));
    });
}

fn output_pipe() -> Result<(Receiver, OwnedFd)> {
    let make = || -> io::Result<(Receiver, OwnedFd)> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let _ = fcntl_setpipe_size(&reader, PIPE_BYTES); // beyond the user's allowance the default stays
        rustix::io::ioctl_fionbio(&reader, true)?;
        Ok((Receiver::from_owned_fd(reader)?, writer))
    };
    make().map_err(|error| ApiError::runtime(format!("make a pipe for the output: {error}")))
}

fn event_stream() -> (ByteSender, Answer) {
    let (sender, mut answer) = crate::http::stream(stream::CONTENT_TYPE, None);
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONNECTION, HeaderValue::from_static("keep-alive"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    (sender, answer)
}

/// 32 lower-case hexadecimal digits.
fn new_id() -> String {
    let mut bytes = [0u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        // 16 bytes from an initialised kernel pool come at once and whole.
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()).unwrap_or(0);
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Ends a command whose client went away and asked for that.
pub(super) async fn end_abandoned(command: &Command) {
    // A command that ended meanwhile needs nothing.
    let _ = cancel::cancel(command).await;
}
