//! What `/proc` says about other processes.

use std::fs;

use rustix::process::Pid;

/// One running process.
pub struct Entry {
    /// Its id.
    pub pid: Pid,
    /// The group it belongs to.
    pub group: i32,
    /// Its parent; 0 where that is outside.
    pub parent: i32,
}

/// All processes that still run; zombies are not among them. `None` without a `/proc`.
pub fn running() -> Option<impl Iterator<Item = Entry>> {
    let entries = fs::read_dir("/proc").ok()?;
    Some(entries.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        let pid = Pid::from_raw(name.to_str()?.parse().ok()?)?;
        look_at(pid)
    }))
}

/// One process; `None` when it is gone or a zombie.
pub fn look_at(pid: Pid) -> Option<Entry> {
    let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (parent, group) = relatives(&stat)?;
    Some(Entry { pid, group, parent })
}

/// Whether a process group has a member that is not a zombie; true where nobody can say.
pub fn group_lives(group: Pid) -> bool {
    let number = group.as_raw_nonzero().get();
    running().is_none_or(|mut entries| entries.any(|entry| entry.group == number))
}

/// Parent and group in a `stat` line; `None` for zombies. The program's name may hold anything, `)` included.
fn relatives(stat: &[u8]) -> Option<(i32, i32)> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::relatives;

    #[test]
    fn a_name_with_brackets_does_not_hide_the_group() {
        assert_eq!(relatives(b"12 (a) Z (b) S 1 77 77 0 -1"), Some((1, 77)));
    }

    #[test]
    fn a_zombie_belongs_to_no_living_group() {
        assert_eq!(relatives(b"12 (sh) Z 1 77 77 0 -1"), None);
    }
}
