//! A directory tree under inotify: which watch descriptor stands for which directory, and what the kernel's
//! events mean for the paths of the tree.
//!
//! Two races shape it. A directory is new, and things appear in it before it is watched: so it is watched
//! first and read after, and what the reading told is not told again when its event comes
//! ([`Tree::told`]). And the queue of events lags behind the tree: so a directory is known by device and
//! inode, and where the two disagree, or the queue ran over, a `rescan` says so.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::execd::watch::{WatchEvent, kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

use super::super::path::descriptor_path;
use crate::error::system_text;

/// Directories of one tree: some 200 bytes each here, and a kernel watch each.
pub const MAX_DIRECTORIES: usize = 16_384;
/// Bytes of kernel events read at once: some 300 events.
const READ_BYTES: usize = 16 * 1024;
/// Events after which what was found is handed over, though more is waiting.
const MAX_BATCH: usize = 4096;
/// Entries of a directory tree that appeared whole, told one by one; beyond it the client is asked to list it.
const MAX_TOLD: usize = 8192;
/// The kernel queues the two halves of a move together; other processors' events may come between, so many at
/// most. Beyond it what left did not arrive.
const MAX_BETWEEN: u64 = 16;
/// When the queue is empty between the two, the second is waited for this long.
const MOVE_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The tree, and what the kernel has said of it so far.
pub struct Tree {
    inotify: Arc<OwnedFd>,
    shown: String,
    id: DirectoryId,
    root: i32,
    scope: Scope,
    nodes: HashMap<i32, Node>,
    places: BTreeMap<Place, i32>,
    /// Names that reading a new directory told, whose events may still be queued.
    told: HashSet<Place>,
    /// Directories in which one was not found where it had been: something above it has moved on, and its event
    /// follows.
    missed: HashSet<i32>,
    /// First halves of moves.
    leaving: Vec<Leaving>,
    /// Events read so far.
    read: u64,
}

/// How far a watch goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The directory's own entries.
    Directory,
    /// Everything below it; links are not followed.
    Recursive,
}

/// Device and inode.
pub type DirectoryId = (u64, u64);

/// A name in a watched directory.
type Place = (i32, Box<OsStr>);

struct Node {
    /// `None` for the root.
    place: Option<Place>,
    id: DirectoryId,
}

/// The first half of a move, whose second may come.
struct Leaving {
    cookie: u32,
    place: Place,
    directory: bool,
    /// When it was read, in events.
    at: u64,
}

/// What one look at the queue brought.
#[derive(Default)]
pub struct Batch {
    /// In order; without cursors.
    pub events: Vec<WatchEvent>,
    /// Whether the queue was empty at the end.
    pub drained: bool,
    /// The root is gone: nothing will follow.
    pub ended: bool,
}

impl Batch {
    fn push(&mut self, kind: &str, path: String, directory: bool) {
        self.events.push(WatchEvent { kind: kind.to_owned(), path: Some(path), directory, ..WatchEvent::default() });
    }

    /// Something that may happen many times in a row says it once.
    fn push_once(&mut self, kind: &str, path: String, directory: bool) {
        let same = |last: &WatchEvent| last.kind == kind && last.path.as_deref() == Some(&path);
        if !self.events.last().is_some_and(same) {
            self.push(kind, path, directory);
        }
    }

    fn because(&mut self, kind: &str, path: String, reason: impl Into<String>) {
        self.push(kind, path, true);
        self.events.last_mut().expect("just pushed").reason = Some(reason.into());
    }

    fn end(&mut self, path: &str, reason: &str) {
        if !std::mem::replace(&mut self.ended, true) {
            self.because(kind::ENDED, path.to_owned(), reason);
        }
    }
}

/// Whether a walk tells what it finds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Telling {
    /// Each entry.
    Created,
    /// It has told so much that one word for the rest must do.
    TooMuch,
    Nothing,
}

impl Tree {
    /// Watches the directory `shown`, which is `id` now, and what the scope asks below it.
    ///
    /// # Errors
    /// When it cannot be watched whole, with a sentence that says why.
    pub fn open(shown: String, scope: Scope) -> Result<Self, String> {
        let failed = |error: Errno| format!("watch {shown}: {}{}", text(error), hint(error));
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        let (directory, id) = open_root(&shown).map_err(failed)?;
        let flags = watched() | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let root = add_watch(&inotify, &directory, Path::new(&shown), flags).map_err(failed)?;
        let mut tree = Self {
            inotify: Arc::new(inotify),
            shown,
            id,
            root,
            scope,
            nodes: HashMap::from([(root, Node { place: None, id })]),
            places: BTreeMap::new(),
            told: HashSet::new(),
            missed: HashSet::new(),
            leaving: Vec::new(),
            read: 0,
        };
        let mut found = Batch::default();
        tree.walk(root, Telling::Nothing, &mut found);
        match found.events.into_iter().next() {
            None => Ok(tree),
            Some(event) => Err(format!(
                "watch {}: {}; watch a smaller tree",
                event.path.unwrap_or_default(),
                event.reason.unwrap_or_default()
            )),
        }
    }

    /// The queue of events.
    pub fn queue(&self) -> &OwnedFd {
        &self.inotify
    }

    /// The watched directory's path.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// How far the watch goes.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Which directory is watched.
    pub fn id(&self) -> DirectoryId {
        self.id
    }

    /// Reads what is queued, in an order that a client can apply to what it knows.
    pub fn drain(&mut self) -> Batch {
        let inotify = Arc::clone(&self.inotify);
        let mut buffer = vec![MaybeUninit::uninit(); READ_BYTES];
        let mut reader = Reader::new(&*inotify, &mut buffer);
        let mut batch = Batch::default();
        while !batch.ended && (batch.events.len() < MAX_BATCH || !reader.is_buffer_empty()) {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| Box::from(OsStr::from_bytes(name.to_bytes())));
                    let (wd, flags, cookie) = (event.wd(), event.events(), event.cookie());
                    if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                        self.resync(&mut reader, &mut batch);
                    } else {
                        self.apply(wd, flags, cookie, name, &mut batch);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.told = HashSet::new(); // their events, if there were any, have been read now
                    if !self.leaving.is_empty() && more_comes(&inotify) {
                        self.read += MAX_BETWEEN; // it comes now or not at all
                        continue;
                    }
                    self.give_up_leaving(&mut batch, |_| true);
                    self.missed = HashSet::new(); // no move is on its way: what was missed is gone indeed
                    batch.drained = true;
                    return batch;
                }
                Err(error) => batch.end(&self.shown, &format!("read the events: {}", text(error))),
            }
        }
        batch
    }

    fn apply(&mut self, wd: i32, flags: ReadFlags, cookie: u32, name: Option<Box<OsStr>>, batch: &mut Batch) {
        self.read += 1;
        let before = self.read.saturating_sub(MAX_BETWEEN);
        let is_same = |leaving: &Leaving| leaving.place.0 == wd && Some(&leaving.place.1) == name.as_ref();
        // What follows may use the name again: so its end is told first.
        self.give_up_leaving(batch, |leaving| leaving.cookie != cookie && (leaving.at < before || is_same(leaving)));
        if !self.nodes.contains_key(&wd) {
            return; // of a watch that was given up
        }
        let directory = flags.contains(ReadFlags::ISDIR);
        let Some(name) = name else {
            return self.apply_to_itself(wd, flags, batch);
        };
        let place = (wd, name);
        let path = self.path_of(&place);
        if flags.contains(ReadFlags::CREATE) {
            if !self.told.remove(&place) {
                batch.push(kind::CREATED, path, directory);
                self.enter(place, directory, batch);
            }
        } else if flags.contains(ReadFlags::DELETE) {
            self.told.remove(&place);
            batch.push(kind::DELETED, path, directory);
            self.leave(&place);
        } else if flags.contains(ReadFlags::MOVED_FROM) {
            self.told.remove(&place);
            self.leaving.push(Leaving { cookie, place, directory, at: self.read });
        } else if flags.contains(ReadFlags::MOVED_TO) {
            self.told.remove(&place);
            self.arrive(cookie, place, path, directory, batch);
        } else if flags.contains(ReadFlags::CLOSE_WRITE) {
            batch.push(kind::CLOSED, path, directory);
        } else if flags.contains(ReadFlags::MODIFY) {
            batch.push_once(kind::MODIFIED, path, directory);
        } else if flags.contains(ReadFlags::ATTRIB) {
            batch.push_once(kind::ATTRIBUTES, path, directory);
        }
    }

    /// An event of a watched directory itself. Those below the root are told by their parents.
    fn apply_to_itself(&mut self, wd: i32, flags: ReadFlags, batch: &mut Batch) {
        if wd == self.root {
            if flags.contains(ReadFlags::MOVE_SELF) {
                batch.end(&self.shown, "the directory was moved away");
            } else if flags.contains(ReadFlags::UNMOUNT) {
                batch.end(&self.shown, "its file system was unmounted");
            } else if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::IGNORED) {
                batch.end(&self.shown, "the directory was removed");
            } else if flags.contains(ReadFlags::ATTRIB) {
                batch.push_once(kind::ATTRIBUTES, self.shown.clone(), true);
            }
        } else if flags.contains(ReadFlags::IGNORED) {
            self.forget(wd);
        }
    }

    /// The second half of a move, or something from elsewhere.
    fn arrive(&mut self, cookie: u32, place: Place, path: String, directory: bool, batch: &mut Batch) {
        let first = self.leaving.iter().position(|leaving| leaving.cookie == cookie);
        let first = first.map(|at| self.leaving.remove(at).place);
        let Some(from) = first.filter(|from| self.nodes.contains_key(&from.0)) else {
            self.leave(&place); // what it replaced
            batch.push(kind::CREATED, path, directory);
            return self.enter(place, directory, batch);
        };
        let from_path = self.path_of(&from);
        self.leave(&place);
        batch.push(kind::MOVED, path.clone(), directory);
        batch.events.last_mut().expect("just pushed").from = Some(from_path);
        let Some(&wd) = self.places.get(&from) else {
            return self.enter(place, directory, batch);
        };
        let known = self.nodes.get(&wd).map(|node| node.id);
        match self.open_directory(&self.relative(&place)) {
            Ok((_, id)) if known != Some(id) => {
                // Another directory had taken the old name before it was watched, or this one has moved on.
                self.leave(&from);
                self.enter(place, directory, batch);
                batch.because(kind::RESCAN, path, "directories changed places faster than they could be followed");
            }
            _ => {
                self.put(wd, place); // also when it has gone on already: its next event follows
                self.catch_up(wd, path, batch);
            }
        }
    }

    /// Looks again into a directory that has moved, if something in it could not be found where it had been.
    fn catch_up(&mut self, top: i32, path: String, batch: &mut Batch) {
        let missed = std::mem::take(&mut self.missed);
        let (below, others): (HashSet<i32>, HashSet<i32>) = missed.into_iter().partition(|wd| self.is_below(*wd, top));
        self.missed = others;
        if !below.is_empty() {
            self.walk(top, Telling::Nothing, batch);
            batch.because(kind::RESCAN, path, "directories changed places faster than they could be followed");
        }
    }

    /// Whether a watched directory is `top` or lies in it.
    fn is_below(&self, wd: i32, top: i32) -> bool {
        let above = |wd: &i32| self.nodes.get(wd).and_then(|node| node.place.as_ref()).map(|place| place.0);
        std::iter::successors(Some(wd), above).any(|wd| wd == top)
    }

    /// What left and did not arrive is gone from the tree.
    fn give_up_leaving(&mut self, batch: &mut Batch, which: impl Fn(&Leaving) -> bool) {
        while let Some(at) = self.leaving.iter().position(&which) {
            let Leaving { place, directory, .. } = self.leaving.remove(at);
            // With its directory gone that one's end has told of it.
            if self.nodes.contains_key(&place.0) {
                batch.push(kind::DELETED, self.path_of(&place), directory);
                self.leave(&place);
            }
        }
    }

    /// Watches and reads what appeared at `place`, if it is a directory and the scope asks for it.
    fn enter(&mut self, place: Place, directory: bool, batch: &mut Batch) {
        if directory
            && self.scope == Scope::Recursive
            && let Some(wd) = self.watch(place, batch)
        {
            self.walk(wd, Telling::Created, batch);
        }
    }

    /// Reads directories that are watched, and watches and reads those in them; returns all of them.
    fn walk(&mut self, top: i32, mut telling: Telling, batch: &mut Batch) -> HashSet<i32> {
        let most = batch.events.len() + MAX_TOLD;
        let mut seen = HashSet::from([top]);
        let mut unread = vec![top];
        while let Some(wd) = unread.pop() {
            // A directory that is gone has no names.
            let names = self.names(wd, batch);
            if names.is_none() {
                self.missed.insert(wd);
            }
            for entry in names.into_iter().flatten().flatten() {
                let directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
                let place = (wd, entry.file_name().into_boxed_os_str());
                if telling == Telling::Created {
                    batch.push(kind::CREATED, self.path_of(&place), directory);
                    self.told.insert(place.clone());
                    if batch.events.len() >= most {
                        telling = Telling::TooMuch;
                    }
                }
                if directory && self.scope == Scope::Recursive {
                    unread.extend(self.watch(place, batch).filter(|below| seen.insert(*below)));
                }
            }
        }
        if telling == Telling::TooMuch {
            let path = self.show(&self.relative_of_node(top));
            batch.because(kind::RESCAN, path, "more appeared at once than is told one by one");
        }
        seen
    }

    fn names(&self, wd: i32, batch: &mut Batch) -> Option<std::fs::ReadDir> {
        let relative = self.relative_of_node(wd);
        let opened = self.open_directory(&relative).map_err(io::Error::from);
        match opened.and_then(|(directory, _)| std::fs::read_dir(readable_path(&directory, &self.absolute(&relative))))
        {
            Ok(names) => Some(names),
            Err(error) if is_gone(&error) => None,
            Err(error) => {
                batch.because(kind::UNWATCHED, self.show(&relative), system_text(&error));
                None
            }
        }
    }

    /// Watches the directory at `place`. `None` when it is gone, or cannot be watched: then an event says so.
    fn watch(&mut self, place: Place, batch: &mut Batch) -> Option<i32> {
        let relative = self.relative(&place);
        if self.nodes.len() >= MAX_DIRECTORIES && !self.places.contains_key(&place) {
            let reason = format!("a watch covers at most {MAX_DIRECTORIES} directories");
            batch.because(kind::UNWATCHED, self.show(&relative), reason);
            return None;
        }
        let watched = self.open_directory(&relative).and_then(|(directory, id)| {
            let wd = add_watch(&self.inotify, &directory, &self.absolute(&relative), watched())?;
            Ok((wd, id))
        });
        match watched {
            Ok((wd, id)) => {
                self.nodes.entry(wd).or_insert(Node { place: None, id }).id = id;
                self.put(wd, place);
                Some(wd)
            }
            Err(error) if is_gone(&error.into()) => {
                self.missed.insert(place.0);
                None
            }
            Err(error) => {
                batch.because(kind::UNWATCHED, self.show(&relative), text(error) + hint(error));
                None
            }
        }
    }

    /// Notes where a watched directory is.
    fn put(&mut self, wd: i32, place: Place) {
        let Some(node) = self.nodes.get_mut(&wd) else { return };
        if let Some(before) = node.place.replace(place.clone())
            && self.places.get(&before) == Some(&wd)
        {
            self.places.remove(&before);
        }
        self.places.insert(place, wd);
    }

    /// Gives up the watches of the directory at `place` and of all below it.
    fn leave(&mut self, place: &Place) {
        let Some(&top) = self.places.get(place) else { return };
        let mut below = vec![top];
        while let Some(wd) = below.pop() {
            let first = |wd: i32| (wd, Box::from(OsStr::new("")));
            below.extend(self.places.range(first(wd)..first(wd + 1)).map(|(_, below)| *below));
            let _ = inotify::remove_watch(&self.inotify, wd); // it may have gone with its directory
            self.forget(wd);
        }
    }

    fn forget(&mut self, wd: i32) {
        if let Some(Node { place: Some(place), .. }) = self.nodes.remove(&wd)
            && self.places.get(&place) == Some(&wd)
        {
            self.places.remove(&place);
        }
    }

    /// The queue ran over: what it still holds is of no use. Watches what is there now, then says so.
    fn resync(&mut self, reader: &mut Reader<'_, &OwnedFd>, batch: &mut Batch) {
        while matches!(reader.next(), Ok(_) | Err(Errno::INTR)) {}
        self.leaving.clear();
        self.told.clear();
        self.missed.clear();
        if open_root(&self.shown).map(|(_, id)| id) != Ok(self.id) {
            return batch.end(&self.shown, "the directory was removed");
        }
        let seen = self.walk(self.root, Telling::Nothing, batch);
        let gone: Vec<i32> = self.nodes.keys().copied().filter(|wd| !seen.contains(wd)).collect();
        for wd in gone {
            let _ = inotify::remove_watch(&self.inotify, wd); // it may have gone with its directory
            self.forget(wd);
        }
        batch.because(kind::RESCAN, self.shown.clone(), "changes came faster than the kernel's queue could hold");
    }

    /// Opens a directory of the tree without following a link below the root.
    fn open_directory(&self, relative: &Path) -> Result<(OwnedFd, DirectoryId), Errno> {
        let (root, id) = open_root(&self.shown)?;
        if id != self.id {
            return Err(Errno::NOENT);
        }
        if relative.as_os_str().is_empty() {
            return Ok((root, id));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let opened = match openat2(&root, relative, flags, Mode::empty(), resolve) {
            // An old kernel: a link in the middle would be followed, still inside of the sandbox.
            Err(Errno::NOSYS) => openat(&root, relative, flags, Mode::empty()),
            opened => opened,
        }?;
        let id = id_of(&opened)?;
        Ok((opened, id))
    }

    fn relative(&self, place: &Place) -> PathBuf {
        self.relative_of_node(place.0).join(&*place.1)
    }

    fn relative_of_node(&self, wd: i32) -> PathBuf {
        let mut names: Vec<&OsStr> = Vec::new();
        let mut place = self.nodes.get(&wd).and_then(|node| node.place.as_ref());
        while let Some((parent, name)) = place {
            // Two directories can hold each other for a moment, when the queue lags behind two moves.
            if names.len() > self.nodes.len() {
                break;
            }
            names.push(name);
            place = self.nodes.get(parent).and_then(|node| node.place.as_ref());
        }
        names.iter().rev().collect()
    }

    fn absolute(&self, relative: &Path) -> PathBuf {
        Path::new(&self.shown).join(relative)
    }

    fn show(&self, relative: &Path) -> String {
        self.absolute(relative).to_string_lossy().into_owned()
    }

    fn path_of(&self, place: &Place) -> String {
        self.show(&self.relative(place))
    }
}

/// Opens the watched directory by its name.
///
/// # Errors
/// Those of the system; a link in its place is `NOTDIR`.
pub fn open_root(shown: &str) -> Result<(OwnedFd, DirectoryId), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(CWD, shown, flags, Mode::empty())?;
    let id = id_of(&root)?;
    Ok((root, id))
}

fn id_of(directory: &OwnedFd) -> Result<DirectoryId, Errno> {
    fstat(directory).map(|found| (found.st_dev, found.st_ino))
}

fn watched() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::MODIFY
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::ATTRIB
        | WatchFlags::EXCL_UNLINK
}

/// Watches exactly the directory that is open, whatever its name leads to by now.
fn add_watch(inotify: &OwnedFd, directory: &OwnedFd, path: &Path, flags: WatchFlags) -> Result<i32, Errno> {
    inotify::add_watch(inotify, readable_path(directory, path), flags | WatchFlags::ONLYDIR)
}

/// A name for an open directory; without `/proc` its path has to do.
fn readable_path(directory: &OwnedFd, path: &Path) -> PathBuf {
    let held = descriptor_path(directory);
    if held.exists() { held } else { path.to_owned() }
}

fn more_comes(inotify: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(inotify, PollFlags::IN)];
    poll(&mut fds, Some(&MOVE_WAIT)).is_ok_and(|ready| ready > 0)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP))
}

fn text(error: Errno) -> String {
    system_text(&error.into())
}

fn hint(error: Errno) -> &'static str {
    match error {
        Errno::NOSPC => " (the sandbox is at its limit of watches, fs.inotify.max_user_watches)",
        Errno::MFILE => " (the sandbox is at its limit of watchers, fs.inotify.max_user_instances)",
        _ => "",
    }
}
