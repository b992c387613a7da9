//! Inner nodes of version 2: a group that passes controllers down may hold no process itself.
//!
//! Only the machine's real root is free of that rule. Anywhere else, in a container or in a group that was delegated to
//! a user, our own processes first move into a leaf beside the sandboxes, and back when the last of them is gone.
//! Processes of other programs are never moved: whoever put them there did not ask for it.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rustix::process::Pid;

use super::files::{make, processes, write};
use crate::error::{Context, Failure, Kind, Result};

/// Where our own processes sit beneath the group that passes controllers down.
pub const LEAF: &str = "osb-main";
/// Attempts to empty the group: the supervisor may fork the API process between two looks, but is then moved itself.
const ROUNDS: usize = 8;

/// Passes controllers from `base` to its children, moving our processes out of the way where that is needed.
///
/// # Errors
/// Processes of other programs are in it, or the kernel refuses.
pub fn pass_down(base: &Path, controllers: &[&str]) -> Result<()> {
    for _ in 0..ROUNDS {
        match enable(base, controllers) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => clear(base)?,
            other => return other.op(format!("pass controllers down in {}", base.display())),
        }
    }
    Err(Failure::internal(format!("processes keep appearing in {}", base.display())))
}

/// Writes `cgroup.subtree_control`.
pub fn enable(group: &Path, controllers: &[&str]) -> std::io::Result<()> {
    let words: Vec<String> = controllers.iter().map(|name| format!("+{name}")).collect();
    fs::write(group.join("cgroup.subtree_control"), words.join(" "))
}

fn clear(base: &Path) -> Result<()> {
    only_ours(base)?;
    let leaf = base.join(LEAF);
    make(&leaf)?;
    move_all(base, &leaf)
}

fn move_all(from: &Path, to: &Path) -> Result<()> {
    for pid in processes(from) {
        let moved = write(&to.join("cgroup.procs"), &pid.as_raw_nonzero().to_string());
        // One that ended meanwhile need not be moved.
        if is_there(pid) {
            moved?;
        }
    }
    Ok(())
}

/// Fails when a process of another program sits directly in the group.
pub fn only_ours(group: &Path) -> Result<()> {
    let own = name_of("self");
    for pid in processes(group) {
        let name = name_of(&pid.as_raw_nonzero().to_string());
        if is_there(pid) && name != own {
            let name = name.unwrap_or_default();
            let (pid, group) = (pid.as_raw_nonzero(), group.display());
            let message = format!("process {pid} ({}) is in {group} too; start osb in a group of its own", name.trim());
            return Err(Failure::new(Kind::Unsupported, message));
        }
    }
    Ok(())
}

/// Undoes [`pass_down`] when nothing but our leaf is left beneath `base`. Best effort: what stays is found again by the
/// next start, and goes with the group.
pub fn give_back(base: &Path, controllers: &[&str]) {
    let leaf = base.join(LEAF);
    let children = fs::read_dir(base).into_iter().flatten().flatten();
    let mut directories = children.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    if !leaf.exists() || directories.any(|entry| entry.file_name() != LEAF) {
        return;
    }
    let words: Vec<String> = controllers.iter().map(|name| format!("-{name}")).collect();
    let _ = fs::write(base.join("cgroup.subtree_control"), words.join(" "));
    let _ = move_all(&leaf, base);
    let _ = fs::remove_dir(&leaf);
}

fn name_of(process: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{process}/comm")).ok()
}

fn is_there(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}
