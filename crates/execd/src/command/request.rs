//! From the body of `POST /command` to a plan that can be spawned.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use protocol::execd::command::RunCommand;
use protocol::execd::output::Overflow;

use crate::daemon::Daemon;
use crate::environment::{Environment, expand_path};
use crate::error::{ApiError, Result, system_text};
use crate::identity::{self, Accounts};
use crate::spawn::{Identity, Plan};

/// A checked request.
pub struct Checked {
    /// What to spawn, or why it cannot be: an error of the command and not of the request.
    pub plan: std::result::Result<Plan, String>,
    /// What status calls show.
    pub content: String,
    /// Whether the answer does not wait for the command.
    pub background: bool,
    /// Milliseconds; `None` means never.
    pub timeout_ms: Option<u64>,
    /// What goes when its spool is full.
    pub overflow: Overflow,
}

/// Checks a request and completes it with the sandbox's environment.
///
/// # Errors
/// 400 naming the field.
pub fn check(daemon: &Daemon, request: RunCommand) -> Result<Checked> {
    let command = request.command.filter(|command| !command.is_empty());
    let argv = request.argv.filter(|argv| !argv.is_empty());
    let timeout_ms = timeout_ms(request.timeout)?;
    let (uid, gid) = (id("uid", request.uid)?, id("gid", request.gid)?);
    if gid.is_some() && uid.is_none() {
        return Err(ApiError::body("gid: needs uid beside it"));
    }
    let content = match (&command, &argv) {
        (Some(_), Some(_)) => {
            return Err(ApiError::body("command and argv: give one of them, not both"));
        }
        (None, None) => {
            return Err(ApiError::body("command or argv: one of them is required and not empty"));
        }
        (Some(command), None) => command.clone(),
        (None, Some(argv)) => {
            if argv[0].is_empty() {
                return Err(ApiError::body("argv: the first element names the program and is not empty"));
            }
            serde_json::to_string(argv).unwrap_or_default()
        }
    };

    let accounts = Accounts::load();
    let requested = uid.map(|uid| accounts.identity(uid, gid));
    let identity = requested.clone().or_else(|| daemon.user().map(|user| accounts.identity(user.uid, Some(user.gid))));
    let envs = request.envs.unwrap_or_default();
    let env = environment(daemon, &accounts, requested.as_ref(), envs)?;
    let cwd = match request.cwd.filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => {
            expand_path(&cwd, &env, daemon.cwd()).map_err(|error| ApiError::body(error.message).context("cwd"))?
        }
        None => daemon.cwd().to_owned(),
    };
    match fs::metadata(&cwd) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(ApiError::body(format!("cwd: {cwd} is not a directory"))),
        Err(error) => {
            return Err(ApiError::body(format!("cwd: {cwd}: {}; make it, or give another cwd", system_text(&error))));
        }
    }
    let plan = match (command, argv) {
        (Some(command), _) => shell_plan(command, env, &cwd, identity),
        (None, argv) => make_plan(argv.unwrap_or_default(), None, env, &cwd, identity).map(Ok),
    }?;
    let background = request.background.unwrap_or(false);
    Ok(Checked { plan, content, background, timeout_ms, overflow: request.overflow.unwrap_or_default() })
}

/// Checks a timeout; 0 and an absent one are none.
///
/// # Errors
/// 400 for a negative one.
pub fn timeout_ms(timeout: Option<i64>) -> Result<Option<u64>> {
    let ms = timeout.unwrap_or(0);
    let ms = u64::try_from(ms)
        .map_err(|_| ApiError::body(format!("timeout: {ms} is negative; give milliseconds, 0 for none")))?;
    Ok(Some(ms).filter(|ms| *ms > 0))
}

fn id(field: &str, value: Option<i64>) -> Result<Option<u32>> {
    // u32::MAX means "leave it" to the kernel.
    let valid = |id: i64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
    match value {
        None => Ok(None),
        Some(number) => valid(number)
            .map(Some)
            .ok_or_else(|| ApiError::body(format!("{field}: {number} is not between 0 and 4294967294"))),
    }
}

/// Request over env file over sandbox; `HOME`, `USER` and `LOGNAME` follow a requested user.
fn environment(
    daemon: &Daemon,
    accounts: &Accounts,
    requested: Option<&Identity>,
    envs: BTreeMap<String, Option<String>>,
) -> Result<Environment> {
    let mut env = daemon.env_with_file();
    let own = daemon.user().map_or_else(|| rustix::process::geteuid().as_raw(), |user| user.uid);
    if let Some(identity) = requested.filter(|identity| identity.uid != own) {
        let user = accounts.user(identity.uid);
        let name = user.as_ref().map_or_else(|| identity.uid.to_string(), |user| user.name.clone());
        env.insert("HOME".into(), user.map_or_else(|| "/".into(), |user| user.home));
        env.insert("USER".into(), name.clone());
        env.insert("LOGNAME".into(), name);
    }
    for (name, value) in envs {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(ApiError::body(format!("envs: {name:?} is not a variable name")));
        }
        env.insert(name, value.unwrap_or_default());
    }
    Ok(env)
}

/// Said where no shell can be found.
pub const NO_SHELL: &str =
    "no shell found: neither bash nor sh is in PATH or /bin; use argv to run a program without one";

/// bash, or sh where there is no bash, with its path.
pub fn find_shell(env: &Environment, cwd: &str) -> Option<(&'static str, String)> {
    ["bash", "sh"].into_iter().find_map(|shell| {
        let usual = [format!("/bin/{shell}"), format!("/usr/bin/{shell}")];
        let found = candidates(shell, env, cwd).into_iter().chain(usual);
        found.into_iter().find(|path| is_executable(path)).map(|path| (shell, path))
    })
}

/// `bash -c`, or `sh -c` where there is no bash.
fn shell_plan(
    command: String,
    env: Environment,
    cwd: &str,
    identity: Option<Identity>,
) -> Result<std::result::Result<Plan, String>> {
    let Some((shell, path)) = find_shell(&env, cwd) else {
        return Ok(Err(NO_SHELL.into()));
    };
    make_plan(vec![shell.into(), "-c".into(), command], Some(path), env, cwd, identity).map(Ok)
}

/// Where a program lies, if it can be run.
pub fn find_program(program: &str, env: &Environment, cwd: &str) -> Option<String> {
    candidates(program, env, cwd).into_iter().find(|path| is_executable(path))
}

fn is_executable(path: &str) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Where a program may lie: absolute entries of `PATH` for a bare name, the path itself otherwise.
fn candidates(program: &str, env: &Environment, cwd: &str) -> Vec<String> {
    if program.starts_with('/') {
        return vec![program.to_owned()];
    }
    if program.contains('/') {
        return vec![format!("{cwd}/{program}")];
    }
    let path = env.get("PATH").map_or("", String::as_str);
    path.split(':').filter(|entry| entry.starts_with('/')).map(|entry| format!("{entry}/{program}")).collect()
}

/// Builds a plan; `program` is where `argv[0]` was found, if that is known.
///
/// # Errors
/// 400 naming what holds a NUL byte.
pub fn make_plan(
    argv: Vec<String>,
    program: Option<String>,
    env: Environment,
    cwd: &str,
    identity: Option<Identity>,
) -> Result<Plan> {
    let programs = program.map_or_else(|| candidates(&argv[0], &env, cwd), |path| vec![path]);
    let entries = env.into_iter().map(|(name, value)| format!("{name}={value}"));
    Ok(Plan {
        programs: c_strings("argv", programs)?,
        argv: c_strings("command or argv", argv)?,
        env: c_strings("envs", entries)?,
        cwd: c_strings("cwd", [cwd.to_owned()])?.remove(0),
        identity: identity.filter(|identity| !identity::is_own(identity)),
    })
}

fn c_strings(field: &str, texts: impl IntoIterator<Item = String>) -> Result<Vec<CString>> {
    let convert = |text: String| CString::new(text).map_err(|_| ApiError::body(format!("{field}: holds a NUL byte")));
    texts.into_iter().map(convert).collect()
}
