//! `GET` and `PUT /v1/archive`: a directory and all below it as one tar stream; ours, not published.
//!
//! The archive holds what lies below the directory, not the directory itself, so that it can be put anywhere.
//! Links travel as they are: whoever follows them later is inside of the sandbox. Extracting follows none, and
//! reaches nothing outside of the directory whatever the archive says.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use archive::{Error, Extraction, Limits, Links, Packing, Pieces, Special};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use hyper::body::Incoming;
use protocol::execd::code;
use protocol::execd::files::Permission;
use rustix::fs::{CWD, Mode, OFlags, openat};
use tokio::sync::oneshot;

use super::feed::feed;
use super::off_loop;
use super::path::{Asked, Parents, Resolve};
use super::permission::Applied;
use crate::environment::Paths;
use crate::error::{ApiError, Result, system_text};
use crate::http::{Answer, Query, empty, stream};
use crate::identity::Accounts;

/// Media type of a tar.
const CONTENT_TYPE: &str = "application/x-tar";

/// Sends a directory. `special=skip` leaves out fifos, sockets and devices, which are refused otherwise.
///
/// # Errors
/// 404 for a missing directory, 400 for what is none or cannot be packed; a failure after the first bytes cuts
/// the connection, so that no reader takes a part for the whole.
pub async fn pack(paths: &Paths, query: Query, resolve: Resolve) -> Result<Answer> {
    let asked = Asked::new(paths, query.require("path")?, resolve)?;
    let special = match query.get("special").unwrap_or("") {
        "" | "refuse" => Special::Refuse,
        "skip" => Special::LeaveOut,
        other => return Err(ApiError::body(format!("special: {other:?} is neither \"refuse\" nor \"skip\""))),
    };
    let shown = asked.shown.clone();
    let root = off_loop(move || {
        let root = open(&asked)?;
        archive::survey(root.as_fd(), special).map_err(|error| refusal(&asked.shown, &error))?;
        Ok(root)
    });
    let root = root.await?;
    let (sender, answer) = stream(CONTENT_TYPE, None);
    let (begun, outcome) = oneshot::channel();
    tokio::task::spawn_local(off_loop(move || {
        let mut begun = Some(begun);
        let pieces = Pieces::new(|piece| {
            // Only a client that has gone does not wait for it, and that shows in the next line.
            let _ = begun.take().map(|begun| begun.send(Ok(())));
            let sent = sender.blocking_send(Ok(Bytes::from(piece)));
            sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the client went away"))
        });
        let mut packing =
            Packing { links: Links::Keep, special, mode: None, left_out: &mut |_, _| (), packed: &mut |_| () };
        let packed = archive::pack(root.as_fd(), &mut packing, pieces).map(drop);
        match (packed, begun) {
            (Err(error), Some(begun)) => drop(begun.send(Err(error))),
            // Nobody may read any more.
            (Err(error), None) => drop(sender.blocking_send(Err(io::Error::other(text(&error))))),
            (Ok(()), _) => {}
        }
        Ok(())
    }));
    // What fails before the first bytes is told as what it is.
    match outcome.await {
        Ok(Err(error)) => Err(refusal(&shown, &error)),
        _ => Ok(answer),
    }
}

/// Extracts an archive into a directory, which is made if it is missing. `owner`, `group` and `mode` apply to
/// what is made, the mode to files only.
///
/// # Errors
/// 400 naming the entry that is refused or the place where the archive is damaged; what was made before stays.
pub async fn extract(paths: Arc<Paths>, request: Request<Incoming>, query: Query, resolve: Resolve) -> Result<Answer> {
    let asked = Asked::new(&paths, query.require("path")?, resolve)?;
    if let Some(encoding) = request.headers().get(header::CONTENT_ENCODING) {
        let message = format!("content encoding {encoding:?} is not taken; send the tar as it is");
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code::INVALID_FILE_CONTENT, message));
    }
    let permission = permission(&query)?;
    feed(request.into_body(), move |source| {
        let applied = Applied::check(&asked.shown, &permission, &Accounts::load())?;
        let root = make(&asked)?;
        let mut extraction = Extraction {
            limits: Limits::default(),
            links: Links::Keep,
            special: Special::Refuse,
            uid: applied.uid,
            gid: applied.gid,
            mode: applied.mode,
            told: &mut |_, _| (),
        };
        archive::extract(root.as_fd(), source, &mut extraction).map_err(|error| refusal(&asked.shown, &error))
    })
    .await?;
    Ok(empty())
}

fn permission(query: &Query) -> Result<Permission> {
    let text = |name: &str| query.get(name).filter(|value| !value.is_empty()).map(str::to_owned);
    let mode = text("mode")
        .map(|mode| mode.parse().map_err(|_| ApiError::body(format!("mode: {mode:?} is not a number such as 644"))));
    Ok(Permission { owner: text("owner"), group: text("group"), mode: mode.transpose()? })
}

fn open(asked: &Asked) -> Result<OwnedFd> {
    let place = asked.locate(Parents::Existing)?.pin()?;
    let found = place.stat_if_exists()?.ok_or_else(|| ApiError::not_found(&place.shown))?;
    if !found.is_dir() {
        return Err(ApiError::file(format!("{}: is not a directory; download it as a file", place.shown)));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, &place.path, flags, Mode::empty()).map_err(|error| place.failed("open", &error.into()))
}

fn make(asked: &Asked) -> Result<OwnedFd> {
    if asked.shown != "/" {
        let place = asked.locate(Parents::Made)?;
        match std::fs::create_dir(&place.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(place.failed("make the directory", &error));
            }
            _ => {}
        }
    }
    open(asked)
}

/// Whose fault it is: the archive's or caller's, or the system's.
fn refusal(shown: &str, error: &Error) -> ApiError {
    let refuse = |code| ApiError::new(StatusCode::BAD_REQUEST, code, format!("{shown}: {}", text(error)));
    match error {
        Error::Malformed { .. } | Error::Stream(_) => refuse(code::INVALID_FILE_CONTENT),
        Error::System { operation, subject, error } => ApiError::io(operation, &format!("{subject} in {shown}"), error),
        _ => refuse(code::INVALID_FILE),
    }
}

/// The error with its cause.
fn text(error: &Error) -> String {
    match error {
        Error::System { error: cause, .. } | Error::Stream(cause) => format!("{error}: {}", system_text(cause)),
        _ => error.to_string(),
    }
}
