//! Runs in the foreground: a stream of events.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use protocol::execd::isolated::{EXIT_ERROR_NAME, RUNTIME_ERROR_NAME, Run};
use protocol::execd::stream::{StreamError, StreamEvent};
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Instant, interval_at, sleep_until, timeout};

use super::shell::{self, Progress};
use super::{Busy, Session};
use crate::clock;
use crate::command::{self, Cut, Lines};
use crate::error::{ApiError, Result, system_text};
use crate::http::{Answer, ByteSender};
use crate::id;
use crate::reaper::Exit;

/// Between two signs of life.
const PING_EVERY: Duration = Duration::from_secs(3);
/// Bytes that are read at once.
const READ_BYTES: usize = 32 * 1024;
/// How long what was interrupted may take to end before it is killed.
const INTERRUPT_GRACE: Duration = Duration::from_secs(3);
/// How long the shell may take to start.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Bytes of a run's code.
const MAX_CODE_BYTES: usize = 1024 * 1024;
/// Longest timer that the runtime takes.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A run that can be obeyed.
pub struct Checked {
    /// Shell text.
    pub code: String,
    /// Its variables.
    pub envs: BTreeMap<String, String>,
    /// When it is interrupted.
    pub timeout: Option<Duration>,
}

/// Refuses what cannot be run.
///
/// # Errors
/// 400 naming the field.
pub fn check(run: Run) -> Result<Checked> {
    let code = run.code.filter(|code| !code.trim().is_empty());
    let code = code.ok_or_else(|| ApiError::body("code: is required and not empty"))?;
    if code.len() > MAX_CODE_BYTES {
        return Err(ApiError::body(format!(
            "code: {} bytes are more than {MAX_CODE_BYTES}; upload it as a file and run that",
            code.len()
        )));
    }
    if code.contains('\0') {
        return Err(ApiError::body("code: holds a NUL byte"));
    }
    let envs = run.envs.unwrap_or_default();
    for (name, value) in &envs {
        let mut letters = name.bytes();
        let begins = letters.next().is_some_and(|letter| letter.is_ascii_alphabetic() || letter == b'_');
        if !begins || !letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_') {
            return Err(ApiError::body(format!("envs: {name:?} is not a name of a shell variable")));
        }
        if value.contains('\0') {
            return Err(ApiError::body(format!("envs: the value of {name} holds a NUL byte")));
        }
    }
    let seconds = u64::try_from(run.timeout_seconds.unwrap_or(0))
        .map_err(|_| ApiError::body("timeout_seconds: is negative; leave it out for none"))?;
    let timeout = (seconds > 0).then(|| Duration::from_secs(seconds).min(MAX_TIMEOUT));
    Ok(Checked { code, envs, timeout })
}

/// The commands that set a run's variables.
pub fn exports(envs: &BTreeMap<String, String>) -> String {
    envs.iter().map(|(name, value)| format!("export {name}={}; ", quoted(value))).collect()
}

/// A word for the shell, whatever it holds.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Runs code in the session's shell.
///
/// # Errors
/// 400 when the shell has ended.
pub fn foreground(session: &Rc<Session>, checked: Checked) -> Result<Answer> {
    session.must_live()?;
    let (sender, answer) = command::event_stream();
    let busy = session.begin();
    tokio::task::spawn_local(async move { Foreground { busy, sender, started: Instant::now() }.run(checked).await });
    Ok(answer)
}

struct Foreground {
    busy: Busy,
    sender: ByteSender,
    started: Instant,
}

/// What makes a run not come to its own end.
#[derive(Clone, Copy)]
enum Cause {
    Timeout(Duration),
    Client,
}

impl Foreground {
    async fn run(self, checked: Checked) {
        let session = Rc::clone(&self.busy.0);
        let first = [event("init", Some(id::uuid())), event("ping", Some("pong".into()))].concat();
        self.send(first).await;
        let turn = tokio::select! {
            turn = session.turn.lock() => turn,
            () = self.sender.closed() => return, // nobody waits for what has not begun
        };
        let last = match self.in_turn(&session, checked).await {
            Ok(event) => event,
            Err(why) => error(RUNTIME_ERROR_NAME, "-1", &why),
        };
        drop(turn);
        self.send(last).await;
    }

    async fn in_turn(&self, session: &Session, checked: Checked) -> std::result::Result<Vec<u8>, String> {
        let mut progress = session.shell.progress.subscribe();
        let mut output = session.shell.output.lock().await;
        let ready = timeout(START_LIMIT, progress.wait_for(|progress| progress.ready));
        tokio::select! {
            ready = ready => { ready.map_err(|_| "the session's shell does not start")?.map_err(|_| "the session ends")?; }
            exit = session.shell.ended() => return Ok(ended(exit)),
        }
        if !session.quiet.replace(true) {
            // What an interactive shell without a terminal says of itself at its start.
            while read_now(&mut output).is_some() {}
        }
        let run = session.next_run();
        let full = |error: io::Error| format!("keep the code of the run: {}", system_text(&error));
        let path = session.shell.write_file(&format!("{run}.sh"), checked.code.as_bytes()).map_err(full)?;
        let read = format!(". {path}");
        let read = if checked.envs.is_empty() { read } else { format!("( {}{read} )", exports(&checked.envs)) };
        let line = format!("{read} </dev/null 3>&-\n{}", report(run, "\"$?\""));
        let fed = session.shell.feed(&line).await;
        let last = match fed {
            Ok(()) => self.follow(session, &mut output, run, checked.timeout).await,
            Err(_) => Ok(ended(session.shell.ended().await)),
        };
        shell::remove_file(&path);
        last
    }

    /// Sends the output until the run is done.
    async fn follow(
        &self,
        session: &Session,
        output: &mut Receiver,
        run: u64,
        limit: Option<Duration>,
    ) -> std::result::Result<Vec<u8>, String> {
        let mut progress = session.shell.progress.subscribe();
        let mut lines = Lines::stdout();
        let mut pings = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        let far = Instant::now() + MAX_TIMEOUT;
        let mut interrupt_at = limit.map_or(far, |limit| Instant::now() + limit);
        let mut cut: Option<Cause> = None;
        let mut buffer = vec![0; READ_BYTES];
        let mut open = true;
        let mut rounds = 0u32;
        let end = loop {
            tokio::select! {
                biased;
                done = progress.wait_for(|progress| progress.done >= run) => {
                    break done.map(|done| *done).map_err(|_| "the session ends".to_owned())?.into();
                }
                exit = session.shell.ended() => break End::Shell(exit),
                ready = output.readable(), if open => {
                    match ready.and_then(|()| output.try_read(&mut buffer)) {
                        Ok(0) => open = false, // the shell's end is seen as such
                        Ok(count) => self.text(&mut lines, &buffer[..count]).await,
                        Err(error) => open = error.kind() == io::ErrorKind::WouldBlock,
                    }
                }
                () = self.sender.closed(), if cut.is_none() => {
                    cut = Some(Cause::Client);
                    rounds += 1;
                    interrupt(session, run).await;
                    interrupt_at = Instant::now() + INTERRUPT_GRACE;
                }
                () = sleep_until(interrupt_at) => {
                    // In turn: what is killed may take the shell back by itself, and a signal that meets it while it
                    // reads its next line would tear that line apart.
                    rounds += 1;
                    if cut.is_some() && rounds.is_multiple_of(2) {
                        session.shell.kill_children(&session.runs.processes());
                    } else {
                        cut = cut.or(limit.map(Cause::Timeout));
                        interrupt(session, run).await;
                    }
                    interrupt_at = Instant::now() + INTERRUPT_GRACE;
                }
                _ = pings.tick() => self.send(event("ping", Some("pong".into()))).await,
            }
        };
        // What the run itself wrote is in the pipe by now.
        while let Some(bytes) = read_now(output) {
            self.text(&mut lines, &bytes).await;
        }
        let mut out = Vec::new();
        lines.finish(&suffix(), &mut out);
        self.send(out).await;
        Ok(match (cut, end) {
            (Some(Cause::Timeout(limit)), _) => {
                error(RUNTIME_ERROR_NAME, "-1", &format!("the run was interrupted after {} s", limit.as_secs()))
            }
            (_, End::Shell(exit)) => ended(exit),
            (_, End::Done(0)) => self.complete(),
            (_, End::Done(code)) => error(EXIT_ERROR_NAME, &code.to_string(), &format!("exit status {code}")),
        })
    }

    async fn text(&self, lines: &mut Lines, bytes: &[u8]) {
        let mut out = Vec::new();
        // Long lines come in pieces and are never refused.
        let _ = lines.feed(bytes, &suffix(), &mut out);
        self.send(out).await;
    }

    /// A client who has left reads nothing more.
    async fn send(&self, out: Vec<u8>) {
        if !out.is_empty() {
            let _ = self.sender.send(Ok(Bytes::from(out))).await;
        }
    }

    fn complete(&self) -> Vec<u8> {
        let ms = self.started.elapsed().as_millis() as i64;
        let execution_time = (ms > 0).then_some(ms);
        encoded(&StreamEvent { kind: "execution_complete".into(), execution_time, ..now() })
    }
}

/// How a run ended.
enum End {
    /// With this status.
    Done(i32),
    /// With the shell.
    Shell(Exit),
}

impl From<Progress> for End {
    fn from(progress: Progress) -> Self {
        Self::Done(progress.code)
    }
}

/// Takes the shell back to its next line, which says that the run is done.
async fn interrupt(session: &Session, run: u64) {
    session.shell.interrupt();
    let _ = session.shell.feed(&report(run, "130")).await; // a shell that has ended is seen by its end
}

fn report(run: u64, status: &str) -> String {
    format!("command printf 'done %s %s\\n' {run} {status} >&3\n")
}

fn read_now(output: &mut Receiver) -> Option<Vec<u8>> {
    let mut buffer = vec![0; READ_BYTES];
    match output.try_read(&mut buffer) {
        Ok(count @ 1..) => {
            buffer.truncate(count);
            Some(buffer)
        }
        _ => None,
    }
}

fn ended(exit: Exit) -> Vec<u8> {
    match exit {
        Exit::Code(0) => encoded(&StreamEvent { kind: "execution_complete".into(), ..now() }),
        Exit::Code(code) => {
            error(EXIT_ERROR_NAME, &code.to_string(), &format!("exit status {code}; the session is over"))
        }
        Exit::Signal { number, .. } => {
            error(RUNTIME_ERROR_NAME, "-1", &format!("the session's shell was ended by signal {number}"))
        }
    }
}

fn error(name: &str, value: &str, detail: &str) -> Vec<u8> {
    let error = StreamError { ename: name.into(), evalue: value.into(), traceback: Some(vec![detail.into()]) };
    encoded(&StreamEvent { kind: "error".into(), error: Some(error), ..now() })
}

fn event(kind: &str, text: Option<String>) -> Vec<u8> {
    encoded(&StreamEvent { kind: kind.into(), text, ..now() })
}

fn now() -> StreamEvent {
    StreamEvent { timestamp: clock::now_ms(), ..StreamEvent::default() }
}

fn encoded(event: &StreamEvent) -> Vec<u8> {
    // Strings and numbers can always be written as JSON.
    let mut out = serde_json::to_vec(event).unwrap_or_default();
    out.extend_from_slice(b"\n\n");
    out
}

fn suffix() -> Vec<u8> {
    format!("\",\"timestamp\":{}}}\n\n", clock::now_ms()).into_bytes()
}
