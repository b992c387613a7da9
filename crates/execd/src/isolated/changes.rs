//! What a session changed in its overlays, and putting it into the directories below.
//!
//! The upper side stays as it is at a commit: afterwards both sides say the same, which is no difference. A commit can
//! therefore be repeated, and one that was cut off is completed by the next.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use protocol::execd::isolated::{Change, ChangeKind};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RawMode, Stat, Timespec, Timestamps, Uid, chownat, fchmod, fchown, futimens,
    mkdirat, mknodat, openat, readlinkat, renameat, symlinkat, unlinkat, utimensat,
};

use super::overlay::{Overlay, enter, is_opaque, is_whiteout, kind_of, look, names, open_file, same, same_attributes};
use crate::error::{ApiError, Result};
use crate::id;

/// Differences in one answer: more are a matter for an archive.
const MAX_CHANGES: usize = 200_000;
/// Directories in one another, each with two descriptors: what the frames of a walk and a removal need fits into
/// [`crate::blocking::DEEP_STACK_BYTES`].
const MAX_DEPTH: usize = 256;
/// Directory of execd's own in a workspace, which is nobody's change.
const OWN_NAME: &CStr = c".execd";

/// What is done with a difference.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is told.
    Tell,
    /// It is told and put into the directory below.
    Commit,
}

/// Walks all overlays of a session.
///
/// # Errors
/// The path at which it ended with the system's words; what was committed before stays.
pub fn walk(overlays: &[Overlay], action: Action) -> Result<Vec<Change>> {
    let mut walk = Walk { action, changes: Vec::new() };
    for overlay in overlays {
        let opened = enter(&overlay.upper, c".").and_then(|upper| Ok((upper, enter(&overlay.lower, c".")?)));
        let (upper, lower) = opened.map_err(|error| ApiError::io("open", &overlay.path, &error))?;
        walk.directory(&upper, Some(&lower), &overlay.path, 0)?;
    }
    Ok(walk.changes)
}

struct Walk {
    action: Action,
    changes: Vec<Change>,
}

impl Walk {
    /// Compares a directory of the upper side with the one below; without one, everything is new. With a commit there
    /// is always one below.
    fn directory(&mut self, upper: &OwnedFd, lower: Option<&OwnedFd>, path: &str, depth: usize) -> Result<()> {
        let failed = |error: io::Error| ApiError::io("compare", path, &error);
        if depth > MAX_DEPTH {
            return Err(ApiError::runtime(format!("{path}: more than {MAX_DEPTH} directories in one another")));
        }
        let ours = names(upper).map_err(failed)?;
        if let Some(lower) = lower.filter(|_| depth > 0 && is_opaque(upper)) {
            for name in names(lower).map_err(failed)?.iter().filter(|name| ours.binary_search(name).is_err()) {
                if let Some(theirs) = look(lower, name).map_err(failed)? {
                    self.deleted(lower, &theirs, name, &below(path, name))?;
                }
            }
        }
        for name in &ours {
            if depth == 0 && name.as_c_str() == OWN_NAME {
                continue;
            }
            let at = below(path, name);
            let failed = |error: io::Error| ApiError::io("compare", &at, &error);
            let Some(entry) = look(upper, name).map_err(failed)? else { continue };
            let theirs = lower.map(|lower| look(lower, name)).transpose().map_err(failed)?.flatten();
            match (kind_of(&entry), lower) {
                (FileType::Socket, _) => {}
                _ if is_whiteout(&entry) => {
                    if let (Some(lower), Some(theirs)) = (lower, theirs) {
                        self.deleted(lower, &theirs, name, &at)?;
                    }
                }
                (FileType::Directory, _) => self.subdirectory(upper, lower, name, (&entry, theirs), &at, depth)?,
                _ => self.file(upper, lower, name, (&entry, theirs), &at)?,
            }
        }
        Ok(())
    }

    fn subdirectory(
        &mut self,
        upper: &OwnedFd,
        lower: Option<&OwnedFd>,
        name: &CStr,
        (entry, theirs): (&Stat, Option<Stat>),
        at: &str,
        depth: usize,
    ) -> Result<()> {
        let failed = |error: io::Error| ApiError::io("compare", at, &error);
        let there = theirs.filter(|theirs| kind_of(theirs) == FileType::Directory);
        let is_other = !there.is_some_and(|there| same_attributes(entry, &there));
        if is_other {
            let change = if theirs.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
            self.tell(at, change, entry)?;
        }
        let ours = enter(upper, name).map_err(failed)?;
        let mut inner = None;
        if let Some(lower) = lower {
            if self.action == Action::Commit && there.is_none() {
                let made = theirs
                    .map_or(Ok(()), |theirs| remove(lower, &theirs, name, 0))
                    .and_then(|()| mkdirat(lower, name, Mode::from_raw_mode(0o700)).map_err(io::Error::from));
                made.map_err(|error| ApiError::io("commit", at, &error))?;
            }
            if there.is_some() || self.action == Action::Commit {
                inner = Some(enter(lower, name).map_err(failed)?);
            }
        }
        self.directory(&ours, inner.as_ref(), at, depth + 1)?;
        if let Some(inner) = inner.filter(|_| self.action == Action::Commit && is_other) {
            // Last, so that a mode without write permission does not hinder what is below.
            dress(&inner, entry).map_err(|error| ApiError::io("commit", at, &error))?;
        }
        Ok(())
    }

    fn file(
        &mut self,
        upper: &OwnedFd,
        lower: Option<&OwnedFd>,
        name: &CStr,
        (entry, theirs): (&Stat, Option<Stat>),
        at: &str,
    ) -> Result<()> {
        let change = match (theirs, lower) {
            (Some(theirs), Some(lower)) if kind_of(&theirs) == kind_of(entry) => {
                let same = same(upper, entry, lower, &theirs, name);
                if same.map_err(|error| ApiError::io("compare", at, &error))? {
                    return Ok(());
                }
                ChangeKind::Modified
            }
            (Some(_), _) => ChangeKind::Modified,
            (None, _) => ChangeKind::Added,
        };
        self.tell(at, change, entry)?;
        if let Some(lower) = lower.filter(|_| self.action == Action::Commit) {
            let directory = theirs.filter(|theirs| kind_of(theirs) == FileType::Directory);
            let put = directory
                .map_or(Ok(()), |theirs| remove(lower, &theirs, name, 0))
                .and_then(|()| put(upper, entry, lower, name));
            put.map_err(|error| ApiError::io("commit", at, &error))?;
        }
        Ok(())
    }

    fn deleted(&mut self, lower: &OwnedFd, theirs: &Stat, name: &CStr, at: &str) -> Result<()> {
        self.tell(at, ChangeKind::Deleted, theirs)?;
        if self.action == Action::Commit {
            remove(lower, theirs, name, 0).map_err(|error| ApiError::io("commit", at, &error))?;
        }
        Ok(())
    }

    fn tell(&mut self, path: &str, change: ChangeKind, stat: &Stat) -> Result<()> {
        if self.changes.len() >= MAX_CHANGES {
            return Err(ApiError::runtime(format!(
                "there are more than {MAX_CHANGES} differences; take the workspace as an archive instead"
            )));
        }
        let kind = kind_of(stat);
        let word = match kind {
            FileType::RegularFile => "file",
            FileType::Directory => "directory",
            FileType::Symlink => "symlink",
            _ => "other",
        };
        let size = (kind == FileType::RegularFile).then_some(stat.st_size as u64);
        self.changes.push(Change { path: path.to_owned(), change, kind: word.to_owned(), size });
        Ok(())
    }
}

fn below(path: &str, name: &CStr) -> String {
    format!("{path}/{}", name.to_string_lossy())
}

/// Removes an entry with everything below it.
fn remove(directory: &OwnedFd, stat: &Stat, name: &CStr, depth: usize) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other(format!("more than {MAX_DEPTH} directories in one another")));
    }
    if kind_of(stat) != FileType::Directory {
        return Ok(unlinkat(directory, name, AtFlags::empty())?);
    }
    let inner = enter(directory, name)?;
    for name in names(&inner)? {
        if let Some(stat) = look(&inner, &name)? {
            remove(&inner, &stat, &name, depth + 1)?;
        }
    }
    Ok(unlinkat(directory, name, AtFlags::REMOVEDIR)?)
}

/// Puts a file, link or pipe below, under another name first, so that nobody sees half of it.
fn put(upper: &OwnedFd, entry: &Stat, lower: &OwnedFd, name: &CStr) -> io::Result<()> {
    let temporary = CString::new(format!(".execd-commit-{}", id::hex()))?;
    let made = make(upper, entry, lower, name, &temporary)
        .and_then(|()| renameat(lower, &temporary, lower, name).map_err(io::Error::from));
    if made.is_err() {
        let _ = unlinkat(lower, &temporary, AtFlags::empty()); // the first error counts
    }
    made
}

fn make(upper: &OwnedFd, entry: &Stat, lower: &OwnedFd, name: &CStr, temporary: &CStr) -> io::Result<()> {
    match kind_of(entry) {
        FileType::RegularFile => {
            let from = open_file(upper, name)?;
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut to = File::from(openat(lower, temporary, flags, Mode::from_raw_mode(0o600))?);
            // A run in the background may go on writing: what it had then is committed.
            io::copy(&mut from.take(entry.st_size as u64), &mut to)?;
            dress(&to, entry)
        }
        FileType::Symlink => {
            symlinkat(readlinkat(upper, name, Vec::new())?, lower, temporary)?;
            let (uid, gid) = (Uid::from_raw(entry.st_uid), Gid::from_raw(entry.st_gid));
            chownat(lower, temporary, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(utimensat(lower, temporary, &times(entry), AtFlags::SYMLINK_NOFOLLOW)?)
        }
        FileType::Fifo => {
            mknodat(lower, temporary, FileType::Fifo, Mode::from_raw_mode(entry.st_mode as RawMode & 0o7777), 0)?;
            let (uid, gid) = (Uid::from_raw(entry.st_uid), Gid::from_raw(entry.st_gid));
            Ok(chownat(lower, temporary, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
        }
        _ => Err(io::Error::other("is neither a file, a directory, a link nor a pipe")),
    }
}

/// Gives owner, mode and times. The owner first: a change of it takes the set-user-id bit away.
fn dress(file: impl AsFd, entry: &Stat) -> io::Result<()> {
    fchown(&file, Some(Uid::from_raw(entry.st_uid)), Some(Gid::from_raw(entry.st_gid)))?;
    fchmod(&file, Mode::from_raw_mode(entry.st_mode as RawMode & 0o7777))?;
    Ok(futimens(&file, &times(entry))?)
}

fn times(entry: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds as _, tv_nsec: nanoseconds as _ };
    Timestamps {
        last_access: time(entry.st_atime, entry.st_atime_nsec),
        last_modification: time(entry.st_mtime, entry.st_mtime_nsec),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;

    use super::{Action, MAX_DEPTH, walk};
    use crate::blocking::DEEP_STACK_BYTES;
    use crate::isolated::overlay::Overlay;

    /// Directories in one another, made from the inside out because a path of them all would be too long.
    fn nest(at: &Path, depth: usize) {
        let spare = at.with_extension("spare");
        fs::create_dir(at).expect("a directory");
        for _ in 1..depth {
            fs::rename(at, &spare).expect("aside");
            fs::create_dir(at).expect("a directory");
            fs::rename(&spare, at.join("d")).expect("inside");
        }
    }

    /// What a walk of such a workspace gives, on a stack as the calls have it.
    fn walked(make: impl FnOnce(&Path, &Path)) -> Result<usize, String> {
        let place = tempfile::tempdir().expect("a directory");
        let sides = ["upper", "lower"].map(|name| place.path().join(name));
        sides.iter().for_each(|side| fs::create_dir(side).expect("a directory"));
        make(&sides[0], &sides[1]);
        let [upper, lower] = sides.map(|side| File::open(side).expect("a directory").into());
        let overlays = [Overlay { path: "/w".into(), upper, lower }];
        let thread = std::thread::Builder::new().stack_size(DEEP_STACK_BYTES);
        let walked = thread.spawn(move || walk(&overlays, Action::Commit)).expect("a thread").join().expect("no panic");
        walked.map(|changes| changes.len()).map_err(|error| error.message)
    }

    #[test]
    fn deep_trees_are_walked_and_removed_up_to_the_bound() {
        assert_eq!(walked(|upper, _| nest(&upper.join("a"), MAX_DEPTH)), Ok(MAX_DEPTH));
        let deeper = walked(|upper, _| nest(&upper.join("a"), MAX_DEPTH + 1)).expect_err("too deep");
        assert!(deeper.contains("256 directories"), "{deeper}");
        let replaced = |depth| {
            walked(move |upper, lower| {
                nest(&lower.join("a"), depth);
                fs::write(upper.join("a"), "a file now").expect("a file");
            })
        };
        assert_eq!(replaced(MAX_DEPTH), Ok(1));
        let deeper = replaced(MAX_DEPTH + 2).expect_err("too deep");
        assert!(deeper.contains("256 directories"), "{deeper}");
    }
}
