//! What a call does, in words that are the same for every sandbox.

use std::path::Path;

use nix::libc;

use super::Effect;
use super::call::{Call, Made};
use super::memory;

/// What is known of the process that makes the call.
pub(super) struct Actor<'a> {
    pub(super) thread: i32,
    pub(super) role: &'a str,
    /// The server's data directory.
    pub(super) data: &'a str,
    /// What the clients do meanwhile.
    pub(super) section: &'a str,
}

/// Characters of a text written to a control group that belong to its kind: `FROZEN` and `THAWED` differ.
const WORD_BYTES: usize = 12;
/// A component of a path that is this long and has only these characters is an id.
const ID_BYTES: usize = 16;

impl Actor<'_> {
    /// The kind of effect of a call, if it has one that outlives the process or that others see.
    pub(super) fn effect(&self, made: &Made) -> Option<Effect> {
        let arguments = &made.arguments;
        let directory = |at: Option<usize>| at.map(|at| arguments[at] as i32);
        let path = |dir: Option<usize>, at: usize| {
            let path = memory::resolve(self.thread, directory(dir), &memory::text(self.thread, arguments[at]))?;
            self.place(&path)
        };
        let what = match made.call {
            Call::Name { name, directory, path: at } => format!("{name} {}", path(directory, at)?),
            Call::Open { directory, path: at, flags } => {
                let flags = arguments[flags] as i32;
                if flags & libc::O_CREAT == 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE {
                    return None;
                }
                let name = memory::text(self.thread, arguments[at]);
                let resolved = memory::resolve(self.thread, directory.map(|at| arguments[at] as i32), &name)?;
                if Path::new(&resolved).exists() {
                    return None;
                }
                format!("create {}", self.place(&resolved)?)
            }
            Call::Write { name } => {
                let file = memory::file(self.thread, arguments[0] as i32)?;
                let place = self.place(&file)?;
                if file.starts_with(GROUPS) {
                    let length = WORD_BYTES.min(arguments[2] as usize);
                    let text = memory::bytes(self.thread, arguments[1], length);
                    format!("{name} {place} {}", word(&String::from_utf8_lossy(&text)))
                } else if is_database(&place) {
                    format!("{name} {place}")
                } else {
                    // Seen by nobody before the file gets its name, or by nobody that relies on it.
                    return None;
                }
            }
            Call::File { name: "ioctl" } => {
                let file = memory::file(self.thread, arguments[0] as i32)?;
                if !file.starts_with("/dev/loop") {
                    return None;
                }
                format!("ioctl {} {:x}", word(&file), arguments[1])
            }
            Call::File { name } => {
                let place = self.place(&memory::file(self.thread, arguments[0] as i32)?)?;
                if !is_database(&place) {
                    return None;
                }
                format!("{name} {place}")
            }
            Call::Bind => {
                let address = memory::bytes(self.thread, arguments[1], (arguments[2] as usize).min(110));
                let (family, path) = address.split_at_checked(2)?;
                if i32::from(u16::from_ne_bytes([family[0], family[1]])) != libc::AF_UNIX {
                    return None;
                }
                let text = String::from_utf8_lossy(path.split(|byte| *byte == 0).next()?).into_owned();
                format!("bind {}", self.place(&memory::resolve(self.thread, None, &text)?)?)
            }
            Call::Clone if arguments[0] & libc::CLONE_THREAD as u64 != 0 => return None,
            Call::Clone => "clone".to_owned(),
            // Threads are made by this call too, and their flags lie in memory.
            Call::Other { name: "clone" } => {
                let flags = memory::bytes(self.thread, arguments[0], 8);
                let flags = u64::from_ne_bytes(flags.try_into().ok()?);
                if flags & libc::CLONE_THREAD as u64 != 0 {
                    return None;
                }
                "clone".to_owned()
            }
            Call::Other { name } => name.to_owned(),
        };
        // These two do everybody's work; the others one thing, which their paths tell.
        let section = match self.role {
            "api" | "jailer" => format!(" @{}", self.section),
            _ => String::new(),
        };
        Some(Effect(format!("{} {what}{section}", self.role)))
    }

    /// A path in words that every sandbox shares; `None` if it is none of the server's.
    fn place(&self, path: &str) -> Option<String> {
        let words = |text: &str| text.split('/').map(word).collect::<Vec<_>>().join("/");
        if let Some(rest) = path.strip_prefix(self.data) {
            return Some(format!("data{}", words(rest)));
        }
        if let Some(rest) = path.strip_prefix(GROUPS) {
            // The first component is a hierarchy of version 1: what is done in one is done in all.
            let rest = rest.split_once('/').map_or("", |(_, rest)| rest);
            return Some(format!("cgroup/{}", words(rest)));
        }
        path.starts_with("/run/osb/").then(|| words(path))
    }
}

/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup/";

fn is_database(place: &str) -> bool {
    place.contains(".db")
}

/// A component without what differs from sandbox to sandbox.
fn word(component: &str) -> String {
    let is_id =
        |text: &str| text.len() >= ID_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let (stem, end) = component.split_once('.').unwrap_or((component, ""));
    if is_id(stem) {
        return if end.is_empty() { "ID".to_owned() } else { format!("ID.{end}") };
    }
    if let Some(hex) = component.strip_prefix("osb-")
        && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        return "osb-H".to_owned();
    }
    let mut plain = String::new();
    for character in component.trim().chars() {
        match character {
            '0'..='9' if plain.ends_with('N') => {}
            '0'..='9' => plain.push('N'),
            _ if character.is_whitespace() || character.is_control() => plain.push('_'),
            _ => plain.push(character),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::word;

    #[test]
    fn ids_and_numbers_are_left_out() {
        assert_eq!(word("0190c5a0-1f2e-7aaa-8888-0123456789ab"), "ID");
        assert_eq!(word("0190c5a01f2e7aaa88880123456789ab.json"), "ID.json");
        assert_eq!(word("osb-0123456789ab"), "osb-H");
        assert_eq!(word("seat-123-7"), "seat-N-N");
        assert_eq!(word("exit.json"), "exit.json");
        assert_eq!(word("FROZEN\n"), "FROZEN");
    }
}
