//! The contexts that there are, and the calls that make, show and delete them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use protocol::execd::code;
use protocol::execd::context::CreateContext;

use super::context::{Context, Setup};
use super::interpreter::Runner;
use super::limits::{self, Limits};
use super::notebook::Origin;
use crate::daemon::Daemon;
use crate::error::{ApiError, Result};
use crate::http::{Answer, Query, empty, json, read_json};
use crate::{id, session};

/// The contexts.
pub struct Contexts {
    limits: Limits,
    jupyter: Option<std::result::Result<Rc<Origin>, String>>,
    table: RefCell<Table>,
}

#[derive(Default)]
struct Table {
    /// Oldest first.
    all: Vec<Rc<Context>>,
    /// The context of a language that runs without a context's id share.
    defaults: HashMap<String, String>,
}

impl Contexts {
    /// No contexts yet.
    pub fn new(limits: Limits, jupyter: Option<std::result::Result<Origin, String>>) -> Self {
        Self { limits, jupyter: jupyter.map(|origin| origin.map(Rc::new)), table: RefCell::default() }
    }

    /// The configured Jupyter server, or why the setting cannot be used.
    pub(super) fn jupyter(&self) -> Option<&std::result::Result<Rc<Origin>, String>> {
        self.jupyter.as_ref()
    }

    /// The context with this id.
    pub(super) fn get(&self, id: &str) -> Option<Rc<Context>> {
        self.table.borrow().all.iter().find(|context| context.id == id).cloned()
    }

    /// Takes a context out of the table.
    pub(super) fn forget(&self, id: &str) -> Option<Rc<Context>> {
        let mut table = self.table.borrow_mut();
        table.defaults.retain(|_, default| default != id);
        let at = table.all.iter().position(|context| context.id == id)?;
        Some(table.all.remove(at))
    }

    fn of(&self, language: Option<&str>) -> Vec<Rc<Context>> {
        let table = self.table.borrow();
        let wanted = table.all.iter().filter(|context| language.is_none_or(|name| context.runner.name() == name));
        wanted.cloned().collect()
    }

    fn start(&self, daemon: &Rc<Daemon>, runner: Runner, setup: Setup) -> Result<Rc<Context>> {
        let max = self.limits.max_contexts;
        if self.table.borrow().all.len() >= max {
            return Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                code::RUNTIME_ERROR,
                format!("there are {max} contexts already; delete one that is no longer needed"),
            ));
        }
        let context = Context::start(daemon, id::uuid(), runner, setup);
        self.table.borrow_mut().all.push(Rc::clone(&context));
        Ok(context)
    }

    fn setup(&self, daemon: &Daemon) -> Setup {
        let Limits { memory_bytes, idle, .. } = self.limits;
        Setup { cwd: None, directory: daemon.cwd().to_owned(), memory_bytes, idle }
    }

    /// How many run a cell.
    pub fn running(&self) -> usize {
        self.table.borrow().all.iter().filter(|context| context.is_busy()).count()
    }

    /// Asks all contexts to end, because execd does.
    pub fn shut_down(&self) {
        self.table.borrow().all.iter().for_each(|context| context.delete());
    }
}

/// `POST /code/context`.
///
/// # Errors
/// 400 for a body that cannot be obeyed and when there are too many; 500 when the interpreter does not start.
pub async fn create(daemon: Rc<Daemon>, request: Request<Incoming>) -> Result<Answer> {
    let body: CreateContext = read_json(request).await?;
    let language = body.language.filter(|language| !language.is_empty());
    let language = language.ok_or_else(|| ApiError::body("language: is required and not empty"))?;
    let runner = Runner::find(&daemon, &language).await?;
    let mut setup = daemon.contexts.setup(&daemon);
    if body.memory_bytes.is_some_and(|bytes| bytes > 0) && !runner.bounds_memory() {
        return Err(ApiError::body(format!(
            "memory_bytes: is not supported for {language}, which a Jupyter kernel runs; limit the sandbox's memory"
        )));
    }
    if let Some(cwd) = body.cwd.filter(|cwd| !cwd.is_empty()) {
        setup.directory = session::directory_for(&daemon, &cwd)?;
        setup.cwd = Some(cwd);
    }
    setup.memory_bytes = body.memory_bytes.or(setup.memory_bytes).filter(|bytes| *bytes > 0);
    if let Some(seconds) = body.idle_seconds {
        setup.idle = limits::idle(seconds);
    }
    let context = daemon.contexts.start(&daemon, runner, setup)?;
    context.ready().await?;
    Ok(json(StatusCode::OK, &context.shown()))
}

/// The context with this id; a language beside it must be its own.
///
/// # Errors
/// 400 for an unknown one, as every other user's mistake.
pub fn known(daemon: &Daemon, id: &str, language: Option<&str>) -> Result<Rc<Context>> {
    let context = daemon.contexts.get(id).ok_or_else(|| {
        let message = format!("no context has the id {id:?}; it may have been deleted, or have been idle for too long");
        ApiError::new(StatusCode::BAD_REQUEST, code::CONTEXT_NOT_FOUND, message)
    })?;
    let own = context.runner.name();
    match language {
        Some(language) if language != own => {
            Err(ApiError::body(format!("context.language: {language:?} is not {own:?}, which the context {id} has")))
        }
        _ => Ok(context),
    }
}

/// The context that runs of this language share; made by the first of them.
///
/// # Errors
/// As [`create`].
pub async fn of_language(daemon: &Rc<Daemon>, language: &str) -> Result<Rc<Context>> {
    let contexts = &daemon.contexts;
    let shared = || {
        let id = contexts.table.borrow().defaults.get(language).cloned();
        contexts.get(&id?)
    };
    if let Some(context) = shared() {
        return Ok(context);
    }
    let runner = Runner::find(daemon, language).await?;
    // Another run may have made it meanwhile.
    if let Some(context) = shared() {
        return Ok(context);
    }
    let context = contexts.start(daemon, runner, contexts.setup(daemon))?;
    contexts.table.borrow_mut().defaults.insert(language.to_owned(), context.id.clone());
    Ok(context)
}

/// `GET /code/contexts`: those of a language, or all.
pub fn list(daemon: &Daemon, query: &Query) -> Answer {
    let language = query.get("language").filter(|language| !language.is_empty());
    let shown: Vec<_> = daemon.contexts.of(language).iter().map(|context| context.shown()).collect();
    json(StatusCode::OK, &shown)
}

/// `GET /code/contexts/{id}`.
///
/// # Errors
/// 404 for an unknown id.
pub fn get(daemon: &Daemon, id: &str) -> Result<Answer> {
    let context = daemon.contexts.get(id).ok_or_else(|| unknown(id))?;
    Ok(json(StatusCode::OK, &context.shown()))
}

fn unknown(id: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, code::CONTEXT_NOT_FOUND, format!("no context has the id {id:?}"))
}

/// `DELETE /code/contexts/{id}`: answers when its processes are gone.
///
/// # Errors
/// 404 for an unknown id, 500 when a process does not end.
pub async fn delete(daemon: Rc<Daemon>, id: &str) -> Result<Answer> {
    let context = daemon.contexts.forget(id).ok_or_else(|| unknown(id))?;
    end(&[context]).await
}

/// `DELETE /code/contexts?language=`: all of one language.
///
/// # Errors
/// 400 without a language, 500 when a process does not end.
pub async fn delete_by_language(daemon: Rc<Daemon>, query: &Query) -> Result<Answer> {
    let contexts = daemon.contexts.of(Some(query.require("language")?));
    contexts.iter().for_each(|context| drop(daemon.contexts.forget(&context.id)));
    end(&contexts).await
}

async fn end(contexts: &[Rc<Context>]) -> Result<Answer> {
    contexts.iter().for_each(|context| context.delete());
    for context in contexts {
        if !context.gone().await {
            let message = format!("processes of context {} are still there after SIGKILL", context.id);
            return Err(ApiError::runtime(message));
        }
    }
    Ok(empty())
}
