//! `GET /files/search` and `GET /directories/list`.
//!
//! Results are written while they are found. As long as they fit the first piece an error is an ordinary
//! refusal; after that it cuts the answer off, so that no reader takes a part for the whole.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{CWD, Mode, OFlags, openat};
use tokio::sync::oneshot;

use super::glob::Glob;
use super::info::describe;
use super::off_loop;
use super::path::{Asked, Parents, Place, Resolve, descriptor_path};
use crate::environment::Paths;
use crate::error::{ApiError, Result};
use crate::http::{Answer, ByteSender, Query, stream};
use crate::identity::Accounts;

/// Bytes of results that are collected before they are sent.
const PIECE_BYTES: usize = 256 * 1024;

/// Files whose base name matches, in the order of a walk by name; links are listed and not followed.
///
/// # Errors
/// 404 for a missing root, 400 for a root that is no directory, a malformed pattern or no path.
pub async fn search(paths: &Paths, query: Query, resolve: Resolve) -> Result<Answer> {
    let asked = Asked::new(paths, query.require("path")?, resolve)?;
    let pattern = query.get("pattern").filter(|pattern| !pattern.is_empty()).unwrap_or("**");
    let glob = Glob::parse(pattern).map_err(|why| ApiError::body(format!("pattern {pattern:?}: {why}")))?;
    walk(asked, move |root| {
        let found = root.stat_if_exists()?.ok_or_else(|| ApiError::not_found(&root.shown))?;
        if !found.is_dir() {
            return Err(ApiError::file(format!("{}: is not a directory", root.shown)));
        }
        Ok(Walk { depth: usize::MAX, select: Select::Files(glob) })
    })
    .await
}

/// Entries of a directory down to `depth` levels, each directory before what it holds, in byte order.
///
/// # Errors
/// 404 for a missing root, 400 for a link, another kind of root or a bad depth.
pub async fn list(paths: &Paths, query: Query, resolve: Resolve) -> Result<Answer> {
    let asked = Asked::new(paths, query.require("path")?, resolve)?;
    let depth = match query.get("depth").filter(|depth| !depth.is_empty()) {
        None => 1,
        Some(depth) => {
            depth.parse().map_err(|_| ApiError::body(format!("depth: {depth:?} is not a number from 0 on")))?
        }
    };
    walk(asked, move |root| {
        let found = root.lstat()?;
        if found.is_symlink() {
            return Err(ApiError::file(format!("{}: is a symbolic link; list what it points to", root.shown)));
        }
        if !found.is_dir() {
            return Err(ApiError::file(format!("{}: is not a directory", root.shown)));
        }
        Ok(Walk { depth, select: Select::All })
    })
    .await
}

struct Walk {
    depth: usize,
    select: Select,
}

enum Select {
    /// Everything, directories too.
    All,
    /// Non-directories whose name matches.
    Files(Glob),
}

async fn walk(asked: Asked, prepare: impl FnOnce(&Place) -> Result<Walk> + Send + 'static) -> Result<Answer> {
    let (sender, answer) = stream("application/json", None);
    let (started, outcome) = oneshot::channel();
    let writer = Writer { sender, started: Some(started), out: vec![b'['], first: true };
    tokio::task::spawn_local(off_loop(move || {
        let mut writer = writer;
        let walked = asked.locate(Parents::Existing).and_then(|root| {
            let walk = prepare(&root)?;
            walk.run(root.pin()?, &mut writer)
        });
        writer.finish(walked);
        Ok(())
    }));
    outcome.await.map_err(|_| ApiError::runtime("the walk ended without a result"))??;
    Ok(answer)
}

impl Walk {
    fn run(&self, root: Place, writer: &mut Writer) -> Result<()> {
        let accounts = Accounts::load();
        // A stack of sorted directories: recursion without the thread's stack.
        let mut stack = Vec::new();
        if self.depth > 0 {
            let shown = root.shown.trim_end_matches('/').to_owned();
            stack.push(Level::open(&root.path, shown, root.directory())?);
        }
        while let Some(level) = stack.last_mut() {
            let Some(name) = level.names.next() else {
                stack.pop();
                continue;
            };
            let path = level.path.join(&name);
            let strict = level.held.is_some();
            let shown = format!("{}/{}", level.shown, name.to_string_lossy());
            let found = match fs::symlink_metadata(&path) {
                Ok(found) => found,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // removed meanwhile
                Err(error) => return Err(ApiError::io("look at", &shown, &error)),
            };
            let selected = match &self.select {
                Select::All => true,
                Select::Files(_) if found.is_dir() => false,
                Select::Files(glob) => glob.matches(&name.to_string_lossy()).map_err(|_| {
                    ApiError::body(format!("pattern: too complex for the name {name:?}; use fewer groups"))
                })?,
            };
            if selected {
                writer.add(&describe(shown.clone(), &found, &accounts))?;
            }
            if found.is_dir() && stack.len() < self.depth {
                let opened = if strict { Level::open_held(&path, shown) } else { Level::open(&path, shown, None) };
                match opened {
                    Ok(level) => stack.push(level),
                    Err(error) if error.status == http::StatusCode::NOT_FOUND => {} // removed meanwhile
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

struct Level {
    path: PathBuf,
    /// In strict mode `path` goes through this descriptor.
    held: Option<Arc<OwnedFd>>,
    shown: String,
    names: std::vec::IntoIter<OsString>,
}

impl Level {
    /// Opens a directory by descriptor: it may have become a link since it was looked at.
    fn open_held(path: &Path, shown: String) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty())
            .map_err(|error| ApiError::io("open the directory", &shown, &error.into()))?;
        Self::open(&descriptor_path(&directory), shown, Some(Arc::new(directory)))
    }

    fn open(path: &Path, shown: String, held: Option<Arc<OwnedFd>>) -> Result<Self> {
        let failed =
            |error: io::Error| ApiError::io("read the directory", if shown.is_empty() { "/" } else { &shown }, &error);
        let entries = fs::read_dir(path).map_err(failed)?;
        let mut names = entries
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<io::Result<Vec<_>>>()
            .map_err(failed)?;
        names.sort_unstable();
        Ok(Self { path: path.to_owned(), held, shown, names: names.into_iter() })
    }
}

/// Writes a JSON array in pieces; the first decides between an answer and a refusal.
struct Writer {
    sender: ByteSender,
    started: Option<oneshot::Sender<Result<()>>>,
    out: Vec<u8>,
    first: bool,
}

impl Writer {
    fn add(&mut self, item: &impl serde::Serialize) -> Result<()> {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        serde_json::to_writer(&mut self.out, item).map_err(|error| ApiError::runtime(error.to_string()))?;
        if self.out.len() < PIECE_BYTES {
            return Ok(());
        }
        self.send()
    }

    fn send(&mut self) -> Result<()> {
        if let Some(started) = self.started.take() {
            let _ = started.send(Ok(())); // the asker may have gone: then the next line fails
        }
        let piece = Bytes::from(std::mem::take(&mut self.out));
        self.sender.blocking_send(Ok(piece)).map_err(|_| ApiError::runtime("the client went away"))
    }

    fn finish(mut self, walked: Result<()>) {
        match (walked, self.started.take()) {
            (Ok(()), started) => {
                self.started = started;
                self.out.push(b']');
                let _ = self.send(); // nobody reads any more
            }
            (Err(error), Some(started)) => {
                let _ = started.send(Err(error)); // nobody asks any more
            }
            (Err(error), None) => {
                let _ = self.sender.blocking_send(Err(io::Error::other(error.message))); // nobody reads any more
            }
        }
    }
}
