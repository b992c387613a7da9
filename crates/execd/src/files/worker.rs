//! `/v1/filesystem/{uid}/{gid}/...`: the file calls under another identity.
//!
//! A short-lived worker answers each call: execd's own program, started with the identity's user, group and
//! supplementary groups, without a capability (unless it is root), and with the request's connection as its
//! standard input. So every check is the kernel's, on credentials that nothing shares with execd: not its
//! descriptors, not its `/proc/self`, not its token. The worker runs the same code as the plain calls and
//! ends with its connection, which ends with the client's.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{Request, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use protocol::execd::code;
use protocol::headers;
use rustix::process::Signal;
use rustix::thread::{CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::route::route;
use crate::blocking;
use crate::command::make_plan;
use crate::daemon::Daemon;
use crate::environment::{Environment, Paths};
use crate::error::{ApiError, Result, system_text};
use crate::http::{self as api, Answer, Body};
use crate::identity::{self, Accounts};
use crate::reaper::Process;
use crate::spawn::{self, Identity, Stdio};

/// The first argument of a worker; the second is the directory where relative paths begin.
pub const FLAG: &str = "--file-worker";
/// The program that is running now, whatever became of its file.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Workers at once: each is a process of a few hundred KiB.
const MAX_WORKERS: usize = 32;
/// How long a call waits for its turn before it is refused.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// How long a worker may take to end once its connection has; then it is killed.
const MAX_END: Duration = Duration::from_secs(10);

/// The workers that run now.
pub struct Workers(Arc<Semaphore>);

impl Default for Workers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_WORKERS)))
    }
}

/// Answers a file call as `uid` and `gid`; `path` is what stands behind both.
///
/// # Errors
/// 400 for what is no id, 503 `FILESYSTEM_IDENTITY_UNAVAILABLE` where the switch is not permitted, the id is
/// not mapped in the sandbox or too many workers run; those of the call otherwise.
pub async fn forward(
    daemon: &Rc<Daemon>,
    request: Request<Incoming>,
    uid: &str,
    gid: &str,
    path: &str,
) -> Result<Answer> {
    let (uid, gid) = (id("uid", uid)?, id("gid", gid)?);
    let identity = Accounts::load().identity(uid, Some(gid));
    if identity::is_own(&identity) {
        return route(daemon.paths(), path, request).await;
    }
    let slot = timeout(MAX_WAIT, Arc::clone(&daemon.file_workers.0).acquire_owned()).await;
    let Ok(Ok(slot)) = slot else {
        return Err(unavailable(format!("{MAX_WORKERS} file calls under other identities run already; try again")));
    };
    let broken = |why: String| ApiError::runtime(format!("file call as {uid}:{gid}: {why}"));
    let (stream, process) = start(daemon, identity)?;
    let stream = UnixStream::from_std(stream).map_err(|error| broken(system_text(&error)))?;
    let ended = finish(process, slot);
    let mut sender = api::client::handshake(stream, ended).await.map_err(|error| broken(error.to_string()))?;
    let request = prepared(request, path)?;
    let mut answer = sender
        .send_request(request.map(BodyExt::boxed_unsync))
        .await
        .map_err(|error| broken(format!("the worker ended before its answer: {error}")))?;
    for hop in [header::CONNECTION, header::TRANSFER_ENCODING] {
        answer.headers_mut().remove(hop);
    }
    Ok(answer.map(Body::Proxied))
}

fn id(field: &str, text: &str) -> Result<u32> {
    // u32::MAX means "leave it" to the kernel; a sign is no digit.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse::<u32>().ok().filter(|id| digits && *id != u32::MAX);
    number.ok_or_else(|| ApiError::body(format!("{field}: {text:?} is not a number between 0 and 4294967294")))
}

fn unavailable(message: String) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code::FILESYSTEM_IDENTITY_UNAVAILABLE, message)
}

fn start(daemon: &Daemon, identity: Identity) -> Result<(StdStream, Process)> {
    let (uid, gid) = (identity.uid, identity.gid);
    let failed = |error: std::io::Error| {
        ApiError::runtime(format!("file call as {uid}:{gid}: make a connection: {}", system_text(&error)))
    };
    let (ours, theirs) = StdStream::pair().map_err(failed)?;
    ours.set_nonblocking(true).map_err(failed)?;
    let Paths { env, cwd } = daemon.paths().as_ref();
    let argv = ["execd", FLAG, cwd].map(str::to_owned).to_vec();
    let plan = make_plan(argv, Some(OWN_PROGRAM.into()), env.clone(), "/", Some(identity))?;
    let null = daemon.null().as_fd();
    let pid = spawn::spawn(&plan, &Stdio { fds: [Some(theirs.as_fd()), Some(null), Some(null)] }).map_err(|error| {
        let message = format!("file call as {uid}:{gid}: {error}");
        if error.is_about_identity() { unavailable(message) } else { ApiError::runtime(message) }
    })?;
    Ok((ours, daemon.reaper.register(pid)))
}

/// The request as a worker takes it: without the prefix, what belongs to the connection, and the token.
fn prepared(mut request: Request<Incoming>, path: &str) -> Result<Request<Incoming>> {
    let target = request.uri().query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    let target = PathAndQuery::try_from(target).map_err(|error| ApiError::body(format!("path {path:?}: {error}")))?;
    *request.uri_mut() = Uri::from(target);
    let headers = request.headers_mut();
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, header::EXPECT] {
        headers.remove(name);
    }
    headers.remove(headers::EXECD_ACCESS_TOKEN);
    headers.remove(headers::SECURE_ACCESS);
    Ok(request)
}

/// Waits for a worker whose connection has ended, and keeps its slot until it is gone.
async fn finish(process: Process, slot: OwnedSemaphorePermit) {
    if timeout(MAX_END, process.wait()).await.is_err() {
        process.signal_group(Signal::KILL);
        process.wait().await;
    }
    drop(slot);
}

/// A worker's whole life: one connection, then what is still being undone.
///
/// # Errors
/// What keeps it from answering at all, for people.
pub fn run(cwd: String, env: Environment) -> std::result::Result<u8, String> {
    if !rustix::process::geteuid().is_root() {
        drop_capabilities().map_err(|error| format!("drop capabilities: {}", system_text(&error.into())))?;
    }
    let connection = spawn::inherited(0).ok_or("a file worker is started by execd, with its connection as input")?;
    let paths = Arc::new(Paths { env, cwd });
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    let runtime = runtime.map_err(|error| format!("start the event loop: {}", system_text(&error)))?;
    runtime
        .block_on(async {
            let stream = StdStream::from(connection);
            stream.set_nonblocking(true)?;
            let answer = move |request: Request<Incoming>| {
                let paths = Arc::clone(&paths);
                async move {
                    let path = request.uri().path().to_owned();
                    route(&paths, &path, request).await.unwrap_or_else(api::refuse)
                }
            };
            api::connection(UnixStream::from_std(stream)?, answer).await;
            std::io::Result::Ok(())
        })
        .map_err(|error| format!("take over the connection: {}", system_text(&error)))?;
    // An upload that broke off is still removing what it had staged.
    blocking::settle(MAX_END);
    Ok(0)
}

/// Kept capabilities would let another user than root pass the kernel's checks.
fn drop_capabilities() -> rustix::io::Result<()> {
    let none = CapabilitySet::empty();
    clear_ambient_capability_set()?;
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}
