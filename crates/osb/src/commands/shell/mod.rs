//! `osb shell`: a terminal in a sandbox, and what `osb run -it` shares with it.
//!
//! The terminal of this side is put back whatever happens. A dropped connection is taken up again where it broke:
//! output carries offsets, so that nothing is shown twice, and what could not be kept is said.

mod keys;
mod link;
mod tty;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use protocol::execd::pty::CreateTerminal;
use tokio::sync::mpsc;

use super::exec::{self, Captured, EXIT_NOT_RUN, End};
use super::signals::Signals;
use super::{Context, Outcome};
use crate::client::execd::Execd;
use crate::failure::{EXIT_FAILURE, Failure};
use crate::output::Printer;
use crate::units::{self, Limit};

use keys::Leave;
use link::{Ending, Link};

/// Pieces of input that wait for the connection.
const INPUT_PIECES: usize = 16;
/// Output that is shown again when somebody comes back to a terminal, in bytes: a few screens.
const SHOWN_AGAIN: u64 = 16 * 1024;
/// Exit code where a signal ended the shell and nobody told which.
const EXIT_UNKNOWN_SIGNAL: u8 = 255;

/// Arguments of `osb shell`.
#[derive(Args, Debug)]
#[command(
    after_help = "One word is shell text; several words are a program and its arguments; none is an interactive shell.\n\
The exit code is the shell's own; 128+n when signal n ended it, 125 when it could not be run at all.\n\
Where standard input or output is no terminal, the shell gets pipes: input ends where it ends here, and\n\
standard error comes apart.\n\n\
Keys, typed after Enter:\n  ~.   end the terminal and everything in it\n  ~d   leave it running; --attach comes back to it\n  ~~   one ~\n\n\
A dropped connection is taken up again where it broke.\n\n\
Examples:\n  osb shell ID\n  osb shell ID -- htop\n  osb shell ID -- 'cd /work && make' < answers"
)]
pub struct ShellArgs {
    /// The sandbox
    id: String,
    /// Working directory, made when it is missing
    #[arg(short = 'w', long, visible_alias = "workdir", value_name = "DIR")]
    cwd: Option<String>,
    /// Come back to a terminal that was left running, taking it over from whoever holds it
    #[arg(long, value_name = "TERMINAL", conflicts_with_all = ["cwd", "command"])]
    attach: Option<String>,
    /// How long to try to take up a dropped connection, for example 30 or 10m; 0 tries once, none without end
    #[arg(long, value_name = "DURATION", value_parser = units::parse_limit, default_value = "1m")]
    reconnect: Limit,
    /// What to run in place of an interactive shell
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// How a terminal is used.
pub struct Terms {
    /// A terminal there for the terminal here; pipes otherwise.
    pub tty: bool,
    /// Whether standard input goes there.
    pub input: bool,
    /// Whether it may be left running.
    pub may_detach: bool,
    /// How long a dropped connection is taken up again; `None` for ever.
    pub reconnect: Option<Duration>,
    /// It was there before: where it cannot be used, it stays.
    pub was_there: bool,
}

/// Runs `osb shell`.
pub async fn run(ctx: &Context, args: &ShellArgs) -> Outcome {
    in_sandbox(ctx, args).await.map_err(|mut failure| {
        if failure.exit == EXIT_FAILURE {
            failure.exit = EXIT_NOT_RUN;
        }
        failure
    })
}

async fn in_sandbox(ctx: &Context, args: &ShellArgs) -> Outcome {
    refuse_documents(&ctx.printer, "shell")?;
    let mut signals = Signals::listen()?;
    let execd = ctx.client()?.execd(&args.id).await?;
    let tty = tty::is_interactive();
    let (id, since) = match &args.attach {
        Some(id) => {
            let status = execd.terminal(id).await?;
            (id.clone(), status.output_offset.saturating_sub(SHOWN_AGAIN))
        }
        None => {
            let command = match args.command.as_slice() {
                [] => None,
                [text] => Some(text.clone()),
                words => Some(exec_words(words)),
            };
            (execd.create_terminal(&CreateTerminal { cwd: args.cwd.clone(), command }).await?, 0)
        }
    };
    let reconnect = match args.reconnect {
        Limit::None => None,
        Limit::After(time) => Some(time),
    };
    let terms = Terms { tty, input: true, may_detach: true, reconnect, was_there: args.attach.is_some() };
    match use_terminal(&execd, &id, since, &terms, &mut signals, &ctx.printer).await? {
        Some(end) => exec::report(&ctx.printer, &args.id, &end, &Captured::default()),
        None => {
            ctx.printer.note(&format!("osb: left running; come back with `osb shell {} --attach {id}`", args.id));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Refuses a form of output that a terminal cannot have.
///
/// # Errors
/// When a document was asked for.
pub fn refuse_documents(printer: &Printer, what: &str) -> Result<(), Failure> {
    if printer.format.is_structured() {
        let name = printer.format.name();
        return Err(Failure::usage(format!("{what}: output as it comes is no {name} document; leave -o {name} out")));
    }
    Ok(())
}

/// Refuses a terminal where standard input is none.
///
/// # Errors
/// When it is none.
pub fn require_terminal() -> Result<(), Failure> {
    if tty::is_terminal_input() {
        return Ok(());
    }
    Err(Failure::usage("-t: standard input is not a terminal")
        .hint("leave -t out and keep -i: the command then gets standard input as a pipe"))
}

/// A program and its arguments as shell text.
pub fn exec_words(words: &[String]) -> String {
    let quoted = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    format!("exec {}", quoted.collect::<Vec<_>>().join(" "))
}

/// Uses a terminal until its shell ends, or this side does; `None` when it was left running. In other cases it is
/// removed, unless another client has it now or it was there before and could not be used.
///
/// # Errors
/// The connection cannot be made, or is lost for good; the output cannot be written.
pub async fn use_terminal(
    execd: &Execd,
    id: &str,
    since: u64,
    terms: &Terms,
    signals: &mut Signals,
    printer: &Printer,
) -> Result<Option<End>, Failure> {
    let outcome = async { attached(&mut Link::new(execd, id, since, terms, printer)?, terms, signals).await }.await;
    if let Ok(None) = outcome {
        return outcome;
    }
    let stays = outcome.as_ref().is_err_and(|failure| terms.was_there || failure.code == link::TAKEN_OVER);
    if !stays && let Err(failure) = execd.end_terminal(id).await {
        // Where the connection is lost that was said already, and the idle limit ends it.
        if outcome.is_ok() && failure.status != Some(404) {
            printer.note(&format!("osb: terminal {id} could not be removed: {failure}"));
        }
    }
    outcome
}

async fn attached(link: &mut Link<'_>, terms: &Terms, signals: &mut Signals) -> Result<Option<End>, Failure> {
    let (sender, input) = mpsc::channel(INPUT_PIECES);
    let (leave, mut left) = mpsc::channel(1);
    let by_signal = |signal| End { exit: 128 + signal, signal: Some(signal), ..End::default() };
    let socket = tokio::select! {
        socket = link.connect() => socket?,
        signal = signals.next() => return Ok(Some(by_signal(signal))),
    };
    let raw = if terms.tty && terms.input { Some(tty::Raw::enter()?) } else { None };
    if terms.input {
        tokio::spawn(keys::read(sender, leave, raw.is_some(), terms.may_detach));
    } else {
        drop((sender, leave));
    }
    let outcome = tokio::select! {
        ending = link.run(socket, input) => ending,
        Some(leave) = left.recv() => Ok(Ending::Left(leave)),
        signal = signals.next() => Ok(Ending::Signal(signal)),
    };
    let is_clean = matches!(outcome, Ok(Ending::Exited { .. }));
    if let Some(raw) = raw {
        raw.leave(is_clean);
    }
    Ok(match outcome? {
        Ending::Exited { code, signal } => Some(end_of(code, signal.as_deref())),
        Ending::Left(Leave::Detach) => None,
        Ending::Left(Leave::End) => Some(End {
            exit: 128 + 1,
            signal: Some(1),
            message: Some("the terminal was ended".into()),
            ..End::default()
        }),
        Ending::Signal(signal) => Some(by_signal(signal)),
    })
}

/// What the shell's end means for the exit code.
fn end_of(code: i32, signal: Option<&str>) -> End {
    if let Ok(exit) = u8::try_from(code) {
        return End { exit, ..End::default() };
    }
    let name = signal.unwrap_or("a signal");
    let number = signal.and_then(signal_number);
    End {
        exit: number.map_or(EXIT_UNKNOWN_SIGNAL, |number| 128 + number),
        signal: number,
        message: Some(format!("the shell was ended by {name}")),
        ..End::default()
    }
}

fn signal_number(name: &str) -> Option<u8> {
    if let Some(number) = name.strip_prefix("signal ") {
        return number.parse().ok().filter(|number| (1..=64).contains(number));
    }
    Some(match name {
        "SIGHUP" => 1,
        "SIGINT" => 2,
        "SIGQUIT" => 3,
        "SIGILL" => 4,
        "SIGABRT" => 6,
        "SIGBUS" => 7,
        "SIGFPE" => 8,
        "SIGKILL" => 9,
        "SIGSEGV" => 11,
        "SIGPIPE" => 13,
        "SIGALRM" => 14,
        "SIGTERM" => 15,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{end_of, exec_words};

    #[test]
    fn words_are_quoted_so_that_no_shell_changes_them() {
        let words = ["a b", "it's", "$X", ""].map(str::to_owned);
        assert_eq!(exec_words(&words), r"exec 'a b' 'it'\''s' '$X' ''");
    }

    #[test]
    fn the_exit_code_is_the_shells_or_128_and_the_signal() {
        for (code, signal, exit) in [
            (0, None, 0),
            (255, None, 255),
            (-1, Some("SIGKILL"), 137),
            (-1, Some("signal 10"), 138),
            (-1, Some("signal 900"), 255),
            (-1, None, 255),
        ] {
            assert_eq!(end_of(code, signal).exit, exit, "{code} {signal:?}");
        }
    }
}
