//! How a command ended, for both of its faces: the published stream and the lossless one.

use protocol::execd::output::{CommandEnd, EndedBy, Outcome};
use protocol::execd::stream::COMMAND_ERROR_NAME;

use super::{Command, Start};
use crate::reaper::Exit;

/// Exit code of a command that could not be started.
const NOT_STARTED: i32 = 255;
/// Exit code of a command that a signal ended.
const SIGNALED: i32 = -1;

/// Why a command was ended from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its timeout of so many milliseconds.
    Timeout(u64),
    /// Somebody's wish.
    By(EndedBy),
}

/// What went wrong besides the command itself, told to the published client in place of its end.
pub struct Fault {
    /// `ename` of the error event.
    pub name: &'static str,
    /// For people.
    pub why: String,
}

/// The end as the published clients see it.
pub struct End {
    /// Exit code.
    pub code: i32,
    /// `ename`.
    pub name: &'static str,
    /// `evalue`.
    pub evalue: String,
    /// Empty after success.
    pub detail: Vec<String>,
}

impl End {
    /// Exit code 0.
    pub fn success() -> Self {
        Self { code: 0, name: COMMAND_ERROR_NAME, evalue: "0".into(), detail: Vec::new() }
    }

    fn failed(code: i32, evalue: String, detail: Vec<String>) -> Self {
        Self { code, name: COMMAND_ERROR_NAME, evalue, detail }
    }
}

impl Command {
    /// How it ended; `None` while it runs.
    pub fn end(&self) -> Option<End> {
        let exit = match &self.start {
            Start::Failed(why) => return Some(End::failed(NOT_STARTED, why.clone(), vec![why.clone()])),
            Start::Process(process) => process.exit()?,
        };
        let mut end = match exit {
            Exit::Code(0) => End::success(),
            Exit::Code(code) => End::failed(code, code.to_string(), vec![format!("exit status {code}")]),
            Exit::Signal { number, dumped } => {
                let core = if dumped { " (core dumped)" } else { "" };
                let detail = vec![format!("signal: {}{core}", signal_name(number))];
                End::failed(SIGNALED, SIGNALED.to_string(), detail)
            }
        };
        if end.code != 0 {
            end.detail.extend(self.explanation(exit));
        }
        Some(end)
    }

    /// How the published stream ends: as the command, or with what went wrong besides.
    pub fn published_end(&self) -> Option<End> {
        match self.fault.get() {
            Some(Fault { name, why }) => {
                Some(End { code: NOT_STARTED, name, evalue: why.clone(), detail: vec![why.clone()] })
            }
            None => self.end(),
        }
    }

    /// The same for the lossless stream, in full.
    pub fn command_end(&self) -> Option<CommandEnd> {
        let mut end = CommandEnd { outcome: Outcome::Exited, exit_code: None, signal: None, by: None, detail: None };
        let exit = match &self.start {
            Start::Failed(why) => {
                return Some(CommandEnd { outcome: Outcome::NotStarted, detail: Some(why.clone()), ..end });
            }
            Start::Process(process) => process.exit()?,
        };
        match exit {
            Exit::Code(code) => end.exit_code = Some(code),
            Exit::Signal { number: 0, .. } => {
                end.detail = Some("the kernel reported neither an exit code nor a signal".into());
                end.outcome = Outcome::Unknown;
                return Some(end);
            }
            Exit::Signal { number, .. } => {
                end.signal = Some(number);
                end.outcome = Outcome::Signaled;
            }
        }
        end.detail = self.explanation(exit).or_else(|| self.fault.get().map(|fault| fault.why.clone()));
        match self.cause.get() {
            Some(Cause::Timeout(_)) => end.outcome = Outcome::TimedOut,
            Some(Cause::By(by)) => (end.outcome, end.by) = (Outcome::Killed, Some(by)),
            None if self.is_oom(exit) => end.outcome = Outcome::Oom,
            None => {}
        }
        Some(end)
    }

    fn explanation(&self, exit: Exit) -> Option<String> {
        match self.cause.get() {
            Some(Cause::Timeout(ms)) => Some(format!("the timeout of {ms} ms was reached")),
            Some(Cause::By(_)) => None,
            None => self.is_oom(exit).then(|| "the memory of the sandbox was used up and the kernel ended it".into()),
        }
    }

    /// Whether the kernel ended the process for memory: it died by KILL, nobody here asked for that, and the
    /// sandbox's own counter went on since it was started.
    fn is_oom(&self, exit: Exit) -> bool {
        matches!(exit, Exit::Signal { number: libc::SIGKILL, .. })
            && *self.met_oom.get_or_init(|| self.counters.oom_kills() > self.oom_kills_before)
    }
}

/// The published daemon's words for signals; others are shown by number.
fn signal_name(number: i32) -> String {
    let name = match number {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGILL => "illegal instruction",
        libc::SIGTRAP => "trace/breakpoint trap",
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGKILL => "killed",
        libc::SIGUSR1 => "user defined signal 1",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGUSR2 => "user defined signal 2",
        libc::SIGPIPE => "broken pipe",
        libc::SIGALRM => "alarm clock",
        libc::SIGTERM => "terminated",
        libc::SIGXCPU => "CPU time limit exceeded",
        libc::SIGXFSZ => "file size limit exceeded",
        libc::SIGSYS => "bad system call",
        number => return format!("signal {number}"),
    };
    name.to_owned()
}
