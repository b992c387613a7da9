//! `POST /command`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::rc::Rc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONNECTION};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use hyper::body::Incoming;
use protocol::execd::output::{CommandKind, Overflow};
use protocol::execd::{header, stream};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use tokio::net::unix::pipe::Receiver;

use super::journal::{Journal, Limits};
use super::pump::{self, Events, OnDisconnect, Published, Pump};
use super::request::check;
use super::{Cause, Command, Origin, Start, cancel};
use crate::daemon::Daemon;
use crate::error::{ApiError, Result};
use crate::http::{Answer, ByteSender, read_json};
use crate::id;
use crate::spawn::{Extra, Plan, Stdio, spawn_with};

/// Bytes of a pipe between a command and execd: fewer wake-ups in a flood.
const PIPE_BYTES: usize = 256 * 1024;
/// Longest timer that the runtime takes; a longer timeout is beyond any sandbox's life.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Starts a command and answers with its stream of events.
///
/// # Errors
/// 400 for a request that cannot be obeyed, 500 when descriptors are out.
pub async fn run(daemon: Rc<Daemon>, request: Request<Incoming>) -> Result<Answer> {
    let on_disconnect = on_disconnect(request.headers(), OnDisconnect::Continue)?;
    let checked = check(&daemon, read_json(request).await?)?;
    let kind = if checked.background { CommandKind::Background } else { CommandKind::Foreground };
    let launch = Launch {
        plan: checked.plan,
        kind,
        session_id: None,
        content: checked.content,
        timeout_ms: checked.timeout_ms,
        overflow: checked.overflow,
        descriptor: None,
    };
    if checked.background {
        return start_background(&daemon, launch);
    }
    let published = Published::of_command(on_disconnect);
    Ok(start_foreground(&daemon, launch, published)?.1)
}

/// What the request says about the end of its connection.
///
/// # Errors
/// 400 for an unknown word.
pub fn on_disconnect(headers: &HeaderMap, default: OnDisconnect) -> Result<OnDisconnect> {
    match headers.get(header::ON_DISCONNECT) {
        None => Ok(default),
        Some(value) if value == header::ON_DISCONNECT_CANCEL => Ok(OnDisconnect::Cancel),
        Some(value) if value == header::ON_DISCONNECT_CONTINUE => Ok(OnDisconnect::Continue),
        Some(value) => Err(ApiError::body(format!(
            "header {}: {value:?} is not {:?} or {:?}",
            header::ON_DISCONNECT,
            header::ON_DISCONNECT_CANCEL,
            header::ON_DISCONNECT_CONTINUE
        ))),
    }
}

/// What is to be started.
pub struct Launch<'a> {
    /// The process, or why there can be none: an error of the command and not of the request.
    pub plan: std::result::Result<Plan, String>,
    /// How it was asked for.
    pub kind: CommandKind,
    /// The session of a session run.
    pub session_id: Option<String>,
    /// What status calls show.
    pub content: String,
    /// Milliseconds; `None` means never.
    pub timeout_ms: Option<u64>,
    /// What goes when its spool is full.
    pub overflow: Overflow,
    /// What the process finds as its descriptor 3.
    pub descriptor: Option<BorrowedFd<'a>>,
}

/// Starts a command whose answer is its stream.
///
/// # Errors
/// 500 when descriptors are out.
pub fn start_foreground(
    daemon: &Rc<Daemon>,
    launch: Launch<'_>,
    published: Published,
) -> Result<(Rc<Command>, Answer)> {
    let (stdout, stdout_writer) = output_pipe()?;
    let separate = if published.is_merged() { None } else { Some(output_pipe()?) };
    let (stderr, stderr_writer) = separate.unzip();
    let command = start(daemon, launch, &stdout_writer, stderr_writer.as_ref().unwrap_or(&stdout_writer));
    drop((stdout_writer, stderr_writer));
    let (events, answer) = answer_of(&command);
    let pump = Pump::new(Rc::clone(daemon), Rc::clone(&command), stdout, stderr);
    tokio::task::spawn_local(pump.foreground(events, published));
    Ok((command, answer))
}

/// Both streams go through one pipe, so that the log has them in the order in which they were written.
fn start_background(daemon: &Rc<Daemon>, launch: Launch<'_>) -> Result<Answer> {
    let (output, writer) = output_pipe()?;
    let command = start(daemon, launch, &writer, &writer);
    drop(writer);
    let (events, answer) = answer_of(&command);
    let started = Rc::clone(&command);
    tokio::task::spawn_local(async move { pump::announce(&started, events).await });
    let pump = Pump::new(Rc::clone(daemon), command, output, None);
    tokio::task::spawn_local(pump.background());
    Ok(answer)
}

fn answer_of(command: &Command) -> (Events, Answer) {
    let (sender, mut answer) = event_stream();
    let id = HeaderValue::try_from(&command.id).expect("hexadecimal digits make a header value");
    answer.headers_mut().insert(HeaderName::from_static(header::COMMAND_ID), id);
    (Events::new(sender), answer)
}

/// Starts the process, notes the command, and looks after its deadline and its end.
fn start(daemon: &Rc<Daemon>, launch: Launch<'_>, stdout: &OwnedFd, stderr: &OwnedFd) -> Rc<Command> {
    let tag = id::tag();
    let oom_kills = daemon.counters.oom_kills();
    let start = match &launch.plan {
        Ok(plan) => {
            start_process(daemon, plan, Extra { descriptor: launch.descriptor, tag: Some(tag) }, stdout, stderr)
        }
        Err(why) => Start::Failed(why.clone()),
    };
    let kept = Rc::clone(daemon.commands.kept());
    let journal = Journal::new(Limits::DEFAULT, launch.overflow, Rc::new(move || kept.free_oldest()));
    let origin =
        Origin { id: id::hex(), kind: launch.kind, session_id: launch.session_id, content: launch.content, tag };
    let command = Command::new(origin, start, journal, Rc::clone(&daemon.counters), oom_kills);
    daemon.commands.insert(&command);
    daemon.counters.command_started();
    keep(&command, launch.timeout_ms);
    command
}

fn start_process(daemon: &Daemon, plan: &Plan, extra: Extra<'_>, stdout: &OwnedFd, stderr: &OwnedFd) -> Start {
    if let Some(identity) = &plan.identity {
        // So that /dev/stdout and /dev/stderr can be opened by the one who writes to them. A refusal leaves
        // the descriptors themselves, which work.
        for output in [stdout, stderr] {
            let _ = fchown(output, Some(identity.uid), Some(identity.gid));
        }
    }
    let stdio = Stdio { fds: [daemon.null(), stdout, stderr].map(|fd| Some(fd.as_fd())) };
    match spawn_with(plan, &stdio, extra) {
        Ok(pid) => Start::Process(daemon.reaper.register(pid)),
        Err(error) => Start::Failed(error.to_string()),
    }
}

/// Enforces the deadline and notes the end, whether or not anybody listens.
fn keep(command: &Rc<Command>, timeout_ms: Option<u64>) {
    let command = Rc::clone(command);
    tokio::task::spawn_local(async move {
        let Start::Process(process) = &command.start else {
            return;
        };
        if let Some(ms) = timeout_ms {
            let timeout = Duration::from_millis(ms).min(MAX_TIMEOUT);
            if tokio::time::timeout(timeout, process.wait()).await.is_err() {
                // What does not end is told by the command that goes on running.
                let _ = cancel::kill(&command, Cause::Timeout(ms)).await;
            }
        }
        process.wait().await;
        command.finished_ms.set(Some(crate::clock::now_ms()));
        command.journal.ending();
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

/// The answer of an event stream, and the end that fills it.
pub fn event_stream() -> (ByteSender, Answer) {
    let (sender, mut answer) = crate::http::stream(stream::CONTENT_TYPE, None);
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONNECTION, HeaderValue::from_static("keep-alive"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    (sender, answer)
}
