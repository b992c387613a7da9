//! Runs a command in the foreground: its output as it comes, its exit code at the end.

use std::process::ExitCode;

use protocol::execd::command::RunCommand;
use protocol::execd::stream::StreamError;
use serde_json::json;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use super::signals::Signals;
use crate::client::execd::Execd;
use crate::client::stream::{Event, EventStream};
use crate::failure::Failure;
use crate::output::{EXIT_BROKEN_PIPE, Printer, output_failure};

/// Exit code where the command could not be run at all, as `docker run`, `env` and `timeout` have it.
pub const EXIT_NOT_RUN: u8 = 125;
/// Exit code for a program that is there and cannot be executed, as in a shell.
const EXIT_NOT_EXECUTABLE: u8 = 126;
/// Exit code for a program that is not there, as in a shell.
const EXIT_NOT_FOUND: u8 = 127;
/// Exit code for an end by a signal whose number nobody told.
const EXIT_UNKNOWN_SIGNAL: u8 = 255;
/// Most output that is kept for one JSON document, in bytes; more is a failure, never a cut.
const MAX_CAPTURE_BYTES: usize = 64 * 1024 * 1024;

/// How a command ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The exit code for this program: the command's own, or 128 + the signal.
    pub exit: u8,
    /// The signal that ended it.
    pub signal: Option<u8>,
    /// What people should know beyond the code.
    pub message: Option<String>,
    /// How long it took, where the daemon says so.
    pub elapsed_ms: Option<i64>,
    /// Its id in the sandbox.
    pub id: String,
}

/// Output kept for a document.
#[derive(Debug, Default)]
pub struct Captured {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Where output goes.
enum Sink {
    /// To the same descriptors here, as it comes. What arrived together is written together.
    Through { waiting: Vec<u8>, of: Stream, out: tokio::io::Stdout, err: tokio::io::Stderr },
    /// Into memory.
    Kept(Captured),
}

/// One of the two outputs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    Out,
    Err,
}

/// Most output that waits to be written together, in bytes: beyond it a system call more costs nothing.
const MAX_WAITING: usize = 128 * 1024;

/// Runs a command to its end. A signal that reaches this program ends the command, and this program with 128 + its
/// number; a second one stops waiting for that.
///
/// # Errors
/// The daemon cannot be reached or refuses, the stream breaks, or the output cannot be written.
pub async fn foreground(
    execd: &Execd,
    command: &RunCommand,
    signals: &mut Signals,
    printer: &Printer,
) -> Result<(End, Captured), Failure> {
    let (id_known, mut id) = watch::channel(String::new());
    let sink = if printer.format.is_structured() {
        Sink::Kept(Captured::default())
    } else {
        Sink::Through { waiting: Vec::new(), of: Stream::Out, out: tokio::io::stdout(), err: tokio::io::stderr() }
    };
    let work = async {
        let stream = execd.run(command).await?;
        pump(stream, sink, &id_known).await
    };
    tokio::pin!(work);

    let signal = tokio::select! {
        outcome = &mut work => return end_by_itself(execd, &id.borrow(), outcome).await,
        signal = signals.next() => signal,
    };
    printer.note("ending the command; once more to stop waiting for it");
    let end = async {
        // Without an id nothing has been started that could be ended by name; the stream tells soon.
        if id.wait_for(|id| !id.is_empty()).await.is_ok() {
            let id = id.borrow().clone();
            if let Err(failure) = execd.interrupt(&id).await {
                printer.note(&format!("interrupt command {id}: {failure}"));
            }
        }
        std::future::pending::<()>().await;
    };
    let outcome = tokio::select! {
        outcome = &mut work => Some(outcome),
        _ = signals.next() => None,
        () = end => None,
    };
    let (mut end, captured) = outcome.and_then(Result::ok).unwrap_or_default();
    end.exit = 128 + signal;
    end.signal = Some(signal);
    // Whoever sent the signal knows how the command ended.
    end.message = None;
    Ok((end, captured))
}

/// A reader that went away ends the command too, as a signal would in a pipe of this machine.
async fn end_by_itself(
    execd: &Execd,
    id: &str,
    outcome: Result<(End, Captured), Failure>,
) -> Result<(End, Captured), Failure> {
    if let Err(failure) = &outcome
        && failure.exit == EXIT_BROKEN_PIPE
        && !id.is_empty()
    {
        // The command may have ended meanwhile; there is nobody left to tell.
        let _ = execd.interrupt(id).await;
    }
    outcome
}

/// Writes the output of a stream until its terminal event.
async fn pump(mut stream: EventStream, mut sink: Sink, id: &watch::Sender<String>) -> Result<(End, Captured), Failure> {
    let mut end = None;
    while end.is_none() {
        let event = match stream.arrived()? {
            Some(event) => event,
            None => {
                sink.flush().await?;
                match stream.next().await? {
                    Some(event) => event,
                    None => break,
                }
            }
        };
        match event {
            Event::Init(text) => {
                id.send_replace(text);
            }
            Event::Stdout(text) => sink.write(&text, Stream::Out).await?,
            Event::Stderr(text) => sink.write(&text, Stream::Err).await?,
            Event::Complete(elapsed_ms) => end = Some(End { elapsed_ms: Some(elapsed_ms), ..End::default() }),
            Event::Failed(error) => end = Some(end_of(&error)),
            Event::Fault(code, message) => return Err(Failure::new(&code, message)),
            Event::Other => {}
        }
    }
    sink.flush().await?;
    let captured = match sink {
        Sink::Through { .. } => Captured::default(),
        Sink::Kept(captured) => captured,
    };
    match end {
        Some(end) => Ok((End { id: id.borrow().clone(), ..end }, captured)),
        None => Err(Failure::new("STREAM_CUT", "the stream ended before the command did; how it ended is not known")),
    }
}

impl Sink {
    async fn write(&mut self, text: &str, stream: Stream) -> Result<(), Failure> {
        match self {
            Self::Through { waiting, of, .. } => {
                if *of != stream || waiting.len() + text.len() > MAX_WAITING {
                    self.flush().await?;
                }
                if let Self::Through { waiting, of, .. } = self {
                    *of = stream;
                    waiting.extend_from_slice(text.as_bytes());
                }
            }
            Self::Kept(captured) => {
                if captured.stdout.len() + captured.stderr.len() + text.len() > MAX_CAPTURE_BYTES {
                    let message =
                        format!("the output is larger than {MAX_CAPTURE_BYTES} bytes, too much for one document");
                    return Err(Failure::new("OUTPUT_TOO_LARGE", message).hint("stream it with -o raw"));
                }
                match stream {
                    Stream::Out => captured.stdout.push_str(text),
                    Stream::Err => captured.stderr.push_str(text),
                }
            }
        }
        Ok(())
    }

    /// Writes what waits.
    async fn flush(&mut self) -> Result<(), Failure> {
        if let Self::Through { waiting, of, out, err } = self
            && !waiting.is_empty()
        {
            let written = match of {
                Stream::Out => write(out, waiting).await,
                Stream::Err => write(err, waiting).await,
            };
            waiting.clear();
            written.map_err(|error| output_failure(&error))?;
        }
        Ok(())
    }
}

async fn write(output: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<()> {
    output.write_all(bytes).await?;
    output.flush().await
}

/// What a command's failure means for the exit code.
fn end_of(error: &StreamError) -> End {
    let detail = error.traceback.as_ref().and_then(|lines| lines.first());
    match error.evalue.parse::<i64>() {
        Ok(code @ 0..=255) => End { exit: u8::try_from(code).expect("is 0 to 255"), ..End::default() },
        Ok(-1) => match detail.and_then(|line| signal_number(line)) {
            Some(signal) => End {
                exit: 128 + signal,
                signal: Some(signal),
                message: Some(format!("the command was ended by signal {signal}")),
                ..End::default()
            },
            None => End {
                exit: EXIT_UNKNOWN_SIGNAL,
                message: Some(detail.cloned().unwrap_or_else(|| "the command was ended by a signal".into())),
                ..End::default()
            },
        },
        Ok(code) => End { exit: EXIT_UNKNOWN_SIGNAL, message: Some(format!("exit code {code}")), ..End::default() },
        Err(_) => {
            // The protocol has only the system's words to tell these two apart.
            let words = error.evalue.to_ascii_lowercase();
            let missing = words.contains("not found") || words.contains("no such file");
            let exit = if missing { EXIT_NOT_FOUND } else { EXIT_NOT_EXECUTABLE };
            End { exit, message: Some(format!("{}: {}", error.ename, error.evalue)), ..End::default() }
        }
    }
}

/// The number in `signal: killed`, `signal: 9` and the like.
fn signal_number(line: &str) -> Option<u8> {
    let name = line.strip_prefix("signal: ")?;
    let name = name.split(" (").next().unwrap_or(name).trim();
    if let Ok(number) = name.parse() {
        return (1..=64).contains(&number).then_some(number);
    }
    Some(match name {
        "hangup" => 1,
        "interrupt" => 2,
        "quit" => 3,
        "illegal instruction" => 4,
        "trace/breakpoint trap" => 5,
        "aborted" => 6,
        "bus error" => 7,
        "floating point exception" => 8,
        "killed" => 9,
        "user defined signal 1" => 10,
        "segmentation fault" => 11,
        "user defined signal 2" => 12,
        "broken pipe" => 13,
        "alarm clock" => 14,
        "terminated" => 15,
        "stack fault" => 16,
        "cpu time limit exceeded" => 24,
        "file size limit exceeded" => 25,
        "bad system call" => 31,
        _ => return None,
    })
}

/// Writes what a document needs, tells people what they should know, and gives the exit code.
pub fn report(printer: &Printer, sandbox: &str, end: &End, captured: &Captured) -> Result<ExitCode, Failure> {
    if printer.format.is_structured() {
        let mut value = json!({
            "sandbox_id": sandbox,
            "exit_code": end.exit,
            "stdout": captured.stdout,
            "stderr": captured.stderr,
        });
        for (name, part) in [
            ("command_id", (!end.id.is_empty()).then(|| json!(end.id))),
            ("signal", end.signal.map(|signal| json!(signal))),
            ("message", end.message.as_ref().map(|message| json!(message))),
            ("elapsed_ms", end.elapsed_ms.map(|elapsed| json!(elapsed))),
        ] {
            if let Some(part) = part {
                value[name] = part;
            }
        }
        printer.document(&value, String::new)?;
    } else if let Some(message) = &end.message {
        printer.note(&format!("osb: {message}"));
    }
    Ok(ExitCode::from(end.exit))
}

#[cfg(test)]
mod tests;
