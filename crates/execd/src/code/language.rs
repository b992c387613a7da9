//! The languages of contexts: which program runs them, and how it is told what to do.

use std::rc::Rc;

use http::StatusCode;
use protocol::execd::code;

use crate::command::{find_program, make_plan};
use crate::daemon::Daemon;
use crate::environment::{Environment, without_private};
use crate::error::{ApiError, Result};
use crate::identity::Accounts;
use crate::spawn::Plan;

/// The drivers that python3 runs.
const PYTHON_DRIVER: &str = concat!(include_str!("languages/talk.py"), include_str!("languages/python.py"));
const SQL_DRIVER: &str = concat!(include_str!("languages/talk.py"), include_str!("languages/sql.py"));
/// Reads the driver from where cells come from: the process list stays readable, and no file is left behind.
const PYTHON_LOADER: &str = "commands=open(3,'rb',closefd=False);\
                             exec(compile(commands.read(int(commands.readline())),'<execd>','exec'))";

/// The driver that node runs.
const NODE_DRIVER: &str = include_str!("languages/node.js");
/// As for Python. The function keeps `require` and `import()` as they are for `-e`.
const NODE_LOADER: &str = "{const fs=require('fs'),b=Buffer.alloc(1);let h='',n=0;\
                           while(fs.readSync(3,b,0,1,null)&&b[0]!==10)h+=String.fromCharCode(b[0]);\
                           const d=Buffer.alloc(+h);while(n<d.length)n+=fs.readSync(3,d,n,d.length-n,null);\
                           new Function('require','process',d.toString())(require,process)}";
/// What a shell says of a command that SIGINT ended.
const INTERRUPTED: u8 = 130;
/// Else node ends itself when an interrupt ends a timer's function: it finds its own records not unwound.
const NODE_WITHOUT_CHECKS: &str = "--no-force-async-hooks-checks";
/// Read by bash before its first cell.
const BASH_DRIVER: &str = include_str!("languages/bash.sh");
/// Bytes of a MiB, in which node counts.
const MIB: u64 = 1024 * 1024;

/// A language with a driver of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// python3.
    Python,
    /// node.
    JavaScript,
    /// node, which strips the types itself or by the package `typescript`.
    TypeScript,
    /// bash. It is an interactive shell without a terminal, because only such a one lets go of what it runs when
    /// it is interrupted, and goes on.
    Bash,
    /// A MySQL server where one listens, else SQLite; by python3.
    Sql,
}

/// Where the interpreter finds its end of the talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Descriptor 3; standard input is at its end.
    Third,
    /// Standard input. Cells do not see it.
    Stdin,
}

/// How an interpreter is started.
pub struct Launch {
    /// The process.
    pub plan: Plan,
    /// What it is sent first.
    pub hello: Vec<u8>,
    /// Where it listens.
    pub channel: Channel,
}

impl Language {
    /// The language of this name, where execd has a driver for it.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Python, Self::JavaScript, Self::TypeScript, Self::Bash, Self::Sql];
        all.into_iter().find(|language| language.name() == name)
    }

    /// Looks for its program in this sandbox.
    ///
    /// # Errors
    /// 400 that says what is missing.
    pub fn check(self, daemon: &Daemon) -> Result<()> {
        let (name, program) = (self.name(), self.program());
        match find_program(program, &environment(daemon), daemon.cwd()) {
            Some(_) => Ok(()),
            None => Err(unsupported(format!(
                "language: {name} needs {program}, which this sandbox's image does not have in its PATH"
            ))),
        }
    }

    /// The name that clients use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::Bash => "bash",
            Self::Sql => "sql",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Python | Self::Sql => "python3",
            Self::JavaScript | Self::TypeScript => "node",
            Self::Bash => "bash",
        }
    }

    /// How its interpreter is started in `cwd`, to write `mark` before its answers.
    ///
    /// # Errors
    /// 400 for a directory that cannot be passed on.
    pub fn launch(self, daemon: &Rc<Daemon>, cwd: &str, memory_bytes: Option<u64>, mark: &str) -> Result<Launch> {
        let program = self.program();
        let argv = |arguments: &[&str]| [&[program], arguments].concat().into_iter().map(str::to_owned).collect();
        let (argv, hello, channel): (Vec<String>, _, _) = match self {
            Self::Python | Self::Sql => {
                let memory = memory_bytes.unwrap_or(0);
                let driver = if self == Self::Sql { SQL_DRIVER } else { PYTHON_DRIVER };
                let hello = format!("{}\n{driver}{mark} {memory}\n", driver.len());
                (argv(&["-c", PYTHON_LOADER]), hello, Channel::Third)
            }
            Self::JavaScript | Self::TypeScript => {
                let hello = format!("{}\n{NODE_DRIVER}{mark} {}\n", NODE_DRIVER.len(), self.name());
                // The address space of node is no measure of its memory.
                let heap = memory_bytes.map(|bytes| format!("--max-old-space-size={}", (bytes / MIB).max(1)));
                let rest = [NODE_WITHOUT_CHECKS, "-e", NODE_LOADER];
                let arguments: Vec<&str> = heap.as_deref().into_iter().chain(rest).collect();
                (argv(&arguments), hello, Channel::Third)
            }
            Self::Bash => {
                let limit = memory_bytes.map(|bytes| format!("ulimit -v {}\n", bytes / 1024)).unwrap_or_default();
                let ready = r#"__osb_say '{"kind":"ready"}'"#;
                let hello = format!("{BASH_DRIVER}{limit}__osb_mark={}\n{ready}\n", quoted(mark));
                (argv(&["--noprofile", "--norc", "--noediting", "-i"]), hello, Channel::Stdin)
            }
        };
        let identity = daemon.user().map(|user| Accounts::load().identity(user.uid, Some(user.gid)));
        let plan = make_plan(argv, None, environment(daemon), cwd, identity)?;
        Ok(Launch { plan, hello: hello.into_bytes(), channel })
    }

    /// What the interpreter is sent to run the cell of this number, counted from 1.
    pub fn cell(self, number: u64, code: &str) -> Vec<u8> {
        match self {
            Self::Python | Self::Sql | Self::JavaScript | Self::TypeScript => {
                format!("{}\n{code}", code.len()).into_bytes()
            }
            // Two lines: the second is read, too, when an interrupt threw bash out of the first.
            Self::Bash => {
                format!("__osb_cell={number}; eval {} </dev/null\n__osb_end {number} $?\n", quoted(code)).into_bytes()
            }
        }
    }

    /// What the interpreter is sent to interrupt the cell of this number, counted from 1; `None` where a signal to
    /// its group does that.
    pub fn interrupt(self, cell: u64) -> Option<Vec<u8>> {
        match self {
            Self::JavaScript | Self::TypeScript => Some(format!("!{cell}\n").into_bytes()),
            Self::Python | Self::Sql | Self::Bash => None,
        }
    }

    /// What the interpreter is sent after such a signal: bash may throw away the end of the cell with the cell.
    pub fn after_signal(self, cell: u64) -> Option<Vec<u8>> {
        (self == Self::Bash).then(|| format!("__osb_end {cell} {INTERRUPTED}\n").into_bytes())
    }
}

/// As a word of bash, in one line.
fn quoted(text: &str) -> String {
    let mut out = String::from("$'");
    for letter in text.chars() {
        match letter {
            '\'' | '\\' => out.extend(['\\', letter]),
            '\n' => out.push_str("\\n"),
            letter => out.push(letter),
        }
    }
    out.push('\'');
    out
}

/// What interpreters see: the sandbox's variables without those that open or configure execd.
pub fn environment(daemon: &Daemon) -> Environment {
    without_private(daemon.env_with_file())
}

/// 400 for a language that is not there.
pub fn unsupported(message: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, code::NOT_SUPPORTED, message)
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn code_becomes_one_line_of_bash() {
        assert_eq!(quoted("echo 'a\\b'\n"), r"$'echo \'a\\b\'\n'");
    }
}
