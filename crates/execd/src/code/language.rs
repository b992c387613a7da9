//! The languages of contexts: which program runs them, and how it is told what to do.

use std::rc::Rc;

use http::StatusCode;
use protocol::execd::code;

use crate::command::{find_program, make_plan};
use crate::daemon::Daemon;
use crate::environment::Environment;
use crate::error::{ApiError, Result};
use crate::identity::Accounts;
use crate::session;
use crate::spawn::Plan;

/// The driver that python3 runs.
const PYTHON_DRIVER: &str = include_str!("languages/python.py");
/// Reads the driver from where cells come from: the process list stays readable, and no file is left behind.
const PYTHON_LOADER: &str = "commands=open(3,'rb',closefd=False);\
                             exec(compile(commands.read(int(commands.readline())),'<execd>','exec'))";

/// A language with a driver of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// python3.
    Python,
}

/// Where the interpreter finds its end of the talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Descriptor 3; standard input is at its end.
    Third,
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
    /// The language of this name in this sandbox.
    ///
    /// # Errors
    /// 400 that says what is missing.
    pub fn find(daemon: &Daemon, name: &str) -> Result<Self> {
        let language = match name {
            "python" => Self::Python,
            _ => {
                return Err(unsupported(format!("language: {name:?} is not supported here; there is python")));
            }
        };
        let env = environment(daemon);
        let program = language.program();
        if find_program(program, &env, daemon.cwd()).is_none() {
            return Err(unsupported(format!(
                "language: {name} needs {program}, which this sandbox's image does not have in its PATH"
            )));
        }
        Ok(language)
    }

    /// The name that clients use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Python => "python3",
        }
    }

    /// How its interpreter is started in `cwd`, to write `mark` before its answers.
    ///
    /// # Errors
    /// 400 for a directory that cannot be passed on.
    pub fn launch(self, daemon: &Rc<Daemon>, cwd: &str, memory_bytes: Option<u64>, mark: &str) -> Result<Launch> {
        let memory = memory_bytes.unwrap_or(0);
        let (argv, hello, channel) = match self {
            Self::Python => {
                let hello = format!("{}\n{PYTHON_DRIVER}{mark} {memory}\n", PYTHON_DRIVER.len());
                (vec![self.program(), "-c", PYTHON_LOADER], hello, Channel::Third)
            }
        };
        let argv = argv.into_iter().map(str::to_owned).collect();
        let identity = daemon.user().map(|user| Accounts::load().identity(user.uid, Some(user.gid)));
        let plan = make_plan(argv, None, environment(daemon), cwd, identity)?;
        Ok(Launch { plan, hello: hello.into_bytes(), channel })
    }

    /// What the interpreter is sent to run a cell.
    pub fn cell(self, code: &str) -> Vec<u8> {
        match self {
            Self::Python => format!("{}\n{code}", code.len()).into_bytes(),
        }
    }
}

/// What interpreters see: the sandbox's variables without those that open or configure execd.
fn environment(daemon: &Daemon) -> Environment {
    session::without_private(daemon.env_with_file())
}

fn unsupported(message: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, code::NOT_SUPPORTED, message)
}
