//! The image's `USER`, resolved in the sandbox's own `/etc/passwd` and `/etc/group`.
//!
//! Runs inside the sandbox's root, so a hostile file harms nobody but its own sandbox; it is bounded all the same.

use std::io::Read;
use std::os::fd::OwnedFd;

use protocol::execd::boot::{BootConfig, BootUser};
use rustix::fs::{MemfdFlags, Mode, OFlags, ResolveFlags, SeekFrom};
use serde::{Deserialize, Serialize};

use crate::error::{Context, Failure, Kind, Result};

#[cfg(test)]
mod tests;

/// Most bytes read of a user database.
const DATABASE_BYTES: u64 = 1 << 20;

/// Who the image's `USER` is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The ids.
    pub user: BootUser,
    /// The home directory, where the user is known.
    pub home: Option<String>,
}

/// Looks the user up beneath this root, whose links lead nowhere else.
pub fn look_up(user: &str, root: &OwnedFd) -> Result<Identity> {
    resolve(user, &read_database(root, "etc/passwd"), &read_database(root, "etc/group"))
}

/// Fills the identity into a boot configuration.
pub fn fill_in(boot: &[u8], identity: Identity) -> Result<Vec<u8>> {
    let mut config: BootConfig =
        serde_json::from_slice(boot).map_err(|_| Failure::internal("the boot configuration is not valid"))?;
    config.user = Some(identity.user);
    if let Some(home) = identity.home {
        config.env.entry("HOME".to_owned()).or_insert(home);
    }
    serde_json::to_vec(&config).map_err(|_| Failure::internal("write the boot configuration"))
}

/// A memory file with this content, read from its start.
pub fn memory_file(name: &str, bytes: &[u8]) -> Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).op("make a memory file")?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::write(&fd, rest).op("write a memory file")?;
        rest = &rest[written..];
    }
    rustix::fs::seek(&fd, SeekFrom::Start(0)).op("rewind a memory file")?;
    Ok(fd)
}

fn read_database(root: &OwnedFd, path: &str) -> String {
    let mut text = String::new();
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::openat2(root, path, flags, Mode::empty(), resolve).map(std::fs::File::from) {
        // What cannot be read as text holds no user.
        let _ = file.take(DATABASE_BYTES).read_to_string(&mut text);
    }
    text
}

/// `user`, `uid`, `user:group`, `uid:gid` and the mixed forms; also the home directory where the user is known.
fn resolve(text: &str, passwd: &str, group: &str) -> Result<Identity> {
    let (user, wanted_group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let unknown = |what: &str, name: &str| {
        Failure::new(Kind::Image, format!("the image's USER names the {what} \"{name}\", which its /etc does not know"))
    };
    let entry = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let numbers = (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?);
        Some((fields[0].to_owned(), numbers, fields.get(5).map(|home| (*home).to_owned())))
    };
    let number: Option<u32> = user.parse().ok();
    let known = passwd.lines().filter_map(entry).find(|(name, (uid, _gid), _)| {
        let _: &u32 = _gid;
        name == user || number == Some(*uid)
    });
    let (uid, own_gid, home) = match (known, number) {
        (Some((_, (uid, gid), home)), _) => (uid, gid, home),
        (None, Some(uid)) => (uid, 0, None),
        (None, None) => return Err(unknown("user", user)),
    };
    let gid = match wanted_group {
        None => own_gid,
        Some(name) => match name.parse() {
            Ok(gid) => gid,
            Err(_) => {
                let found = group.lines().find_map(|line| {
                    let mut fields = line.split(':');
                    (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
                });
                found.ok_or_else(|| unknown("group", name))?
            }
        },
    };
    Ok(Identity { user: BootUser { uid, gid }, home: home.filter(|home| home.starts_with('/')) })
}
