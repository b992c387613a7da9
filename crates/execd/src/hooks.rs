//! Commands that the sandbox runs by itself: one before its main process, others by their schedules, and those
//! that whoever pauses, resumes or ends the sandbox asks for at that moment.
//!
//! Their output goes where the main process's goes. A hook leads a process group of its own, which is killed
//! when its time is up or whoever asked for it has gone; one that runs longer than its period skips what it
//! missed.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::StatusCode;
use protocol::execd::code;
use protocol::execd::hook::HookReport;
use protocol::hooks::{DEFAULT_TIMEOUT_SECONDS, Hook, Hooks, Moment, PeriodicHook};
use protocol::schedule::Schedule;
use rustix::process::Signal;
use tokio::time::timeout;

use crate::clock;
use crate::command::make_plan;
use crate::daemon::Daemon;
use crate::error::{ApiError, Result as Answered, system_text};
use crate::http::{Answer, json};
use crate::identity::Accounts;
use crate::init;
use crate::reaper::{Exit, Process};
use crate::spawn::{Stdio, spawn};

/// The variable that carries hooks to a daemon that was started with flags.
pub const VARIABLE: &str = "OPENSANDBOX_LIFECYCLE";
/// Names that hooks do not see, beside those that no child sees.
const HIDDEN: [&str; 2] = ["EXECD_ENVS", "JUPYTER_HOST"];
/// The clock may be set, and stands still while the sandbox is paused: so it is looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Reads [`VARIABLE`].
///
/// # Errors
/// What is wrong, and where.
pub fn parse(text: &str) -> Result<Hooks, String> {
    let hooks: Hooks = serde_json::from_str(text).map_err(|error| format!("{VARIABLE}: {error}"))?;
    hooks.check().map_err(|mistake| format!("{VARIABLE}.{}: {}", mistake.field, mistake.problem))?;
    Ok(hooks)
}

/// Runs the hook before the main process to its end.
///
/// # Errors
/// It failed, with the reason: there must be no main process then.
pub async fn pre_start(daemon: &Daemon, hook: &Hook) -> Result<(), String> {
    init::make_cwd(daemon)?;
    let ended = run(daemon, &hook.command, hook.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS)).await;
    ended.map_err(|why| format!("the preStart hook {why}"))
}

/// Answers `POST /v1/hooks/{name}` when the hook has ended. It ends with its caller: nobody waits for it then.
///
/// # Errors
/// 404 where the sandbox has no such hook.
pub async fn trigger(daemon: &Daemon, name: &str) -> Answered<Answer> {
    let hook = Moment::parse(name).and_then(|moment| daemon.hooks.at(moment));
    let Some((command, seconds)) = hook else {
        let message = format!("{name}: this sandbox was not made with such a hook");
        return Err(ApiError::new(StatusCode::NOT_FOUND, code::NOT_SUPPORTED, message));
    };
    let begun = Instant::now();
    let ended = run(daemon, command, seconds).await;
    if let Err(why) = &ended {
        eprintln!("execd: the {name} hook {why}");
    }
    let elapsed_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let report = HookReport { name: name.to_owned(), succeeded: ended.is_ok(), problem: ended.err(), elapsed_ms };
    Ok(json(StatusCode::OK, &report))
}

/// The hook before the main process where execd was started with flags, reported to the file of
/// `--lifecycle-startup-status-file` in the published form: `running <seconds>`, then `done <status>`.
///
/// # Errors
/// The hook failed or the file cannot be written.
pub async fn start(daemon: &Daemon, report: Option<&str>) -> Result<(), String> {
    let tell = |line: String| match report {
        None => Ok(()),
        Some(path) => OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(|error| format!("--lifecycle-startup-status-file: write {path}: {}", system_text(&error))),
    };
    let mut outcome = Ok(());
    if let Some(hook) = &daemon.hooks.pre_start {
        tell(format!("running {}\n", hook.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS)))?;
        outcome = pre_start(daemon, hook).await;
    }
    let told = tell(format!("done {}\n", u8::from(outcome.is_err())));
    outcome.and(told)
}

/// Runs hooks by their schedules, until execd ends.
pub fn start_periodic(daemon: &Rc<Daemon>) {
    let mut names = BTreeSet::new();
    for hook in daemon.hooks.periodic.iter().cloned() {
        match Schedule::parse(&hook.schedule) {
            // What starts execd has checked them; a name that is there twice would run twice at once.
            Ok(schedule) if names.insert(hook.name.clone()) => {
                tokio::task::spawn_local(repeat(Rc::clone(daemon), hook, schedule));
            }
            Ok(_) => eprintln!("execd: hook {:?}: is there twice; the second is not run", hook.name),
            Err(why) => eprintln!("execd: hook {:?}: {why}", hook.name),
        }
    }
}

async fn repeat(daemon: Rc<Daemon>, hook: PeriodicHook, schedule: Schedule) {
    let start = now();
    let mut last = start;
    while let Some(next) = schedule.next(last, start) {
        loop {
            let left = next - now();
            if left <= 0 {
                break;
            }
            tokio::time::sleep(LOOK_EVERY.min(Duration::from_secs(left.unsigned_abs()))).await;
        }
        let seconds = hook.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        if let Err(why) = run(&daemon, &hook.command, seconds).await {
            eprintln!("execd: hook {:?} {why}", hook.name);
        }
        last = now().max(next);
    }
}

/// Seconds since 1970.
fn now() -> i64 {
    clock::now_ms().div_euclid(1000)
}

/// Runs one command to its end; the error completes a sentence that begins with the hook's name.
async fn run(daemon: &Daemon, command: &[String], seconds: u32) -> Result<(), String> {
    let identity = daemon.user().map(|user| Accounts::load().identity(user.uid, Some(user.gid)));
    let mut env = daemon.env_with_file();
    for name in HIDDEN {
        env.remove(name);
    }
    let failed = |why: String| format!("could not be started: {why}");
    let plan = make_plan(command.to_vec(), None, env, daemon.cwd(), identity).map_err(|error| failed(error.message))?;
    let stdio = Stdio { fds: [Some(daemon.null().as_fd()), None, None] };
    let process = daemon.reaper.register(spawn(&plan, &stdio).map_err(|error| failed(error.to_string()))?);
    let process = EndsWithUs(process);
    match timeout(Duration::from_secs(seconds.into()), process.0.wait()).await {
        Ok(Exit::Code(0)) => Ok(()),
        Ok(Exit::Code(code)) => Err(format!("ended with exit code {code}")),
        Ok(Exit::Signal { number, .. }) => Err(format!("was ended by signal {number}")),
        Err(_) => {
            process.0.signal_group(Signal::KILL);
            process.0.wait().await;
            Err(format!("did not end within {seconds} s and was killed"))
        }
    }
}

/// A hook's process, killed with its group when nobody waits for it any more.
struct EndsWithUs(Process);

impl Drop for EndsWithUs {
    fn drop(&mut self) {
        self.0.signal_group(Signal::KILL); // of a process that has ended nothing is signalled
    }
}
