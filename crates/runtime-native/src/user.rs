//! The image's `USER`, resolved in the sandbox's own `/etc/passwd` and `/etc/group`.
//!
//! Runs inside the sandbox's root, so a hostile file harms nobody but its own sandbox; it is bounded all the same.

use std::io::Read;
use std::os::fd::{BorrowedFd, OwnedFd};

use protocol::execd::boot::{BootConfig, BootUser};
use rustix::fs::{MemfdFlags, SeekFrom};

use crate::error::{Context, Failure, Kind, Result};

#[cfg(test)]
mod tests;

/// Most bytes read of a user database.
const DATABASE_BYTES: u64 = 1 << 20;
/// Most bytes of a boot configuration: the packet that announced it was smaller than its largest environment.
const BOOT_BYTES: u64 = 4 << 20;

/// Reads the boot configuration, fills the user in, and returns the new one as a memory file.
pub fn resolve_into(boot: BorrowedFd<'_>, user: &str) -> Result<OwnedFd> {
    let passwd = read_database("/etc/passwd");
    let group = read_database("/etc/group");
    let (identity, home) = resolve(user, &passwd, &group)?;
    rustix::fs::seek(boot, SeekFrom::Start(0)).op("rewind the boot configuration")?;
    let mut text = Vec::new();
    let file = std::fs::File::from(boot.try_clone_to_owned().op("duplicate the boot configuration")?);
    file.take(BOOT_BYTES).read_to_end(&mut text).op("read the boot configuration")?;
    let mut config: BootConfig =
        serde_json::from_slice(&text).map_err(|_| Failure::internal("the boot configuration is not valid"))?;
    config.user = Some(identity);
    if let Some(home) = home {
        config.env.entry("HOME".to_owned()).or_insert(home);
    }
    memory_file("boot", &serde_json::to_vec(&config).map_err(|_| Failure::internal("write the boot configuration"))?)
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

fn read_database(path: &str) -> String {
    let mut text = String::new();
    if let Ok(file) = std::fs::File::open(path) {
        // What cannot be read as text holds no user.
        let _ = file.take(DATABASE_BYTES).read_to_string(&mut text);
    }
    text
}

/// `user`, `uid`, `user:group`, `uid:gid` and the mixed forms; also the home directory where the user is known.
fn resolve(text: &str, passwd: &str, group: &str) -> Result<(BootUser, Option<String>)> {
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
    Ok((BootUser { uid, gid }, home.filter(|home| home.starts_with('/'))))
}
