//! `GET /v1/files/watch`: what changes in a directory tree, as a stream that can be resumed; ours, not
//! published.
//!
//! A watch is shared by all who ask for the same directory. It outlives its readers for a while, so that one
//! who comes back with a cursor misses nothing. Memory is bounded: of events by the journal, of directories by
//! the tree, of watches here; whoever meets a bound is told by an event.

mod journal;
mod tree;

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::header::{CACHE_CONTROL, HeaderName};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use protocol::execd::code;
use protocol::execd::stream::CONTENT_TYPE;
use protocol::execd::watch::{WatchEvent, kind};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

use self::journal::{Journal, Position, Read, is_cursor, wire};
use self::tree::{DirectoryId, Scope, Tree, open_root};
use super::off_loop;
use super::path::{Asked, Parents, Resolve};
use crate::blocking;
use crate::clock;
use crate::daemon::Daemon;
use crate::error::{ApiError, Result, system_text};
use crate::http::{Answer, ByteSender, Query, stream};
use crate::spawn;

/// Watches at once, those that nobody reads included.
const MAX_WATCHES: usize = 8;
/// Readers of one watch.
const MAX_READERS: usize = 64;
/// How long a watch waits for a reader to come back.
const LINGER: Duration = Duration::from_secs(600);
/// How often a reader hears something, at least.
const PING_EVERY: Duration = Duration::from_secs(15);

/// The watches that there are.
#[derive(Default)]
pub struct Watches {
    table: RefCell<Vec<Rc<Watch>>>,
    /// One is made at a time, so that two requests for a directory share one.
    opening: Mutex<()>,
}

struct Watch {
    path: String,
    scope: Scope,
    resolve: Resolve,
    id: DirectoryId,
    journal: RefCell<Journal>,
    /// There is something new in the journal, or the watch has ended.
    changed: Notify,
    /// It has been given up for another.
    given_up: Notify,
    ended: Cell<bool>,
    readers: Cell<usize>,
    last_left: Cell<Instant>,
}

/// Tells the changes below a directory from now on, or from a cursor on.
///
/// # Errors
/// 404 for a missing directory, 400 for what is none or a bad parameter, 429 at the bound of watches, 500
/// where the kernel has no more of them.
pub async fn watch(daemon: Rc<Daemon>, request: Request<Incoming>) -> Result<Answer> {
    let query = Query::of(&request);
    let resolve = Resolve::of(request.headers())?;
    let asked = Asked::new(daemon.paths(), query.require("path")?, resolve)?;
    let scope = match query.get("recursive").unwrap_or("") {
        "" | "true" => Scope::Recursive,
        "false" => Scope::Directory,
        other => return Err(ApiError::body(format!("recursive: {other:?} is neither \"true\" nor \"false\""))),
    };
    let cursor = query.get("cursor").filter(|cursor| !cursor.is_empty());
    if let Some(cursor) = cursor.filter(|cursor| !is_cursor(cursor)) {
        return Err(ApiError::body(format!("cursor: {cursor:?} is not one that an event of a watch carried")));
    }
    let watch = find_or_open(&daemon, asked, scope, resolve).await?;
    let reader = Reader::of(watch)?;
    let (sender, mut answer) = stream(CONTENT_TYPE, None);
    set_stream_headers(answer.headers_mut());
    let cursor = cursor.map(str::to_owned);
    tokio::task::spawn_local(async move { reader.tell(cursor.as_deref(), &sender).await });
    Ok(answer)
}

fn set_stream_headers(headers: &mut HeaderMap) {
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
}

async fn find_or_open(daemon: &Rc<Daemon>, asked: Asked, scope: Scope, resolve: Resolve) -> Result<Rc<Watch>> {
    let watches = &daemon.watches;
    let _turn = watches.opening.lock().await;
    let path = asked.shown.clone();
    let id = off_loop(move || identify(&asked)).await?;
    let same = |watch: &&Rc<Watch>| {
        (&watch.path, watch.scope, watch.resolve, watch.id, watch.ended.get()) == (&path, scope, resolve, id, false)
    };
    if let Some(watch) = watches.table.borrow().iter().find(same) {
        return Ok(Rc::clone(watch));
    }
    watches.make_room()?;
    let tree = off_loop(move || Tree::open(path, scope).map_err(ApiError::runtime)).await?;
    let queue = tree.queue().try_clone().and_then(spawn::watch).map_err(|error| {
        ApiError::runtime(format!("wait for the events of {}: {}", tree.shown(), system_text(&error)))
    })?;
    let watch = Rc::new(Watch::new(&tree, resolve));
    watches.table.borrow_mut().push(Rc::clone(&watch));
    tokio::task::spawn_local(run(Rc::clone(daemon), Rc::clone(&watch), tree, queue));
    Ok(watch)
}

/// Looks at the directory before it is watched, so that a mistake of the caller is told as one.
fn identify(asked: &Asked) -> Result<DirectoryId> {
    let place = asked.locate(Parents::Existing)?;
    let found = place.lstat()?;
    if found.is_symlink() {
        return Err(ApiError::file(format!("{}: is a symbolic link; watch what it points to", place.shown)));
    }
    if !found.is_dir() {
        return Err(ApiError::file(format!("{}: is not a directory; watch the directory that holds it", place.shown)));
    }
    open_root(&place.shown).map(|(_, id)| id).map_err(|error| place.failed("open", &error.into()))
}

impl Watches {
    /// Gives up the watch that nobody has read for the longest time, when there are too many.
    fn make_room(&self) -> Result<()> {
        let mut table = self.table.borrow_mut();
        if table.len() < MAX_WATCHES {
            return Ok(());
        }
        let unread = table.iter().enumerate().filter(|(_, watch)| watch.readers.get() == 0);
        let Some((at, _)) = unread.min_by_key(|(_, watch)| watch.last_left.get()) else {
            let message = format!("{MAX_WATCHES} directories are watched already; end one of those streams first");
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, code::RUNTIME_ERROR, message));
        };
        let watch = table.remove(at);
        watch.ended.set(true);
        watch.given_up.notify_one();
        Ok(())
    }

    fn forget(&self, watch: &Rc<Watch>) {
        self.table.borrow_mut().retain(|other| !Rc::ptr_eq(other, watch));
    }
}

impl Watch {
    fn new(tree: &Tree, resolve: Resolve) -> Self {
        thread_local!(static OPENED: Cell<u32> = const { Cell::new(0) });
        let number = OPENED.replace(OPENED.get() + 1);
        // The time tells watches of this execd from those of one before it.
        let generation = format!("{:x}x{number:x}", clock::now_ms());
        Self {
            path: tree.shown().to_owned(),
            scope: tree.scope(),
            resolve,
            id: tree.id(),
            journal: RefCell::new(Journal::new(generation)),
            changed: Notify::new(),
            given_up: Notify::new(),
            ended: Cell::new(false),
            readers: Cell::new(0),
            last_left: Cell::new(Instant::now()),
        }
    }

    fn is_forgotten(&self) -> bool {
        self.readers.get() == 0 && self.last_left.get().elapsed() >= LINGER
    }
}

/// Takes events from the kernel into the journal, until the directory is gone or nobody wants to know.
async fn run(daemon: Rc<Daemon>, watch: Rc<Watch>, mut tree: Tree, queue: AsyncFd<OwnedFd>) {
    while !watch.ended.get() && !watch.is_forgotten() {
        let ready = tokio::select! {
            ready = timeout(LINGER, queue.readable()) => ready,
            () = watch.given_up.notified() => break,
        };
        let Ok(ready) = ready else { continue };
        let Ok(mut ready) = ready else { break };
        let drained = blocking::run(move || {
            let batch = tree.drain();
            (tree, batch)
        });
        let Ok((back, batch)) = drained.await else {
            watch.end("the events could not be read: no thread could be started");
            break;
        };
        tree = back;
        if batch.drained {
            ready.clear_ready();
        }
        watch.ended.set(batch.ended || watch.ended.get());
        batch.events.into_iter().for_each(|event| watch.journal.borrow_mut().push(event));
        watch.changed.notify_waiters();
    }
    watch.ended.set(true);
    watch.changed.notify_waiters();
    daemon.watches.forget(&watch);
}

impl Watch {
    fn end(&self, reason: &str) {
        self.journal.borrow_mut().push(WatchEvent {
            kind: kind::ENDED.into(),
            path: Some(self.path.clone()),
            reason: Some(reason.into()),
            directory: true,
            ..WatchEvent::default()
        });
    }

    /// An event that only one reader gets; its cursor is where that reader stands.
    fn own(&self, kind: &str, reason: Option<&str>, position: Position) -> String {
        wire(WatchEvent {
            kind: kind.to_owned(),
            path: Some(self.path.clone()),
            directory: true,
            reason: reason.map(str::to_owned),
            cursor: Some(self.journal.borrow().cursor(position)),
            ..WatchEvent::default()
        })
    }
}

/// Counts a reader as long as it lives.
struct Reader(Rc<Watch>);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.readers.set(self.0.readers.get() - 1);
        self.0.last_left.set(Instant::now());
    }
}

impl Reader {
    fn of(watch: Rc<Watch>) -> Result<Self> {
        if watch.readers.get() >= MAX_READERS {
            let message = format!("{}: {MAX_READERS} streams watch it already", watch.path);
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, code::RUNTIME_ERROR, message));
        }
        watch.readers.set(watch.readers.get() + 1);
        Ok(Self(watch))
    }

    /// Sends events until the watch ends or the client has gone.
    async fn tell(&self, cursor: Option<&str>, sender: &ByteSender) {
        let watch = &self.0;
        let end = watch.journal.borrow().end();
        let known = cursor.map(|cursor| watch.journal.borrow().position(cursor));
        let mut position = known.flatten().unwrap_or(end);
        let mut text = watch.own(kind::WATCHING, None, position);
        if known == Some(None) {
            text += &watch.own(kind::RESCAN, Some("the cursor is of a watch that has ended since"), position);
        }
        loop {
            if sender.send(Ok(text.into())).await.is_err() {
                return;
            }
            text = loop {
                let read = watch.journal.borrow().read(position);
                match read {
                    Read::Events(events, next) => {
                        position = next;
                        break events;
                    }
                    Read::Lost => {
                        position = watch.journal.borrow().end();
                        break watch.own(kind::RESCAN, Some("more changed than is kept for a reader"), position);
                    }
                    Read::None if watch.ended.get() => return,
                    Read::None => {}
                }
                tokio::select! {
                    () = sender.closed() => return,
                    changed = timeout(PING_EVERY, watch.changed.notified()) => {
                        if changed.is_err() {
                            break wire(WatchEvent { kind: kind::PING.into(), ..WatchEvent::default() });
                        }
                    }
                }
            };
        }
    }
}
