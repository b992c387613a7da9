//! Directories opened without following a link.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// Opens a directory beneath `root` that no symbolic link leads to.
///
/// # Errors
/// `LOOP` for a link on the way, and those of the system.
pub fn open_directory(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(root, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS) => step_by_step(root, path, flags),
        opened => opened,
    }
}

/// The same for kernels and sandboxes without `openat2`: one component after the other.
fn step_by_step(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut current = openat(root, ".", flags, Mode::empty())?;
    for component in path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")) {
        if component == b".." {
            return Err(Errno::XDEV);
        }
        current = match openat(&current, component, flags | OFlags::NOFOLLOW, Mode::empty()) {
            // Linux says so of a link that is not followed, when a directory is asked for.
            Err(Errno::NOTDIR) if is_link(&current, component) => return Err(Errno::LOOP),
            opened => opened?,
        };
    }
    Ok(current)
}

fn is_link(parent: &OwnedFd, name: &[u8]) -> bool {
    rustix::fs::statat(parent, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|found| rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Symlink)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd;

    use rustix::fs::OFlags;
    use rustix::io::Errno;

    use super::{open_directory, step_by_step};

    #[test]
    fn both_ways_open_the_same_and_follow_no_link() {
        let top = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(top.path().join("a/b")).expect("a directory");
        fs::write(top.path().join("f"), "").expect("a file");
        std::os::unix::fs::symlink("a", top.path().join("link")).expect("a link");
        let root = File::open(top.path()).expect("the directory");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let cases = [
            ("a/b", None),
            (".", None),
            ("link", Some(Errno::LOOP)),
            ("link/b", Some(Errno::LOOP)),
            ("f", Some(Errno::NOTDIR)),
            ("f/x", Some(Errno::NOTDIR)),
            ("no", Some(Errno::NOENT)),
            ("..", Some(Errno::XDEV)),
        ];
        for (path, expected) in cases {
            assert_eq!(open_directory(root.as_fd(), path.as_bytes()).err(), expected, "{path}");
            assert_eq!(step_by_step(root.as_fd(), path.as_bytes(), flags).err(), expected, "{path}, step by step");
        }
    }
}
