//! Files and directories of the sandbox.
//!
//! execd acts as its own user inside the sandbox: what that user may read and write, these calls can, and
//! new files belong to it unless the request names an owner. Paths follow links like any program's, so a
//! sandbox that races links races only itself; nothing outside is reachable, because nothing outside is
//! mounted. A caller who does not trust the sandbox's processes asks for [`Resolve::NoSymlinks`].
//!
//! Requests over several paths are checked whole before anything is changed. Work that may block runs in
//! [`crate::blocking`].

mod archive;
mod change;
mod download;
mod feed;
mod glob;
mod info;
mod line_window;
mod multipart;
mod path;
mod permission;
mod remove;
mod rename;
mod replace;
mod route;
mod stage;
mod upload;
mod walk;
mod watch;
mod worker;

pub use route::{route, route_with_counts};
pub use watch::{Watches, watch};
pub use worker::{FLAG as WORKER_FLAG, Workers, forward as forward_to_worker, run as run_worker};

use change::{make_directories, permissions};
use download::download;
use info::info;
use remove::{remove, remove_directories};
use rename::rename;
use replace::replace;
use upload::upload;
use walk::{list, search};

use crate::blocking;
use crate::error::{ApiError, Result};

/// Runs file work off the event loop.
async fn off_loop<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    blocking::run(work).await.map_err(|error| ApiError::runtime(error.to_string()))?
}
