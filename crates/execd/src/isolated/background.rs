//! Runs in the background: a job of the session's shell each, with a log and an exit code in the workspace.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use protocol::execd::code;
use protocol::execd::isolated::{Mode, RUNS_DIRECTORY, RunStatus, StartedRun, TAIL_CURSOR};
use rustix::fs::{CWD, Mode as FileMode, OFlags, ResolveFlags};

use super::run::{Checked, exports, quoted};
use super::{Busy, Session, shell};
use crate::blocking;
use crate::clock;
use crate::command::unfinished_character;
use crate::error::{ApiError, Result, system_text};
use crate::http::{Answer, Query, json, text};
use crate::id;

/// Bytes of a log in one answer (published).
const MAX_LOG_BYTES: u64 = 16 * 1024 * 1024;
/// Runs that are remembered; finished ones beyond it are forgotten, the oldest first.
const MAX_RUNS: usize = 1024;

/// The background runs of a session.
#[derive(Default)]
pub struct Runs(RefCell<BTreeMap<String, Job>>);

struct Job {
    started_ms: i64,
    finished_ms: Option<i64>,
    code: Option<i32>,
    /// Its process, in the shell's words.
    pid: Option<i32>,
    /// Keeps the session from being idle.
    busy: Option<Busy>,
    error: Option<String>,
}

impl Runs {
    /// The shell has started the run as this process.
    pub fn started(&self, run: &str, pid: i32) {
        if let Some(job) = self.0.borrow_mut().get_mut(run) {
            job.pid = Some(pid);
        }
        shell::remove_file(&job_file(run));
    }

    /// The run has ended.
    pub fn ended(&self, run: &str, code: i32) {
        let busy = self.0.borrow_mut().get_mut(run).and_then(|job| {
            job.code = Some(code);
            job.finished_ms = Some(clock::now_ms());
            job.busy.take()
        });
        shell::remove_file(&code_file(run));
        if let Some(busy) = busy {
            // Beside the answer; a full disk loses this copy only.
            let path = format!("{}/{RUNS_DIRECTORY}/{run}.code", busy.0.workspace());
            if let Ok(file) = open(&path, OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC) {
                let _ = File::from(file).write_all(format!("{code}\n").as_bytes());
            }
        }
    }

    fn failed(&self, run: &str, why: String) {
        if let Some(job) = self.0.borrow_mut().get_mut(run) {
            job.error = Some(why);
            job.finished_ms = Some(clock::now_ms());
            job.busy = None;
        }
    }

    /// Processes of the runs that go on.
    pub fn processes(&self) -> Vec<i32> {
        self.0.borrow().values().filter(|job| job.code.is_none()).filter_map(|job| job.pid).collect()
    }

    fn insert(&self, run: String, busy: Busy) {
        let mut jobs = self.0.borrow_mut();
        while jobs.len() >= MAX_RUNS {
            let finished = jobs.iter().filter(|(_, job)| job.finished_ms.is_some());
            let Some(oldest) = finished.min_by_key(|(_, job)| job.finished_ms).map(|(run, _)| run.clone()) else {
                break;
            };
            jobs.remove(&oldest);
        }
        let job = Job {
            started_ms: clock::now_ms(),
            finished_ms: None,
            code: None,
            pid: None,
            busy: Some(busy),
            error: None,
        };
        jobs.insert(run, job);
    }
}

fn code_file(run: &str) -> String {
    format!("/run/execd/{run}.sh")
}

fn job_file(run: &str) -> String {
    format!("/run/execd/{run}.job")
}

/// Starts a run and answers at once.
///
/// # Errors
/// 400 when there is no place for its log or the shell has ended.
pub fn start(session: &Rc<Session>, checked: Checked) -> Result<Answer> {
    session.must_live()?;
    let first = session.boot.asked.overlays.iter().flatten().next();
    let lasting = first.is_some_and(|first| first.mode != Some(Mode::Ro) && first.persist != Some(false));
    if !lasting {
        return Err(ApiError::body(
            "background: the log needs a first mount that is writable and not in memory; use rw, or overlay with persist",
        ));
    }
    let run = id::uuid();
    let directory = format!("{}/{RUNS_DIRECTORY}", session.workspace());
    let log = format!("{directory}/{run}.log");
    make_log(session, &directory, &log)
        .map_err(|error| ApiError::runtime(format!("make the log of the run: {}", system_text(&error))))?;
    let busy = session.begin();
    session.runs.insert(run.clone(), busy);
    let started_at = clock::rfc3339_ms(clock::now_ms());
    let job = format!(
        "{{ ( {}. {} ) >>{} 2>&1 </dev/null 3>&-; command printf 'end %s %s\\n' {run} \"$?\" >&3; }} &\n\
         command printf 'job %s %s\\n' {run} \"$!\" >&3\n",
        exports(&checked.envs),
        code_file(&run),
        quoted(&log),
    );
    let (waiting, id) = (Rc::clone(session), run.clone());
    tokio::task::spawn_local(async move {
        let _turn = waiting.turn.lock().await;
        if let Err(error) = feed(&waiting, &id, &checked.code, &job).await {
            waiting.runs.failed(&id, format!("start the run: {}", system_text(&error)));
        }
    });
    Ok(json(StatusCode::ACCEPTED, &StartedRun { session_id: session.id().to_owned(), run_id: run, started_at }))
}

async fn feed(session: &Session, run: &str, code: &str, job: &str) -> io::Result<()> {
    session.shell.write_file(&format!("{run}.sh"), code.as_bytes())?;
    session.shell.write_file(&format!("{run}.job"), job.as_bytes())?;
    session.shell.feed(&format!(". {} </dev/null\n", job_file(run))).await
}

fn make_log(session: &Session, directory: &str, log: &str) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let file = open(log, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY)?;
    if let Some(identity) = session.shell.identity() {
        std::os::unix::fs::fchown(&file, Some(identity.uid), Some(identity.gid))?;
    }
    Ok(())
}

/// Opens a file of ours in the workspace, whatever links were put there.
fn open(path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let mode = if flags.contains(OFlags::CREATE) { FileMode::from_raw_mode(0o644) } else { FileMode::empty() };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(rustix::fs::openat2(CWD, path, flags, mode, ResolveFlags::NO_MAGICLINKS)?)
}

/// What is known of a run.
///
/// # Errors
/// 404 for an unknown one.
pub fn status(session: &Session, run: &str) -> Result<Answer> {
    let jobs = session.runs.0.borrow();
    let job = jobs.get(run).ok_or_else(|| unknown(run))?;
    let over = session.shell.has_ended() && job.code.is_none();
    let error = job.error.clone().or_else(|| over.then(|| "session terminated".to_owned()));
    let status = RunStatus {
        session_id: session.id().to_owned(),
        run_id: run.to_owned(),
        running: job.code.is_none() && error.is_none(),
        exit_code: job.code,
        started_at: clock::rfc3339_ms(job.started_ms),
        finished_at: job.finished_ms.or_else(|| over.then(clock::now_ms)).map(clock::rfc3339_ms),
        error,
    };
    Ok(json(StatusCode::OK, &status))
}

/// The log of a run from a byte on; while it runs, an unfinished character waits for the next call.
///
/// # Errors
/// 404 for an unknown run, 400 for a cursor that is none.
pub async fn logs(session: &Session, run: &str, query: &Query) -> Result<Answer> {
    let running = session.runs.0.borrow().get(run).map(|job| job.code.is_none());
    let running = running.ok_or_else(|| unknown(run))?;
    let cursor = query.get("cursor").filter(|cursor| !cursor.is_empty()).unwrap_or("0");
    let cursor: u64 =
        cursor.parse().map_err(|_| ApiError::body(format!("cursor: {cursor:?} is not a number from 0 on")))?;
    let path = format!("{}/{RUNS_DIRECTORY}/{run}.log", session.workspace());
    let read = move || -> io::Result<Vec<u8>> {
        let mut file = File::from(open(&path, OFlags::RDONLY)?);
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(cursor))?;
        file.take(MAX_LOG_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let failed = |error: io::Error| ApiError::runtime(format!("read the log of run {run}: {}", system_text(&error)));
    let mut bytes = blocking::run(read).await.map_err(|error| ApiError::runtime(error.to_string()))?.map_err(failed)?;
    if running || bytes.len() as u64 == MAX_LOG_BYTES {
        bytes.truncate(bytes.len() - unfinished_character(&bytes));
    }
    let end = cursor + bytes.len() as u64;
    let mut answer = text(StatusCode::OK, Bytes::from(bytes));
    let name = HeaderName::try_from(TAIL_CURSOR.to_ascii_lowercase()).expect("letters and dashes");
    answer.headers_mut().insert(name, HeaderValue::from(end));
    Ok(answer)
}

fn unknown(run: &str) -> ApiError {
    let message = format!("this session has no run with the id {run:?}");
    ApiError::new(StatusCode::NOT_FOUND, code::SESSION_NOT_FOUND, message)
}
