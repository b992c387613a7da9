//! Code contexts: interpreters whose names last from one run to the next.
//!
//! Owns the contexts and their interpreters. An interpreter is a program of the sandbox (python3, node, bash)
//! that runs a small driver which execd carries; what it says is the sandbox's word, bounded and read like any
//! other input. Each context has one keeper task, which alone talks with its interpreter: it starts it, gives it
//! cells one at a time, and replaces it when it dies.
//!
//! ```text
//! POST /code/context --> starting --driver is ready--> idle <--POST /code--> running a cell
//!                           |                           |  ^                    |
//!                           +--cannot--> forgotten      |  +--next cell-- dead <-+ the interpreter ended
//!                                                       +--DELETE, idle limit--> killed, forgotten
//! ```

mod cell;
mod child;
mod context;
mod contexts;
mod events;
mod interpreter;
mod kernel;
mod language;
mod limits;
mod lines;
mod marks;
mod notebook;
mod probe;
mod stop;
mod talk;

pub use contexts::{Contexts, create, delete, delete_by_language, get, list};
pub use limits::Limits;
pub use notebook::Origin;
pub use probe::answer_probes;
pub use stop::interrupt;

use std::rc::Rc;

use http::Request;
use hyper::body::Incoming;
use protocol::execd::context::RunCode;

use crate::command::{self, OnDisconnect, event_stream};
use crate::daemon::Daemon;
use crate::error::{ApiError, Result};
use crate::http::{Answer, read_json};
use context::Context;

/// `POST /code`: runs code in a context and answers with the stream of its events.
///
/// # Errors
/// 400 for a body that cannot be obeyed, an unknown context and a language that this sandbox does not have.
pub async fn run(daemon: Rc<Daemon>, request: Request<Incoming>) -> Result<Answer> {
    let headers = request.headers().clone();
    let on_disconnect = command::on_disconnect(&headers, OnDisconnect::Cancel)?;
    let body: RunCode = read_json(request).await?;
    let code = body.code.unwrap_or_default();
    if code.trim().is_empty() {
        return Err(ApiError::body("code: is required and not blank"));
    }
    if code.contains('\0') {
        return Err(ApiError::body("code: holds a NUL byte"));
    }
    let wanted = body.context.unwrap_or_default();
    let language = wanted.language.filter(|language| !language.is_empty());
    let id = wanted.id.filter(|id| !id.is_empty());
    if id.is_none() {
        match language.as_deref() {
            None | Some("command") => return command::run_text(&daemon, &headers, code, false),
            Some("background-command") => return command::run_text(&daemon, &headers, code, true),
            Some(_) => {}
        }
    }
    let context = match &id {
        Some(id) => contexts::known(&daemon, id, language.as_deref())?,
        None => contexts::of_language(&daemon, &language.unwrap_or_default()).await?,
    };
    context.ready().await?;
    let (sender, answer) = event_stream();
    Context::run(&context, code, sender, on_disconnect);
    Ok(answer)
}
